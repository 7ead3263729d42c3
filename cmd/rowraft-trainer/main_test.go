package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
)

// command runs rowraft-trainer in this process.
func command(t *testing.T, args ...string) (stdout string, code int, err error) {
	t.Helper()
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err = root.ExecuteContext(context.Background())
	return out.String(), cli.ExitCode(t.Context(), err), err
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsageErrors(t *testing.T) {
	job := file(t, "job.yaml", "generator: {}\n")
	bad := file(t, "bad.yaml", "generator: {}\nbatches: 3\n")
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown flag", []string{"train", "--stepz", "3"}, "unknown flag: --stepz"},
		{"unknown command", []string{"trian"}, `unknown command "trian"`},
		{"argument", []string{"train", "job.yaml"}, `unexpected argument "job.yaml"`},
		{"not a number", []string{"train", "--steps", "many"}, "--steps"},
		{"unknown config key", []string{"train", "--local", "--config", bad}, `bad.yaml:2: unknown key "batches"`},
		{"no config file", []string{"train", "--local", "--config", "/does/not/exist"}, "no such file"},
		{"no cluster", []string{"train", "--config", job}, "give --endpoints"},
		{"no TLS", []string{"train", "--config", job, "--endpoints", "127.0.0.1:1"}, "--insecure"},
		{"both TLS and not", []string{"train", "--config", job, "--endpoints", "127.0.0.1:1", "--insecure", "--cert", "x"},
			"--insecure"},
		{"mode", []string{"train", "--local", "--config", job, "--mode", "bsp"}, "this version runs async, sync, ssp, geo"},
		{"no data", []string{"train", "--local"}, "no data"},
		{"data file", []string{"train", "--local", "--data", "/does/not/exist", "--schema", job}, "job.yaml"},
		{"two trainers without a cluster", []string{"train", "--local", "--config", job, "--trainers", "2"},
			"would not share"},
		{"evaluate without a cluster", []string{"evaluate", "--local", "--config", job}, "nothing to score"},
		{"result in no directory", []string{"train", "--local", "--config", job, "--json", "/does/not/exist/r.json"},
			"--json"},
		{"device", []string{"probe", "--device", "tpu"}, "want auto, cpu or cuda"},
		{"output", []string{"probe", "-o", "xml"}, "want table or json"},
		{"progress", []string{"train", "--local", "--config", job, "--progress", "loud"}, `progress "loud"`},
		{"metrics on all addresses", []string{"train", "--local", "--config", job, "--metrics-listen", "0.0.0.0:0"},
			"loopback"},
		{"metrics nowhere", []string{"train", "--local", "--config", job, "--metrics-listen", "nowhere"},
			"--metrics-listen nowhere"},
		{"generator", []string{"gen", "--zipf", "0"}, "exponent > 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, code, err := command(t, tc.args...)
			if code != 2 || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("code %d, %v; want 2 and %q", code, err, tc.want)
			}
		})
	}
}

// gen writes a file that train learns from; the result and the events are JSON.
func TestGenThenTrain(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if _, code, err := command(t, "gen", "--out", in("clicks.csv.gz"), "--schema", in("clicks.yaml"), "--examples", "3000",
		"--keys", "50"); code != 0 {
		t.Fatal(err)
	}
	job := file(t, "job.yaml", "job: test\nbatch: 100\nmodel: {dim: 4, bottom: [8], top: [8]}\n")
	_, code, err := command(t, "train", "--local", "--config", job, "--data", in("clicks.csv.gz"), "--schema",
		in("clicks.yaml"), "--audit",
		"--json", in("result.json"), "--progress", "json", "--progress-file", in("events.json"), "--device", "cpu")
	if code != 0 {
		t.Fatal(err)
	}
	var r report.Result
	text, err := os.ReadFile(in("result.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if r.Steps != 24 || r.Examples != 2400 || r.HeldExamples != 600 || r.PushesAcknowledged != 24 || !(r.AUC > 0.5) ||
		r.BestAUC == r.BestAUC || len(r.AuditKeys) != 4 {
		t.Errorf("result %s", text)
	}
	if text, err = os.ReadFile(in("events.json")); err != nil {
		t.Fatal(err)
	}
	var last report.Event
	for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		if err := json.Unmarshal(line, &last); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if last.Event != report.EventHeld || last.PushesAcknowledged != 24 {
		t.Errorf("last event %+v, want the end of the held-out part", last)
	}
}

// TestStartReadsItsEnvironment: a flag wins over its ROWRAFT_ variable, and that over the variables of frameworks. A
// wrong environment is refused by the name of the variable.
func TestStartReadsItsEnvironment(t *testing.T) {
	job := file(t, "job.yaml", "generator: {}\n")
	const ms, paddle = "MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=1 ",
		"PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:1 PADDLE_TRAINERS_NUM=1 "
	for _, tc := range []struct {
		name, env string
		args      []string
		code      int
		want      string
	}{
		{"variables of a framework", ms + "MS_ROLE=MS_WORKER MS_WORKER_NUM=1", nil, 4, "not ready endpoints:['127.0.0.1:1']"},
		{"a variable of rowraft", ms + "MS_ROLE=MS_WORKER MS_WORKER_NUM=1 ROWRAFT_SCHEDULER=127.0.0.1:2", nil, 4,
			"not ready endpoints:['127.0.0.1:2']"},
		{"a flag", ms + "MS_ROLE=MS_WORKER MS_WORKER_NUM=1 ROWRAFT_SCHEDULER=127.0.0.1:2",
			[]string{"--scheduler", "127.0.0.1:3"}, 4,
			"not ready endpoints:['127.0.0.1:3']"},
		{"a list of servers", paddle + "TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0", nil, 4,
			"the cluster has not started within 1ms: not ready endpoints:['127.0.0.1:1']"},
		{"a server that trains", ms + "MS_ROLE=MS_PSERVER MS_SERVER_NUM=1 MS_WORKER_NUM=1", nil, 2, "rowraft start"},
		{"a rank beyond the number", paddle + "TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1", nil, 2, "PADDLE_TRAINER_ID"},
		{"a missing number", ms + "MS_ROLE=MS_WORKER", nil, 2, "MS_WORKER_NUM"},
		{"rows of a cache", ms + "MS_ROLE=MS_WORKER MS_WORKER_NUM=1", []string{"--vocab_cache_size", "-1"}, 2,
			"--vocab-cache-size -1: want ≥ 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, v := range append(strings.Fields(tc.env), "ROWRAFT_INSECURE=true", "ROWRAFT_START_TIMEOUT=1ms") {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
			}
			_, code, err := command(t, append([]string{"start", "--config", job}, tc.args...)...)
			if code != tc.code || err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("exit code %d, %v; want %d and %q", code, err, tc.code, tc.want)
			}
		})
	}
}

