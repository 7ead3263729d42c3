package client

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// tableOf is a table in memory, by slot.
type tableOf struct {
	keys [rowraft.DefaultSlots][]rowraft.Key
	n    int
}

func (o *tableOf) add(t *Table, keys ...rowraft.Key) {
	for _, k := range keys {
		s := t.Slot(k)
		o.keys[s] = append(o.keys[s], k)
		slices.Sort(o.keys[s])
		o.n++
	}
}

// scanMessage has the rows of keys. Both weights are the lower half of the key.
func scanMessage(keys ...rowraft.Key) []byte {
	if len(keys) == 0 {
		return nil
	}
	seg := wire.Segment{Table: 9, N: len(keys), Dim: 2, DType: rowraft.Float32}
	b := make([]byte, seg.Size())
	body := seg.Put(b)
	values := make([]float32, 0, 2*len(keys))
	for i, k := range keys {
		for j := range 8 {
			body.Keys[8*i+j] = byte(k >> (8 * j))
		}
		values = append(values, weightOf(k), weightOf(k))
	}
	wire.PutFloats(body.Values, seg.DType, values)
	return b
}

func weightOf(k rowraft.Key) float32 { return float32(uint16(k)) }

type scanStream = grpc.ServerStreamingServer[rowraftv1.ScanReply]

// slotBySlot replies to a scan with a message for each slot, and with one for each key of a slot with
// several keys. It calls between before each message.
func (o *tableOf) slotBySlot(req *rowraftv1.ScanRequest, stream scanStream, between func() error) error {
	first := rowraft.Key(req.FirstKey)
	for slot := req.FirstSlot; slot <= req.LastSlot; slot++ {
		keys := slices.DeleteFunc(slices.Clone(o.keys[slot]), func(k rowraft.Key) bool { return k < first })
		first = 0
		for len(keys) > 1 {
			if err := errors.Join(between(), stream.Send(&rowraftv1.ScanReply{TableEpoch: 1, Payload: scanMessage(keys[0]),
				NextSlot: slot, NextKey: uint64(keys[1])})); err != nil {
				return err
			}
			keys = keys[1:]
		}
		if err := errors.Join(between(), stream.Send(&rowraftv1.ScanReply{TableEpoch: 1, Payload: scanMessage(keys...),
			NextSlot: slot + 1})); err != nil {
			return err
		}
	}
	return nil
}

// wantAll scans the table and compares the rows with o.
func (o *tableOf) wantAll(t *testing.T, table *Table) {
	t.Helper()
	seen := make(map[rowraft.Key]bool)
	err := table.Scan(patience(t), func(keys []rowraft.Key, weights []float32) error {
		for i, k := range keys {
			if seen[k] || weights[2*i] != weightOf(k) || weights[2*i+1] != weightOf(k) {
				t.Errorf("key %d, seen before: %v, weights %v", k, seen[k], weights[2*i:2*i+2])
			}
			seen[k] = true
		}
		return nil
	})
	if err != nil || len(seen) != o.n {
		t.Errorf("%d rows of %d, %v", len(seen), o.n, err)
	}
}

// TestScanGoesOn: no row is lost and none comes twice, whichever error ends a stream, and after whichever
// message.
func TestScanGoesOn(t *testing.T) {
	o := &tableOf{}
	n, calls := 0, 0
	s := &fakeServer{scan: func(req *rowraftv1.ScanRequest, stream scanStream) error {
		calls++
		return o.slotBySlot(req, stream, func() error {
			switch n++; {
			case n%1511 == 0:
				return &rowraft.NotLeaderError{Shard: rowraft.ShardID(req.Shard), Leader: "n", Term: rowraft.Term(n)}
			case n%2503 == 0:
				return errors.New("without a code")
			}
			return nil
		})
	}}
	s.serve(t, 3)
	_, table := s.dial(t, nil)
	for i := range rowraft.Key(10000) {
		o.add(table, i*i)
	}
	o.add(table, math.MaxUint64, 1<<63)
	o.wantAll(t, table)
	if calls < 8 {
		t.Errorf("%d calls: nothing was broken", calls)
	}
}

// TestScanOfASilentServer: the client asks a server again that stops in the middle.
func TestScanOfASilentServer(t *testing.T) {
	o := &tableOf{}
	var silences atomic.Int32
	s := &fakeServer{scan: func(req *rowraftv1.ScanRequest, stream scanStream) error {
		sent := 0
		return o.slotBySlot(req, stream, func() error {
			if sent++; sent == 100 && silences.Add(1) == 1 {
				<-stream.Context().Done()
			}
			return nil
		})
	}}
	s.serve(t, 1)
	_, table := s.dial(t, func(o *Options) { o.AttemptTimeout = 50 * time.Millisecond })
	for i := range rowraft.Key(1000) {
		o.add(table, i)
	}
	o.wantAll(t, table)
	if silences.Load() < 2 {
		t.Errorf("%d tries", silences.Load())
	}
}

