package meta

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func cmdForgetJob(job string, run []byte, at time.Duration, asked bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{AtNs: uint64(at), Command: &rowraftv1.MetaCommand_ForgetJob{
		ForgetJob: &rowraftv1.MetaForgetJob{Job: job, Run: run, Asked: asked}}}
}

// enterAs is a worker of an owner that enters a job.
func enterAs(owner, job string) *rowraftv1.MetaCommand {
	return metacmd.EnterJob("w0", 1, func(q *rowraftv1.EnterRequest) {
		q.Job, q.Workers = job, 1
		SetOwner(&rpc.Caller{Identity: certs.Identity{Name: owner}}, q)
	})
}

// One owner fills its own quota and no other. The refusal names jobs to delete, those first that have been idle
// for longest; deleting one makes room, and one that is there already needs none.
func TestOneOwnerCannotFillTheRegistry(t *testing.T) {
	a := newApplier(t)
	var first *rowraftv1.JobIdentity
	for i := range maxOwnerJobs {
		e := a.enter(enterAs("mallory", fmt.Sprintf("j%03d", i)))
		if i == 7 {
			first = e.Identity
		}
	}
	a.ok(metacmd.LeaveJobAt(first, ended, time.Hour))
	refused := func() {
		t.Helper()
		err, _ := a.do(enterAs("mallory", "more")).(error)
		if rowraft.CodeOf(err) != rowraft.CodePrecondition ||
			!strings.Contains(fmt.Sprint(err), "mallory has 256 jobs, the limit: j007 (done), j000 (running), ") ||
			!strings.Contains(err.Error(), " and 248 more; ") {
			t.Errorf("%v, want a refusal that names the idle job first", err)
		}
		if early := a.m.CheckRoom(enterAs("mallory", "more").GetEnterJob().GetRequest()); fmt.Sprint(early) != fmt.Sprint(
			err) {
			t.Errorf("before the log: %v", early)
		}
	}
	refused()
	again := enterAs("mallory", "j007")
	again.GetEnterJob().GetRequest().Instance = metacmd.ID(9) // another process
	a.enter(again)
	a.enter(enterAs("alice", "ctr"))
	id := a.m.RunOf("j000")
	if err, _ := a.do(cmdForgetJob("j000", id.GetRun(), time.Hour, true)).(error); rowraft.CodeOf(
		err) != rowraft.CodePrecondition {
		t.Errorf("delete a job that trains: %v", err)
	}
	a.ok(metacmd.LeaveJobAt(&rowraftv1.JobIdentity{Job: "j000", Run: id.GetRun(),
		Incarnation: id.GetMembers()[0].GetIncarnation()},
		lost, time.Hour))
	a.ok(cmdForgetJob("j000", id.GetRun(), time.Hour, true))
	a.enter(enterAs("mallory", "more"))
	if err, _ := a.do(cmdForgetJob("j000", id.GetRun(), time.Hour, true)).(error); rowraft.CodeOf(
		err) != rowraft.CodeNotFound {
		t.Errorf("delete it again: %v", err)
	}
}

// The limit of all owners holds, too, for one that has no quota of its own: without certificates there are no owners.
func TestTheRegistryIsBounded(t *testing.T) {
	g := &registry{}
	for i := range MaxJobs {
		g.runs = append(g.runs, &rowraftv1.MetaRun{Job: fmt.Sprintf("j%04d", i)})
	}
	for _, owner := range []string{"alice", ""} {
		q := &rowraftv1.EnterRequest{Job: "more"}
		if owner != "" {
			q = enterAs(owner, "more").GetEnterJob().GetRequest()
		}
		if err := g.roomForJob(q); rowraft.CodeOf(err) != rowraft.CodePrecondition ||
			!strings.Contains(err.Error(), "the cluster has 4096 jobs, the limit: j0000 ") {
			t.Errorf("owner %q: %v, want a refusal", owner, err)
		}
		if q.Job = "j4095"; g.roomForJob(q) != nil {
			t.Errorf("owner %q: a job that is there: %v", owner, g.roomForJob(q))
		}
	}
}

// A job without training workers is forgotten by the times in the log: soon if none of its workers ever called Attend,
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
				a.ok(metacmd.Attend(e.Identity, "", 0))
			}
			a.ok(metacmd.LeaveJobAt(e.Identity, tc.how, begun))
			r := a.m.RunOf("ctr")
			if IsExpired(r, uint64(begun+tc.kept-1)) || !IsExpired(r, uint64(begun+tc.kept)) {
				t.Errorf("it is not kept for %v: %v", tc.kept, r)
			}
			a.ok(cmdForgetJob("ctr", metacmd.ID(9), begun+tc.kept, false)) // another run
			a.ok(cmdForgetJob("ctr", e.Identity.GetRun(), begun+tc.kept-1, false))
			if a.m.RunOf("ctr") == nil {
				t.Fatal("it is forgotten early")
			}
			a.ok(cmdForgetJob("ctr", e.Identity.GetRun(), begun+tc.kept, false))
			if a.m.RunOf("ctr") != nil {
				t.Error("it is not forgotten")
			}
		})
	}
	a := newApplier(t)
	e := a.enter(enterAs("alice", "ctr"))
	if IsExpired(a.m.RunOf("ctr"), 1<<63) {
		t.Error("a job that trains is forgotten")
	}
	a.ok(metacmd.LeaveJobAt(e.Identity, stopped, begun))
	again := enterAs("alice", "ctr")
	again.GetEnterJob().Request.Instance = metacmd.ID(2)
	a.enter(again)
	if IsExpired(a.m.RunOf("ctr"), 1<<63) {
		t.Error("a job that trains again is forgotten")
	}
}
