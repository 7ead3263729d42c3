package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// trainedExport trains without a cluster and returns the directory of the exported model and its file of examples.
func trainedExport(t *testing.T) (dir, data string) {
	t.Helper()
	in := t.TempDir()
	dir, data = filepath.Join(in, "model"), filepath.Join(in, "clicks.csv")
	schema := filepath.Join(in, "clicks.yaml")
	if _, code, err := command(t, "gen", "--out", data, "--schema", schema, "--examples", "1000", "--keys",
		"50"); code != 0 {
		t.Fatal(err)
	}
	job := file(t, "job.yaml", "job: test\nbatch: 100\nmodel: {kind: fm, dim: 4}\n")
	if _, code, err := command(t, "train", "--local", "--config", job, "--data", data, "--schema", schema, "--progress",
		"none", "--export", dir); code != 0 {
		t.Fatal(err)
	}
	return dir, data
}

// TestPredictFromAnExport: train --export, then predict --from and evaluate --from, without a cluster.
func TestPredictFromAnExport(t *testing.T) {
	dir, data := trainedExport(t)
	scores, result := filepath.Join(t.TempDir(), "scores.txt"), filepath.Join(t.TempDir(), "r.json")
	if _, code, err := command(t, "predict", "--from", dir, "--data", data, "--out", scores); code != 0 {
		t.Fatal(err)
	}
	text, err := os.ReadFile(scores)
	if err != nil || strings.Count(string(text), "\n") != 1000 {
		t.Errorf("%d scores, %v", strings.Count(string(text), "\n"), err)
	}
	if _, code, err := command(t, "evaluate", "--from", dir, "--data", data, "--json", result); code != 0 {
		t.Fatal(err)
	}
	var r struct {
		HeldExamples int     `json:"held_examples"`
		AUC          float64 `json:"auc"`
	}
	if text, err = os.ReadFile(result); err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || r.HeldExamples != 1000 || !(r.AUC > 0.55) {
		t.Errorf("result %s, %v", text, err)
	}
}

func TestExportUsageErrors(t *testing.T) {
	job := file(t, "job.yaml", "generator: {}\n")
	there := t.TempDir()
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"nowhere", []string{"export", "--config", job, "--endpoints", "127.0.0.1:1", "--insecure"}, "--to is required"},
		{"no cluster", []string{"export", "--config", job, "--to", "x"}, "give --endpoints"},
		{"train to a directory that exists", []string{"train", "--local", "--config", job, "--export", there}, "it exists"},
		{"from and a job", []string{"predict", "--from", there, "--config", job, "--data", job}, "remove --config"},
		{"no such checkpoint", []string{"export", "--config", job, "--to", "x", "--checkpoint", there + "/none"}, "none"},
		{"not an export", []string{"predict", "--from", there, "--data", job}, "no model.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, code, err := command(t, tc.args...)
			if code == 0 || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("code %d, %v; want %q", code, err, tc.want)
			}
		})
	}
}
