package shard

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// pusher is a replica with an SGD table of dim 1 and one row as a counter: each applied push subtracts 1 from it.
type pusher struct {
	*replica
	table rowraft.Schema
}

func newPusher(t *testing.T) *pusher {
	p := &pusher{replica: newReplica(t, Config{}), table: testTable(1, "count", 1, sgd)}
	p.table.Initializer = rowraft.Initializer{Kind: rowraft.InitZeros}
	p.create(p.table)
	return p
}

func (p *pusher) one(c byte, inc rowraft.Incarnation, seq, floor rowraft.Seq) PartResult {
	part := push(c, seq, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	part.Incarnation, part.Floor = inc, floor
	return p.parts(part)[0]
}

// count returns how many pushes have been applied.
func (p *pusher) count() float32 {
	w, _ := p.pull(p.table, 42)
	return -w[0]
}

func TestCopiesWithinOneEntryAreAppliedOnce(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	part := push(1, 1, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	if got := p.parts(part, part); got[0].Duplicate || !got[1].Duplicate || p.count() != 1 {
		t.Errorf("%+v, %v applied", got, p.count())
	}
}

func TestAnEntryOfAnotherEpochIsNotApplied(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	h := p.header()
	h.Epoch = 2
	part := push(1, 1, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	for _, got := range p.apply(entryOf(h, part, part)).Parts {
		testutil.WantCode(t, got.Err, rowraft.CodeSessionExpired)
	}
	testutil.WantCode(t, p.apply(wire.OpenSessionEntry(h, wire.Opening{Client: client(2), Incarnation: 1})).Parts[0].Err,
		rowraft.CodeSessionExpired)
	other := testTable(2, "other", 1, sgd)
	testutil.WantCode(t, p.apply(wire.CreateTableEntry(h, &other)).Parts[0].Err, rowraft.CodeSessionExpired)
	if p.count() != 0 || p.hasTable(2) || p.Sessions.Check(client(2), 1) == nil {
		t.Error("an entry of another epoch had an effect")
	}
	if got := p.one(1, 1, 1, 0); got.Err != nil || got.Duplicate {
		t.Errorf("the number was spent: %+v", got)
	}
}

// TestSnapshotHasTheSessionsOfItsBegin: numbers that are applied, refused and forgotten after the begin of
// a snapshot, and incarnations and last uses, are not in that snapshot, and are in every later state.
func TestSnapshotHasTheSessionsOfItsBegin(t *testing.T) {
	p := newPusher(t)
	foreign := payloadOf(rows{schema: testTable(9, "none", 1, sgd), keys: []rowraft.Key{1}})
	change := func(seq rowraft.Seq) { // changes one row, and a session in every way
		p.now++
		for c := byte(1); c <= 3; c++ {
			p.one(c, 1, seq, 0)
			if got := p.parts(push(c, seq+1, foreign))[0]; rowraft.CodeOf(got.Err) != rowraft.CodeTableNotFound {
				t.Fatalf("a push to a table that does not exist: %+v", got)
			}
		}
		p.one(1, 1, seq+2, seq-1) // forgets the earlier refusals
		p.one(2, 1, seq+2, seq+1)
		p.mustOpen(3, 1) // again
	}
	for c := byte(1); c <= 4; c++ {
		p.mustOpen(c, 1)
	}
	change(1)
	for round := range rowraft.Seq(3) {
		want := p.snapshot()
		s, err := p.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		change(10 + 10*round)
		p.mustOpen(4, rowraft.Incarnation(2+round))
		p.mustOpen(byte(5+round), 1)
		var got bytes.Buffer
		if _, err := s.WriteTo(&got); err != nil {
			t.Fatal(err)
		}
		s.Release()
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("round %d: the snapshot shows changes after its begin", round)
		}
	}
	other := newReplica(t, Config{})
	if err := other.Restore(bytes.NewReader(p.snapshot())); err != nil {
		t.Fatal(err)
	}
	if !sameState(other, p.replica) {
		t.Error("a replica restored after the changes differs")
	}
	if got := p.one(1, 1, 10, 0); !got.Duplicate {
		t.Errorf("a number applied during a snapshot: %+v", got)
	}
}
