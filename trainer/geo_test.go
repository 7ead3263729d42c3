package trainer

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/tables"
)

func geoConfig(steps int64, inFlight, every int) Config {
	cfg := tinyConfig(steps, inFlight)
	cfg.Mode, cfg.Geo.Every = Geo, every
	return cfg
}

// plainGeo is mode geo whose rows start (almost) at 0 and decrease by each gradient, so that sums of small integers
// are exact.
func plainGeo(t *testing.T, tables tables.Tables, inFlight, every int, set func(*Config)) *geoMode {
	t.Helper()
	cfg := geoConfig(1, inFlight, every)
	cfg.Embeddings = TableConfig{Optimizer: "sgd", LR: 1, Init: 1e-30}
	if set != nil {
		set(&cfg)
	}
	g := newJob(t, cfg, tables, nil).mode.(*geoMode)
	g.before = int64(every) // its first rounds are behind it
	return g
}

// gradients is a batch of embeddings.
func (g *geoMode) gradients(grad float32, keys ...rowraft.Key) *work {
	s := tables.Segment{Table: g.j.embeddings.ID, Dim: g.j.embeddings.Dim, Keys: keys}
	for range len(keys) * s.Dim {
		s.Values = append(s.Values, grad)
	}
	return &work{segs: []tables.Segment{s}}
}

// sees returns the first weight of key in the worker's model.
func (g *geoMode) sees(t *testing.T, key rowraft.Key) float32 {
	t.Helper()
	w := g.gradients(0, key)
	if err := g.pull(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	return float32(math.Round(float64(w.segs[0].Values[0])))
}

func (g *geoMode) mustPush(t *testing.T, grad float32, keys ...rowraft.Key) {
	t.Helper()
	if err := g.push(t.Context(), g.gradients(grad, keys...)); err != nil {
		t.Fatal(err)
	}
}

// held returns the first weight of key in the tables.
func (g *geoMode) held(t *testing.T, key rowraft.Key) float32 {
	t.Helper()
	w := g.gradients(0, key)
	if err := g.j.tables.Pull(t.Context(), w.segs); err != nil {
		t.Fatal(err)
	}
	return float32(math.Round(float64(w.segs[0].Values[0])))
}

// A batch that was pulled ahead sees the training of the batches before it, and a row that was evicted since stays
// as it was pulled.
func TestGeoRenewsWhatWasPulledAhead(t *testing.T) {
	g := plainGeo(t, newLocal(t), 4, 1000, nil)
	ahead := g.gradients(0, 3, 4, 5)
	if err := g.pull(t.Context(), ahead); err != nil {
		t.Fatal(err)
	}
	g.mustPush(t, -2, 3, 4)
	g.mustPush(t, -5, 4)
	delete(g.table(g.j.embeddings.ID).places, 5)
	ahead.segs[0].Values[2*ahead.segs[0].Dim] = 9
	g.refreshBases(ahead)
	s := ahead.segs[0]
	if got := [3]float32{s.Values[0], s.Values[s.Dim], s.Values[2*s.Dim]}; got != [3]float32{2, 7, 9} {
		t.Errorf("the model would see %v, want 2, 7 and 9", got)
	}
	if ahead.stale != 2 {
		t.Errorf("it is %d batches ahead of the tables, want 2", ahead.stale)
	}
}

// A single worker learns the same as in mode async, but for the rounding of the differences that it sends.
func TestGeoOfOneTrainerIsAsync(t *testing.T) {
	rows := func(cfg Config) (*Result, []float32) {
		l := newLocal(t)
		r := mustRun(t, cfg, l, nil)
		var all []float32
		e := l.Schemas()[0]
		_, rows := l.Rows(e.ID)
		for _, row := range rows {
			all = append(all, row[:e.Dim]...)
		}
		return r, all
	}
	// The weights of ftrl are a function of its state, which must follow a round.
	for _, optimizer := range []string{"adagrad", "ftrl", "adam"} {
		with := func(cfg Config) Config {
			cfg.Embeddings.Optimizer = optimizer
			return cfg
		}
		async, want := rows(with(tinyConfig(40, 0)))
		for _, every := range []int{1, 7, 100} {
			geo, got := rows(with(geoConfig(40, 0, every)))
			if len(got) != len(want) {
				t.Fatalf("%s, every %d: %d numbers, want %d", optimizer, every, len(got), len(want))
			}
			for i := range want {
				if math.Abs(float64(got[i]-want[i])) > 1e-4 {
					t.Fatalf("%s, every %d: number %d is %v, in mode async %v", optimizer, every, i, got[i], want[i])
				}
			}
			if d := math.Abs(float64(geo.LogLoss - async.LogLoss)); d > 1e-4 {
				t.Errorf("%s, every %d: log loss %v, in mode async %v", optimizer, every, geo.LogLoss, async.LogLoss)
			}
			if geo.PushesSent != 40 || geo.PushesAcknowledged != 40 {
				t.Errorf("%s, every %d: %d batches sent, %d acknowledged, want 40", optimizer, every, geo.PushesSent, geo.PushesAcknowledged)
			}
		}
	}
}

// The tables have every push of several concurrent workers once, scaled as configured, with copies far too small
// and concurrent rounds.
func TestGeoLosesAndDoublesNothing(t *testing.T) {
	const workers, batches, keys, limit = 4, 60, 40, 16
	for scale, share := range map[string]float32{"sum": 1, "mean": 1.0 / workers} {
		l := newLocal(t)
		var all sync.WaitGroup
		sums := make([][keys]float32, workers)
		var gs []*geoMode
		for i := range workers {
			gs = append(gs, plainGeo(t, l, i%2, 1+2*i, func(c *Config) {
				c.Geo.Rows, c.Geo.Scale, c.Trainers, c.Rank = limit, scale, workers, &i
			}))
		}
		for i, g := range gs {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for range batches {
					w := g.gradients(float32(workers*(1+r.IntN(8))), someKeys(r, keys, 6)...)
					for _, key := range w.segs[0].Keys {
						sums[i][key] += w.segs[0].Values[0]
					}
					read := g.gradients(0, someKeys(r, keys, 6)...)
					if err := g.pull(t.Context(), read); err != nil {
						t.Error(err)
					}
					if err := g.push(t.Context(), w); err != nil {
						t.Error(err)
					}
				}
				if err := g.drain(t.Context()); err != nil {
					t.Error(err)
				}
				g.wait()
			})
		}
		all.Wait()
		for key := range rowraft.Key(keys) {
			want := float32(0)
			for i := range sums {
				want -= sums[i][key] * share
			}
			if got := gs[0].held(t, key); got != want {
				t.Errorf("scale %s: row %d is %v, want %v", scale, key, got, want)
			}
		}
		for i, g := range gs {
			if n := len(g.tables[0].places); n > limit || len(g.tables[0].metas) > limit {
				t.Errorf("worker %d has %d rows in %d places, want at most %d", i, n, len(g.tables[0].metas), limit)
			}
			if g.j.mu.sent != batches || g.j.mu.acknowledged != batches {
				t.Errorf("worker %d: %d batches sent, %d acknowledged, want %d", i, g.j.mu.sent, g.j.mu.acknowledged, batches)
			}
		}
	}
}

