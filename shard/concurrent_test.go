package shard

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// TestPullsDuringAppliesAndSnapshots: every push adds the same number to all weights of all rows, so a row
// with different weights is torn. The rows of a pull reflect at least the index that it returns.
func TestPullsDuringAppliesAndSnapshots(t *testing.T) {
	const dim, pushes = 24, 30
	table := testTable(1, "t", dim, sgd)
	table.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 3*chunkRows)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	first := r.index
	payload := payloadOf(rows{schema: table, keys: keys})
	ask := payloadOf(rows{schema: table, keys: keys, flags: wire.FlagNoValues})
	twin := newReplica(t, Config{})

	var done atomic.Bool
	var wg sync.WaitGroup
	defer func() { done.Store(true); wg.Wait() }()
	for range 2 {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for !done.Load() {
				reply, at, err := r.Pull(ask, false, 0, func(n int) []byte { return buf[:n] })
				if err != nil {
					t.Error(err)
					return
				}
				checkRows(t, reply, float32(at.Applied-first), dim)
			}
		})
	}
	wg.Go(func() {
		for !done.Load() {
			checkSnapshot(t, r.Machine, twin, keys[len(keys)-1], first)
		}
	})
	wg.Go(func() {
		part := push(1, pushes+1, payload)
		for !done.Load() {
			if _, err := r.CheckPart(&part); err != nil {
				t.Error(err)
			}
			d, err := r.Digest()
			if err != nil || d.Rows != 0 && d.Rows != uint64(len(keys)) {
				t.Errorf("a digest of %d rows, %v", d.Rows, err)
			}
			r.Stats()
			r.Tables()
		}
	})
	for seq := range rowraft.Seq(pushes) {
		if err := r.parts(push(1, seq+1, payload))[0].Err; err != nil {
			t.Fatal(err)
		}
	}
}

// checkRows checks that the weights of a row are equal and include at least min pushes.
func checkRows(t *testing.T, reply []byte, min float32, dim int) {
	_, body, _, err := wire.ParseSegment(reply)
	if err != nil {
		t.Error(err)
		return
	}
	row := make([]float32, dim)
	for at := 0; at < len(body.Values); at += 4 * dim {
		wire.GetFloats(row, rowraft.Float32, body.Values[at:])
		for _, w := range row {
			if w != row[0] || -w < min {
				t.Errorf("row %d is %v, want at least %v pushes", at/4/dim, row, min)
				return
			}
		}
	}
}

// checkSnapshot writes a snapshot, restores it, and checks that the rows are those of exactly its index.
func checkSnapshot(t *testing.T, m *Machine, twin *replica, last rowraft.Key, first rowraft.Index) {
	s, err := m.Snapshot()
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Error(err)
		return
	}
	if err := twin.Restore(&b); err != nil {
		t.Error(err)
		return
	}
	ask := payloadOf(rows{schema: twin.Tables()[0], keys: []rowraft.Key{0, last}, flags: wire.FlagNoValues})
	reply, at, err := twin.Pull(ask, false, 0, alloc)
	if err != nil || at.Applied != s.Index() {
		t.Errorf("restored at %d, want %d: %v", at.Applied, s.Index(), err)
		return
	}
	_, body, _, _ := wire.ParseSegment(reply)
	got := make([]float32, len(body.Values)/4)
	wire.GetFloats(got, rowraft.Float32, body.Values)
	for i, w := range got {
		if want := -float32(at.Applied - first); w != want {
			t.Errorf("snapshot at index %d: weight %d is %v, want %v", at.Applied, i, w, want)
			return
		}
	}
}

// TestPullsDuringRestores: a pull returns whole rows of one state, or the error that it was interrupted.
func TestPullsDuringRestores(t *testing.T) {
	const dim = 8
	table := testTable(1, "t", dim, sgd)
	table.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 3*chunkRows)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	var streams [][]byte
	for seq := range rowraft.Seq(2) {
		r.parts(push(1, seq+1, payloadOf(rows{schema: table, keys: keys})))
		streams = append(streams, r.snapshot())
	}
	ask := payloadOf(rows{schema: table, keys: keys, flags: wire.FlagNoValues})
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer done.Store(true)
		for i := range 30 {
			if err := r.Restore(bytes.NewReader(streams[i%2])); err != nil {
				t.Error(err)
			}
		}
	})
	for !done.Load() {
		reply, _, err := r.Pull(ask, false, 0, alloc)
		if rowraft.CodeOf(err) == rowraft.CodeStarting && err != nil {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_, body, _, _ := wire.ParseSegment(reply)
		got := make([]float32, len(body.Values)/4)
		wire.GetFloats(got, rowraft.Float32, body.Values)
		for i, w := range got {
			if w != got[0] || w != -1 && w != -2 {
				t.Fatalf("weight %d is %v, weight 0 is %v", i, w, got[0])
			}
		}
	}
	wg.Wait()
}

// TestApplyDoesNotWaitForPulls: a pull that stops in the middle of its keys (here: a held readers lock)
// delays no entry. Rows change and are created, segments grow, sessions open, tables are created. Only a
// restore waits for it.
func TestApplyDoesNotWaitForPulls(t *testing.T) {
	table := testTable(1, "t", 4, sgd)
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 3*chunkRows)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	r.parts(push(1, 1, payloadOf(rows{schema: table, keys: keys})))
	stream := r.snapshot()
	digest := r.digest()

	r.readers.RLock() // as pullChunk holds it
	for seq := rowraft.Seq(2); seq < 20; seq++ {
		for i := range keys {
			keys[i] = rowraft.Key(i * int(seq))
		}
		if err := r.parts(push(1, seq, payloadOf(rows{schema: table, keys: keys})))[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	r.mustOpen(2, 1)
	r.create(testTable(2, "u", 4, sgd))
	ask := payloadOf(rows{schema: table, keys: keys, flags: wire.FlagNoValues})
	if _, _, err := r.Pull(ask, false, 0, alloc); err != nil {
		t.Fatal(err)
	}
	restored := make(chan error)
	go func() { restored <- r.Restore(bytes.NewReader(stream)) }()
	for r.readers.TryRLock() { // until the restore waits for the lock
		r.readers.RUnlock()
		runtime.Gosched()
	}
	select {
	case err := <-restored:
		t.Fatalf("the restore did not wait for the pull: %v", err)
	default:
	}
	r.readers.RUnlock()
	if err := <-restored; err != nil {
		t.Fatal(err)
	}
	if got := r.digest(); got != digest {
		t.Errorf("restored to %+v, want %+v", got, digest)
	}
}
