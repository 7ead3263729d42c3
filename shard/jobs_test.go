package shard

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

var stepTables = []rowraft.Schema{testTable(1, "a", 1, sgd), testTable(2, "b", 1, sgd)}

func jobID(n byte) (id rowraft.JobID) { id[0], id[15] = n, n; return id }

// members returns the ranks from 0 on with these incarnations; 0 means that the rank is not a member.
func members(incs ...rowraft.Incarnation) (out []wire.Member) {
	for r, inc := range incs {
		if inc > 0 {
			out = append(out, wire.Member{Rank: rowraft.Rank(r), Incarnation: inc})
		}
	}
	return out
}

func (r *replica) membership(w wire.Membership) error {
	r.tb.Helper()
	return r.apply(wire.MembershipEntry(r.header(), &w)).Parts[0].Err
}

// step applies a piece of job 1 with gradient 1 for some keys of the first table.
func (r *replica) step(s wire.Step, keys ...rowraft.Key) PartResult {
	r.tb.Helper()
	s.Job = jobID(1)
	if s.Contributors == (wire.RankSet{}) {
		s.Contributors.Add(0)
	}
	if s.Payload == nil && len(keys) > 0 {
		s.Payload = payloadOf(rows{schema: stepTables[0], keys: keys})
	}
	return r.apply(wire.AppendStepEntry(nil, r.header(), &s)).Parts[0]
}

func (r *replica) job(id byte) *Job {
	r.tb.Helper()
	j, err := r.Jobs.Get(jobID(id))
	if err != nil {
		r.tb.Fatal(err)
	}
	return j
}

func newStepReplica(t *testing.T, incs ...rowraft.Incarnation) *replica {
	r := newReplica(t, Config{})
	r.create(stepTables...)
	r.mustOpen(1, 1)
	if err := r.membership(wire.Membership{Job: jobID(1), Generation: 1, First: 1,
		Members: members(incs...)}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *replica) clock(seq rowraft.Seq, c wire.Clock) error {
	r.tb.Helper()
	c.Job = jobID(1)
	p := push(1, seq, wire.AppendClock(nil, &c))
	p.Op = wire.OpClocked
	return r.parts(p)[0].Err
}

func clocks(j *Job) (all []uint64) {
	for _, w := range j.Members {
		all = append(all, w.Clock)
	}
	return all
}

// TestANewMembershipKeepsClocks: a member that stays keeps its clock; a new member starts with the slowest
// clock of those that stay.
func TestANewMembershipKeepsClocks(t *testing.T) {
	r := newStepReplica(t, 1, 1, 1)
	for rank, clock := range []uint64{7, 5, 3} {
		if err := r.clock(rowraft.Seq(rank+1),
			wire.Clock{Rank: rowraft.Rank(rank), Incarnation: 1, Clock: clock}); err != nil {
			t.Fatal(err)
		}
	}
	testutil.WantCode(t, r.clock(4, wire.Clock{Rank: 1, Incarnation: 2, Clock: 99}), rowraft.CodeNotMember)
	testutil.WantCode(t, r.clock(5, wire.Clock{Rank: 3, Incarnation: 1, Clock: 99}), rowraft.CodeNotMember)
	if err := r.clock(6, wire.Clock{Rank: 0, Incarnation: 1, Clock: 2}); err != nil { // the clock does not decrease
		t.Fatal(err)
	}
	for i, tc := range []struct {
		members []wire.Member
		want    []uint64
	}{
		{members(1, 1, 1), []uint64{7, 5, 3}},
		{members(1, 1, 2, 1), []uint64{7, 5, 5, 5}}, // rank 2 is another worker, 3 is new
		{members(1), []uint64{7}},
		{members(2, 1), []uint64{7, 7}}, // no member stays
	} {
		if err := r.membership(wire.Membership{Job: jobID(1), Generation: rowraft.Generation(i + 2), First: 1,
			Members: tc.members}); err != nil {
			t.Fatal(err)
		}
		if got := clocks(r.job(1)); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("membership %d: clocks %d, want %d", i, got, tc.want)
		}
	}
	testutil.WantCode(t, r.membership(wire.Membership{Job: jobID(1), Generation: 4, First: 1, Members: members(1)}),
		rowraft.CodeStaleGeneration)
	again := wire.Membership{Job: jobID(1), Generation: 5, First: 1, Members: members(2, 1)}
	if err := r.membership(again); err != nil || !r.Jobs.HasMembership(&again) {
		t.Errorf("the same membership again: %v", err)
	}
	again.Quorum = 1
	if testutil.WantCode(t, r.membership(again), rowraft.CodeAlreadyExists); r.Jobs.HasMembership(&again) {
		t.Error("a membership with another quorum is the present one")
	}
}

