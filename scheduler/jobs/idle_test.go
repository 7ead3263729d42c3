package jobs

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// The leader deletes a job without training workers on request, forgets one by itself when its time is over and not
// before, and removes a silent worker early if its job has not called Attend.
func TestTheLeaderKeepsTheRegistry(t *testing.T) {
	s, c := served(t)
	m, err := enter(t, c, "w0", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := s.machine.RunOf("ctr")
	remove := func() error {
		_, err := s.DeleteJob(t.Context(), &rowraftv1.DeleteJobRequest{Job: "ctr", Run: r.GetRun()})
		return err
	}
	if err := remove(); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("delete a job that trains: %v", err)
	}
	if err := m.Leave(t.Context(), jobs.LeaveEnded, "", nil); err != nil {
		t.Fatal(err)
	}
	if s.machine.RunOf("ctr").GetIdleSinceNs() == 0 {
		t.Error("the time of the leave is not in the log")
	}
	s.round(t.Context())
	if s.machine.RunOf("ctr") == nil {
		t.Error("it is forgotten at once")
	}
	if err := remove(); err != nil || s.machine.RunOf("ctr") != nil {
		t.Errorf("delete it: %v", err)
	}

	for _, attended := range []bool{true, false} {
		e, err := resultOf[*meta.EnterResult](s.leader.ProposeResult(t.Context(),
			metacmd.EnterJob("w0", 1, func(q *rowraftv1.EnterRequest) {
				q.Workers, q.LeaseNs = 1, uint64(time.Hour)
			})))
		if err != nil {
			t.Fatal(err)
		}
		if attended {
			if _, err := s.leader.ProposeResult(t.Context(), metacmd.Attend(e.Identity, "", 0)); err != nil {
				t.Fatal(err)
			}
		}
		s.round(t.Context())
		s.leases.mu.Lock()
		s.leases.list[e.Identity.GetIncarnation()] = lastHeard{heard: time.Now().Add(-unattendedLease)}
		s.leases.mu.Unlock()
		s.round(t.Context())
		if left := s.machine.RunOf("ctr").GetIdleSinceNs() > 0; left == attended {
			t.Errorf("a worker with a lease of an hour, silent for %v, attended %v: taken out %v", unattendedLease, attended,
				left)
		}
		if attended { // another run, of which no worker attends
			if _, err := s.leader.ProposeResult(t.Context(),
				metacmd.LeaveJobAt(e.Identity, ended, time.Duration(time.Now().UnixNano()))); err != nil {
				t.Fatal(err)
			}
			if r = s.machine.RunOf("ctr"); remove() != nil {
				t.Fatalf("%v is not deleted", r)
			}
		}
	}
	r = s.machine.RunOf("ctr")
	s.round(t.Context())
	if s.machine.RunOf("ctr") == nil {
		t.Error("a job that was lost is forgotten at once")
	}
	s.leader.EditState(t, func(p *rowraftv1.MetaState) { p.Runs[0].IdleSinceNs -= uint64(time.Hour) })
	s.round(t.Context())
	if r := s.machine.RunOf("ctr"); r != nil {
		t.Errorf("its time is over, and it is not forgotten: %v", r)
	}
}

// A member that knows that the registry is full refuses an entry without an entry of the log.
func TestAFullRegistryCostsNoEntries(t *testing.T) {
	leader, _ := served(t)
	q := metacmd.EnterJob("w0", 1, func(q *rowraftv1.EnterRequest) { q.Workers, q.LeaseNs = 1, uint64(time.Hour) })
	if _, err := leader.leader.ProposeResult(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	leader.leader.EditState(t, func(p *rowraftv1.MetaState) {
		for i := range meta.MaxJobs - 1 {
			r := proto.CloneOf(p.Runs[0])
			r.Job, r.Run = fmt.Sprintf("j%04d", i), append(metacmd.ID(9)[:12], byte(i>>24), byte(i>>16), byte(i>>8), byte(i))
			p.Runs = append(p.Runs, r)
		}
	})
	request := q.GetEnterJob().GetRequest()
	request.Job = "more"
	before := leader.leader.Entries()
	if _, err := leader.Enter(t.Context(), request); rowraft.CodeOf(err) != rowraft.CodePrecondition ||
		leader.leader.Entries() != before {
		t.Errorf("%v, and %d entries in the log", err, leader.leader.Entries()-before)
	}
}
