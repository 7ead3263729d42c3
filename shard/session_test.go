package shard

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
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

func TestANumberIsAppliedOnce(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	for i, step := range []struct {
		seq, floor rowraft.Seq
		duplicate  bool
		count      float32
	}{
		{1, 0, false, 1}, {1, 0, true, 1},
		{5, 0, false, 2}, {3, 0, false, 3}, {3, 1, true, 3}, {2, 0, false, 4},
		{6, 5, false, 5}, {4, 0, true, 5}, // below the floor: the client has its result
		{1029, 5, false, 6}, {1029, 5, true, 6}, {7, 6, false, 7}, {1030, 1029, false, 8}, {8, 0, true, 8},
	} {
		got := p.one(1, 1, step.seq, step.floor)
		if got.Err != nil || got.Duplicate != step.duplicate || p.count() != step.count {
			t.Errorf("step %d, number %d: %+v and %v applied, want duplicate %v and %v",
				i, step.seq, got, p.count(), step.duplicate, step.count)
		}
	}
}

func TestCopiesWithinOneEntryAreAppliedOnce(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	part := push(1, 1, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	if got := p.parts(part, part); got[0].Duplicate || !got[1].Duplicate || p.count() != 1 {
		t.Errorf("%+v, %v applied", got, p.count())
	}
}

func TestNumbersThatNoClientSends(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	wantCode(t, p.one(1, 1, 0, 0).Err, rowraft.CodeInvalidArgument)
	wantCode(t, p.one(1, 1, 4, 4).Err, rowraft.CodeInvalidArgument)
	wantCode(t, p.one(1, 1, Window+1, 0).Err, rowraft.CodeOverloaded)
	wantCode(t, p.one(1, 1, 1<<63, 5).Err, rowraft.CodeOverloaded)
	if got := p.one(1, 1, Window, 0); got.Err != nil || got.Duplicate || p.count() != 1 {
		t.Errorf("the last number of the window: %+v, %v applied", got, p.count())
	}
	if got := p.one(1, 1, 1<<63+1, 1<<63); got.Err != nil || p.count() != 2 {
		t.Errorf("a floor far ahead: %+v, %v applied", got, p.count())
	}
	if got := p.one(1, 1, Window-1, 0); !got.Duplicate || p.count() != 2 {
		t.Errorf("far below the floor: %+v, %v applied", got, p.count())
	}
}

// TestARefusedNumberIsSpent: a copy that arrives after the cause of the refusal is gone gets the first
// result, and does not enter the log.
func TestARefusedNumberIsSpent(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	late := testTable(2, "late", 1, sgd)
	part := push(1, 1, payloadOf(rows{schema: late, keys: []rowraft.Key{1}}))
	wantCode(t, p.parts(part)[0].Err, rowraft.CodeTableNotFound)
	p.create(late)
	wantCode(t, p.parts(part)[0].Err, rowraft.CodeTableNotFound)
	_, err := p.CheckPart(&part)
	wantCode(t, err, rowraft.CodeTableNotFound)
	if _, present := p.pull(late, 1); present[0] {
		t.Error("a refused part was applied")
	}
	part.Seq, part.Floor = 2, 1
	if got := p.parts(part)[0]; got.Err != nil || got.Duplicate {
		t.Errorf("the next number: %+v", got)
	}
}

func TestAPartIsAppliedAsAWholeOrNotAtAll(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	good := rows{schema: p.table, keys: []rowraft.Key{42}}
	bad := rows{schema: testTable(77, "none", 1, sgd), keys: []rowraft.Key{1}}
	before := p.digest()
	wantCode(t, p.parts(push(1, 1, payloadOf(good, bad)))[0].Err, rowraft.CodeTableNotFound)
	if after := p.digest(); after.Sum != before.Sum || after.Rows != 0 {
		t.Errorf("%d rows after a refused part", after.Rows)
	}
}

func TestAnEmptyPartSpendsItsNumber(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	if got := p.parts(push(1, 1, nil))[0]; got.Err != nil || got.Duplicate {
		t.Fatalf("%+v", got)
	}
	if got := p.one(1, 1, 1, 0); !got.Duplicate || p.count() != 0 {
		t.Errorf("a copy with rows: %+v, %v applied", got, p.count())
	}
}

func TestSessionsFenceAndExpire(t *testing.T) {
	p := newPusher(t)
	wantCode(t, p.one(1, 1, 1, 0).Err, rowraft.CodeSessionExpired) // was never opened
	wantCode(t, p.CheckSession(client(1), 1), rowraft.CodeSessionExpired)
	wantCode(t, p.open(1, 0), rowraft.CodeInvalidArgument)
	p.mustOpen(1, 5)
	if err := p.CheckSession(client(1), 5); err != nil {
		t.Error(err)
	}
	wantCode(t, p.one(1, 4, 1, 0).Err, rowraft.CodeSessionExpired)
	wantCode(t, p.one(1, 6, 1, 0).Err, rowraft.CodeSessionExpired) // a push opens nothing
	wantCode(t, p.open(1, 4), rowraft.CodeSessionExpired)
	p.one(1, 5, 1, 0)
	p.mustOpen(1, 5) // a copy of the entry that opened the session
	if got := p.one(1, 5, 1, 0); !got.Duplicate {
		t.Errorf("after a second open: %+v", got)
	}
	p.mustOpen(1, 6)
	wantCode(t, p.one(1, 5, 2, 0).Err, rowraft.CodeSessionExpired)
	wantCode(t, p.CheckSession(client(1), 5), rowraft.CodeSessionExpired)
	if got := p.one(1, 6, 1, 0); got.Err != nil || got.Duplicate {
		t.Errorf("a new incarnation counts from 1: %+v", got)
	}

	p.now += uint64(SessionTTL)
	if got := p.one(1, 6, 2, 0); got.Err != nil {
		t.Errorf("on the last nanosecond: %v", got.Err)
	}
	p.now += uint64(SessionTTL) + 1
	wantCode(t, p.one(1, 6, 3, 0).Err, rowraft.CodeSessionExpired)
	wantCode(t, p.open(1, 6), rowraft.CodeSessionExpired)
	wantCode(t, p.CheckSession(client(1), 6), rowraft.CodeSessionExpired)
	if p.count() != 3 {
		t.Errorf("%v pushes applied, want 3", p.count())
	}
	p.mustOpen(1, 7)
}

func TestLogTimeNeverGoesBack(t *testing.T) {
	p := newPusher(t)
	p.now = 1000
	p.mustOpen(1, 1)
	p.now = 10
	p.one(1, 1, 1, 0)
	if p.LogTime() != 1000 {
		t.Errorf("log time %d, want 1000", p.LogTime())
	}
}

func TestAnEntryOfAnotherEpochIsNotApplied(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	h := p.header()
	h.Epoch = 2
	part := push(1, 1, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	for _, got := range p.apply(entryOf(h, part, part)).Parts {
		wantCode(t, got.Err, rowraft.CodeSessionExpired)
	}
	wantCode(t, p.apply(wire.OpenSessionEntry(h, wire.Opening{Client: client(2), Incarnation: 1})).Parts[0].Err,
		rowraft.CodeSessionExpired)
	other := testTable(2, "other", 1, sgd)
	wantCode(t, p.apply(wire.CreateTableEntry(h, &other)).Parts[0].Err, rowraft.CodeSessionExpired)
	if p.count() != 0 || p.HasTable(2) || p.CheckSession(client(2), 1) == nil {
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
