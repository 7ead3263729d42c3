package shard

import (
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestScrubGoesThroughEverything: calls continue where the last one stopped, during pushes and with tables
// that are created in between, and report no damage where there is none.
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
		table, slot, owed := r.scrub.table, r.scrub.slot, r.scrub.owed
		if err := r.Scrub(100); err != nil {
			t.Fatal(err)
		}
		if r.scrub.passes == pass && r.scrub.table == table && r.scrub.slot <= slot && owed < 100 {
			t.Fatalf("at slot %d of table %d again", slot, table)
		}
	}
	if calls < 4 {
		t.Errorf("two passes in %d calls for 100 bytes each: nothing was read", calls)
	}
	r.scrub.owed = 0
	if err := r.Scrub(1 << 30); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	testutil.WantCode(t, r.Scrub(1), rowraft.CodeClosing)
}

// TestScrubKeepsToItsBudget: however large a slot is, Scrub reads at most scrubBytes and a row per hold of
// the lock, and later calls subtract what a call reads beyond its budget.
func TestScrubKeepsToItsBudget(t *testing.T) {
	table := testTable(1, "t", 64, adagrad)
	table.Kind = rowraft.Dense
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 4000)
	for i := range keys {
		keys[i] = rowraft.DenseKey(1, uint64(i))
	}
	if err := r.parts(push(1, 1, payloadOf(rows{schema: table, keys: keys})))[0].Err; err != nil {
		t.Fatal(err)
	}
	recordBytes := r.mu.tables.list[0].rows.RecordBytes()
	all, holds := len(keys)*recordBytes, 0
	for read := 0; r.scrub.passes < 1; holds++ {
		n, where := r.scrub.next(r.mu.tables, r.owned)
		if read += n; where != "" || n > scrubBytes+recordBytes {
			t.Fatalf("%d bytes under one hold of the lock, %q; want %d and a row at most", n, where, scrubBytes)
		}
		if r.scrub.passes == 1 && read != all {
			t.Errorf("read %d bytes of %d", read, all)
		}
	}
	if least := all / (scrubBytes + recordBytes); holds < least {
		t.Errorf("%d holds for %d bytes", holds, all)
	}
	const budget = 1000
	calls := 0
	for ; r.scrub.passes < 2; calls++ {
		if err := r.Scrub(budget); err != nil {
			t.Fatal(err)
		}
	}
	if calls*budget < all-scrubBytes {
		t.Errorf("%d bytes were read in %d calls for %d each", all, calls, budget)
	}
}
