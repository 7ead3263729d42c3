package e2e

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// TestScanUnderPushesAndAKill: every push adds 1 to all weights of all rows. A scan
// runs concurrently, and a leader dies during it. It returns each row once, whole, and not older
// than what was acknowledged before it began.
func TestScanUnderPushesAndAKill(t *testing.T) {
	const dim, rows = 4, 20_000
	c := start(t, localcluster.Options{})
	cl := c.dial(client.Options{})
	table, err := cl.CreateTable(deadline(t, patience), rowraft.Schema{
		Name: "counts", Kind: rowraft.Sparse, Dim: dim, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	keys, grads := make([]rowraft.Key, rows), make([]float32, dim*rows)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	for i := range grads {
		grads[i] = -1
	}
	var begun, acked atomic.Int64
	push := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		begun.Add(1)
		_, err := table.Push(ctx, keys, grads)
		if err == nil {
			acked.Add(1)
		}
		return err
	}
	if err := push(); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	var once sync.Once
	end := func() { once.Do(func() { close(stop) }) }
	defer end()
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := push(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	leads, err := c.leaders(deadline(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	victim := leads[len(leads)-1] // it leads the slots that a scan reads last
	for round := range 2 {
		least := acked.Load()
		got := make(map[rowraft.Key][]float32)
		killed := round == 0
		err := table.Scan(deadline(t, patience), func(keys []rowraft.Key, values []float32) error {
			if !killed {
				killed = true
				if err := victim.Kill(); err != nil {
					return err
				}
			}
			for i, k := range keys {
				if _, twice := got[k]; twice {
					t.Errorf("round %d: key %d came twice", round, k)
				}
				got[k] = slices.Clone(values[i*dim : (i+1)*dim])
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		most := begun.Load()
		if len(got) != rows {
			t.Errorf("round %d: %d rows of %d", round, len(got), rows)
		}
		for k, w := range got {
			for _, v := range w {
				if v != w[0] || v < float32(least) || v > float32(most) {
					t.Fatalf("round %d: key %d has %v; %d pushes were acknowledged before, %d begun after", round, k, w, least, most)
				}
			}
		}
		t.Logf("round %d: between %d and %d pushes", round, least, most)
	}
	end()
	wg.Wait()
	if err := c.Restart(deadline(t, patience), victim); err != nil {
		t.Fatal(err)
	}
}
