package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/runs"
)

// sweepJob is a small job for sweeps.
const sweepJob = "job: tiny\nbatch: 64\nin_flight: 0\ndevice: cpu\n" +
	"generator: {examples: 2000, held: 500, keys: 50, categorical: 3, dense: 2}\nmodel: {dim: 4, bottom: [8], top: [8]}\n"

// ranking is what sweep -o json prints.
type ranking struct {
	Schema string       `json:"schema"`
	Runs   []rankedJSON `json:"runs"`
}

func rankingOf(t *testing.T, text string) (r ranking) {
	t.Helper()
	_, text, _ = strings.Cut(text, "{\n")                                             // the lines before are for people
	if err := json.NewDecoder(strings.NewReader("{" + text)).Decode(&r); err != nil { // and errors are behind
		t.Fatalf("%v: %s", err, text)
	}
	return r
}

// A failed run does not end a sweep. The same command again trains that one, and skips the others.
func TestSweepRanksItsRuns(t *testing.T) {
	config, dir := file(t, "job.yaml", sweepJob), filepath.Join(t.TempDir(), "runs")
	args := []string{"sweep", config, "--local", "--runs", dir, "--set", "embeddings.lr=0.05,1e30", "--set",
		"model.dim=2,4", "--set", "max_skipped=1", "--parallel", "2", "-o", "json"}
	out, code, err := command(t, args...)
	const want = "2 of 4 runs failed, the first: embeddings.lr=1e30 model.dim=2 max_skipped=1: "
	if code != 1 || !strings.Contains(err.Error(), want) {
		t.Fatalf("code %d, %v; want 1 and the runs that failed", code, err)
	}
	r := rankingOf(t, out)
	if r.Schema != cli.JSONSchema || len(r.Runs) != 4 {
		t.Fatalf("%+v", r)
	}
	for i, run := range r.Runs {
		good := run.Set["embeddings.lr"] == "0.05"
		if good != (i < 2) || good != (run.Rank == i+1) || good != (run.State == runs.Finished) ||
			good == (run.State == runs.Failed && run.Error != "") {
			t.Errorf("place %d: %+v", i+1, run)
		}
		if good && (run.Score != "AUC" || !(run.Value > 0.5) || i == 1 && run.Value > r.Runs[0].Value) {
			t.Errorf("place %d: %+v: want the best AUC first", i+1, run)
		}
		if _, err := os.Stat(filepath.Join(dir, run.Run, runs.PageName)); err != nil {
			t.Errorf("run %s: %v", run.Run, err)
		}
	}
	all, err := runs.List(dir)
	if err != nil || len(all) != 4 || all[0].Head().Set["max_skipped"] != "1" {
		t.Fatalf("%d records, %v", len(all), err)
	}

	out, code, _ = command(t, args...)
	again := rankingOf(t, out)
	if code != 1 || !again.Runs[0].Skipped || !again.Runs[1].Skipped || again.Runs[2].Skipped ||
		again.Runs[0].Run != r.Runs[0].Run || again.Runs[0].Value != r.Runs[0].Value {
		t.Errorf("code %d: the sweep again: %+v; want the finished runs skipped", code, again)
	}
	if all, err := runs.List(dir); err != nil || len(all) != 6 {
		t.Errorf("%d records, %v; want 6", len(all), err)
	}
	if err := os.WriteFile(config, []byte(sweepJob+"seed: 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _, _ = command(t, args...); rankingOf(t, out).Runs[0].Skipped {
		t.Error("a run of the job as it was before is taken for one of the changed job")
	}
}

// An interrupted sweep keeps what has finished, and continues behind it.
func TestSweepIsInterrupted(t *testing.T) {
	config, dir := file(t, "job.yaml", sweepJob), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	root := newRoot()
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(writerFunc(func(b []byte) (int, error) {
		if strings.HasPrefix(string(b), "[2/3] ") && strings.Contains(string(b), "begins") { // as by Ctrl-C
			cancel()
		}
		return len(b), nil
	}))
	args := []string{"sweep", config, "--local", "--runs", dir, "--set", "seed=1,2,3", "--set", "epochs=40"}
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if code := cli.ExitCode(ctx, err); code != 130 {
		t.Fatalf("code %d, %v; want 130", code, err)
	}
	if text := out.String(); !strings.Contains(text, "interrupted") || !strings.Contains(text, "not begun") {
		t.Errorf("the ranking so far:\n%s", text)
	}
	text, code, err := command(t, append(args, "-o", "json")...)
	r := rankingOf(t, text)
	skipped := 0
	for _, run := range r.Runs {
		if run.Skipped {
			skipped++
		}
	}
	if code != 0 || skipped != 1 || len(r.Runs) != 3 || r.Runs[2].Rank != 3 {
		t.Errorf("code %d, %v: %+v; want three ranks, and one run skipped", code, err, r)
	}
}

// A run that stopped early has finished, on a cluster with its best score.
func TestSweepOfRunsThatStopEarly(t *testing.T) {
	config := file(t, "job.yaml", sweepJob+"epochs: 60\nearly_stop: {patience: 1}\n")
	for where, flags := range map[string][]string{"local": {"--local"}, "cluster": {"--endpoints", serve(t, 2),
		"--insecure"}} {
		dir := t.TempDir()
		args := append([]string{"sweep", config, "--runs", dir, "--set", "embeddings.lr=0.05,0.5", "-o", "json"}, flags...)
		for _, skipped := range []bool{false, true} {
			out, code, err := command(t, args...)
			r := rankingOf(t, out)
			if code != 0 || len(r.Runs) != 2 {
				t.Fatalf("%s: code %d, %v: %+v; want two ranks", where, code, err, r)
			}
			for i, run := range r.Runs {
				if run.Rank != i+1 || run.State != runs.Finished || !(run.Value > 0.5) || run.Skipped != skipped {
					t.Errorf("%s: place %d: %+v; want a finished run, skipped: %v", where, i+1, run, skipped)
				}
			}
		}
		for _, r := range listRuns(t, dir) {
			if r.State != runs.Finished || r.Result.StopReason == "" || r.Batches >= 60*32 {
				t.Errorf("%s: run %+v, want one that stopped early", where, r)
			}
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// On a cluster each run is a job with new tables, also after an interrupted one.
func TestSweepOnACluster(t *testing.T) {
	addr := serve(t, 2)
	config, dir := file(t, "job.yaml", sweepJob), t.TempDir()
	args := []string{"sweep", config, "--endpoints", addr, "--insecure", "--runs", dir, "--set", "model.dim=2,4",
		"-o", "json"}
	out, code, err := command(t, args...)
	if code != 0 {
		t.Fatalf("code %d: %v\n%s", code, err, out)
	}
	first := rankingOf(t, out)
	jobs := []string{first.Runs[0].Job, first.Runs[1].Job}
	if jobs[0] == jobs[1] || !strings.HasPrefix(jobs[0], "tiny-") {
		t.Errorf("jobs %v, want two names", jobs)
	}
	if err := os.RemoveAll(dir); err != nil { // as if the records were lost: the tables are there
		t.Fatal(err)
	}
	out, code, err = command(t, args...)
	second := rankingOf(t, out)
	for _, r := range second.Runs {
		if code != 0 || !slices.Contains(jobs, strings.TrimSuffix(r.Job, "-2")) || !strings.HasSuffix(r.Job, "-2") {
			t.Errorf("code %d, %v: job %s; want new tables, behind those of %v", code, err, r.Job, jobs)
		}
	}
}

func TestSweepUsage(t *testing.T) {
	config := file(t, "job.yaml", sweepJob)
	two := file(t, "two.yaml", sweepJob+"trainers: 2\n")
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no job", []string{"--set", "seed=1"}, "want one argument, the job's file"},
		{"nothing to vary", []string{config}, "nothing to vary"},
		{"unknown key", []string{config, "--set", "embeddings.rate=1,2"},
			`--set embeddings.rate=1: unknown key "rate"`},
		{"a value of another kind", []string{config, "--set", "batch=64,many"}, "--set batch=many: "},
		{"no value", []string{config, "--set", "batch"}, "want KEY=VALUE"},
		{"an empty value", []string{config, "--set", "batch=64,,32"}, "a value is empty"},
		{"twice", []string{config, "--set", "batch=64", "--set", "batch=32"}, "--set batch is given twice"},
		{"equal runs", []string{config, "--set", "batch=64,64"}, "are the same run"},
		{"a value that does not fit", []string{config, "--set", "batch=64,0"}, "batch 0: want 1"},
		{"too many", []string{config, "--set", "seed=" + strings.Repeat("1,", 1000) + "1"}, "more than 1000 runs"},
		{"parallel", []string{config, "--set", "seed=1", "--parallel", "0"}, "--parallel 0: want 1 to 64"},
		{"two trainers", []string{two, "--set", "seed=1"}, "trainers is 2"},
		{"a flag of train", []string{config, "--set", "seed=1", "--rank", "0"}, "--rank is not for a sweep"},
		{"no score", []string{config, "--set", "evaluate=false"}, "evaluate is false"},
		{"output", []string{config, "--set", "seed=1", "-o", "xml"}, `output format "xml"`},
	} {
		_, code, err := command(t, append([]string{"sweep", "--local", "--runs", t.TempDir()}, tc.args...)...)
		if code != 2 || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: code %d, %v; want 2 and %q", tc.name, code, err, tc.want)
		}
	}
}

func TestSettings(t *testing.T) {
	cfg, err := trainer.LoadConfig(file(t, "job.yaml", "model: {dim: 4, top: [8]}\nembeddings: {lr: 0.5}\n"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := parseSettings([]string{"model.top=[64, 32]", "embeddings.schedule.kind=linear", "patience=3s",
		"generator.keys=77", "validation=a.csv", "data.max_bad = 0.5"})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if err := s.apply(&cfg); err != nil {
			t.Error(err)
		}
	}
	if cfg.Model.Dim != 4 || !slices.Equal(cfg.Model.Top, []int{64, 32}) || cfg.Embeddings.LR != 0.5 ||
		cfg.Embeddings.Schedule.Kind != "linear" || cfg.Patience.Seconds() != 3 || cfg.Data.MaxBad != 0.5 ||
		cfg.Generator.Keys != 77 || cfg.Generator.Examples == 0 || len(cfg.Validation) != 1 {
		t.Errorf("config %+v, generator %+v", cfg, cfg.Generator)
	}
	got := setting{"x", `[64,32], [8] ,{a: 1,b: 2},"c,d"`}.values()
	if want := []string{"[64,32]", "[8]", "{a: 1,b: 2}", `"c,d"`}; !slices.Equal(got, want) {
		t.Errorf("values %q, want %q", got, want)
	}
	if err := (setting{"seed", "1\nbatch: 3"}).apply(&cfg); err == nil {
		t.Error("a value of two lines is two settings")
	}
}
