package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/runs"
)

const (
	maxSweep    = 1000 // runs of a sweep
	maxParallel = 64
	maxTries    = 100 // names of a job that are tried until one has no tables
)

// sweep trains a job once for each combination of values.
type sweep struct {
	options  *options
	parallel int
	format   string
	out, log io.Writer
	runs     []*sweepRun

	mu sync.Mutex // guards log, and the outcome of each run while they train
}

// sweepRun is one combination of a sweep.
type sweepRun struct {
	options     options
	cfg         trainer.Config
	set         []setting
	fingerprint string

	outcome outcome
}

// outcome is what became of a run.
type outcome struct {
	run     string // name of its record
	job     string
	state   runs.State // "" if it did not begin
	skipped bool       // an earlier sweep has trained it
	result  *report.Result
	err     error
}

// notOfSweeps are flags of train that have no meaning for several runs.
var notOfSweeps = []string{"config", "json", "rank", "worker", "trainers", "progress", "progress-file",
	"metrics-listen", "save-model", "export", "fresh", "yes", "resume", "checkpoint-at-end", "follow", "window", "no-eval"}

func newSweep() *cobra.Command {
	s := &sweep{options: new(options)}
	cmd := newJobCommandOf(s.options)
	cmd.Use = "sweep CONFIG --set KEY=VALUE,VALUE... [--set ...]"
	cmd.Short = "Train a job with each combination of values, and rank the runs"
	cmd.Long = `Sweep trains the job of a YAML file once for each combination of the values of --set, and ranks the runs by the score of the
held-out examples. Values are separated by commas; those in brackets are part of a value. The other flags are those of train.

Each run has a record in the folder of --runs (rowraft-trainer runs). With --local its tables are in this process. On a cluster each run
is a job with a name of its own, whose tables stay there; rowraft job delete removes them.

A run that fails does not end the sweep. The same command again continues it: runs that have finished with the same settings and
data files are skipped. Ctrl-C ends the runs that train, prints the ranking so far, and leaves those to train again.`
	cmd.Example = `  rowraft-trainer sweep examples/train-adult.yaml --local --set embeddings.lr=0.01,0.05,0.1 --set model.dim=8,16

  rowraft-trainer sweep job.yaml --endpoints 127.0.0.1:7070 --insecure --set "model.top=[64,32],[32]" --parallel 2 -o json`
	cmd.Args = cli.OneArg("the job's file")
	f := cmd.Flags()
	for _, name := range notOfSweeps {
		_ = f.MarkHidden(name)
	}
	f.Lookup("set").Usage = "KEY=VALUE,VALUE...: values of a setting of the job's file; repeat it for several"
	runsFlag := f.Lookup("runs")
	runsFlag.Usage, runsFlag.DefValue = "folder to which the runs and their pages are written", defaultRuns
	f.IntVar(&s.parallel, "parallel", 1, "runs that train at the same time")
	f.StringVarP(&s.format, "output", "o", cli.FormatTable, "how to print the ranking: table, wide, json or yaml")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.options.config, s.options.notes = args[0], cmd.ErrOrStderr()
		s.out, s.log = cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := s.prepare(cmd); err != nil {
			return err
		}
		return s.run(cmd.Context())
	}
	return cmd
}

// prepare makes the runs, and refuses a sweep of which one cannot be trained.
func (s *sweep) prepare(cmd *cobra.Command) error {
	flags := cmd.Flags()
	for _, name := range notOfSweeps {
		if flags.Changed(name) {
			return cli.Usagef("%s is not for a sweep", cli.Origin(flags, name))
		}
	}
	if err := cli.CheckFormat(s.format); err != nil {
		return err
	}
	if s.parallel < 1 || s.parallel > maxParallel {
		return cli.Usagef("--parallel %d: want 1 to %d", s.parallel, maxParallel)
	}
	lists, err := parseSettings(s.options.set)
	if err != nil {
		return err
	}
	combinations, err := combine(lists)
	if err != nil {
		return err
	}
	names := make(map[string]string)
	for _, set := range combinations {
		r := &sweepRun{options: *s.options, set: set}
		r.options.set = nil
		for _, one := range set {
			r.options.set = append(r.options.set, one.String())
		}
		if r.cfg, err = r.options.load(cmd, s.options.flags); err != nil {
			return err
		}
		switch c := &r.cfg; {
		case c.Trainers > 1:
			return cli.Usagef("trainers is %d: a sweep trains each run with one trainer", c.Trainers)
		case c.Data.Follow != "":
			return cli.Usagef("data.follow: a stream has no held-out examples to rank the runs by")
		case c.Evaluate != nil && !*c.Evaluate:
			return cli.Usagef("evaluate is false: a sweep ranks its runs by the score of the held-out examples")
		case c.Runs == "":
			c.Runs = defaultRuns
		}
		head, err := r.options.headOf(&r.cfg)
		if err != nil {
			return err
		}
		r.fingerprint, r.outcome.job = head.Fingerprint, r.cfg.Job
		if dir := &r.cfg.TensorBoard.Dir; *dir != "" {
			*dir = filepath.Join(*dir, r.cfg.Job+"-"+r.fingerprint[:8])
		}
		if other := names[r.fingerprint]; other != "" {
			return cli.Usagef("%s and %s are the same run", other, r)
		}
		names[r.fingerprint] = r.String()
		s.runs = append(s.runs, r)
	}
	return s.findFinished()
}

