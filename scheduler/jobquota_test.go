package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func cmdForgetJob(job string, run []byte, at time.Duration, asked bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetJob{ForgetJob: &rowraftv1.MetaForgetJob{Job: job, Run: run, AtNs: uint64(at), Asked: asked}}}
}

// leftAt is cmdLeaveJob at a time.
func leftAt(id *rowraftv1.JobIdentity, how rowraftv1.MemberState, at time.Duration) *rowraftv1.MetaCommand {
	c := cmdLeaveJob(id, how)
	c.GetLeaveJob().AtNs = uint64(at)
	return c
}

// enterAs is a worker of an owner that enters a job.
func enterAs(owner, job string) *rowraftv1.MetaCommand {
	return cmdEnter("w0", 1, func(q *rowraftv1.EnterRequest) {
		q.Job, q.Workers = job, 1
		own(&rpc.Caller{Identity: certs.Identity{Name: owner}}, q)
	})
}

// One owner fills its own quota and nobody else's. The refusal names jobs to delete, those first that have been idle
// for longest; deleting one makes room, and one that is there already needs none.
func TestOneOwnerCannotFillTheRegistry(t *testing.T) {
	a := newApplier(t)
	var first *rowraftv1.JobIdentity
	for i := range maxOwnerJobs {
		e := a.enter(enterAs("mallory", fmt.Sprintf("j%03d", i)))
		if i == 7 {
			first = e.identity
		}
	}
	a.ok(leftAt(first, ended, time.Hour))
	refused := func() {
		t.Helper()
		err, _ := a.do(enterAs("mallory", "more")).(error)
		if rowraft.CodeOf(err) != rowraft.CodePrecondition || !strings.Contains(fmt.Sprint(err), "mallory has 256 jobs, the most there can be: j007 (done), j000 (running), ") || !strings.Contains(err.Error(), " and 248 more; ") {
			t.Errorf("%v, want a refusal that names the idle job first", err)
		}
		if early := a.m.roomForJob(enterAs("mallory", "more").GetEnterJob().GetRequest()); fmt.Sprint(early) != fmt.Sprint(err) {
			t.Errorf("before the log: %v", early)
		}
	}
	refused()
	a.enter(enterAs("mallory", "j007"))
	a.enter(enterAs("alice", "ctr"))
	id := a.m.runOf("j000")
	if err, _ := a.do(cmdForgetJob("j000", id.GetRun(), time.Hour, true)).(error); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("delete a job that trains: %v", err)
	}
	a.ok(leftAt(&rowraftv1.JobIdentity{Job: "j000", Run: id.GetRun(), Incarnation: id.GetMembers()[0].GetIncarnation()}, lost, time.Hour))
	a.ok(cmdForgetJob("j000", id.GetRun(), time.Hour, true))
	a.enter(enterAs("mallory", "more"))
	if err, _ := a.do(cmdForgetJob("j000", id.GetRun(), time.Hour, true)).(error); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Errorf("delete it again: %v", err)
	}
}

// A job in which nobody trains is forgotten by the times in the log: soon if none of its workers ever called Attend,
// later if it is done or has failed, last if it can go on. One that came back in between is not.
func TestTheRegistryForgetsIdleJobs(t *testing.T) {
	const begun = time.Hour
	for _, tc := range []struct {
		name     string
		attended bool
		how      rowraftv1.MemberState
		kept     time.Duration
	}{
		{"never attended", false, lost, keepUnattended},
		{"done", true, ended, keepDone},
		{"failed", true, failed, keepDone},
		{"lost", true, lost, keepDone},
		{"stopped", true, stopped, keepStopped},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newApplier(t)
			e := a.enter(enterAs("alice", "ctr"))
			if tc.attended {
				a.ok(&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{Trainer: &rowraftv1.MetaTrainer{Job: "ctr", Trainers: 1, Instance: id16(1)}}}})
			}
			a.ok(leftAt(e.identity, tc.how, begun))
			r := a.m.runOf("ctr")
			if expired(r, uint64(begun+tc.kept-1)) || !expired(r, uint64(begun+tc.kept)) {
				t.Errorf("it is not kept for %v: %v", tc.kept, r)
			}
			a.ok(cmdForgetJob("ctr", id16(9), begun+tc.kept, false)) // another run
			a.ok(cmdForgetJob("ctr", e.identity.GetRun(), begun+tc.kept-1, false))
			if a.m.runOf("ctr") == nil {
				t.Fatal("it is forgotten early")
			}
			a.ok(cmdForgetJob("ctr", e.identity.GetRun(), begun+tc.kept, false))
			if a.m.runOf("ctr") != nil {
				t.Error("it is not forgotten")
			}
		})
	}
	a := newApplier(t)
	e := a.enter(enterAs("alice", "ctr"))
	if expired(a.m.runOf("ctr"), 1<<63) {
		t.Error("a job that trains is forgotten")
	}
	a.ok(leftAt(e.identity, stopped, begun))
	again := enterAs("alice", "ctr")
	again.GetEnterJob().Request.Instance = id16(2)
	a.enter(again)
	if expired(a.m.runOf("ctr"), 1<<63) {
		t.Error("a job that trains again is forgotten")
	}
}

// The leader deletes a job for its owner alone, forgets what is over by itself, and takes a worker out early whose
// job has had no call of Attend.
func TestTheLeaderKeepsTheRegistry(t *testing.T) {
	s, _, c := served(t)
	m, err := enter(t, c, "w0", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := s.machine.runOf("ctr")
	if _, err := s.Jobs().DeleteJob(t.Context(), &rowraftv1.DeleteJobRequest{Job: "ctr", Run: r.GetRun()}); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("delete a job that trains: %v", err)
	}
	if err := m.Leave(t.Context(), client.LeaveEnded, "", nil); err != nil {
		t.Fatal(err)
	}
	if s.machine.runOf("ctr").GetIdleSinceNs() == 0 {
		t.Error("the time of the leave is not in the log")
	}
	s.forgetIdleJobs(t.Context())
	if s.machine.runOf("ctr") == nil {
		t.Error("it is forgotten at once")
	}
	if _, err := s.Jobs().DeleteJob(t.Context(), &rowraftv1.DeleteJobRequest{Job: "ctr", Run: r.GetRun()}); err != nil || s.machine.runOf("ctr") != nil {
		t.Errorf("delete it: %v", err)
	}
}
