package scheduler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

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
	again := enterAs("mallory", "j007")
	again.GetEnterJob().GetRequest().Instance = id16(9) // another process
	a.enter(again)
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

// The limit of all owners holds, too, for one that has no quota of its own: without certificates there are no owners.
func TestTheRegistryIsBounded(t *testing.T) {
	s := &state{}
	for i := range MaxJobs {
		s.runs = append(s.runs, &rowraftv1.MetaRun{Job: fmt.Sprintf("j%04d", i)})
	}
	for _, owner := range []string{"alice", ""} {
		q := &rowraftv1.EnterRequest{Job: "more"}
		if owner != "" {
			q = enterAs(owner, "more").GetEnterJob().GetRequest()
		}
		if err := s.roomForJob(q); rowraft.CodeOf(err) != rowraft.CodePrecondition || !strings.Contains(err.Error(), "the cluster has 4096 jobs, the most there can be: j0000 ") {
			t.Errorf("owner %q: %v, want a refusal", owner, err)
		}
		if q.Job = "j4095"; s.roomForJob(q) != nil {
			t.Errorf("owner %q: a job that is there: %v", owner, s.roomForJob(q))
		}
	}
	leader, l, _ := served(t)
	leader.machine.mu.Lock()
	leader.machine.state.runs = s.runs
	leader.machine.mu.Unlock()
	entries := func() rowraft.Index {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.index
	}
	before := entries()
	if _, err := leader.Jobs().Enter(t.Context(), enterAs("alice", "more").GetEnterJob().GetRequest()); rowraft.CodeOf(err) != rowraft.CodePrecondition || entries() != before {
		t.Errorf("%v, and %d entries in the log", err, entries()-before)
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
				a.ok(cmdAttend(e.identity, "", 0))
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

// The leader deletes a job in which nobody trains, forgets one by itself when its time is over and not before, and takes
// a worker out early whose job has had no call of Attend.
func TestTheLeaderKeepsTheRegistry(t *testing.T) {
	s, _, c := served(t)
	m, err := enter(t, c, "w0", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := s.machine.runOf("ctr")
	remove := func() error {
		_, err := s.Jobs().DeleteJob(t.Context(), &rowraftv1.DeleteJobRequest{Job: "ctr", Run: r.GetRun()})
		return err
	}
	if err := remove(); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("delete a job that trains: %v", err)
	}
	if err := m.Leave(t.Context(), client.LeaveEnded, "", nil); err != nil {
		t.Fatal(err)
	}
	if s.machine.runOf("ctr").GetIdleSinceNs() == 0 {
		t.Error("the time of the leave is not in the log")
	}
	s.keepJobs(t.Context())
	if s.machine.runOf("ctr") == nil {
		t.Error("it is forgotten at once")
	}
	if err := remove(); err != nil || s.machine.runOf("ctr") != nil {
		t.Errorf("delete it: %v", err)
	}

	for _, attended := range []bool{true, false} {
		e, err := proposeFor[*entered](t.Context(), s, cmdEnter("w0", 1, func(q *rowraftv1.EnterRequest) {
			q.Workers, q.LeaseNs = 1, uint64(time.Hour)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if attended {
			if _, err := s.propose(t.Context(), cmdAttend(e.identity, "", 0)); err != nil {
				t.Fatal(err)
			}
		}
		s.keepJobs(t.Context())
		s.workers.mu.Lock()
		s.workers.list[e.identity.GetIncarnation()] = heardOf{heard: time.Now().Add(-unattendedLease)}
		s.workers.mu.Unlock()
		s.keepJobs(t.Context())
		if left := s.machine.runOf("ctr").GetIdleSinceNs() > 0; left == attended {
			t.Errorf("a worker with a lease of an hour, silent for %v, attended %v: taken out %v", unattendedLease, attended, left)
		}
		if attended { // another run, of which no worker attends
			if _, err := s.propose(t.Context(), leftAt(e.identity, ended, time.Duration(time.Now().UnixNano()))); err != nil {
				t.Fatal(err)
			}
			if r = s.machine.runOf("ctr"); remove() != nil {
				t.Fatalf("%v is not deleted", r)
			}
		}
	}
	r = s.machine.runOf("ctr")
	s.keepJobs(t.Context())
	if s.machine.runOf("ctr") == nil {
		t.Error("a job that was lost is forgotten at once")
	}
	s.machine.mu.Lock()
	old := proto.CloneOf(r)
	old.IdleSinceNs -= uint64(keepUnattended)
	s.machine.state.putRun(old)
	s.machine.mu.Unlock()
	s.keepJobs(t.Context())
	if r := s.machine.runOf("ctr"); r != nil {
		t.Errorf("its time is over, and it is not forgotten: %v", r)
	}
}
