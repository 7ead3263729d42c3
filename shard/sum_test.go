package shard

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// sumOf returns the sum of pushes to the row of p by clients from, from+1, ….
func (p *pusher) sumOf(seq rowraft.Seq, from, clients byte) wire.Part {
	list := make([]*wire.Part, clients)
	for i := range list {
		list[i] = &wire.Part{Client: client(from + byte(i)), Incarnation: 1, Seq: seq}
	}
	payload := payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}, values: []float32{float32(clients)}})
	part, room := wire.SumPart(nil, list, len(payload))
	copy(room, payload)
	return part
}

func TestASumIsAppliedOnceForEachContributor(t *testing.T) {
	p := newPusher(t)
	for c := byte(1); c <= 3; c++ {
		p.mustOpen(c, 1)
	}
	if got := p.parts(p.sumOf(1, 1, 3))[0]; got.Err != nil || got.Duplicate || p.count() != 3 {
		t.Fatalf("%+v, %v applied", got, p.count())
	}
	for c := byte(1); c <= 3; c++ {
		if got := p.one(c, 1, 1, 0); got.Err != nil || !got.Duplicate {
			t.Errorf("the push of client %d is sent again: %+v", c, got)
		}
	}
	testutil.WantCode(t, p.parts(p.sumOf(1, 1, 3))[0].Err, CodeSumRefused)
	other := newReplica(t, Config{})
	if err := other.Restore(bytes.NewReader(p.snapshot())); err != nil || !sameState(other, p.replica) {
		t.Errorf("a snapshot has another state: %v", err)
	}
	if p.count() != 3 {
		t.Errorf("%v applied", p.count())
	}
}

// TestARefusedSumHasNoEffect: something happens between the leader's check and the entry of a sum of three pushes, so
// that one of them, or all, must not be applied. Apply then changes nothing, and each push alone gets the result that
// it would have had without the sum.
func TestARefusedSumHasNoEffect(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(*pusher)
		want   [3]rowraft.Code // of the pushes alone; CodeUnknown: applied
		copies int             // of them were applied before
	}{
		{"one push arrived earlier, on its own", func(p *pusher) { p.one(2, 1, 1, 0) }, [3]rowraft.Code{}, 1},
		{"two pushes arrived earlier, in a sum of another leader", func(p *pusher) { p.parts(p.sumOf(1, 1, 2)) },
			[3]rowraft.Code{}, 2},
		{"the floor of a client is above the number", func(p *pusher) { p.one(2, 1, 1, 0); p.one(2, 1, 2, 1) },
			[3]rowraft.Code{}, 1},
		{"a number was refused earlier", func(p *pusher) {
			p.parts(push(2, 1, payloadOf(rows{schema: testTable(9, "none", 1, sgd), keys: []rowraft.Key{1}})))
		}, [3]rowraft.Code{1: rowraft.CodeTableNotFound}, 0},
		{"a session was closed", func(p *pusher) { p.close(client(2), 1) },
			[3]rowraft.Code{1: rowraft.CodeSessionExpired}, 0},
		{"a session was taken over", func(p *pusher) { p.mustOpen(2, 2) },
			[3]rowraft.Code{1: rowraft.CodeSessionExpired}, 0},
		{"a session expired", func(p *pusher) {
			p.now += uint64(SessionTTL)
			p.one(1, 1, 5, 0)
			p.one(3, 1, 5, 0)
			p.now += 2
		}, [3]rowraft.Code{1: rowraft.CodeSessionExpired}, 0},
		{"the table was dropped", func(p *pusher) { p.apply(wire.DropTableEntry(p.header(), p.table.ID)) },
			[3]rowraft.Code{rowraft.CodeTableNotFound, rowraft.CodeTableNotFound, rowraft.CodeTableNotFound}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPusher(t)
			for c := byte(1); c <= 3; c++ {
				p.mustOpen(c, 1)
			}
			tc.before(p)
			unchanged := newReplica(t, Config{})
			if err := unchanged.Restore(bytes.NewReader(p.snapshot())); err != nil {
				t.Fatal(err)
			}
			unchanged.index, unchanged.now = p.index, p.now
			testutil.WantCode(t, p.parts(p.sumOf(1, 1, 3))[0].Err, CodeSumRefused)
			unchanged.parts() // every entry changes the log time
			if !sameState(p.replica, unchanged) {
				t.Error("the refused sum changed the state")
			}
			copies := 0
			for c := range byte(3) {
				got := p.one(c+1, 1, 1, 0)
				if rowraft.CodeOf(got.Err) != tc.want[c] {
					t.Errorf("client %d alone: %v, want code %v", c+1, got.Err, tc.want[c])
				}
				if got.Duplicate {
					copies++
				}
			}
			if copies != tc.copies {
				t.Errorf("%d copies, want %d", copies, tc.copies)
			}
		})
	}
}

func TestASumOfAnotherEpochIsNotApplied(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	p.mustOpen(2, 1)
	h := p.header()
	h.Epoch = 2
	testutil.WantCode(t, p.apply(entryOf(h, p.sumOf(1, 1, 2))).Parts[0].Err, rowraft.CodeSessionExpired)
	if got := p.parts(p.sumOf(1, 1, 2))[0]; got.Err != nil || p.count() != 2 {
		t.Errorf("the numbers were spent: %+v, %v applied", got, p.count())
	}
}

// TestAMarkCutsBetweenSums: the snapshot of a mark has the sums before it, with all of their numbers, and none after.
func TestAMarkCutsBetweenSums(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	p.mustOpen(2, 1)
	p.parts(p.sumOf(1, 1, 2))
	at := p.snapshot()
	p.parts(p.sumOf(2, 1, 2))
	p.parts(p.sumOf(1, 1, 2)) // refused
	other := &pusher{replica: newReplica(t, Config{}), table: p.table}
	if err := other.Restore(bytes.NewReader(at)); err != nil {
		t.Fatal(err)
	}
	other.index = p.index
	if got := other.one(1, 1, 1, 0); !got.Duplicate {
		t.Errorf("a number from before the cut: %+v", got)
	}
	if got := other.parts(other.sumOf(2, 1, 2))[0]; got.Err != nil || other.count() != 4 {
		t.Errorf("numbers from after the cut: %+v, %v applied", got, other.count())
	}
}

// TestSumsOfTablesThatDoNotSumAreRefused: an entry cannot sum what the table's optimizer has no sum for, and neither a
// client nor the check before the log accepts the op of a sum.
func TestSumsOfTablesThatDoNotSumAreRefused(t *testing.T) {
	decayed := sgd
	decayed.WeightDecay = 0.1
	bounded := sgd
	bounded.Bound = 1
	for name, opt := range map[string]rowraft.Optimizer{"adagrad": adagrad, "adam": adam, "sgd with weight decay": decayed,
		"sgd with a bound": bounded} {
		for _, option := range []bool{false, true} {
			p := newPusher(t)
			p.mustOpen(1, 1)
			p.mustOpen(2, 1)
			p.table.ID, p.table.Name, p.table.Optimizer, p.table.SumPushes = 2, "other", opt, option
			p.create(p.table)
			if got := p.parts(p.sumOf(1, 1, 2))[0]; (got.Err == nil) != option {
				t.Errorf("%s, sums allowed: %v: %+v", name, option, got)
			}
		}
	}
	p := newPusher(t)
	p.mustOpen(1, 1)
	part := push(1, 1, payloadOf(rows{schema: p.table, keys: []rowraft.Key{42}}))
	part.Op = wire.OpSum
	_, err := p.CheckPart(&part)
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument)
}
