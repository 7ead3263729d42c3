package e2e

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// Pulls with copies return nothing older than their bound, in steps or in time, while leaders are killed. A row counts
// its pushes, so each row that is read states how old it is.
func TestCopiesStayWithinTheirBound(t *testing.T) {
	beforeRelease(t)
	const keys, steps, most, age = 200, 2000, 8, 50 * time.Millisecond
	c := start(t, localcluster.Options{})
	writer := c.dial(client.Options{})
	ctx := deadline(t, patience)
	table, err := writer.CreateTable(ctx, rowraft.Schema{
		Name: "counts", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	counts := &acknowledgedCounts{now: make([]float32, keys)}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { counts.push(ctx, t, table) })

	k := startKiller(c, 4)
	defer k.stop()
	var killed atomic.Int64 // orders that the killer has taken
	all.Go(func() {
		for ctx.Err() == nil {
			k.kill(rowraft.ShardID(killed.Load() % 4))
			killed.Add(1)
		}
	})
	defer func() { stop(); all.Wait() }()
	model := time.NewTicker(time.Millisecond) // as if one ran
	defer model.Stop()
	r := rand.New(rand.NewPCG(1, 2))
	for _, bySteps := range []bool{true, false} {
		counts.marks = nil
		reader := c.dial(client.Options{CacheBytes: cache.MinBytes})
		from, err := reader.Table(ctx, "counts")
		if err != nil {
			t.Fatal(err)
		}
		checked, before := 0, killed.Load() // rows of which pushes had been acknowledged at the bound
		for step := uint64(most + 1); step < steps || killed.Load() < before+3; step++ {
			seg := client.Segment{Table: from, Values: make([]float32, 40)}
			for range 40 {
				seg.Keys = append(seg.Keys, rowraft.Key(r.IntN(keys)))
			}
			counts.mark(step)
			least := counts.at(step - most)
			if bySteps {
				seg.Reuse = client.Reuse{Now: step, Since: step - most}
			} else {
				seg.Reuse = client.Reuse{MaxAge: age}
				least = counts.before(time.Now().Add(-age))
			}
			if err := reader.Pull(ctx, seg); err != nil {
				t.Fatal(err)
			}
			for i, key := range seg.Keys {
				if least[key] > 0 {
					checked++
				}
				if seg.Values[i] < least[key] {
					t.Fatalf("step %d: row %d has %v pushes, and had %v acknowledged at the bound", step, key, seg.Values[i],
						least[key])
				}
			}
			<-model.C
		}
		got := reader.Copies()
		t.Logf("by steps %v: %+v, %d rows checked, %d leaders killed", bySteps, got, checked, killed.Load()-before)
		if got.Hits < 1000 || got.Stale < 100 || checked < 1000 {
			t.Errorf("by steps %v: %+v, %d rows checked: want many", bySteps, got, checked)
		}
	}
}

// acknowledgedCounts are the acknowledged pushes of each key, now and when steps began.
type acknowledgedCounts struct {
	mu    sync.Mutex
	now   []float32
	marks []mark
}

// mark is the counts when a step began.
type mark struct {
	step uint64
	when time.Time
	of   []float32
}

// push counts pushes of random keys until ctx ends.
func (a *acknowledgedCounts) push(ctx context.Context, t *testing.T, table *client.Table) {
	r := rand.New(rand.NewPCG(3, 4))
	for ctx.Err() == nil {
		keys, grads := make([]rowraft.Key, 20), make([]float32, 20)
		for i := range keys {
			keys[i], grads[i] = rowraft.Key(r.IntN(len(a.now))), -1
		}
		if _, err := table.Push(ctx, keys, grads); err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return
		}
		a.mu.Lock()
		for _, k := range keys {
			a.now[k]++
		}
		a.mu.Unlock()
	}
}

// mark records the counts at the begin of a step.
func (a *acknowledgedCounts) mark(step uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.marks = append(a.marks, mark{step, time.Now(), append([]float32(nil), a.now...)})
}

// at returns the counts at the begin of the last step up to step.
func (a *acknowledgedCounts) at(step uint64) []float32 {
	return a.last(func(m *mark) bool { return m.step <= step })
}

// before returns the counts at a time before when.
func (a *acknowledgedCounts) before(when time.Time) []float32 {
	return a.last(func(m *mark) bool { return m.when.Before(when) })
}

func (a *acknowledgedCounts) last(ok func(*mark) bool) []float32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := len(a.marks) - 1; i >= 0; i-- {
		if ok(&a.marks[i]) {
			return a.marks[i].of
		}
	}
	return make([]float32, len(a.now))
}
