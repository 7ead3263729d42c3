package client

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// TestDeleteSendsKeysAlone: a delete sends the keys sorted, each one once, to the shard that holds it,
// without values and numbered like a push.
func TestDeleteSendsKeysAlone(t *testing.T) {
	var mu sync.Mutex
	got := map[uint32][]rowraft.Key{}
	var seqs []uint64
	s := fakeServer{remove: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		seg, body, rest, err := wire.ParseSegment(req.Payload)
		if err != nil || len(rest) > 0 || seg.Flags != wire.FlagNoValues || seg.Table != 9 || len(body.Values) > 0 {
			t.Errorf("segment %+v, %v", seg, err)
		}
		mu.Lock()
		defer mu.Unlock()
		got[req.Shard] = wire.Keys(make([]rowraft.Key, seg.N), body.Keys)
		seqs = append(seqs, req.Seq)
		return nil
	}}
	s.serve(t, 2)
	_, table := s.dial(t, func(o *Options) { o.MaxInFlight = 1 })
	zero, one := s.keyOf(table, 0), s.keyOf(table, 1)
	keys := []rowraft.Key{one, zero, one, one}
	if ack, err := table.Delete(patience(t), keys); err != nil || ack.Batches != 2 {
		t.Fatalf("%+v, %v, want two parts", ack, err)
	}
	if !slices.Equal(got[0], []rowraft.Key{zero}) || !slices.Equal(got[1], []rowraft.Key{one}) ||
		!slices.Equal(seqs, []uint64{1, 1}) {
		t.Errorf("keys %v under numbers %v", got, seqs)
	}
	if !slices.Equal(keys, []rowraft.Key{one, zero, one, one}) {
		t.Errorf("the caller's keys were changed: %v", keys)
	}
	c := table.c
	for name, seg := range map[string]Segment{
		"values":          {Table: table, Keys: keys[:1], Values: make([]float32, 2)},
		"a learning rate": {Table: table, Keys: keys[:1], LR: 1},
		"no table":        {Keys: keys[:1]},
	} {
		if _, err := c.Delete(patience(t), seg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("a delete with %s: %v, want InvalidArgument", name, err)
		}
	}
}