// TestVocabCacheSize: the rows of a script for MindSpore are the cache of the job.
func TestVocabCacheSize(t *testing.T) {
	const cached = "generator: {}\nmodel: {dim: 100}\ncache: {bytes: 8MiB, staleness: {steps: 2}}\n"
	for _, tc := range []struct {
		job, flag string
		want      int64
		steps     int
	}{
		{"generator: {}\nmodel: {dim: 100}\n", "--vocab_cache_size=100000", 100_000 * (24 + 4*100), 8},
		{cached, "--vocab-cache-size=100000", 100_000 * (24 + 4*100), 2},
		{cached, "--vocab_cache_size=0", 0, 0},
		{cached, "--batch=7", 8 << 20, 2},
	} {
		var o options
		cmd, set := newStartOf(&o), trainer.DefaultConfig()
		err := cmd.ParseFlags([]string{"--local", "--config", file(t, "job.yaml", tc.job), tc.flag})
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := o.load(cmd, &set)
		size, steps := cfg.Cache.Size(), cfg.Cache.Staleness.Steps
		if err != nil || size < tc.want || size > tc.want+64<<10 || steps != tc.steps {
			t.Errorf("%s with %q: %d bytes, %d steps, %v; want %d and a bit more, and %d", tc.flag, tc.job, size, steps, err,
				tc.want, tc.steps)
		}
	}
}

// TestAWorkerSaysThatItWaits in the words of other frameworks' trainers, which scripts look for.
func TestAWorkerSaysThatItWaits(t *testing.T) {
	var out strings.Builder
	w := &waiter{out: &out, poll: waitPoll, every: waitEvery}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := w.servers(ctx, []string{"127.0.0.1:1"}); err == nil {
		t.Error("a server at port 1 is ready")
	}
	const want = "server not ready, wait 3 sec to retry...\nnot ready endpoints:['127.0.0.1:1']\n"
	if out.String() != want {
		t.Errorf("it says %q, want %q", out.String(), want)
	}
}

func TestBadDataLineEndsTheRun(t *testing.T) {
	clicks := file(t, "clicks.csv", "label,c1,c2\n1,a,b\n0,a\n")
	schema := file(t, "clicks.yaml", "label: {column: label}\ncategorical: [{column: c1}, {column: c2}]\n")
	_, code, err := command(t, "train", "--local", "--data", clicks, "--schema", schema, "--progress", "none",
		"--device", "cpu", "--steps", "5")
	if code != 2 || !strings.Contains(err.Error(), "clicks.csv:3: 2 columns, expected 3") {
		t.Errorf("code %d, %v; want the file and the line", code, err)
	}
}

func TestUnreachableCluster(t *testing.T) {
	// No server listens on port 1 of loopback.
	out, code, err := command(t, "train", "--generate", "--endpoints", "127.0.0.1:1", "--insecure", "--patience", "100ms",
		"--progress", "none")
	if code != 4 || !strings.Contains(err.Error(), "no cluster within 100ms") {
		t.Errorf("code %d, %v; want 4", code, err)
	}
	if !strings.Contains(out, "no answer from 127.0.0.1:1 yet; waiting up to 100ms (--patience)") {
		t.Errorf("it waits without a word: %q", out)
	}
}

