package meta

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// A worker that enters a job that is done, and fails before it trains, leaves the job as it was: done. A member that
// attends, takes a split or ends makes the new run the job's.
func TestARefusedWorkerLeavesTheJobAsItWas(t *testing.T) {
	inShards := func(q *rowraftv1.EnterRequest) { q.InShards, q.Workers = true, 1 }
	divided := func(q *rowraftv1.EnterRequest) {
		q.Workers, q.Data = 1, &rowraftv1.JobData{Examples: 100, SplitExamples: 10, Epochs: 1}
	}
	for _, tc := range []struct {
		name   string
		how    func(*rowraftv1.EnterRequest)
		trains func(h *history, id *rowraftv1.JobIdentity)
		leaves rowraftv1.MemberState
		want   rowraftv1.JobState
		ended  int // runs that the shards must forget
	}{
		{"it fails", inShards, nil, failed, done, 1 + 1},
		{"it is stopped", inShards, nil, stopped, done, 1 + 1},
		{"it is lost", divided, nil, lost, done, 0},
		{"it attends", inShards, func(h *history, id *rowraftv1.JobIdentity) {
			h.step("it attends", metacmd.Attend(id, "", 0), rowraft.CodeUnknown)
		}, failed, jobFailed, 1},
		{"it takes a split", divided, func(h *history, id *rowraftv1.JobIdentity) {
			h.step("it takes a split", metacmd.TakeSplit(id, 1), rowraft.CodeUnknown)
		}, failed, jobFailed, 0},
		{"it ends", inShards, nil, ended, done, 1 + 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &history{t: t, m: withShards(t), index: 10}
			enter := func(process byte) *rowraftv1.JobIdentity {
				return h.step("it enters", metacmd.EnterJob("w", process, tc.how), rowraft.CodeUnknown).(*EnterResult).Identity
			}
			one := enter(1)
			h.step("it attends", metacmd.Attend(one, "", 0), rowraft.CodeUnknown)
			h.step("it ends", metacmd.LeaveJob(one, ended), rowraft.CodeUnknown)
			before := h.m.RunOf("ctr")
			two := h.step("another process enters", metacmd.EnterJob("w", 2, func(q *rowraftv1.EnterRequest) {
				tc.how(q)
				q.Settings = nil // so that it begins a run
			}), rowraft.CodeUnknown).(*EnterResult).Identity
			if bytes.Equal(two.GetRun(), one.GetRun()) {
				t.Fatal("no other run has begun")
			}
			if tc.trains != nil {
				tc.trains(h, two)
			}
			h.step("it leaves", metacmd.LeaveJob(two, tc.leaves), rowraft.CodeUnknown)
			now := h.m.RunOf("ctr")
			if same := proto.Equal(now, before); same != (tc.trains == nil && tc.leaves != ended) {
				t.Errorf("the job is as it was: %v; now %v", same, now)
			}
			if now.GetPrevious() != nil || now.GetState() != tc.want && !proto.Equal(now, before) {
				t.Errorf("the job is %v with the previous run %v, want %v", now.GetState(), now.GetPrevious(), tc.want)
			}
			if got := len(h.m.EndedRuns()); got < tc.ended {
				t.Errorf("the shards must forget %d runs, want %d", got, tc.ended)
			}
		})
	}
}

// A job counts the steps of its members that left, over all runs on the same tables: their sum, or in mode sync the
// greatest.
func TestAJobCountsItsSteps(t *testing.T) {
	for _, tc := range []struct {
		name string
		how  func(*rowraftv1.EnterRequest)
		want uint64 // after two workers of 30 and 40 steps
	}{
		{"each worker has its own steps", func(*rowraftv1.EnterRequest) {}, 70},
		{"the workers close steps together", func(q *rowraftv1.EnterRequest) { q.InShards, q.Quorum = true, 1 }, 40},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newApplier(t)
			a.do(cmdInit("c"))
			for run := range uint64(2) {
				one := a.enter(metacmd.EnterJob("a", byte(1+2*run), tc.how))
				two := a.enter(metacmd.EnterJob("b", byte(2+2*run), tc.how))
				if one.Steps != run*tc.want || !one.First || !one.Began || two.First || two.Began {
					t.Errorf("run %d: the workers are told %+v and %+v, want %d steps", run, one, two, run*tc.want)
				}
				for i, id := range []*rowraftv1.JobIdentity{one.Identity, two.Identity} {
					c := metacmd.LeaveJob(id, ended)
					c.GetLeaveJob().Steps = uint64(30 + 10*i)
					a.ok(c)
				}
			}
		})
	}
}