// someKeys draws up to n different keys, ascending.
func someKeys(r *rand.Rand, below, n int) []rowraft.Key {
	keys := make([]rowraft.Key, n)
	for i := range keys {
		keys[i] = rowraft.Key(r.IntN(below))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Between two rounds a worker sees its own progress only. After a round it sees the others' progress in the rows it
// sends and, when it reads them again, in all rows.
func TestGeoSeesOthersAfterARound(t *testing.T) {
	l := newLocal(t)
	pair := func(i int) *geoMode {
		return plainGeo(t, l, 0, 2, func(c *Config) { c.Geo.Scale, c.Trainers, c.Rank = "sum", 2, &i })
	}
	a, b := pair(0), pair(1)
	see := func(when string, g *geoMode, key rowraft.Key, want float32) {
		t.Helper()
		if got := g.sees(t, key); got != want {
			t.Errorf("%s: row %d is seen as %v, want %v", when, key, got, want)
		}
	}
	see("at first", a, 1, 0)
	see("at first", a, 2, 0)
	b.mustPush(t, 1, 1, 2)
	see("before any round", a, 1, 0)
	b.mustPush(t, 1, 1, 2) // its second batch: a round
	if got := a.held(t, 1); got != -2 {
		t.Fatalf("after a round row 1 is %v in the table, want -2", got)
	}
	see("between a's rounds", a, 1, 0)
	a.mustPush(t, 10, 1)
	see("own progress", a, 1, -10)
	a.mustPush(t, 10, 1)
	see("a row that was sent", a, 1, -22)
	see("a row that was read long ago", a, 2, -2)
	see("the other worker, before it reads", b, 1, -2)
}

// Changes by others to a row remain when its weights are a function of the worker's state.
func TestGeoFitsTheStateToWhatOthersDid(t *testing.T) {
	l := newLocal(t)
	pair := func(i int, optimizer string) *geoMode {
		return plainGeo(t, l, 0, 1, func(c *Config) {
			c.Geo.Scale, c.Trainers, c.Rank, c.Embeddings.Optimizer = "sum", 2, &i, optimizer
		})
	}
	a, b := pair(0, "ftrl"), pair(1, "sgd")
	a.sees(t, 1)
	b.mustPush(t, 5, 1)
	for range 3 {
		a.mustPush(t, 0, 1)
		if got := a.held(t, 1); got != -5 {
			t.Fatalf("row 1 is %v after a gradient of 0, want -5", got)
		}
	}
}

// Progress made during a round is neither lost nor sent with it.
func TestGeoTrainsDuringARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &strict{Local: newLocal(t), t: t, inFlight: 1, hold: make(chan struct{}), held: func() {}}
		g := plainGeo(t, s, 1, 1, nil)
		g.mustPush(t, 1, 7)
		synctest.Wait() // the round holds −1
		g.mustPush(t, 2, 7)
		if got := g.sees(t, 7); got != -3 {
			t.Errorf("during the round row 7 reads as %v, want -3", got)
		}
		s.hold <- struct{}{}
		synctest.Wait()
		if seen, held := g.sees(t, 7), g.held(t, 7); seen != -3 || held != -1 {
			t.Errorf("after the round row 7 is seen as %v and held as %v, want -3 and -1", seen, held)
		}
		close(s.hold)
		if err := g.drain(t.Context()); err != nil {
			t.Error(err)
		}
		if held := g.held(t, 7); held != -3 {
			t.Errorf("in the end row 7 is held as %v, want -3", held)
		}
		g.wait()
	})
}

