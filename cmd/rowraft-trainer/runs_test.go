package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/runs"
)

// listed is what runs -o json prints.
type listed struct {
	Runs []runJSON `json:"runs"`
}

func listRuns(t *testing.T, dir string) []runJSON {
	t.Helper()
	out, code, err := command(t, "runs", "--runs", dir, "-o", "json")
	var l listed
	if code != 0 || json.Unmarshal([]byte(out), &l) != nil {
		t.Fatalf("code %d, %v: %s", code, err, out)
	}
	return l.Runs
}

func TestRunsAreListedComparedDrawnAndRemoved(t *testing.T) {
	config, dir := file(t, "job.yaml", sweepJob+"runs: records\n"), t.TempDir()
	for _, args := range [][]string{{"--set", "model.dim=2"}, {"--set", "embeddings.lr=0.2"}} {
		_, code, err := command(t, append([]string{"train", "--config", config, "--local", "--progress", "none", "--json",
			filepath.Join(dir, "result.json"), "--runs", dir}, args...)...)
		if code != 0 {
			t.Fatal(err)
		}
	}
	all := listRuns(t, dir)
	if len(all) != 2 || all[0].State != runs.Finished || all[1].Set["embeddings.lr"] != "0.2" || all[1].Batches != 32 ||
		all[1].Result == nil || all[1].Result.HeldExamples != 500 || all[0].Fingerprint == all[1].Fingerprint {
		t.Fatalf("runs %+v", all)
	}
	a, b := all[0].Run, all[1].Run
	out, _, _ := command(t, "runs", "list", "--runs", dir)
	for line := range strings.Lines(out) {
		if len([]rune(line)) > cli.TableWidth+1 {
			t.Errorf("a line of %d characters: %s", len([]rune(line)), line)
		}
	}
	if !strings.Contains(out, "embeddings.lr=0.2") || !strings.Contains(out, "finished") {
		t.Errorf("list:\n%s", out)
	}
	out, code, err := command(t, "runs", "compare", a, b, "--runs", dir)
	if code != 0 || !strings.Contains(out, "model.dim") || !strings.Contains(out, "held-out AUC") ||
		strings.Contains(out, "in_flight") {
		t.Errorf("compare: code %d, %v\n%s", code, err, out)
	}
	page := filepath.Join(dir, "both.html")
	if out, code, err = command(t, "runs", "page", a, b, "--runs", dir, "-o", page); code != 0 ||
		strings.TrimSpace(out) != page {
		t.Errorf("page: code %d, %v, %q", code, err, out)
	}
	if text, err := os.ReadFile(page); err != nil || strings.Count(string(text), "<details") != 2 {
		t.Errorf("page %v: want the details of two runs", err)
	}
	if _, err := os.Stat(filepath.Join(dir, a, runs.PageName)); err != nil {
		t.Errorf("train has written no page: %v", err)
	}

	if _, code, err = command(t, "runs", "remove", a, "--runs", dir); code != 2 { // standard input is empty
		t.Errorf("remove without an answer: code %d, %v, want 2", code, err)
	}
	root := newRoot()
	var asked strings.Builder
	root.SetErr(&asked)
	root.SetIn(strings.NewReader("2\n"))
	root.SetArgs([]string{"runs", "remove", a, b, "--runs", dir})
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(asked.String(), filepath.Join(dir, a)+": 2 files, ") {
		t.Errorf("it asked %q", asked.String())
	}
	if left := listRuns(t, dir); len(left) != 0 {
		t.Errorf("left %+v", left)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"runs", "compare", a}, "want the names of 2 runs or more"},
		{[]string{"runs", "page"}, "want the names of 1 run or more"},
		{[]string{"runs", "page", a}, "has no run"},
		{[]string{"runs", "lsit"}, `unexpected argument "lsit"`},
		{[]string{"runs", "-o", "xml"}, `output format "xml"`},
	} {
		_, code, err := command(t, append(tc.args, "--runs", dir)...)
		if code != 2 || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: code %d, %v; want 2 and %q", tc.args, code, err, tc.want)
		}
	}
}

// A job writes no record unless it is asked to, and the folder in a job's file is relative to the file.
func TestWhereRecordsAre(t *testing.T) {
	t.Chdir(t.TempDir())
	config := file(t, "job.yaml", sweepJob)
	train := func(args ...string) {
		t.Helper()
		if _, code, err := command(t, append([]string{"train", "--config", config, "--local", "--progress", "none"},
			args...)...); code != 0 {
			t.Fatal(err)
		}
	}
	train()
	for _, dir := range []string{".", filepath.Dir(config)} {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 {
			t.Errorf("a job without runs writes %v", entries)
		}
	}
	if err := os.WriteFile(config, []byte(sweepJob+"runs: records\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	train()
	if all := listRuns(t, filepath.Join(filepath.Dir(config), "records")); len(all) != 1 {
		t.Errorf("%d runs next to the job's file, want 1", len(all))
	}
	t.Setenv("ROWRAFT_RUNS", "elsewhere")
	train()
	if all := listRuns(t, "elsewhere"); len(all) != 1 {
		t.Errorf("%d runs in the folder of the variable, want 1", len(all))
	}
	if _, code, err := command(t, "train", "--config", config, "--local", "--runs", config); code != 2 ||
		!strings.Contains(err.Error(), "--runs "+config) {
		t.Errorf("a file as the folder: code %d, %v; want 2", code, err)
	}
}

// The trainers of a job record one run, and a run that cannot train is recorded as failed.
func TestTrainersOfAJobShareARun(t *testing.T) {
	addr, dir := serve(t, 2), t.TempDir()
	config := file(t, "job.yaml", sweepJob+"trainers: 2\nmode: sync\n")
	var both sync.WaitGroup
	for _, rank := range []string{"0", "1"} {
		both.Go(func() {
			train(t, new(options), "--config", config, "--endpoints", addr, "--insecure", "--rank", rank, "--runs", dir)
		})
	}
	both.Wait()
	all := listRuns(t, dir)
	if len(all) != 1 || len(all[0].Trainers) != 2 || all[0].State != runs.Finished || all[0].Examples != 2000 {
		t.Fatalf("runs %+v, want one with two trainers and 2000 examples", all)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := newJobCommandOf(new(options))
	cmd.SetArgs([]string{"--config", config, "--trainers", "1", "--local", "--runs", dir, "--progress", "none"})
	if err := cmd.ExecuteContext(interrupted); cli.ExitCode(interrupted, err) != 130 {
		t.Errorf("%v, want an interrupted run", err)
	}
	if all := listRuns(t, dir); len(all) != 2 || all[1].State != runs.Interrupted {
		t.Errorf("runs %+v, want an interrupted one", all)
	}
}
