package shard

import (
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestScrubGoesThroughEverything: passes go on where they stopped, beside pushes,
// through tables that come meanwhile, and find no damage where there is none.
func TestScrubGoesThroughEverything(t *testing.T) {
	r := pushedReplica(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := r.Scrub(1 << 20); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for seq := rowraft.Seq(2); seq < 200; seq++ {
		pushOnes(r, seq, rowraft.Key(seq%7), 100+rowraft.Key(seq))
		if seq == 100 {
			r.create(testTable(5, "later", 3, rowraft.Optimizer{Kind: rowraft.Adam, LR: 1, Beta1: 0.9, Beta2: 0.9, Epsilon: 1}))
		}
	}
	close(stop)
	wg.Wait()
	pass := r.scrub.passes
	calls := 0
	for ; r.scrub.passes < pass+2; calls++ {
		table, slot := r.scrub.table, r.scrub.slot
		if err := r.Scrub(100); err != nil {
			t.Fatal(err)
		}
		if r.scrub.passes == pass && r.scrub.table == table && r.scrub.slot <= slot {
			t.Fatalf("at slot %d of table %d again", slot, table)
		}
	}
	if calls < 4 {
		t.Errorf("two passes in %d calls for 100 bytes each: nothing was read", calls)
	}
	if err := r.Scrub(1 << 30); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.Scrub(1), rowraft.CodeClosing)
}