// TestAPieceIsAppliedOnceAndInOrder tests each row of the table of entry kind 13.
func TestAPieceIsAppliedOnceAndInOrder(t *testing.T) {
	r := newStepReplica(t, 1, 1)
	both := wire.RankSet{}
	both.Add(0)
	both.Add(1)
	want := func(got PartResult, duplicate bool, code rowraft.Code) {
		t.Helper()
		if got.Duplicate != duplicate || rowraft.CodeOf(got.Err) != code {
			t.Errorf("%+v; want duplicate %v, %v", got, duplicate, code)
		}
	}
	want(r.step(wire.Step{Generation: 2, Step: 1, Last: true}), false, rowraft.CodeStaleGeneration)
	want(r.step(wire.Step{Generation: 1, Step: 1, Piece: 1, Last: true}), false, rowraft.CodePrecondition)
	want(r.step(wire.Step{Generation: 1, Step: 1, AfterTable: 1}), false, rowraft.CodePrecondition)
	stranger := wire.RankSet{}
	stranger.Add(2)
	want(r.step(wire.Step{Generation: 1, Step: 1, Contributors: stranger}), false, rowraft.CodeInvalidArgument)
	want(r.step(wire.Step{Generation: 1, Step: 1,
		Payload: payloadOf(rows{schema: stepTables[1]}, rows{schema: stepTables[0]})}), false, rowraft.CodeInvalidArgument)
	want(r.step(wire.Step{Generation: 1, Step: 1, Payload: payloadOf(rows{schema: testTable(9, "z", 1, sgd)})}), false,
		rowraft.CodeTableNotFound)

	first := wire.Step{Generation: 1, Step: 1, Positions: []rowraft.Position{{ID: 4, Offset: 9}}}
	want(r.step(first, 1, 2), false, rowraft.CodeUnknown)
	after := r.digest()
	want(r.step(first, 1, 2), true, rowraft.CodeUnknown)
	want(r.step(wire.Step{Generation: 1, Step: 2, Piece: 1, AfterTable: 1, AfterKey: 2}, 3), false,
		rowraft.CodePrecondition)
	want(r.step(wire.Step{Generation: 1, Step: 1, Piece: 2, AfterTable: 1, AfterKey: 2}, 3), false,
		rowraft.CodePrecondition)
	want(r.step(wire.Step{Generation: 1, Step: 1, Piece: 1, AfterTable: 1, AfterKey: 1}, 3), false,
		rowraft.CodePrecondition)
	want(r.step(wire.Step{Generation: 1, Step: 1, Piece: 1, AfterTable: 1, AfterKey: 2}, 2, 3), false,
		rowraft.CodeInvalidArgument)
	want(r.step(wire.Step{Generation: 1, Step: 1, Piece: 1, AfterTable: 1, AfterKey: 2, Contributors: both}, 3), false,
		rowraft.CodeInvalidArgument)
	if after.Sum != r.digest().Sum {
		t.Error("what was refused, or was a copy, has changed rows")
	}
	last := wire.Step{Generation: 1, Step: 1, Piece: 1, AfterTable: 1, AfterKey: 2, Last: true,
		Positions: []rowraft.Position{{ID: 4, Offset: 8}, {ID: 5, Offset: 1}}}
	want(r.step(last, 3), false, rowraft.CodeUnknown)
	after = r.digest()
	want(r.step(last, 3), true, rowraft.CodeUnknown)
	want(r.step(first, 1, 2), true, rowraft.CodeUnknown)
	if after.Sum != r.digest().Sum {
		t.Error("a copy of a closed step has changed rows")
	}
	j := r.job(1)
	if j.Open != nil || j.LastClosed != 1 ||
		!reflect.DeepEqual(j.Positions, []rowraft.Position{{ID: 4, Offset: 9}, {ID: 5, Offset: 1}}) {
		t.Errorf("the job is %+v", j)
	}
	part := StepPart{Job: jobID(1), Generation: 1, Rank: 0, Incarnation: 1, Step: 1}
	if applied, err := r.Jobs.CheckStep(&part); !applied || err != nil {
		t.Errorf("CheckStep of a contributor: %v, %v", applied, err)
	}
	part.Rank = 1
	if applied, err := r.Jobs.CheckStep(&part); applied || rowraft.CodeOf(err) != rowraft.CodeStepClosed {
		t.Errorf("CheckStep of a late worker: %v, %v", applied, err)
	}

	// A membership closes the open step.
	want(r.step(wire.Step{Generation: 1, Step: 2}, 1), false, rowraft.CodeUnknown)
	if err := r.membership(wire.Membership{Job: jobID(1), Generation: 2, First: 5, Members: members(1, 1)}); err != nil {
		t.Fatal(err)
	}
	if j := r.job(1); j.Open != nil || j.LastClosed != 4 {
		t.Errorf("after a membership from step 5 on the job is %+v", j)
	}

	// It also closes an open step that is not below its first step: a repeated step would change its rows twice.
	want(r.step(wire.Step{Generation: 2, Step: 5}, 1), false, rowraft.CodeUnknown)
	after = r.digest()
	if err := r.membership(wire.Membership{Job: jobID(1), Generation: 3, First: 5, Members: members(1, 1)}); err != nil {
		t.Fatal(err)
	}
	want(r.step(wire.Step{Generation: 3, Step: 5, Last: true}, 1), true, rowraft.CodeUnknown)
	if j := r.job(1); j.Open != nil || j.LastClosed != 5 || after.Sum != r.digest().Sum {
		t.Errorf("after a membership from the open step on the job is %+v", j)
	}
	part = StepPart{Job: jobID(1), Generation: 3, Rank: 0, Incarnation: 1, Step: 5}
	if applied, err := r.Jobs.CheckStep(&part); applied || rowraft.CodeOf(err) != rowraft.CodeStepClosed {
		t.Errorf("CheckStep of a contributor to the open step: %v, %v", applied, err)
	}
}

