package node

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// A shard with the maximum number of jobs refuses one more without a log entry, for any number of requests.
// It accepts the job when another one has ended.
func TestRefusedJobsAreNotLogged(t *testing.T) {
	c := startCluster(t, 1, 1)
	ctx, admin := testutil.Context(t), c.admin(0)
	ensure := func(n int, generation uint64, rank uint32) error {
		_, err := admin.EnsureJob(ctx, &rowraftv1.EnsureJobRequest{
			Job: append(make([]byte, 14), byte(n>>8), byte(n)), Generation: generation, FirstStep: 1,
			Members: []*rowraftv1.JobMember{{Rank: rank, Incarnation: 1}},
		})
		return err
	}
	testutil.Eventually(t, "the shard takes a job", func() bool { return ensure(1, 2, 0) == nil })
	for n := 2; n <= checkpoint.MaxJobs; n++ {
		if err := ensure(n, 2, 0); err != nil {
			t.Fatalf("job %d: %v", n, err)
		}
	}
	last := func() uint64 {
		st, err := admin.NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st.Replicas[0].LastIndex
	}
	before := last()
	for range 3 {
		if err := ensure(checkpoint.MaxJobs+1, 1, 0); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			t.Errorf("one job too many: %v, want CodeOverloaded", err)
		}
		if err := ensure(1, 1, 0); rowraft.CodeOf(err) != rowraft.CodeStaleGeneration {
			t.Errorf("an old generation: %v, want CodeStaleGeneration", err)
		}
		if err := ensure(1, 2, 1); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
			t.Errorf("other members: %v, want CodeAlreadyExists", err)
		}
	}
	if after := last(); after > before+2 { // a proof may come between
		t.Errorf("%d entries were logged for 9 refusals", after-before)
	}
	end := &rowraftv1.EndJobRequest{Job: append(make([]byte, 15), 1), Generation: 1}
	if _, err := admin.EndJob(ctx, end); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("the end of an older generation: %v, want CodePrecondition", err)
	}
	end.Generation = 2
	if _, err := admin.EndJob(ctx, end); err != nil {
		t.Fatal(err)
	}
	if err := ensure(checkpoint.MaxJobs+1, 1, 0); err != nil {
		t.Errorf("a job in the place of one that has ended: %v", err)
	}
}

// A delayed call that sets a membership of an ended job does not create the job again, and does not change
// a job that began later. Workers that continue a resting run do so in a later generation.
func TestALateMembershipBringsNoJobBack(t *testing.T) {
	c := startCluster(t, 1, 1)
	ctx, admin := testutil.Context(t), c.admin(0)
	job := func(n byte) []byte { return append(make([]byte, 15), n) }
	ensure := func(n byte, generation uint64, ranks ...uint32) error {
		q := &rowraftv1.EnsureJobRequest{Job: job(n), Generation: generation, FirstStep: generation}
		for _, rank := range ranks {
			q.Members = append(q.Members, &rowraftv1.JobMember{Rank: rank, Incarnation: 1})
		}
		_, err := admin.EnsureJob(ctx, q)
		return err
	}
	end := func(n byte, generation uint64) {
		t.Helper()
		if _, err := admin.EndJob(ctx, &rowraftv1.EndJobRequest{Job: job(n), Generation: generation}); err != nil {
			t.Fatal(err)
		}
	}
	late := func(n byte, generation uint64) {
		t.Helper()
		if err := ensure(n, generation, 0); rowraft.CodeOf(err) != rowraft.CodeStaleGeneration {
			t.Errorf("generation %d of job %d after its end: %v, want CodeStaleGeneration", generation, n, err)
		}
		if st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Job: job(n)}); rowraft.CodeOf(
			err) != rowraft.CodeNotFound {
			t.Errorf("job %d is back: %v, %v", n, st, err)
		}
	}
	testutil.Eventually(t, "the shard takes a job", func() bool { return ensure(1, 2, 0, 1) == nil })
	end(1, 3) // generation 3 did not arrive here: it had no member left
	late(1, 2)
	late(1, 3)
	if err := ensure(1, 4, 0); err != nil {
		t.Fatalf("a run that goes on: %v", err)
	}
	for _, generation := range []uint64{2, 3} {
		if err := ensure(1, generation, 0, 1); rowraft.CodeOf(err) != rowraft.CodeStaleGeneration {
			t.Errorf("generation %d of a job at 4: %v, want CodeStaleGeneration", generation, err)
		}
	}
	if st, err := admin.JobState(ctx, &rowraftv1.JobStateRequest{Job: job(1)}); err != nil || st.Generation != 4 ||
		len(st.Members) != 1 {
		t.Errorf("the job is %v, %v, want generation 4 of one member", st, err)
	}
	end(1, 0)
	late(1, 9)
	end(2, 0) // no entry of this generation has arrived here
	late(2, 1)
}

// A run without trainers is in no shard. Workers that continue it begin after its last step, and with new
// clocks, not with those of the workers that left.
func TestARunThatRestsIsInNoShard(t *testing.T) {
	c := startCluster(t, 1, 2)
	ctx, admin := testutil.Context(t), c.admin(0)
	state := func(run [16]byte, shard uint32) (*rowraftv1.JobStateReply, error) {
		return admin.JobState(ctx, &rowraftv1.JobStateRequest{Shard: shard, Job: run[:]})
	}
	enter := func() (*jobs.Member, *client.Job) {
		t.Helper()
		cl := c.dial()
		m, err := jobs.Enter(ctx, cl, jobs.Entry{Job: "ctr", Worker: "w", Workers: 1, InShards: true})
		if err != nil {
			t.Fatal(err)
		}
		var reply *rowraftv1.JobStateReply
		for shard := range uint32(2) {
			testutil.Eventually(t, "the shard knows the member", func() bool {
				reply, err = state(m.Run(), shard)
				return err == nil && len(reply.Members) == 1 && reply.Members[0].Incarnation == uint64(m.Incarnation())
			})
		}
		j, err := cl.Job(client.JobOptions{ID: m.Run(), Generation: rowraft.Generation(reply.Generation),
			Incarnation: m.Incarnation()})
		if err != nil {
			t.Fatal(err)
		}
		return m, j
	}
	m, j := enter()
	run := m.Run()
	for step := range rowraft.Step(4) {
		if _, err := j.PushStep(ctx, step+1, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.PushClock(ctx, 1<<64-1, nil); err != nil { // it has read all of its data
		t.Fatal(err)
	}
	if err := m.Leave(ctx, jobs.LeaveStopped, "", nil); err != nil {
		t.Fatal(err)
	}
	for shard := range uint32(2) {
		testutil.Eventually(t, "the shard has forgotten the run", func() bool {
			_, err := state(run, shard)
			return rowraft.CodeOf(err) == rowraft.CodeNotFound
		})
	}
	m, j = enter()
	if m.Run() != run {
		t.Fatal("another run began")
	}
	slowest, err := j.WaitClock(ctx, 0)
	if err != nil || slowest != 0 {
		t.Errorf("the slowest clock is %d (%v), want 0", slowest, err)
	}
	if r, err := state(run, 0); err != nil || r.FirstStep != 5 || r.LastClosed != 4 {
		t.Errorf("the run goes on with %v (%v), want step 5", r, err)
	}
	if r, err := j.PushStep(ctx, 4, nil); err != nil || r.Next != 5 || len(r.Late)+len(r.Unsure) != 2 {
		t.Errorf("a step from before: %+v, %v; want that it is closed", r, err)
	}
}
