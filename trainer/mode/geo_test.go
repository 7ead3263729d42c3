package mode

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/tables"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tally is a Run that counts pushes.
type tally struct {
	mu                 sync.Mutex
	sent, acknowledged int64
	failure            error
}

func (r *tally) PushBegan(batches int64) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent += batches
	return time.Time{}
}

func (r *tally) PushEnded(_ time.Time, batches int64, err error) error {
	if err != nil {
		return r.Fail(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acknowledged += batches
	return nil
}

func (r *tally) Late(*Batch, string) {}

func (r *tally) JobReached(int64) {}

func (r *tally) Fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
	return err
}

func (r *tally) Failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

func (r *tally) Unfinished(int64) int64 { return 0 }

func newLocal(t testing.TB) *tables.Local {
	t.Helper()
	l, err := tables.NewLocal(4, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// geoTrainer is a trainer in mode geo with one table.
type geoTrainer struct {
	*Geo
	table rowraft.Schema
	tally tally
}

// plainGeo is mode geo whose rows start (almost) at 0 and decrease by each gradient, so that sums of small integers
// are exact.
func plainGeo(t *testing.T, tb tables.Tables, inFlight, every int, set func(*GeoCopy)) *geoTrainer {
	t.Helper()
	g := &geoTrainer{}
	var err error
	g.table, err = tb.EnsureTable(t.Context(), rowraft.Schema{
		Name: "ctr.embeddings", Kind: rowraft.Sparse, Dim: 4, Optimizer: rowraft.Optimizer{Kind: rowraft.Add},
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 1, A: -1e-30, B: 1e-30},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := GeoCopy{Schema: g.table, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}, Share: 1, Limit: 1_000_000}
	if set != nil {
		set(&c)
	}
	g.Geo, err = NewGeo(Options{Tables: tb, Run: &g.tally, Patience: time.Minute},
		GeoOptions{Every: int64(every), Concurrent: inFlight > 0, Copies: []GeoCopy{c}})
	if err != nil {
		t.Fatal(err)
	}
	g.before = int64(every) // its first rounds are behind it
	return g
}

// gradients is a batch of embeddings.
func (g *geoTrainer) gradients(grad float32, keys ...rowraft.Key) *Batch {
	s := tables.Segment{Table: g.table.ID, Dim: g.table.Dim, Keys: keys}
	for range len(keys) * s.Dim {
		s.Values = append(s.Values, grad)
	}
	return &Batch{Segs: []tables.Segment{s}}
}

// sees returns the first weight of key in the worker's model.
func (g *geoTrainer) sees(t *testing.T, key rowraft.Key) float32 {
	t.Helper()
	w := g.gradients(0, key)
	if err := g.Pull(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	return float32(math.Round(float64(w.Segs[0].Values[0])))
}

func (g *geoTrainer) mustPush(t *testing.T, grad float32, keys ...rowraft.Key) {
	t.Helper()
	if err := g.Push(t.Context(), g.gradients(grad, keys...)); err != nil {
		t.Fatal(err)
	}
}

// held returns the first weight of key in the tables.
func (g *geoTrainer) held(t *testing.T, key rowraft.Key) float32 {
	t.Helper()
	w := g.gradients(0, key)
	if err := g.Tables.Pull(t.Context(), w.Segs); err != nil {
		t.Fatal(err)
	}
	return float32(math.Round(float64(w.Segs[0].Values[0])))
}

// A batch that was pulled ahead sees the training of the batches before it, and a row that was evicted since stays
// as it was pulled.
func TestGeoRenewsWhatWasPulledAhead(t *testing.T) {
	g := plainGeo(t, newLocal(t), 4, 1000, nil)
	ahead := g.gradients(0, 3, 4, 5)
	if err := g.Pull(t.Context(), ahead); err != nil {
		t.Fatal(err)
	}
	g.mustPush(t, -2, 3, 4)
	g.mustPush(t, -5, 4)
	delete(g.copies[0].places, 5)
	ahead.Segs[0].Values[2*ahead.Segs[0].Dim] = 9
	g.Refresh(ahead)
	s := ahead.Segs[0]
	if got := [3]float32{s.Values[0], s.Values[s.Dim], s.Values[2*s.Dim]}; got != [3]float32{2, 7, 9} {
		t.Errorf("the model would see %v, want 2, 7 and 9", got)
	}
	if ahead.Stale != 2 {
		t.Errorf("it is %d batches ahead of the tables, want 2", ahead.Stale)
	}
}

// The tables have every push of several concurrent workers once, scaled as configured, with copies far too small
// and concurrent rounds.
func TestGeoLosesAndDoublesNothing(t *testing.T) {
	const workers, batches, keys, limit = 4, 60, 40, 16
	for _, share := range []float32{1, 1.0 / workers} {
		l := newLocal(t)
		var all sync.WaitGroup
		sums := make([][keys]float32, workers)
		var gs []*geoTrainer
		for i := range workers {
			gs = append(gs, plainGeo(t, l, i%2, 1+2*i, func(c *GeoCopy) { c.Limit, c.Share = limit, share }))
		}
		for i, g := range gs {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				for range batches {
					w := g.gradients(float32(workers*(1+r.IntN(8))), someKeys(r, keys, 6)...)
					for _, key := range w.Segs[0].Keys {
						sums[i][key] += w.Segs[0].Values[0]
					}
					read := g.gradients(0, someKeys(r, keys, 6)...)
					if err := g.Pull(t.Context(), read); err != nil {
						t.Error(err)
					}
					if err := g.Push(t.Context(), w); err != nil {
						t.Error(err)
					}
				}
				if err := g.Drain(t.Context()); err != nil {
					t.Error(err)
				}
				g.Wait()
			})
		}
		all.Wait()
		for key := range rowraft.Key(keys) {
			want := float32(0)
			for i := range sums {
				want -= sums[i][key] * share
			}
			if got := gs[0].held(t, key); got != want {
				t.Errorf("share %v: row %d is %v, want %v", share, key, got, want)
			}
		}
		for i, g := range gs {
			if n := len(g.copies[0].places); n > limit || len(g.copies[0].metas) > limit {
				t.Errorf("worker %d has %d rows in %d places, want at most %d", i, n, len(g.copies[0].metas), limit)
			}
			if g.tally.sent != batches || g.tally.acknowledged != batches {
				t.Errorf("worker %d: %d batches sent, %d acknowledged, want %d", i, g.tally.sent, g.tally.acknowledged,
					batches)
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
	a, b := plainGeo(t, l, 0, 2, nil), plainGeo(t, l, 0, 2, nil)
	see := func(when string, g *geoTrainer, key rowraft.Key, want float32) {
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
	a := plainGeo(t, l, 0, 1, func(c *GeoCopy) { c.Optimizer = rowraft.Optimizer{Kind: rowraft.FTRL, LR: 1, Beta: 1} })
	b := plainGeo(t, l, 0, 1, nil)
	a.sees(t, 1)
	b.mustPush(t, 5, 1)
	for range 3 {
		a.mustPush(t, 0, 1)
		if got := a.held(t, 1); got != -5 {
			t.Fatalf("row 1 is %v after a gradient of 0, want -5", got)
		}
	}
}

// slowPushes makes each push wait for hold.
type slowPushes struct {
	*tables.Local
	hold chan struct{}
}

func (s *slowPushes) Push(ctx context.Context, segs []tables.Segment) error {
	<-s.hold
	return s.Local.Push(ctx, segs)
}

// Progress made during a round is neither lost nor sent with it.
func TestGeoTrainsDuringARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowPushes{newLocal(t), make(chan struct{})}
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
		if err := g.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if held := g.held(t, 7); held != -3 {
			t.Errorf("in the end row 7 is held as %v, want -3", held)
		}
		g.Wait()
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
		g.Wait()
	})
}

// Two workers that alone would choose different solutions, which cancel out, choose one: the gradient is that of a
// well at 1 and another at −1, and each worker's first batch sends it towards its own.
func TestGeoWorkersChooseTogether(t *testing.T) {
	l := newLocal(t)
	var workers []*geoTrainer
	for range 2 {
		g := plainGeo(t, l, 0, 50, func(c *GeoCopy) { c.Share = 0.5 })
		g.before = 0
		workers = append(workers, g)
	}
	pushes := [2]float32{0.3, -0.1}
	for batch := range 50 {
		for i, g := range workers {
			w := g.gradients(0, 7)
			if err := g.Pull(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			for d, x := range w.Segs[0].Values {
				w.Segs[0].Values[d] = 0.2 * (x*x*x - x)
				if batch == 0 {
					w.Segs[0].Values[d] -= pushes[i]
				}
			}
			if err := g.Push(t.Context(), w); err != nil {
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
			if err := g.Drain(t.Context()); err != nil { // row 8 is old now
				t.Fatal(err)
			}
			hold, done := make(chan struct{}), make(chan error)
			s.hold.Store(&hold)
			go func() { done <- g.Pull(t.Context(), g.gradients(0, 8)) }()
			synctest.Wait() // it has read 0
			g.mustPush(t, 1, 8)
			if round {
				if err := g.Drain(t.Context()); err != nil {
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

// A batch with more rows than the copy may have is refused.
func TestGeoRefusesABatchThatDoesNotFit(t *testing.T) {
	g := plainGeo(t, newLocal(t), 0, 5, func(c *GeoCopy) { c.Limit = 3 })
	if err := g.Pull(t.Context(), g.gradients(0, 1, 2, 3, 4)); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a batch of 4 rows in a copy of 3: %v, want InvalidArgument", err)
	}
}
