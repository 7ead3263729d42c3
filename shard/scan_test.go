package shard

import (
	"bytes"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// scanned is the result of a scan.
type scanned struct {
	keys   []rowraft.Key
	values []float32
	calls  int
}

// scanSlots reads the slots from … to-1 and checks that rows ascend by slot and key. It calls each after
// every segment.
func scanSlots(tb testing.TB, m *Machine, table rowraft.Schema, dtype rowraft.DType, from, to rowraft.Slot,
	each func(seg wire.Segment, body wire.Body)) (out scanned) {
	tb.Helper()
	s, err := m.NewScan(table.ID, dtype)
	if err != nil {
		tb.Fatal(err)
	}
	for slot := from; slot < to; slot++ {
		for key, done := rowraft.Key(0), false; !done; {
			var payload []byte
			if payload, key, done, err = s.Append(nil, slot, key); err != nil {
				tb.Fatal(err)
			}
			out.calls++
			for len(payload) > 0 {
				seg, body, rest, err := wire.ParseSegment(payload)
				if err != nil {
					tb.Fatal(err)
				}
				if err := wire.CheckKeys(seg.Table, body.Keys); err != nil || seg.DType != dtype || seg.Flags != 0 || seg.N == 0 {
					tb.Fatalf("segment %+v: %v", seg, err)
				}
				for i := range seg.N {
					if got := clustermap.SlotOf(table.ID, table.Kind, body.Key(i), rowraft.DefaultSlots); got != slot {
						tb.Fatalf("key %d of slot %d was returned for slot %d", body.Key(i), got, slot)
					}
					out.keys = append(out.keys, body.Key(i))
				}
				values := make([]float32, seg.N*seg.Dim)
				wire.GetFloats(values, dtype, body.Values)
				out.values = append(out.values, values...)
				if each != nil {
					each(seg, body)
				}
				payload = rest
			}
		}
	}
	return out
}

func TestScanReadsEveryRowOnce(t *testing.T) {
	for _, kind := range []rowraft.TableKind{rowraft.Sparse, rowraft.Dense} {
		t.Run(kind.String(), func(t *testing.T) {
			table := testTable(1, "t", 3, adagrad)
			table.Kind = kind
			r := newReplica(t, Config{})
			r.create(table, testTable(2, "other", 3, sgd))
			r.mustOpen(1, 1)
			var keys []rowraft.Key
			for i := range 5000 {
				keys = append(keys, rowraft.DenseKey(uint32(i%7), uint64(i)), rowraft.Key(^uint64(i)))
			}
			slices.Sort(keys)
			if err := r.parts(push(1, 1, payloadOf(rows{schema: table, keys: keys})))[0].Err; err != nil {
				t.Fatal(err)
			}
			var gone []rowraft.Key
			for i := 0; i < len(keys); i += 3 {
				gone = append(gone, keys[i])
			}
			if err := r.parts(deletion(1, 2, table, gone...))[0].Err; err != nil {
				t.Fatal(err)
			}
			keys = slices.DeleteFunc(keys, func(k rowraft.Key) bool { _, is := slices.BinarySearch(gone, k); return is })
			for _, dtype := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
				got := scanSlots(t, r.Machine, table, dtype, 0, rowraft.DefaultSlots, nil)
				if got.calls != rowraft.DefaultSlots {
					t.Errorf("%d calls for small slots", got.calls)
				}
				sorted := slices.Clone(got.keys)
				slices.Sort(sorted)
				if !slices.Equal(sorted, keys) {
					t.Fatalf("%d keys, not the %d that were pushed", len(got.keys), len(keys))
				}
				want, _ := r.pull(table, got.keys...)
				if dtype == rowraft.BFloat16 {
					b := make([]byte, 2*len(want))
					wire.PutFloats(b, dtype, want)
					wire.GetFloats(want, dtype, b)
				}
				if !slices.Equal(got.values, want) {
					t.Error("other weights than a pull reads")
				}
			}
		})
	}
}

