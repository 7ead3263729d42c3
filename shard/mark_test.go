package shard

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

func markTable() rowraft.Schema {
	return testTable(1, "t", 2, rowraft.Optimizer{Kind: rowraft.SGD, LR: 1})
}

func pushOnes(r *replica, seq rowraft.Seq, keys ...rowraft.Key) {
	values := make([]float32, 2*len(keys))
	for i := range values {
		values[i] = -1
	}
	r.tb.Helper()
	if res := r.parts(push(1, seq, payloadOf(rows{schema: markTable(), keys: keys, values: values}))); res[0].Err != nil {
		r.tb.Fatal(res[0].Err)
	}
}

// TestAMarkFixesItsIndex: rows pushed after the mark and before the snapshot is
// taken or written are not in it; sessions are in no part.
func TestAMarkFixesItsIndex(t *testing.T) {
	r, other := newReplica(t, Config{}), newReplica(t, Config{})
	for _, m := range []*replica{r, other} {
		m.create(markTable())
		m.mustOpen(1, 1)
		pushOnes(m, 1, 1, 2, 3)
	}
	before := r.digest()
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, second(r.Snapshot()), rowraft.CodeOverloaded)
	wantCode(t, second(r.ExpectMark(wire.MarkID{8})), rowraft.CodeOverloaded)
	wantCode(t, second(e.Snapshot()), rowraft.CodeLeadershipLost)
	for _, m := range []*replica{r, other} {
		m.apply(wire.MarkEntry(m.header(), wire.MarkID{6})) // of somebody else
		m.apply(wire.MarkEntry(m.header(), wire.MarkID{7}))
		pushOnes(m, 2, 3, 4)
	}
	s, err := e.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if _, err := s.WriteRows(&stream); err != nil {
		t.Fatal(err)
	}
	sums, tables := s.Sums(), s.Tables()
	s.Release()
	got, err := checkpoint.Verify(&stream, nil)
	if err != nil || got.Sessions != 0 || got.Trailer.Rows != 3 || got.Trailer.Digest != before.Sum || got.Header.Applied != before.Index+2 {
		t.Errorf("%+v, %v; want 3 rows of digest %x at index %d without sessions", got, err, before.Sum, before.Index+2)
	}
	var sum checkpoint.Digest
	rows := 0
	for _, s := range sums {
		sum = sum.Add(s.Digest)
		rows += int(s.Rows)
	}
	if sum != before.Sum || rows != 3 || len(tables) != 1 || tables[0].Rows != 3 || tables[0].Digest != before.Sum {
		t.Errorf("sums of %d rows, digest %x; tables %+v", rows, sum, tables)
	}
	if !sameState(r, other) {
		t.Error("a replica that took the snapshot differs from one that did not")
	}
	if _, err := r.Snapshot(); err != nil {
		t.Errorf("no snapshot after the checkpoint's: %v", err)
	}
}

func TestAMarkThatNobodyWaitsForAnyMore(t *testing.T) {
	r := newReplica(t, Config{})
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	e.Cancel()
	r.apply(wire.MarkEntry(r.header(), wire.MarkID{7}))
	wantCode(t, second(e.Snapshot()), rowraft.CodeLeadershipLost)
	if e, err = r.ExpectMark(wire.MarkID{9}); err != nil {
		t.Fatal(err)
	}
	r.apply(wire.MarkEntry(r.header(), wire.MarkID{9}))
	e.Cancel() // the snapshot is there, and nobody took it
	if _, err := r.Snapshot(); err != nil {
		t.Errorf("a cancelled mark still blocks snapshots: %v", err)
	}
}

func TestAMarkOfAnotherEpochTakesNoSnapshot(t *testing.T) {
	r := newReplica(t, Config{})
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	h := r.header()
	h.Epoch++
	a := r.Apply(100, wire.MarkEntry(h, wire.MarkID{7})).(*Applied)
	wantCode(t, a.Parts[0].Err, rowraft.CodeSessionExpired)
	wantCode(t, second(e.Snapshot()), rowraft.CodeLeadershipLost)
}
