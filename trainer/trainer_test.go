package trainer

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tinyConfig trains a few small steps on generated data.
func tinyConfig(steps int64, inFlight int) Config {
	cfg := DefaultConfig()
	g := data.DefaultGenerator()
	g.Examples, g.Held, g.Keys, g.Categorical, g.Dense = 0, 200, 50, 3, 2
	cfg.Generator, cfg.Steps, cfg.InFlight, cfg.Batch = &g, steps, &inFlight, 32
	cfg.Model = ModelConfig{Dim: 4, Bottom: []int{8}, Top: []int{8}}
	cfg.Device, cfg.rampEvery = "cpu", -1
	return cfg
}

func newLocal(t testing.TB) *tables.Local {
	t.Helper()
	l, err := tables.NewLocal(4, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustRun(t testing.TB, cfg Config, tables tables.Tables, observe report.Observer) *report.Result {
	t.Helper()
	j, err := NewJob(t.Context(), cfg, tables, observe)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// bits returns the rows of l by table and key, with the optimizers' state.
func bits(l *tables.Local) []uint32 {
	var all []uint32
	for _, t := range l.Schemas() {
		_, rows := l.Rows(t.ID)
		for _, v := range slices.Concat(rows...) {
			all = append(all, math.Float32bits(v))
		}
	}
	return all
}

func TestRunsAreReproducible(t *testing.T) {
	run := func(seed uint64) []uint32 {
		l, cfg := newLocal(t), tinyConfig(12, 0)
		cfg.Seed, cfg.Audit = seed, true
		mustRun(t, cfg, l, nil)
		return bits(l)
	}
	a := run(1)
	if !slices.Equal(a, run(1)) {
		t.Error("two runs with one seed differ")
	}
	if slices.Equal(a, run(2)) {
		t.Error("two runs with two seeds are equal")
	}
}

// strict wraps Local and checks the loop's promises about order.
type strict struct {
	*tables.Local
	t        *testing.T
	inFlight int

	mu      sync.Mutex
	pushing int
	most    int
	pushes  int
	fail    func(push int) error // nil: never
	hold    chan struct{}        // not nil: pushes wait for it
	held    func()               // called by the first inFlight pushes before they wait
	spoil   func(pull int, segs []tables.Segment)
	pulls   int
}

func (s *strict) Pull(ctx context.Context, segs []tables.Segment) error {
	s.mu.Lock()
	if s.inFlight == 0 && s.pushing > 0 {
		s.t.Error("a pull while a push is unacknowledged, with in_flight 0")
	}
	s.pulls++
	n := s.pulls
	s.mu.Unlock()
	err := s.Local.Pull(ctx, segs)
	if s.spoil != nil {
		s.spoil(n, segs)
	}
	return err
}

func (s *strict) Push(ctx context.Context, segs []tables.Segment) error {
	s.mu.Lock()
	s.pushes++
	n := s.pushes
	s.pushing++
	s.most = max(s.most, s.pushing)
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.pushing--; s.mu.Unlock() }()
	if s.hold != nil {
		if n <= s.inFlight {
			s.held()
		}
		select {
		case <-s.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if s.fail != nil {
		if err := s.fail(n); err != nil {
			return err
		}
	}
	return s.Local.Push(ctx, segs)
}

func TestInFlight(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		s := &strict{Local: newLocal(t), t: t, inFlight: n}
		r := mustRun(t, tinyConfig(20, n), s, nil)
		if r.Steps != 20 || r.PushesAcknowledged != 20 || r.PushesSent != 20 || r.PushesUnknown != 0 {
			t.Errorf("in_flight %d: %+v, want 20 steps and pushes", n, r)
		}
		if s.most > max(n, 1) {
			t.Errorf("in_flight %d: %d pushes at once", n, s.most)
		}
	}
	t.Run("as many pushes as allowed wait while training continues", func(t *testing.T) {
		const n = 3
		s := &strict{Local: newLocal(t), t: t, inFlight: n, hold: make(chan struct{})}
		// Released when n pushes wait and the step after the n-th went through the model.
		var release sync.WaitGroup
		release.Add(n + 1)
		s.held = func() { release.Done() }
		go func() { release.Wait(); close(s.hold) }()
		computed := 0
		mustRun(t, tinyConfig(8, n), s, func(e report.Event) {
			if e.Event == report.EventStep {
				if computed++; computed == n+1 {
					release.Done()
				}
			}
		})
		if s.most != n {
			t.Errorf("%d pushes at once, want %d", s.most, n)
		}
	})
}

// gated are tables whose calls for a batch wait for a gate; nil: they do not.
type gated struct {
	tables.Tables
	pull, push chan struct{}
	pulls      atomic.Int64 // that have ended
}

func (g *gated) Pull(ctx context.Context, segs []tables.Segment) error {
	if len(segs) == 1 { // not of a batch
		return g.Tables.Pull(ctx, segs)
	}
	if g.pull != nil {
		<-g.pull
	}
	defer g.pulls.Add(1)
	return g.Tables.Pull(ctx, segs)
}

func (g *gated) Push(ctx context.Context, segs []tables.Segment) error {
	if g.push != nil {
		<-g.push
	}
	return g.Tables.Push(ctx, segs)
}

// readSet is a set whose source calls read after each batch that it gives, and has its error.
type readSet struct {
	data.Set
	read func() error
}

type readSource struct {
	data.Source
	read func() error
}

func (s readSet) Train(epoch int64, rank, trainers int) (data.Source, error) {
	src, err := s.Set.Train(epoch, rank, trainers)
	return readSource{src, s.read}, err
}

func (s readSource) Next(b *data.Batch) error {
	if err := s.Source.Next(b); err != nil {
		return err
	}
	return s.read()
}

// In mode async the next batch is read while the rows of one are pulled, and while no more batches may be under way. In
// mode sync, in which a run may have to pause between a batch and the next, it is not.
func TestReadsAhead(t *testing.T) {
	for _, tc := range []struct {
		mode         string
		pulls        bool // pulls wait, not pushes
		read, pulled int
	}{{Async, true, 2, 0}, {Sync, true, 1, 0}, {Async, false, 5, 4}, {Sync, false, 4, 4}} {
		synctest.Test(t, func(t *testing.T) {
			cfg := tinyConfig(8, 2)
			cfg.Mode = tc.mode
			set, err := cfg.OpenData()
			if err != nil {
				t.Fatal(err)
			}
			read, gate := 0, make(chan struct{})
			cfg.set = readSet{set, func() error { read++; return nil }}
			g := &gated{Tables: newLocal(t), push: gate}
			if tc.pulls {
				g.pull, g.push = gate, nil
			}
			j := newJob(t, cfg, g, nil)
			before, done := g.pulls.Load(), make(chan error)
			go func() {
				_, err := j.Run(t.Context())
				done <- err
			}()
			synctest.Wait()
			if pulled := int(g.pulls.Load() - before); read != tc.read || pulled != tc.pulled {
				t.Errorf("%+v: %d batches are read, %d pulled", tc, read, pulled)
			}
			close(gate)
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// What was read before an error of the data is trained.
func TestAnErrorOfTheDataEndsTheRunBehindItsBatch(t *testing.T) {
	for range 20 {
		cfg := tinyConfig(8, 2)
		set, err := cfg.OpenData()
		if err != nil {
			t.Fatal(err)
		}
		read, broken := 0, errors.New("line 7 is no example")
		cfg.set = readSet{set, func() error {
			if read++; read > 3 {
				return broken
			}
			return nil
		}}
		r, err := newJob(t, cfg, newLocal(t), nil).Run(t.Context())
		if !errors.Is(err, broken) || r.Steps != 3 || r.PushesAcknowledged != 3 {
			t.Fatalf("%+v, %v; want 3 steps and the error", r, err)
		}
	}
}

// The audit rows hold exactly the acknowledged pushes, per trainer and shard.
func TestAudit(t *testing.T) {
	l := newLocal(t)
	var results [3]*report.Result
	var all sync.WaitGroup
	for rank := range results {
		all.Go(func() {
			cfg := tinyConfig(int64(5+rank), 2)
			cfg.Trainers, cfg.Rank, cfg.Audit = len(results), &rank, true
			j, err := NewJob(t.Context(), cfg, l, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if results[rank], err = j.Run(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	audit := l.Schemas()[2]
	if audit.Name != results[0].AuditTable || len(results[0].AuditKeys) != 4 {
		t.Fatalf("audit table %s, keys %v: want %s and one for each of 4 shards", results[0].AuditTable,
			results[0].AuditKeys, audit.Name)
	}
	keys, rows := l.Rows(audit.ID)
	if len(rows) != 4 {
		t.Fatalf("%d audit rows, want one for each of 4 shards", len(rows))
	}
	for i, row := range rows {
		for rank, r := range results {
			if int64(row[rank]) != r.PushesAcknowledged || r.PushesAcknowledged != int64(5+rank) {
				t.Errorf("audit row %d says %v for trainer %d, which counted %d", keys[i], row[rank], rank,
					r.PushesAcknowledged)
			}
		}
	}
}

func TestPushFailureEndsTheRun(t *testing.T) {
	for _, n := range []int{0, 2} {
		var j *Job
		s := &strict{Local: newLocal(t), t: t, inFlight: n, fail: func(push int) error {
			if push == 4 {
				return rowraft.Errorf(rowraft.CodeSessionExpired, "fenced")
			}
			for push > 4 && j.report.Failed() == nil { // concurrent pushes end after it
				runtime.Gosched()
			}
			return nil
		}}
		j, err := NewJob(t.Context(), tinyConfig(50, n), s, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := j.Run(t.Context())
		if rowraft.CodeOf(err) != rowraft.CodeSessionExpired || !strings.Contains(err.Error(), ": push ") {
			t.Errorf("in_flight %d: Run = %v, want SessionExpired, with the step", n, err)
		}
		if r.PushesUnknown != 1 || r.PushesSent != r.PushesAcknowledged+1 || r.PushesSent > 4+int64(n) {
			t.Errorf("in_flight %d: %+v, want one unknown push and few after it", n, r)
		}
	}
}

func TestPullFailureEndsTheRun(t *testing.T) {
	bad := errors.New("no leader")
	for _, n := range []int{0, 2} {
		s := &failingPull{Local: newLocal(t), err: bad}
		j, err := NewJob(t.Context(), tinyConfig(50, n), s, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := j.Run(t.Context())
		if !errors.Is(err, bad) || r.PushesUnknown != 0 || r.PushesAcknowledged != 2 {
			t.Errorf("in_flight %d: Run = %+v, %v, want the pull's error after 2 whole steps", n, r, err)
		}
	}
}

type failingPull struct {
	*tables.Local
	err   error
	pulls int // by one goroutine
}

func (f *failingPull) Pull(ctx context.Context, segs []tables.Segment) error {
	if f.pulls++; f.pulls == 3 {
		return f.err
	}
	return f.Local.Pull(ctx, segs)
}

func TestInterruptKeepsWhatWasPushed(t *testing.T) {
	for _, n := range []int{0, 2} {
		ctx, cancel := context.WithCancel(t.Context())
		j, err := NewJob(ctx, tinyConfig(0, n), newLocal(t), func(e report.Event) {
			if e.Event == report.EventAck && e.PushesAcknowledged == 5 {
				cancel()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		j.steps = 1 << 40
		r, err := j.Run(ctx)
		if err != nil || !r.Interrupted || r.PushesAcknowledged != r.PushesSent || r.PushesAcknowledged < 5 ||
			r.HeldExamples != 0 {
			t.Errorf("in_flight %d: Run = %+v, %v, want an interrupted run that lost no push", n, r, err)
		}
	}
}

func TestNotFiniteBatchesAreSkipped(t *testing.T) {
	for _, tc := range []struct {
		name  string
		table int
		value float32
	}{{"NaN embedding", 0, float32(math.NaN())}, {"infinite dense weight", 1, float32(math.Inf(1))}} {
		t.Run(tc.name, func(t *testing.T) {
			s := &strict{Local: newLocal(t), t: t, spoil: func(pull int, segs []tables.Segment) {
				if pull == 3 {
					for i := range segs[tc.table].Values {
						segs[tc.table].Values[i] = tc.value
					}
				}
			}}
			var messages []string
			r := mustRun(t, tinyConfig(6, 0), s, func(e report.Event) {
				if e.Event == report.EventSkipped {
					messages = append(messages, e.Message)
				}
			})
			if r.BatchesSkipped != 1 || r.Steps != 6 || r.PushesAcknowledged != 5 || r.AUC != r.AUC {
				t.Errorf("%+v, want one of six batches skipped", r)
			}
			if len(messages) != 1 || !strings.Contains(messages[0], "step 3 skipped") ||
				!strings.Contains(messages[0], "the first is number 64 of") {
				t.Errorf("messages %q, want step 3 and its first example named", messages)
			}
		})
	}
	t.Run("a run whose numbers stay bad ends with an error", func(t *testing.T) {
		s := &strict{Local: newLocal(t), t: t, spoil: func(_ int, segs []tables.Segment) {
			segs[1].Values[0] = float32(math.NaN())
		}}
		cfg := tinyConfig(1000, 0)
		cfg.MaxSkipped = 7
		j, err := NewJob(t.Context(), cfg, s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := j.Run(t.Context()); err == nil || r.Steps != 7 || r.PushesSent != 0 ||
			!strings.Contains(err.Error(), "7 batches in a row") {
			t.Errorf("Run = %+v, %v, want an error after 7 steps", r, err)
		}
	})
}

func TestLoadConfig(t *testing.T) {
	load := func(t *testing.T, text string) (Config, error) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "job.yaml")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfig(path)
		if err == nil {
			err = c.Validate()
		}
		return c, err
	}
	t.Run("what is not set keeps its default", func(t *testing.T) {
		c, err := load(t, "batch: 64\ngenerator: {keys: 7}\nembeddings: {lr: 0.5}\npatience: 3s\n")
		if err != nil {
			t.Fatal(err)
		}
		d := DefaultConfig()
		if c.Batch != 64 || c.Generator.Keys != 7 || c.Generator.Zipf != data.DefaultGenerator().Zipf ||
			c.Embeddings.LR != 0.5 || c.Embeddings.Init != d.Embeddings.Init || c.Job != d.Job ||
			c.Patience.Seconds() != 3 {
			t.Errorf("got %+v", c)
		}
	})
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", "batch: 64\nbatsch: 3\n", `job.yaml:2: unknown key "batsch"`},
		{"a duration without its unit", "batch: 64\nlease: 10\n",
			`job.yaml:2: "10" is not a duration: want a number with its unit`},
		{"a value in place of a list", "model:\n  bottom: 64\n", `job.yaml:2: "64" is not a list: want [64], also for one value`},
		{"unknown nested key", "model:\n  dims: 3\n", `job.yaml:2: unknown key "dims"`},
		{"wrong type", "batch: many\n", "line 1"},
		{"mode", "mode: bsp\ngenerator: {}\n", `mode "bsp" is not supported: this version runs async, sync, ssp, geo`},
		{"no data", "batch: 4\n", "no data"},
		{"two kinds of data", "generator: {}\ndata: {file: x, schema: y}\n", "more than once"},
		{"no schema", "data: {file: x}\n", "no schema"},
		{"optimizer", "generator: {}\ndense: {optimizer: lamb}\n", `optimizer "lamb"`},
		{"learning rate", "generator: {}\ndense: {lr: -1}\n", "lr -1: want > 0"},
		{"rank", "generator: {}\nrank: 2\ntrainers: 2\n", "rank 2: want 0 to 1"},
		{"in_flight", "generator: {}\nin_flight: -1\n", "in_flight -1"},
		{"job name", "generator: {}\njob: 1x\n", "table name"},
		{"dim", "generator: {}\nmodel: {dim: 0}\n", "model dim 0"},
		{"dtype", "generator: {}\ndtype: int8\n", `dtype "int8"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := load(t, tc.text); err == nil || !strings.Contains(err.Error(), tc.want) ||
				rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("got %v, want InvalidArgument with %q", err, tc.want)
			}
		})
	}
}

// A second job over tables of another shape is refused; over the same shape it continues.
func TestTablesOfAnotherShape(t *testing.T) {
	l, cfg := newLocal(t), tinyConfig(2, 0)
	mustRun(t, cfg, l, nil)
	mustRun(t, cfg, l, nil)
	cfg.Model.Dim = 8
	if _, err := NewJob(t.Context(), cfg, l, nil); rowraft.CodeOf(err) != rowraft.CodeTableExists ||
		!strings.Contains(err.Error(), "ctr.embeddings") {
		t.Errorf("NewJob with dim 8 over dim 4 = %v, want TableExists", err)
	}
}

// Steps and epochs limit a run; each rank reads its share.
func TestStepsAndEpochs(t *testing.T) {
	for _, tc := range []struct {
		examples, steps int64
		epochs, rank    int
		want            int64
	}{
		{100, 0, 0, 0, 2}, {100, 0, 3, 0, 6}, {100, 4, 0, 0, 4}, {100, 4, 1, 0, 2}, {129, 0, 1, 0, 3}, {129, 0, 1, 1,
			2},
		{0, 5, 0, 0, 5},
	} {
		cfg := tinyConfig(tc.steps, 1)
		cfg.Generator.Examples, cfg.Epochs, cfg.Trainers, cfg.Rank = tc.examples, tc.epochs, 2, &tc.rank
		if r := mustRun(t, cfg, newLocal(t), nil); r.Steps != tc.want {
			t.Errorf("%+v: %d steps", tc, r.Steps)
		}
	}
}

// A progress display needs the last event only, of any kind.
func TestEventsCarryAllCounters(t *testing.T) {
	var last report.Event
	kinds := map[string]int{}
	r := mustRun(t, tinyConfig(10, 2), newLocal(t), func(e report.Event) {
		kinds[e.Event]++
		if e.Step < last.Step || e.Examples < last.Examples || e.PushesSent < last.PushesSent ||
			e.PushesAcknowledged < last.PushesAcknowledged {
			if e.Event != report.EventHeld {
				t.Errorf("%+v follows %+v: counters went back", e, last)
			}
		}
		if e.Event == report.EventAck && (e.Step == 0 || e.Examples == 0 || e.Loss != e.Loss || e.Sent == nil ||
			e.Time.Before(*e.Sent)) {
			t.Errorf("an acknowledgement without counters or times: %+v", e)
		}
		if e.Steps != 10 && e.Event != report.EventHeld {
			t.Errorf("%s: %d steps planned, want 10", e.Event, e.Steps)
		}
		last = e
	})
	if kinds[report.EventStart] != 1 || kinds[report.EventStep] != 10 || kinds[report.EventAck] != 10 ||
		kinds[report.EventDone] != 1 ||
		kinds[report.EventHeld] == 0 {
		t.Errorf("events %v", kinds)
	}
	if r.Steps != 10 {
		t.Errorf("%d steps", r.Steps)
	}
}

// Evaluate scores the result of Run, to the bit.
func TestEvaluate(t *testing.T) {
	l, cfg := newLocal(t), tinyConfig(10, 0)
	r := mustRun(t, cfg, l, nil)
	j, err := NewJob(t.Context(), cfg, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := j.Evaluate(t.Context())
	if err != nil || e.AUC != r.AUC || e.LogLoss != r.LogLoss || e.BestAUC != r.BestAUC || e.HeldExamples != 200 ||
		e.Steps != 0 {
		t.Errorf("Evaluate = %+v, %v, want the scores of %+v", e, err, r)
	}
}