// TestContributorsAreForgotten: after 16 steps a shard no longer knows the contributors of a step.
func TestContributorsAreForgotten(t *testing.T) {
	r := newStepReplica(t, 1, 1)
	for s := range rowraft.Step(20) {
		r.step(wire.Step{Generation: 1, Step: s + 1, Last: true}, 1)
	}
	for _, tc := range []struct {
		rank            rowraft.Rank
		step            rowraft.Step
		applied, unsure bool
	}{{0, 20, true, false}, {0, 5, true, false}, {0, 4, false, true}, {1, 5, false, false}, {1, 4, false, true}} {
		applied, err := r.Jobs.CheckStep(&StepPart{Job: jobID(1), Generation: 1, Rank: tc.rank, Incarnation: 1,
			Step: tc.step})
		late, _ := err.(*rowraft.StepClosedError)
		if applied != tc.applied || !applied && (late == nil || late.Unsure != tc.unsure || late.Next != 21) {
			t.Errorf("rank %d, step %d: %v, %v", tc.rank, tc.step, applied, err)
		}
	}
}

func TestJobsAndPositionsAreBounded(t *testing.T) {
	r := newStepReplica(t, 1)
	for n := range checkpoint.MaxJobs + 1 {
		id := rowraft.JobID{1, byte(n), byte(n >> 8)}
		err := r.membership(wire.Membership{Job: id, Generation: 1, First: 1, Members: members(1)})
		if full := n >= checkpoint.MaxJobs-1; (err != nil) != full || full && rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			t.Fatalf("job %d: %v", n, err)
		}
	}
	if err := r.membership(wire.Membership{Job: rowraft.JobID{1, 9}}); err != nil {
		t.Fatal(err)
	}
	if err := r.membership(wire.Membership{Job: rowraft.JobID{1, 9}}); err != nil ||
		len(r.Jobs.IDs()) != checkpoint.MaxJobs-1 {
		t.Errorf("%d jobs after one has ended, %v", len(r.Jobs.IDs()), err)
	}
	var read []rowraft.Position
	for p := range rowraft.PositionID(checkpoint.JobPositions) {
		read = append(read, rowraft.Position{ID: p + 1})
	}
	r.step(wire.Step{Generation: 1, Step: 1, Last: true, Positions: read})
	r.step(wire.Step{Generation: 1, Step: 2, Last: true,
		Positions: []rowraft.Position{{ID: 3, Offset: 1}, {ID: math.MaxUint64, Offset: 2}}})
	if got := r.job(1).Positions; len(got) != checkpoint.JobPositions || got[0].ID != 2 ||
		got[1] != (rowraft.Position{ID: 3, Offset: 1}) || got[len(got)-1].Offset != 2 {
		t.Errorf("%d positions, the first are %v", len(got), got[:2])
	}
}