// The first rounds come after 1, 2, 4, … batches, until they are every apart; training waits for them.
func TestGeoBeginsWithRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := plainGeo(t, newLocal(t), 1, 10, nil)
		g.before = 0
		var rounds []int
		last := float32(0)
		for batch := 1; batch <= 40; batch++ {
			g.mustPush(t, 1, 7)
			if batch > 16 {
				synctest.Wait() // the round runs concurrently
			}
			if held := g.held(t, 7); held != last {
				rounds, last = append(rounds, batch), held
			}
		}
		if want := []int{1, 2, 4, 8, 16, 26, 36}; !slices.Equal(rounds, want) {
			t.Errorf("rounds after the batches %v, want %v", rounds, want)
		}
		g.wait()
	})
}

// Two workers that alone would choose different solutions, which cancel out, choose one: the gradient is that of a
// well at 1 and another at −1, and each worker's first batch sends it towards its own.
func TestGeoWorkersChooseTogether(t *testing.T) {
	l := newLocal(t)
	var workers []*geoMode
	for i := range 2 {
		g := plainGeo(t, l, 0, 50, func(c *Config) { c.Trainers, c.Rank = 2, &i })
		g.before = 0
		workers = append(workers, g)
	}
	pushes := [2]float32{0.3, -0.1}
	for batch := range 50 {
		for i, g := range workers {
			w := g.gradients(0, 7)
			if err := g.pull(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			for d, x := range w.segs[0].Values {
				w.segs[0].Values[d] = 0.2 * (x*x*x - x)
				if batch == 0 {
					w.segs[0].Values[d] -= pushes[i]
				}
			}
			if err := g.push(t.Context(), w); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := workers[0].held(t, 7); got != 1 {
		t.Errorf("the tables have %v, want 1, the choice of the worker that was surer", got)
	}
}

// slowReads delays the result of a pull while hold is set.
type slowReads struct {
	*tables.Local
	hold atomic.Pointer[chan struct{}]
}

func (s *slowReads) Pull(ctx context.Context, segs []tables.Segment) error {
	err := s.Local.Pull(ctx, segs)
	if hold := s.hold.Swap(nil); hold != nil {
		<-*hold
	}
	return err
}

// A read that a batch or a whole round has overtaken changes nothing.
func TestGeoDropsAReadThatIsLate(t *testing.T) {
	for _, round := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &slowReads{Local: newLocal(t)}
			g := plainGeo(t, s, 1, 100, nil)
			g.sees(t, 8)
			g.mustPush(t, 1, 7)
			if err := g.drain(t.Context()); err != nil { // row 8 is old now
				t.Fatal(err)
			}
			hold, done := make(chan struct{}), make(chan error)
			s.hold.Store(&hold)
			go func() { done <- g.pull(t.Context(), g.gradients(0, 8)) }()
			synctest.Wait() // it has read 0
			g.mustPush(t, 1, 8)
			if round {
				if err := g.drain(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			close(hold)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if got := g.sees(t, 8); got != -1 {
				t.Errorf("with a round %v: row 8 is seen as %v, want -1", round, got)
			}
		})
	}
}

// At a pause, and at the end, the tables have every batch: the audit rows count them.
func TestGeoIsSettledAtABoundary(t *testing.T) {
	for _, inFlight := range []int{0, 3} {
		l, cfg := newLocal(t), geoConfig(40, inFlight, 7)
		cfg.Generator.Examples, cfg.Audit, cfg.Trainers = 0, true, 2
		counted := func(j *Job, want int64) {
			t.Helper()
			rows := make([]float32, len(j.auditKeys)*2)
			if err := l.Pull(t.Context(), []tables.Segment{{Table: j.audit.ID, Dim: 2, Keys: j.auditKeys, Values: rows}}); err != nil {
				t.Fatal(err)
			}
			for i := range j.auditKeys {
				if rows[2*i] != float32(want) {
					t.Errorf("in_flight %d: audit row %d says %v, want %d batches", inFlight, i, rows[2*i], want)
				}
			}
		}
		at := make(chan struct{})
		j := newJob(t, cfg, l, func(e Event) {
			if e.Event == EventStep && e.Step == 11 {
				close(at)
			}
		})
		done := make(chan error, 1)
		go func() {
			_, err := j.Run(t.Context())
			done <- err
		}()
		<-at
		s, release, err := j.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Acknowledged != s.Step || s.Step < 11 {
			t.Errorf("in_flight %d: at the boundary %d of %d batches are acknowledged", inFlight, s.Acknowledged, s.Step)
		}
		counted(j, s.Step)
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		counted(j, 40)
	}
}

// A round that fails ends the run, and its batches count as unknown.
func TestGeoRoundFails(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		s := &strict{Local: newLocal(t), t: t, inFlight: 1, fail: func(push int) error {
			if push == 6 { // after 1, 1, 2, 4 and 5 batches or a few more
				return rowraft.Errorf(rowraft.CodeSessionExpired, "fenced")
			}
			return nil
		}}
		r, err := newJob(t, geoConfig(5000, inFlight, 5), s, nil).Run(t.Context())
		if rowraft.CodeOf(err) != rowraft.CodeSessionExpired || !strings.Contains(err.Error(), "batches changed in") {
			t.Errorf("in_flight %d: Run = %v, want SessionExpired, with the rows", inFlight, err)
		}
		if r.PushesAcknowledged < 5 || r.PushesUnknown < 5 || r.PushesSent != r.PushesAcknowledged+r.PushesUnknown || s.pushes != 6 {
			t.Errorf("in_flight %d: %+v after %d pushes, want five rounds acknowledged and one unknown", inFlight, r, s.pushes)
		}
	}
}

func TestGeoRefuses(t *testing.T) {
	l := newLocal(t)
	mustRun(t, tinyConfig(1, 0), l, nil)
	if _, err := NewJob(t.Context(), geoConfig(1, 0, 5), l, nil); rowraft.CodeOf(err) != rowraft.CodeTableExists || !strings.Contains(err.Error(), "whose optimizer is add") {
		t.Errorf("tables of mode async: %v, want TableExists, and why", err)
	}
	cfg := geoConfig(1, 0, 5)
	cfg.Dense.Optimizer = "add"
	if err := cfg.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), `"add"`) {
		t.Errorf("a worker whose optimizer is add: %v, want InvalidArgument", err)
	}
	g := plainGeo(t, newLocal(t), 0, 5, func(c *Config) { c.Geo.Rows = 3 })
	if err := g.pull(context.Background(), g.gradients(0, 1, 2, 3, 4)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a batch of 4 rows in a copy of 3: %v, want InvalidArgument", err)
	}
}