// combine returns the combinations of the values of settings. The last setting changes fastest.
func combine(lists []setting) ([][]setting, error) {
	if len(lists) == 0 {
		return nil, cli.Usagef("nothing to vary: give --set KEY=VALUE,VALUE..., as --set embeddings.lr=0.01,0.05")
	}
	all := [][]setting{nil}
	for _, list := range lists {
		var next [][]setting
		values := list.values()
		if len(all)*len(values) > maxSweep {
			return nil, cli.Usagef("--set asks for more than %d runs: give fewer values", maxSweep)
		}
		for _, before := range all {
			for _, v := range values {
				if v == "" {
					return nil, cli.Usagef("--set %s: a value is empty", list)
				}
				next = append(next, append(slices.Clone(before), setting{list.name, v}))
			}
		}
		all = next
	}
	return all, nil
}

func (r *sweepRun) String() string {
	var parts []string
	for _, one := range r.set {
		parts = append(parts, one.String())
	}
	return strings.Join(parts, " ")
}

// findFinished takes over the outcome of runs that have a record of a finished run with their fingerprint.
func (s *sweep) findFinished() error {
	folders := make(map[string][]*runs.Run)
	for _, r := range s.runs {
		all, ok := folders[r.cfg.Runs]
		if !ok {
			var err error
			if all, err = runs.List(r.cfg.Runs); err != nil {
				return err
			}
			folders[r.cfg.Runs] = all
		}
		for _, old := range all { // the newest counts
			result := old.Result()
			if head := old.Head(); head.Fingerprint == r.fingerprint && old.State() == runs.Finished &&
				!math.IsNaN(runs.ScoreOf(result).Value) {
				r.outcome = outcome{run: old.Name, job: head.Job, state: runs.Finished, skipped: true, result: result}
			}
		}
	}
	return nil
}

