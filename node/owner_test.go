package node

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestJobsBelongToAnIdentity: another trainer cannot become a worker of a job, nor act as one, nor learn
// the job's settings; an operator can stop the job.
func TestJobsBelongToAnIdentity(t *testing.T) {
	c, ctx := startSecureCluster(t, 1, nil), testutil.Context(t)
	enter := func(name, worker string) (*jobs.Member, error) {
		return jobs.Enter(ctx, c.dialAs(certs.Trainer, name, "*"), jobs.Entry{Job: "ctr", Worker: worker, Workers: 2,
			Settings: map[string]string{"mode": "async", "owner": "bob"}})
	}
	open := func(role certs.Role, name string, tables ...string) *grpc.ClientConn {
		return c.connectAs(c.nodes[0].addr, role, name, tables...)
	}
	jobs := func(role certs.Role, name string, tables ...string) rowraftv1.JobsClient {
		return rowraftv1.NewJobsClient(open(role, name, tables...))
	}
	var identity *rowraftv1.JobIdentity // of alice's first worker
	attend := func(name string) error {
		stream, err := rowraftv1.NewCheckpointsClient(open(certs.Trainer, name, "*")).Attend(ctx)
		if err != nil {
			return err
		}
		_ = stream.Send(
			&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Hello{Hello: &rowraftv1.AttendHello{Member: identity}}})
		_, err = stream.Recv()
		return rpc.FromStatus(err)
	}
	first, err := enter("alice", "w0")
	if err != nil {
		t.Fatal(err)
	}
	run := first.Run()
	identity = &rowraftv1.JobIdentity{Job: "ctr", Run: run[:], Incarnation: uint64(first.Incarnation())}
	if _, err := enter("alice", "w1"); err != nil {
		t.Errorf("a second worker of alice: %v", err)
	}
	if err := attend("bob"); rowraft.CodeOf(err) != rowraft.CodeDenied {
		t.Errorf("bob answers for alice's worker when a checkpoint is made: %v", err)
	}
	if err := attend("alice"); err != nil {
		t.Errorf("alice attends her own job: %v", err)
	}
	for _, worker := range []string{"w0", "w1", "w2"} {
		if _, err := enter("bob", worker); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("bob enters alice's job as %s: %v", worker, err)
		}
	}

	hers, err := jobs(certs.Trainer, "alice", "*").DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: "ctr"})
	if err != nil || len(hers.GetJob().GetRun()) != 16 {
		t.Fatalf("alice sees %v, %v", hers, err)
	}
	bob := jobs(certs.Trainer, "bob", "*")
	seen, err := bob.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: "ctr"})
	if err != nil || len(seen.GetJob().GetMembers()) != 2 {
		t.Fatalf("bob sees %v, %v", seen, err)
	}
	list, err := bob.ListJobs(ctx, &rowraftv1.ListJobsRequest{})
	if err != nil || len(list.GetJobs()) != 1 {
		t.Fatalf("bob lists %v, %v", list, err)
	}
	for _, job := range []*rowraftv1.JobInfo{seen.GetJob(), list.GetJobs()[0]} {
		if m := job.GetMembers()[0].GetMember(); len(job.GetRun()) > 0 || m.GetIncarnation() != 0 || m.GetAttending() != 0 ||
			len(m.GetInstance()) > 0 {
			t.Errorf("bob learns what lets him act as alice's worker: %v", job)
		}
	}
	id := &rowraftv1.JobIdentity{Job: "ctr", Run: hers.GetJob().GetRun(), Rank: 0,
		Incarnation: hers.GetJob().GetMembers()[0].GetMember().GetIncarnation()}
	for what, call := range map[string]func(context.Context) error{
		"leaves": func(ctx context.Context) error {
			_, err := bob.Leave(ctx, &rowraftv1.LeaveRequest{Identity: id, State: rowraftv1.MemberState_MEMBER_STATE_ENDED})
			return err
		},
		"renews": func(ctx context.Context) error {
			_, err := bob.Renew(ctx, &rowraftv1.RenewRequest{Identity: id})
			return err
		},
		"takes a part": func(ctx context.Context) error {
			_, err := bob.NextSplit(ctx, &rowraftv1.NextSplitRequest{Identity: id, Take: 1})
			return err
		},
		"ends a part": func(ctx context.Context) error {
			_, err := bob.EndSplit(ctx, &rowraftv1.EndSplitRequest{Identity: id})
			return err
		},
		"stops it": func(ctx context.Context) error {
			_, err := bob.StopJob(ctx, &rowraftv1.StopJobRequest{Job: "ctr"})
			return err
		},
		"deletes it": func(ctx context.Context) error {
			_, err := bob.DeleteJob(ctx, &rowraftv1.DeleteJobRequest{Job: "ctr", Run: id.Run})
			return err
		},
	} {
		if err := call(ctx); rowraft.CodeOf(err) != rowraft.CodeDenied {
			t.Errorf("bob %s as alice's worker: %v", what, err)
		}
	}
	if _, err := jobs(certs.Operator, "olga").StopJob(ctx, &rowraftv1.StopJobRequest{Job: "ctr"}); err != nil {
		t.Errorf("an operator stops it: %v", err)
	}
}
