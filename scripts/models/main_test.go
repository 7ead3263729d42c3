package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer"
)

const folder = "../../../shared/data"

// One seed of each model whose AUC is published reaches it. The table in docs/training.md has five.
func TestPublished(t *testing.T) {
	if _, err := os.Stat(folder); err != nil {
		t.Skipf("%s is absent: nothing to compare with", folder)
	}
	for _, s := range sets {
		for _, task := range s.tasks {
			if task.AtLeast == 0 {
				continue
			}
			t.Run(s.name+"/"+task.Kind, func(t *testing.T) {
				cfg := trainer.DefaultConfig()
				if err := s.open(folder, t.TempDir(), &cfg); err != nil {
					t.Fatal(err)
				}
				if auc, err := task.train(s, cfg, 1); err != nil || !(auc >= task.AtLeast) {
					t.Errorf("AUC %.4f, %v, want at least %v", auc, err, task.AtLeast)
				}
			})
		}
	}
}

// The models of PyTorch learn as well as those of rowraft: they are the same models. The test needs torch.
func TestCompare(t *testing.T) {
	const python = "/usr/bin/python3"
	if _, err := os.Stat(folder); err != nil {
		t.Skipf("%s is absent: nothing to compare with", folder)
	}
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		t.Skipf("%s -c 'import torch': %v: apt-get install python3-torch", python, err)
	}
	s := sets[slices.IndexFunc(sets, func(s set) bool { return s.name == "criteo" })]
	s.tasks = slices.DeleteFunc(slices.Clone(s.tasks), func(t task) bool { return t.Kind == "dcn" }) // the slowest
	var table bytes.Buffer
	if err := run(s, folder, 2, python, &table, io.Discard); err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`\| criteo \| .* \| ([-+]\S+) \|\n`).FindAllStringSubmatch(table.String(), -1)
	if len(lines) != len(s.tasks) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(s.tasks), table.String())
	}
	for _, l := range lines {
		if d := strings.TrimLeft(l[1], "+-"); d > "0.0200" {
			t.Errorf("a difference of %s: %s", l[1], l[0])
		}
	}
}
