package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// The rules of PyTorch and of the papers give the weights of rowraft in a small job. The test needs torch.
func TestCompare(t *testing.T) {
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import torch").Run(); err != nil {
		t.Skipf("%s -c 'import torch': %v: apt-get install python3-torch", python, err)
	}
	job := filepath.Join(t.TempDir(), "job.yaml")
	text := "job: small\nbatch: 64\nmodel: {dim: 8, bottom: [16], top: [16]}\n" +
		"generator: {examples: 1000, held: 500, categorical: 4, dense: 2, keys: 50}\n"
	if err := os.WriteFile(job, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var table, progress bytes.Buffer
	if err := run(job, 2, python, &table, &progress); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	equal := []string{"SGD", "Adagrad, our constants", "the rule of FBGEMM", "Algorithm 1", "the rule of rowraft"}
	line := regexp.MustCompile(`\| ([^|]+) \| [^|]+ \| (\S+) \| (\S+) \|\n`)
	found := 0
	for _, m := range line.FindAllStringSubmatch(table.String(), -1) {
		if !slices.Contains(equal, m[1]) {
			continue
		}
		found++
		for _, number := range m[2:] {
			var difference float64
			if _, err := fmt.Sscan(number, &difference); err != nil || difference > 1e-4 {
				t.Errorf("%s: a difference of %s, want at most 1e-4", m[1], number)
			}
		}
	}
	if found != 8 { // SGD twice, the rule of rowraft three times
		t.Errorf("%d lines of rules that are equal, want 8, in\n%s", found, table.String())
	}
}