func TestProbe(t *testing.T) {
	r, err := probe("cpu")
	if err != nil || r.Device != "cpu" || !r.StepRan || r.Error != "" {
		t.Errorf("probe = %+v, %v, want a step on the CPU", r, err)
	}
	out, code, err := command(t, "probe", "--device", "cpu")
	if code != 0 || !strings.Contains(out, "a training step") || !strings.Contains(out, "ran") {
		t.Errorf("code %d, %v:\n%s", code, err, out)
	}
	t.Setenv("ROWRAFT_PJRT_PLUGIN", "/does/not/exist.so")
	out, code, err = command(t, "probe", "--device", "cuda", "-o", "json")
	if code != 1 || err == nil || json.NewDecoder(strings.NewReader(out)).Decode(r) != nil || r.Reason == "" {
		t.Errorf("a plugin that is not there: code %d, %v:\n%s", code, err, out)
	}
	if _, code, err = command(t, "train", "--local", "--generate", "--steps", "1", "--device", "cuda"); code != 1 ||
		!strings.Contains(err.Error(), "device cuda: ") {
		t.Errorf("training without the device that was asked for: code %d, %v", code, err)
	}
}

func TestSmoke(t *testing.T) {
	out, code, err := command(t, "smoke", "--device", "cpu", "--batches", "64", "--each", "1ms", "-o", "json")
	var r smokeReport
	if code != 0 || json.Unmarshal([]byte(out), &r) != nil || len(r.Parity) != 2 || !r.OK() || len(r.Steps) != 2 ||
		!(r.Steps[0].Millis > 0) {
		t.Errorf("code %d, %v:\n%s", code, err, out)
	}
	if out, code, err = command(t, "smoke", "--device", "cpu", "--batches", "64", "--each", "1ms"); code != 0 ||
		!strings.Contains(out, "MS PER STEP") {
		t.Errorf("code %d, %v:\n%s", code, err, out)
	}
	if _, code, _ = command(t, "smoke", "--batches", "0"); code != 2 {
		t.Errorf("a batch of 0: code %d", code)
	}
}

func TestHelpHasExamples(t *testing.T) {
	for _, c := range newRoot().Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		if c.Example == "" || c.Long == "" {
			t.Errorf("%s: want a long text and an example", c.Name())
		}
	}
}

func TestResultNamesWhatItCounts(t *testing.T) {
	scored := &report.Calibration{Ratio: 1.25, Error: .03, Bins: []report.CalibrationBin{
		{Examples: 30, Prediction: .05}, {Examples: 30, Prediction: .1, Label: .12}}}
	for _, tc := range []struct {
		r    report.Result
		want []string
	}{
		{report.Result{HeldExamples: 60}, []string{"scored │ 60 examples"}}, // of evaluate
		{report.Result{Steps: 640, Examples: 6400, Seconds: 4.8, Device: "cpu", HeldExamples: 60}, []string{
			"640 steps, 6400 examples in 4.8 s on cpu", "held out │ 60 examples"}},
		{report.Result{Steps: 640, Examples: 6400, Seconds: 4.8, Device: "cpu", ResumedFrom: "/c/two",
			ResumedAtStep: 537}, []string{
			"640 steps, 6400 examples in all; 103 steps now, in 4.8 s on cpu", "continued from │ /c/two, after step 537"}},
		{report.Result{HeldExamples: 60, Calibration: scored}, []string{
			"calibration │ 1.250, mean prediction / mean label; error 0.0300",
			"30 │ 0.1000 │ 0.1200 │ 0.833", "30 │ 0.0500 │ 0.0000 │ -"}},
		{report.Result{Steps: 640, Stopped: true, StopReason: "early stop: 3 scores",
			BestScore:  &report.BestScore{Metric: report.MetricRMSE, Value: 1.25, Step: 500},
			SavedScore: &report.BestScore{Metric: report.MetricRMSE, Value: 1.5, Step: 400, Checkpoint: "/c/a", Restore: "do"},
		}, []string{"best score │ RMSE 1.2500 after step 500", "best saved score │ RMSE 1.5000 after step 400",
			"its checkpoint │ /c/a", "to restore it │ do", "stopped │ early stop: 3 scores"}},
	} {
		var b strings.Builder
		printResult(&b, &tc.r)
		for _, want := range tc.want {
			if !strings.Contains(strings.Join(strings.Fields(b.String()), " "), want) {
				t.Errorf("%+v: no %q in\n%s", tc.r, want, &b)
			}
		}
	}
}

// Who trained under a quorum is told what became of the batches that came late.
func TestResultTellsOfLateBatches(t *testing.T) {
	var b strings.Builder
	printResult(&b, &report.Result{Steps: 32, PushesSent: 32, PushesAcknowledged: 17, BatchesLate: 15})
	if !strings.Contains(b.String(), "15, the others went on without them") {
		t.Errorf("the result is told as\n%s", &b)
	}
}
