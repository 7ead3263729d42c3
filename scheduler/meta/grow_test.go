package meta

import (
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// TestWorkersJoinAndLeave: a third worker joins a run of two whose data is divided, by rank or on request, and another
// one leaves. Each split is read once, by a member.
func TestWorkersJoinAndLeave(t *testing.T) {
	const parts = 40
	for _, byRank := range []bool{false, true} {
		h := &history{t: t, m: withShards(t), index: 10}
		with := func(workers uint32) func(*rowraftv1.EnterRequest) {
			return func(q *rowraftv1.EnterRequest) {
				metacmd.WithData(10*parts, 10, 1)(q)
				q.Workers, q.Data.ByRank = workers, byRank
			}
		}
		enter := func(name string, process byte, workers uint32) *EnterResult {
			return h.step(name+" enters", metacmd.EnterJob(name, process, with(workers)), rowraft.CodeUnknown).(*EnterResult)
		}
		took := make(map[uint64]uint64)
		var read []uint64
		take := func(id *rowraftv1.JobIdentity) bool {
			took[id.GetIncarnation()]++
			c := metacmd.TakeSplit(id, took[id.GetIncarnation()])
			got := h.step("it takes a split", c, rowraft.CodeUnknown).(*TakeResult)
			if got.Split == nil {
				took[id.GetIncarnation()]--
				return false
			}
			read = append(read, got.Split.GetSplit())
			h.step("it ends it", cmdEndSplit(id, got.Split), rowraft.CodeUnknown)
			return true
		}
		one, two := enter("a", 1, 2), enter("b", 2, 2)
		for range 5 {
			take(one.Identity)
			take(two.Identity)
		}
		three := enter("c", 3, 2)
		if three.Identity.Rank != 2 || three.Workers != 3 || three.Generation <= two.Generation || three.Began {
			t.Fatalf("by rank %v: the third worker has %+v", byRank, three)
		}
		if same := enter("d", 4, 4); same.Identity.Rank != 3 || same.Workers != 4 { // expects four itself
			t.Fatalf("by rank %v: the fourth worker has %+v", byRank, same)
		} else {
			for range 3 {
				if !take(three.Identity) || !take(same.Identity) {
					t.Fatalf("by rank %v: a worker that joined gets no split", byRank)
				}
			}
			h.step("one leaves", metacmd.LeaveJob(one.Identity, stopped), rowraft.CodeUnknown)
			for more := true; more; {
				more = false
				for _, id := range []*rowraftv1.JobIdentity{two.Identity, three.Identity, same.Identity} {
					more = take(id) || more
				}
			}
			for _, id := range []*rowraftv1.JobIdentity{two.Identity, three.Identity, same.Identity} {
				h.step("it ends", metacmd.LeaveJob(id, ended), rowraft.CodeUnknown)
			}
		}
		if slices.Sort(read); len(read) != parts || len(slices.Compact(read)) != parts {
			t.Errorf("by rank %v: the splits %v were read, want each of %d once", byRank, read, parts)
		}
		if r := h.m.RunOf("ctr"); r.GetState() != done {
			t.Errorf("by rank %v: the job is %v, want done", byRank, r.GetState())
		}
	}
}

// TestARunThatWaitsForNoGuests: a run that was stopped continues with as many workers as the first one expects, not
// with those that had joined; and a run whose settings fix the number refuses another worker.
func TestARunThatWaitsForNoGuests(t *testing.T) {
	h := &history{t: t, m: withShards(t), index: 10}
	how := func(q *rowraftv1.EnterRequest) {
		metacmd.WithData(400, 10, 1)(q)
		q.Workers, q.Gather, q.InShards = 2, true, true
	}
	enter := func(name string, process byte) *EnterResult {
		return h.step(name+" enters", metacmd.EnterJob(name, process, how), rowraft.CodeUnknown).(*EnterResult)
	}
	all := []*EnterResult{enter("a", 1), enter("b", 2), enter("c", 3)}
	for _, e := range all {
		h.step("it attends", metacmd.Attend(e.Identity, "", 0), rowraft.CodeUnknown)
	}
	for _, e := range all {
		h.step("it is stopped", metacmd.LeaveJob(e.Identity, stopped), rowraft.CodeUnknown)
	}
	enter("a", 4)
	if r := h.m.RunOf("ctr"); r.GetWorkers() != 2 || !r.GetGathering() || len(r.GetMembers()) != 2 {
		t.Errorf("the run waits for %d workers, gathering %v", r.GetWorkers(), r.GetGathering())
	}
	if e := enter("b", 5); h.m.RunOf("ctr").GetGathering() || e.Generation == 0 {
		t.Error("with two workers the run still waits")
	}

	a := newApplier(t)
	a.do(cmdInit("c"))
	fixed := func(q *rowraftv1.EnterRequest) {
		how(q)
		q.Settings = []*rowraftv1.JobSetting{{Name: "trainers", Value: "2"}}
	}
	a.enter(metacmd.EnterJob("a", 1, fixed))
	a.enter(metacmd.EnterJob("b", 2, fixed))
	a.refused(metacmd.EnterJob("c", 3, fixed), rowraft.CodeInvalidArgument, "all of its 2 workers", "fixed number")
}