// TestASnapshotHasTheJobsOfItsBegin: a snapshot has the jobs at its index, whatever changes during the
// write, and a restored replica continues like the original.
func TestASnapshotHasTheJobsOfItsBegin(t *testing.T) {
	r := newStepReplica(t, 1, 1)
	r.step(wire.Step{Generation: 1, Step: 1, Last: true}, 1)
	r.step(wire.Step{Generation: 1, Step: 2, Positions: []rowraft.Position{{ID: 4, Offset: 9}}}, 1)
	want := r.job(1)
	s, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	go1 := func(r *replica) {
		t.Helper()
		if err := r.clock(1, wire.Clock{Rank: 0, Incarnation: 1, Clock: 9,
			Positions: []rowraft.Position{{ID: 4, Offset: 11}, {ID: 6, Offset: 1}}}); err != nil {
			t.Fatal(err)
		}
		r.step(wire.Step{Generation: 1, Step: 2, Piece: 1, AfterTable: 1, AfterKey: 1, Last: true}, 2)
		if err := r.membership(wire.Membership{Job: jobID(2), Generation: 1, First: 3, Members: members(1)}); err != nil {
			t.Fatal(err)
		}
	}
	index := r.index
	go1(r)
	var stream bytes.Buffer
	if _, err := s.WriteTo(&stream); err != nil {
		t.Fatal(err)
	}
	other := newReplica(t, Config{})
	if err := other.Restore(bytes.NewReader(stream.Bytes())); err != nil {
		t.Fatal(err)
	}
	if got := other.job(1); !reflect.DeepEqual(got, want) || len(other.Jobs.IDs()) != 1 {
		t.Errorf("the snapshot has %+v, want %+v", got, want)
	}
	other.index = index
	go1(other)
	if !reflect.DeepEqual(other.job(1), r.job(1)) || other.digest() != r.digest() {
		t.Errorf("the restored replica continues to %+v, the original to %+v", other.job(1), r.job(1))
	}
	part := bytes.Buffer{}
	next, err := other.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	if _, err := next.WriteRows(&part); err != nil {
		t.Fatal(err)
	}
	if rd, err := checkpoint.NewReader(&part); err != nil || len(rd.Jobs()) > 0 {
		t.Errorf("the part of a checkpoint has jobs, %v", err)
	}
}

// TestARestoreForgetsJobs: a restore of a checkpoint removes jobs, as it removes sessions.
func TestARestoreForgetsJobs(t *testing.T) {
	r := newStepReplica(t, 1)
	begin, chunks, end := restoreEntries(t, restoreSource(t), wire.RestoreID{5})
	r.apply(begin)
	for _, c := range chunks {
		r.apply(c)
	}
	if len(r.Jobs.IDs()) != 1 {
		t.Error("the job is gone before the restore closes")
	}
	r.apply(end)
	if len(r.Jobs.IDs()) != 0 {
		t.Error("a restore has left a job")
	}
	if got := r.step(wire.Step{Generation: 1, Step: 1, Last: true}); rowraft.CodeOf(got.Err) != rowraft.CodeNotFound {
		t.Errorf("a step of a removed job: %v", got.Err)
	}
}

// TestAWorkerThatLeftPushesNothing: a shard refuses the pushes of a worker that is no longer a member, even
// if it does not store the clocks: there the worker's parts have clock 0. Its earlier pushes raise no
// clock, and its positions stay known.
func TestAWorkerThatLeftPushesNothing(t *testing.T) {
	r := newStepReplica(t, 1, 2)
	part := func(seq rowraft.Seq, offset uint64) error {
		c := wire.Clock{Job: jobID(1), Rank: 1, Incarnation: 2, Positions: []rowraft.Position{{ID: 4, Offset: offset}}}
		p := push(1, seq, append(wire.AppendClock(nil, &c),
			payloadOf(rows{schema: stepTables[0], keys: []rowraft.Key{rowraft.Key(seq)}})...))
		p.Op = wire.OpClocked
		return r.parts(p)[0].Err
	}
	if err := part(1, 8); err != nil {
		t.Fatal(err)
	}
	if got := clocks(r.job(1)); !reflect.DeepEqual(got, []uint64{0, 0}) {
		t.Errorf("clocks %d", got)
	}
	for i, next := range [][]wire.Member{members(1), {{Incarnation: math.MaxUint64}}} {
		if err := r.membership(wire.Membership{Job: jobID(1), Generation: rowraft.Generation(i + 2), First: 1,
			Members: next}); err != nil {
			t.Fatal(err)
		}
		testutil.WantCode(t, part(rowraft.Seq(i+2), 16), rowraft.CodeNotMember)
	}
	if d, read := r.digest(), r.job(1).Positions; d.Rows != 1 ||
		!reflect.DeepEqual(read, []rowraft.Position{{ID: 4, Offset: 8}}) {
		t.Errorf("%d rows, positions %v; want those of the first push", d.Rows, read)
	}
	if err := r.membership(wire.Membership{Job: jobID(1)}); err != nil {
		t.Fatal(err)
	}
	testutil.WantCode(t, part(4, 16), rowraft.CodeNotFound)
}