// TestScanOfALargeSlot reads a tensor in several steps, and continues in the middle.
func TestScanOfALargeSlot(t *testing.T) {
	table := testTable(1, "t", rowraft.MaxDim, sgd)
	table.Kind = rowraft.Dense
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	var keys []rowraft.Key
	for i := range rowraft.Key(2*scanStepBytes/(4*rowraft.MaxDim) + 150) {
		keys = append(keys, rowraft.DenseKey(3, uint64(i)))
	}
	for i, k := range keys {
		if err := r.parts(push(1, rowraft.Seq(i+1),
			payloadOf(rows{schema: table, keys: []rowraft.Key{k}})))[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	slot := clustermap.SlotOf(table.ID, table.Kind, keys[0], rowraft.DefaultSlots)
	got := scanSlots(t, r.Machine, table, rowraft.Float32, slot, slot+1, nil)
	want, _ := r.pull(table, keys...)
	if !slices.Equal(got.keys, keys) || !slices.Equal(got.values, want) {
		t.Errorf("%d rows of %d, or other weights", len(got.keys), len(keys))
	}
	if got.calls < 3 {
		t.Errorf("read in %d calls", got.calls)
	}
	// Another scan, like that of the next leader, continues in the middle.
	s, err := r.NewScan(table.ID, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	payload, _, done, err := s.Append(nil, slot, keys[100])
	if err != nil || done {
		t.Fatal(done, err)
	}
	if seg, body, _, err := wire.ParseSegment(payload); err != nil || seg.N == 0 || body.Key(0) != keys[100] {
		t.Errorf("%+v from %d on, %v", seg, body.Key(0), err)
	}
}

// TestALargeSlotIsListedDuringEntries: the keys of a large slot are listed in steps of at most listEntries,
// which do not wait for the entry that is being applied. Rows that are deleted or created during the
// listing may be in it or not.
func TestALargeSlotIsListedDuringEntries(t *testing.T) {
	table := testTable(1, "t", 1, sgd)
	table.Kind = rowraft.Dense
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 5*wholeSlotRows)
	for i := range keys {
		keys[i] = rowraft.DenseKey(1, uint64(i))
	}
	pushed := func(seq rowraft.Seq, op wire.Op, some []rowraft.Key) {
		p := push(1, seq, payloadOf(rows{schema: table, keys: some}))
		if op == wire.OpDelete {
			p = deletion(1, seq, table, some...)
		}
		if err := r.parts(p)[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	pushed(1, wire.OpPush, keys[:wholeSlotRows])
	s, err := r.NewScan(table.ID, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	slot := clustermap.SlotOf(table.ID, table.Kind, keys[0], rowraft.DefaultSlots)
	for n, whole := range []bool{true, false} {
		var small slotListing
		if got, err := s.readWhole(&small, slot, 0); got != whole || err != nil {
			t.Errorf("%d rows are read at one index: %v, %v", wholeSlotRows+n, got, err)
		}
		small.end()
		pushed(rowraft.Seq(2+n), wire.OpPush, keys[wholeSlotRows+n:wholeSlotRows+n+1])
	}
	pushed(4, wire.OpPush, keys)
	var l slotListing
	defer l.end()
	if whole, err := s.readWhole(&l, slot, 0); whole || err != nil {
		t.Fatalf("%d rows are read at one index, %v", len(keys), err)
	}
	s.listed = s.listed[:0]
	seq, pieces := rowraft.Seq(5), 0
	for done := false; !done; pieces++ {
		before := len(s.listed)
		r.applyMu.Lock() // as Apply does
		r.mu.Lock()
		done, err = s.listMore(&l)
		r.mu.Unlock()
		r.applyMu.Unlock()
		if n := len(s.listed) - before; err != nil || n > listEntries {
			t.Fatalf("%d keys in a step, %v; want at most %d", n, err, listEntries)
		}
		if pieces < 3 {
			at := uint64(len(keys)) + 20_000*uint64(pieces)
			var fresh []rowraft.Key
			for i := range uint64(20_000) { // segments are split
				fresh = append(fresh, rowraft.DenseKey(1, at+i))
			}
			pushed(seq, wire.OpPush, fresh)
			pushed(seq+1, wire.OpDelete, keys[100*pieces:100*pieces+100])
			pushed(seq+2, wire.OpPush, keys[100*pieces:100*pieces+50])
			seq += 3
		}
	}
	s.listed = append(s.listed, s.listed[:10]...) // as if deleted and created again during the listing
	twice := len(s.listed)
	s.sortListed(0)
	for i, k := range keys {
		if _, found := slices.BinarySearch(s.listed, k); !found && i >= 300 {
			t.Fatalf("key %d always had a row and is not listed", i)
		}
	}
	if n := len(slices.Compact(slices.Clone(s.listed))); n != len(s.listed) || n == twice || pieces < 5 {
		t.Errorf("%d keys were listed, %d are left, %d of them different, in %d steps", twice, len(s.listed), n, pieces)
	}
}

// TestScanLeavesOutWhatIsGone: a step returns no rows of keys that were deleted since they were listed, and
// the other rows have their own weights.
func TestScanLeavesOutWhatIsGone(t *testing.T) {
	table := testTable(1, "t", 3, sgd)
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	there := []rowraft.Key{2, 5, 9, 2000}
	if err := r.parts(push(1, 1, payloadOf(rows{schema: table, keys: there,
		values: []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}})))[0].Err; err != nil {
		t.Fatal(err)
	}
	s, err := r.NewScan(table.ID, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := s.appendRows(make([]byte, 8), []rowraft.Key{1, 2, 3, 5, 7, 8, 9, 2000, 2001})
	if err != nil {
		t.Fatal(err)
	}
	seg, body, rest, err := wire.ParseSegment(payload[8:])
	if err != nil || len(rest) > 0 || seg.N != len(there) {
		t.Fatalf("%+v, %d bytes more, %v", seg, len(rest), err)
	}
	want, _ := r.pull(table, there...)
	got := make([]float32, len(want))
	wire.GetFloats(got, rowraft.Float32, body.Values)
	if !slices.Equal(wire.Keys(make([]rowraft.Key, 9), body.Keys), there) || !slices.Equal(got, want) {
		t.Errorf("keys %v values %v, want %v %v", wire.Keys(make([]rowraft.Key, 9), body.Keys), got, there, want)
	}
	if payload, err = s.appendRows(nil, []rowraft.Key{1, 3}); err != nil || len(payload) > 0 {
		t.Errorf("%d bytes for keys without rows, %v", len(payload), err)
	}
}

// TestScannedSlotIsOfOneMoment: every entry adds the same number to all rows, so the rows of a slot that is
// read between two entries are equal.
func TestScannedSlotIsOfOneMoment(t *testing.T) {
	table := testTable(1, "t", 4, sgd)
	table.Kind = rowraft.Dense // a tensor is in one slot
	table.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	r := newReplica(t, Config{})
	r.create(table)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 3*chunkRows+100)
	for i := range keys {
		keys[i] = rowraft.DenseKey(1, uint64(i))
	}
	payload := payloadOf(rows{schema: table, keys: keys})
	step := func(seq rowraft.Seq) {
		p := push(1, seq, payload)
		p.Floor = seq - 1
		if err := r.parts(p)[0].Err; err != nil {
			t.Error(err)
		}
	}
	step(1)
	var wg sync.WaitGroup
	begun := make(chan struct{})
	wg.Go(func() {
		defer close(begun)
		for seq := range rowraft.Seq(60) {
			if step(seq + 2); seq == 1 {
				begun <- struct{}{}
			}
		}
	})
	<-begun
	slot := clustermap.SlotOf(table.ID, table.Kind, keys[0], rowraft.DefaultSlots)
	for running := true; running; {
		select {
		case _, running = <-begun:
		default:
		}
		scanSlots(t, r.Machine, table, rowraft.Float32, slot, slot+1, func(seg wire.Segment, body wire.Body) {
			values := make([]float32, seg.N*seg.Dim)
			wire.GetFloats(values, seg.DType, body.Values)
			if seg.N != len(keys) {
				t.Errorf("%d rows of %d", seg.N, len(keys))
			}
			for i, v := range values {
				if v != values[0] {
					t.Fatalf("row %d is of another index than row 0: %v, %v", i/seg.Dim, v, values[0])
				}
			}
		})
	}
	wg.Wait()
}

func TestScanRefuses(t *testing.T) {
	table := testTable(1, "t", 3, sgd)
	r := newReplica(t, Config{Slots: []rowraft.Slot{1, 2}})
	r.create(table)
	_, err := r.NewScan(7, rowraft.Float32)
	testutil.WantCode(t, err, rowraft.CodeTableNotFound)
	_, err = r.NewScan(1, 9)
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument)
	s, err := r.NewScan(1, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	_, _, _, err = s.Append(nil, 3, 0)
	testutil.WantCode(t, err, rowraft.CodeWrongShard)
	_, _, _, err = s.Append(nil, rowraft.DefaultSlots, 0)
	testutil.WantCode(t, err, rowraft.CodeWrongShard)
	stream := r.snapshot()
	if err := r.Restore(bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	_, _, _, err = s.Append(nil, 1, 0)
	testutil.WantCode(t, err, rowraft.CodeStarting)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, _, err = s.Append(nil, 1, 0)
	testutil.WantCode(t, err, rowraft.CodeClosing)
	_, err = r.NewScan(1, rowraft.Float32)
	testutil.WantCode(t, err, rowraft.CodeClosing)
}