// run trains the runs and prints the ranking.
func (s *sweep) run(ctx context.Context) error {
	var todo []int
	for i, r := range s.runs {
		if r.outcome.skipped {
			s.say(i, "skipped: run %s has finished with %v", r.outcome.run, runs.ScoreOf(r.outcome.result))
		} else {
			todo = append(todo, i)
		}
	}
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(s.parallel, len(todo)) {
		workers.Go(func() {
			for i := range next {
				s.train(ctx, i)
			}
		})
	}
	for _, i := range todo {
		select {
		case next <- i:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	close(next)
	workers.Wait()
	if err := s.print(); err != nil {
		return err
	}
	return s.verdict(ctx)
}

// say writes a line about a run.
func (s *sweep) say(i int, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.log, "[%d/%d] %s: %s\n", i+1, len(s.runs), s.runs[i], fmt.Sprintf(format, args...))
}

// train trains run i and keeps its outcome.
func (s *sweep) train(ctx context.Context, i int) {
	if ctx.Err() != nil {
		return
	}
	r := s.runs[i]
	o := &r.options
	o.quiet = true
	lines := &prefixed{s: s, i: i}
	o.notes = lines
	o.started = func() *progress { return stepLines(lines) }
	out := outcome{job: r.cfg.Job}
	o.trained = func(result *report.Result) { out.result = result }
	err := o.nameJob(ctx, &r.cfg, r.fingerprint)
	if err == nil {
		out.job = r.cfg.Job
		s.say(i, "begins")
		err = o.run(ctx, r.cfg, lines)
	}
	out.run, out.state, out.err = o.recorded, runs.Finished, err
	switch {
	case err != nil && ctx.Err() != nil:
		out.state, out.err = runs.Interrupted, nil
		s.say(i, "interrupted")
	case err == nil && out.result != nil && out.result.Interrupted && out.result.StopReason == "": // by rowraft job stop
		out.state = runs.Interrupted
		s.say(i, "stopped")
	case err != nil:
		out.state = runs.Failed
		s.say(i, "failed: %v", err)
	default:
		s.say(i, "%v", runs.ScoreOf(out.result))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r.outcome = out
}

// stepLines prints the progress without notes, which are on the page of the run.
func stepLines(out io.Writer) *progress {
	lines := lineProgress(out)
	return &progress{close: func() {}, observe: func(e report.Event) {
		switch e.Event {
		case report.EventStep, report.EventSkipped, report.EventValidation:
			lines.observe(e)
		}
	}}
}

// nameJob gives a run on a cluster a name of its own, which no earlier run has left tables of. With --local the name
// stays: initial weights depend on it, and equal ones make runs comparable.
func (o *options) nameJob(ctx context.Context, cfg *trainer.Config, fingerprint string) error {
	if o.local {
		return nil
	}
	c, err := o.dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	base := cfg.Job + "-" + fingerprint[:8]
	for n := 1; n <= maxTries; n++ {
		if cfg.Job = base; n > 1 {
			cfg.Job = fmt.Sprintf("%s-%d", base, n)
		}
		tables, err := cfg.Tables(ctx, c)
		if err != nil || len(tables) == 0 {
			return err
		}
	}
	return cli.Hint(fmt.Errorf("the jobs %s to %s all have tables", base, cfg.Job), "rowraft job delete removes them")
}

// prefixed writes whole lines, each behind the number of its run.
type prefixed struct {
	s *sweep
	i int
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	for line := range bytes.Lines(b) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if _, err := fmt.Fprintf(p.s.log, "[%d/%d] %s\n", p.i+1, len(p.s.runs), line); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// verdict returns an error if the sweep is not complete.
func (s *sweep) verdict(ctx context.Context) error {
	if ctx.Err() != nil {
		return cli.Hint(cli.ErrInterrupted, "the same command continues the sweep")
	}
	failed, first := 0, ""
	for _, r := range s.runs {
		if r.outcome.err != nil {
			if failed++; failed == 1 {
				first = fmt.Sprintf("%s: %v", r, r.outcome.err) // not wrapped: the exit code is that of the sweep
			}
		}
	}
	if failed == 0 {
		return nil
	}
	return cli.Hint(fmt.Errorf("%d of %d runs failed, the first: %s", failed, len(s.runs), first),
		"the same command trains them again")
}

// rankedJSON is a run of a sweep in JSON.
type rankedJSON struct {
	Rank    int               `json:"rank"` // 0 without a score
	Set     map[string]string `json:"set"`
	State   runs.State        `json:"state"` // "" if it did not begin
	Skipped bool              `json:"skipped,omitempty"`
	Run     string            `json:"run,omitempty"`
	Job     string            `json:"job"`
	Score   string            `json:"score,omitempty"`
	Value   report.Number     `json:"value"`
	LogLoss report.Number     `json:"log_loss"`
	Seconds report.Number     `json:"seconds"`
	Error   string            `json:"error,omitempty"`
}

// print writes the ranking: the best run first, runs without a score last.
func (s *sweep) print() error {
	ranked := slices.Clone(s.runs)
	score := func(r *sweepRun) runs.Score { return runs.ScoreOf(r.outcome.result) }
	slices.SortStableFunc(ranked, func(a, b *sweepRun) int {
		if x, y := score(a), score(b); x.Better(y) {
			return -1
		} else if y.Better(x) {
			return 1
		}
		return 0
	})
	out := struct {
		Schema string       `json:"schema"`
		Runs   []rankedJSON `json:"runs"`
	}{Schema: cli.JSONSchema, Runs: []rankedJSON{}}
	name := "SCORE"
	for i, r := range ranked {
		o, sc := &r.outcome, score(r)
		j := rankedJSON{Set: make(map[string]string), State: o.state, Skipped: o.skipped, Run: o.run, Job: o.job,
			Score: sc.Name, Value: report.Number(sc.Value), LogLoss: report.Number(math.NaN()),
			Seconds: report.Number(math.NaN())}
		for _, one := range r.set {
			j.Set[one.name] = one.value
		}
		if !math.IsNaN(sc.Value) {
			j.Rank, name = i+1, sc.Name
		}
		if o.result != nil {
			j.LogLoss, j.Seconds = o.result.LogLoss, o.result.Seconds
		}
		if o.err != nil {
			j.Error = o.err.Error()
		}
		out.Runs = append(out.Runs, j)
	}
	return cli.Show(s.out, s.format, out, func(w io.Writer, wide bool) error {
		header := []string{"RANK", strings.ToUpper(name), "LOG LOSS", "TIME"}
		for _, one := range s.runs[0].set {
			header = append(header, one.name)
		}
		t := cli.NewTable(w, wide, append(header, "RUN"), "RANK", strings.ToUpper(name), "LOG LOSS", "TIME")
		for i, j := range out.Runs {
			rank, run := "-", cmp.Or(j.Run, string(j.State), "not begun")
			if j.Rank > 0 {
				rank = fmt.Sprint(j.Rank)
			} else if j.Run != "" {
				run += " (" + string(j.State) + ")"
			}
			took := "-"
			if v := float64(j.Seconds); !math.IsNaN(v) {
				took = span(time.Duration(v * float64(time.Second)))
			}
			row := table.Row{rank, runs.Number(float64(j.Value), "%.4f"), runs.Number(float64(j.LogLoss), "%.4f"), took}
			for _, one := range ranked[i].set {
				row = append(row, one.value)
			}
			t.AppendRow(append(row, run))
		}
		t.Render()
		return nil
	})
}