func TestScanEnds(t *testing.T) {
	o := &tableOf{}
	s := &fakeServer{scan: func(req *rowraftv1.ScanRequest, stream scanStream) error {
		return o.slotBySlot(req, stream, func() error { return nil })
	}}
	s.serve(t, 2)
	_, table := s.dial(t, nil)
	o.add(table, 1, 2, 3)

	enough := errors.New("enough")
	calls := 0
	err := table.Scan(patience(t), func([]rowraft.Key, []float32) error { calls++; return enough })
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	answer := func(r *rowraftv1.ScanReply) {
		s.scan = func(_ *rowraftv1.ScanRequest, stream scanStream) error { return stream.Send(r) }
	}
	other := scanMessage(1)
	other[0]++
	k := rowraft.Key(1)
	slot := uint32(table.Slot(k))
	for name, r := range map[string]*rowraftv1.ScanReply{
		"standing still":      {NextSlot: 0, NextKey: 0},
		"beyond the run":      {NextSlot: 4096},
		"a key after the run": {NextSlot: 2048, NextKey: 1},
		"before its time":     {NextSlot: slot, NextKey: 1, Payload: scanMessage(k)},
		"twice":               {NextSlot: slot + 1, Payload: slices.Concat(scanMessage(k), scanMessage(k))},
		"of another table":    {NextSlot: slot + 1, Payload: other},
		"no segment":          {NextSlot: slot + 1, Payload: make([]byte, 9)},
		"ends early":          {NextSlot: 1},
	} {
		if slot >= 2048 {
			t.Fatal("choose a key of the first shard")
		}
		answer(r)
		err := table.Scan(patience(t), func([]rowraft.Key, []float32) error {
			t.Errorf("%s: rows came through", name)
			return nil
		})
		if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A restore happens between the shards.
	s.scan = func(req *rowraftv1.ScanRequest, stream scanStream) error {
		return stream.Send(&rowraftv1.ScanReply{TableEpoch: 1 + uint64(req.Shard), NextSlot: req.LastSlot + 1})
	}
	if err := table.Scan(patience(t), nil); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("another epoch: %v", err)
	}
}

// FuzzScanReply: Scan passes a message on whole and in order, or returns CodeCorrupt.
func FuzzScanReply(f *testing.F) {
	table := testTable(9, 2)
	table.c = &Client{opts: Options{DType: rowraft.Float32}}
	var inOrder []rowraft.Key
	for k := range rowraft.Key(20) {
		inOrder = append(inOrder, k)
	}
	slices.SortFunc(inOrder, func(a, b rowraft.Key) int { return int(table.Slot(a)) - int(table.Slot(b)) })
	f.Add(slices.Concat(scanMessage(inOrder[:9]...), scanMessage(inOrder[9:]...)), uint32(4096), uint64(0))
	f.Add(scanMessage(inOrder[3]), uint32(table.Slot(inOrder[3])), uint64(inOrder[3])+1)
	f.Add(scanMessage(math.MaxUint64), uint32(table.Slot(math.MaxUint64))+1, uint64(0))
	f.Add([]byte{}, uint32(1), uint64(0))
	f.Fuzz(func(t *testing.T, payload []byte, nextSlot uint32, nextKey uint64) {
		s := scan{t: table, slot: 1, key: 5}
		total, last := 0, clustermap.SlotOfHash(0, rowraft.DefaultSlots)
		s.rows = func(keys []rowraft.Key, weights []float32) error {
			for i, k := range keys {
				at := table.Slot(k)
				if at < last || at < 1 || uint32(at) > nextSlot || i > 0 && at == last && k <= keys[i-1] {
					t.Errorf("key %d of slot %d after slot %d", k, at, last)
				}
				last = at
			}
			if total += len(keys); len(weights) != 2*len(keys) {
				t.Errorf("%d weights for %d keys", len(weights), len(keys))
			}
			return nil
		}
		err := s.take(&rowraftv1.ScanReply{TableEpoch: 1, Payload: payload, NextSlot: nextSlot, NextKey: nextKey},
			rowraft.DefaultSlots-1)
		if err != nil {
			if rowraft.CodeOf(err) != rowraft.CodeCorrupt || total > 0 || s.slot != 1 {
				t.Errorf("%v (%v) after %d rows", err, rowraft.CodeOf(err), total)
			}
			return
		}
		if s.slot != nextSlot || s.key != nextKey || 16*total > len(payload) {
			t.Errorf("%d rows of %d bytes, next is slot %d key %d", total, len(payload), s.slot, s.key)
		}
	})
}
