package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// stepCluster is a server of one shard with the table emb. It records the applied entries of steps.
type stepCluster struct {
	*testCluster
	ctx context.Context

	mu      sync.Mutex
	replica *applier
	steps   []int // bytes of the entries of steps
}

func startStepCluster(t *testing.T) *stepCluster {
	t.Helper()
	c := &stepCluster{ctx: testutil.Context(t)}
	c.testCluster = startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.tamper(func(r *applier, entry []byte) []byte {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.replica = r
			if h, _, err := wire.ParseEntryHeader(entry); err == nil && h.Kind == wire.EntryStep {
				c.steps = append(c.steps, len(entry))
			}
			return entry
		})
	})
	if _, err := c.dial().CreateTable(c.ctx, counterSchema("emb"), false); err != nil {
		t.Fatal(err)
	}
	return c
}

// pushed is a call of PushStep in progress.
type pushed struct {
	result client.StepResult
	err    error
	done   chan struct{}
}

// push begins to push a step: gradient g for key 1.
func (c *stepCluster) push(cl *client.Client, j *client.Job, step rowraft.Step, g float32) *pushed {
	c.t.Helper()
	table, err := cl.Table(c.ctx, "emb")
	if err != nil {
		c.t.Fatal(err)
	}
	p := &pushed{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.result, p.err = j.PushStep(c.ctx, step, nil, client.Segment{Table: table, Keys: []rowraft.Key{1},
			Values: []float32{g, g, g, g}})
	}()
	return p
}

// want waits for a push. It checks whether the gradients were applied, and the next step.
func (c *stepCluster) want(p *pushed, applied bool, next rowraft.Step) {
	c.t.Helper()
	<-p.done
	if p.err != nil || len(p.result.Late) == 0 != applied || p.result.Next != next || len(p.result.Unsure) > 0 {
		c.t.Fatalf("%+v, %v; want applied %v and to go on with step %d", p.result, p.err, applied, next)
	}
}

// state returns the shard's state of the job.
func (c *stepCluster) state() *rowraftv1.JobStateReply {
	c.t.Helper()
	var reply *rowraftv1.JobStateReply
	c.everyShard(c.ctx, func(a rowraftv1.ReplicasClient, shard uint32) (err error) {
		reply, err = a.JobState(c.ctx, &rowraftv1.JobStateRequest{Shard: shard, Job: testJob[:]})
		return err
	})
	return reply
}

// heldFrom waits until the leader holds parts of the lowest open step from all members except missing.
func (c *stepCluster) heldFrom(step rowraft.Step, missing ...uint32) {
	c.t.Helper()
	testutil.Eventually(c.t, fmt.Sprintf("step %d waits for %v", step, missing), func() bool {
		s := c.state()
		return s.HighestOpen == uint64(step) && slices.Equal(s.WaitingFor, missing)
	})
}

// row checks the first weight of key 1.
func (c *stepCluster) row(want float32) {
	c.t.Helper()
	c.wantRows(c.ctx, "emb", map[rowraft.Key][]float32{1: {want, want, want, want}})
}

func TestAQuorumClosesAStep(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1, Quorum: 2}, 1, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	cl2, j2 := c.worker(1, 2, 1)
	a, b := c.push(cl0, j0, 1, 2), c.push(cl1, j1, 1, 4)
	c.want(a, true, 2)
	c.want(b, true, 2)
	c.row(-3)
	c.want(c.push(cl2, j2, 1, 100), false, 2) // late: it continues with step 2
	a, b = c.push(cl0, j0, 2, 2), c.push(cl2, j2, 2, 2)
	c.want(a, true, 3)
	c.want(b, true, 3)
	c.row(-5)

	// Worker 1 is late for step 2 and jumps. No other worker waits for it.
	late := c.push(cl1, j1, 2, 100)
	c.want(late, false, 3)

	// A worker that pushes a later step does not delay an earlier one: two of three are needed, and 0 and 1
	// skip step 3.
	x := c.push(cl2, j2, 3, 6)
	c.heldFrom(3, 0, 1)
	y, z := c.push(cl0, j0, 4, 3), c.push(cl1, j1, 4, 3)
	c.want(x, true, 4)
	c.want(y, true, 5)
	c.want(z, true, 5)
	c.row(-14)
}

func TestADeadlineClosesAStep(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1, DeadlineNs: 1e6}, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	c.want(c.push(cl0, j0, 1, 2), true, 2)
	c.row(-2)
	c.want(c.push(cl1, j1, 1, 2), false, 2)
}

// A worker that dies within a step does not delay the others: the next generation closes the step with the
// parts that are there. Delayed parts of the dead worker are refused.
func TestAWorkerDiesInsideAStep(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	cl2, j2 := c.worker(1, 2, 1)
	a, b := c.push(cl0, j0, 1, 2), c.push(cl1, j1, 1, 4)
	c.heldFrom(1, 2)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 2, FirstStep: 2}, 1, 1)
	c.want(a, true, 2)
	c.want(b, true, 2)
	c.row(-3)
	zombie := c.push(cl2, j2, 2, 100)
	if <-zombie.done; rowraft.CodeOf(zombie.err) != rowraft.CodeNotMember {
		t.Errorf("a worker that was removed: %+v, %v; want NotMember", zombie.result, zombie.err)
	}

	// The survivors continue, and learn the generation from the shards.
	a, b = c.push(cl0, j0, 2, 2), c.push(cl1, j1, 2, 2)
	c.want(a, true, 3)
	c.want(b, true, 3)
	if j0.Generation() != 2 || j1.Generation() != 2 {
		t.Errorf("generations %d, %d, want 2", j0.Generation(), j1.Generation())
	}
	c.row(-5)

	// The worker returns under a new incarnation, and the old one is refused. A generation whose first step
	// is already open starts that step again: nothing is lost, nothing counts twice.
	a = c.push(cl0, j0, 3, 3)
	c.heldFrom(3, 1)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 3, FirstStep: 3}, 1, 1, 2)
	cl3, j3 := c.worker(3, 2, 2)
	b, d := c.push(cl1, j1, 3, 3), c.push(cl3, j3, 3, 6)
	c.want(a, true, 4)
	c.want(b, true, 4)
	c.want(d, true, 4)
	c.row(-9)
	zombie = c.push(cl2, j2, 4, 100)
	if <-zombie.done; rowraft.CodeOf(zombie.err) != rowraft.CodeNotMember {
		t.Errorf("an old incarnation: %+v, %v; want NotMember", zombie.result, zombie.err)
	}
	late := &rowraftv1.EnsureJobRequest{Job: testJob[:], Generation: 2, FirstStep: 9,
		Members: []*rowraftv1.JobMember{{Rank: 0, Incarnation: 1}}}
	if _, err := c.admin(0).EnsureJob(c.ctx, late); rowraft.CodeOf(err) != rowraft.CodeStaleGeneration {
		t.Errorf("a generation of the past: %v, want StaleGeneration", err)
	}
	late.Generation = 3
	if _, err := c.admin(0).EnsureJob(c.ctx, late); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("another membership of the present generation: %v, want AlreadyExists", err)
	}

	// The end of a job ends its waiting calls.
	a = c.push(cl0, j0, 4, 1)
	c.heldFrom(4, 1, 2)
	if _, err := c.admin(0).EndJob(c.ctx, &rowraftv1.EndJobRequest{Job: testJob[:]}); err != nil {
		t.Fatal(err)
	}
	if <-a.done; rowraft.CodeOf(a.err) != rowraft.CodeNotFound {
		t.Errorf("the job has ended: %+v, %v; want NotFound", a.result, a.err)
	}
	c.row(-9)
}

// table returns the Table service of the one server.
func (c *stepCluster) table() rowraftv1.TableClient {
	c.t.Helper()
	return rowraftv1.NewTableClient(connect(c.t, c.nodes[0].addr, nil))
}

// Any number of copies of a part count once, before its step is closed and after.
func TestAPartThatIsSentAgainCountsOnce(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	cl := c.dial()
	version := uint64(cl.Map().SlotsVersion)
	schema, err := cl.Table(c.ctx, "emb")
	if err != nil {
		t.Fatal(err)
	}
	seg := wire.Segment{Table: schema.Schema().ID, N: 1, Dim: 4, DType: rowraft.Float32}
	payload := make([]byte, seg.Size())
	body := seg.Put(payload)
	body.Keys[0] = 1
	wire.PutFloats(body.Values, rowraft.Float32, []float32{2, 2, 2, 2})
	stub := c.table()
	send := func(change func(*rowraftv1.PushStepRequest)) (*rowraftv1.PushStepReply, error) {
		req := &rowraftv1.PushStepRequest{MapVersion: version, Job: testJob[:], Generation: 1, Rank: 0, Incarnation: 1,
			Step: 1, Fragments: 1, Payload: payload}
		if change(req); req.Probe {
			req.Payload = nil
		}
		return stub.PushStep(c.ctx, req)
	}
	wantOutcome := func(want rowraftv1.StepOutcome, change func(*rowraftv1.PushStepRequest)) {
		t.Helper()
		got, err := send(change)
		for want == rowraftv1.StepOutcome_STEP_OUTCOME_APPLIED &&
			got.GetOutcome() == rowraftv1.StepOutcome_STEP_OUTCOME_HELD {
			got, err = send(change) // the step takes longer to close than one call waits
		}
		if err != nil || got.Outcome != want {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	wantCode := func(want rowraft.Code, change func(*rowraftv1.PushStepRequest)) {
		t.Helper()
		if got, err := send(change); rowraft.CodeOf(err) != want {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	const held, applied, missing = rowraftv1.StepOutcome_STEP_OUTCOME_HELD, rowraftv1.StepOutcome_STEP_OUTCOME_APPLIED,
		rowraftv1.StepOutcome_STEP_OUTCOME_MISSING
	probe := func(r *rowraftv1.PushStepRequest) { r.Probe = true }
	same := func(*rowraftv1.PushStepRequest) {}
	other := func(r *rowraftv1.PushStepRequest) { r.Rank = 1 }

	wantOutcome(missing, probe)
	wantOutcome(held, same)
	wantOutcome(held, same)
	wantOutcome(held, probe)
	// These are refused: a learning rate that differs, and parts of workers that are not members of the
	// job.
	wantCode(rowraft.CodeInvalidArgument, func(r *rowraftv1.PushStepRequest) {
		r.Rank, r.Payload = 1, slices.Clone(payload)
		r.Payload[15] = wire.FlagLR
		r.Payload[19] = 0x3f
	})
	wantCode(rowraft.CodeNotMember, func(r *rowraftv1.PushStepRequest) { r.Rank = 2 })
	wantCode(rowraft.CodeNotMember, func(r *rowraftv1.PushStepRequest) { r.Incarnation = 2 })
	wantCode(rowraft.CodeStarting, func(r *rowraftv1.PushStepRequest) { r.Generation = 2 })
	wantCode(rowraft.CodeNotFound, func(r *rowraftv1.PushStepRequest) { r.Job = make([]byte, 16) })
	for _, bad := range []func(*rowraftv1.PushStepRequest){
		func(r *rowraftv1.PushStepRequest) { r.Job = nil },
		func(r *rowraftv1.PushStepRequest) { r.Step = 0 },
		func(r *rowraftv1.PushStepRequest) { r.Rank = 1024 },
		func(r *rowraftv1.PushStepRequest) { r.Fragment = 1 },
		func(r *rowraftv1.PushStepRequest) { r.Fragments = 1025 },
		func(r *rowraftv1.PushStepRequest) { r.Payload = payload[:30] },
		func(r *rowraftv1.PushStepRequest) { r.Positions = make([]*rowraftv1.DataPosition, 65) },
	} {
		wantCode(rowraft.CodeInvalidArgument, bad)
	}
	wantOutcome(applied, other)
	wantOutcome(applied, same)
	wantOutcome(applied, probe)
	wantOutcome(applied, other)
	c.row(-2)

	// Fragments: the step has a part when all its fragments are there.
	half := func(rank uint32, fragment uint32) func(*rowraftv1.PushStepRequest) {
		return func(r *rowraftv1.PushStepRequest) {
			r.Step, r.Rank, r.Fragments, r.Fragment = 2, rank, 2, fragment
			if fragment == 1 {
				r.Payload = nil
			}
		}
	}
	wantOutcome(held, half(0, 0))
	wantOutcome(missing, func(r *rowraftv1.PushStepRequest) { half(0, 0)(r); r.Probe = true })
	wantOutcome(held, half(1, 1))
	wantOutcome(held, half(1, 0))
	wantOutcome(applied, half(0, 1))
	c.row(-4)
}

// idle begins to push a step as a worker without data.
func (c *stepCluster) idle(rank rowraft.Rank, step rowraft.Step) *pushed {
	c.t.Helper()
	_, j := c.worker(1, rank, 1)
	p := &pushed{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.result, p.err = j.PushIdle(c.ctx, step, nil)
	}()
	return p
}

// Idle workers close no step by a quorum and start no deadline. The quorum's share applies to the workers
// with data.
func TestIdleWorkersCloseNoStep(t *testing.T) {
	for _, rule := range []*rowraftv1.EnsureJobRequest{{Generation: 1, FirstStep: 1, Quorum: 2},
		{Generation: 1, FirstStep: 1, DeadlineNs: 1}} {
		c := startStepCluster(t)
		c.ensureJob(c.ctx, rule, 1, 1, 1, 1)
		two, three := c.idle(2, 1), c.idle(3, 1)
		testutil.Eventually(t, "the idle workers are there", func() bool {
			s := c.state()
			return s.LastClosed > 0 || slices.Equal(s.WaitingFor, []uint32{0, 1})
		})
		if s := c.state(); s.LastClosed > 0 {
			t.Fatalf("quorum %d, deadline %d: idle workers have closed step %d", rule.Quorum, rule.DeadlineNs, s.LastClosed)
		}
		cl0, j0 := c.worker(1, 0, 1)
		zero := c.push(cl0, j0, 1, 6) // one of the two that are not idle
		c.want(zero, true, 2)
		c.want(two, true, 2)
		c.want(three, true, 2)
		c.row(-2)
		// All four are idle: the step waits for no worker.
		var all []*pushed
		for rank := range rowraft.Rank(4) {
			all = append(all, c.idle(rank, 2))
		}
		for _, p := range all {
			c.want(p, true, 3)
		}
		c.row(-2)
	}
}

// Without a quorum, a step waits for all workers, also for the idle ones.
func TestAStepWaitsForIdleWorkers(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	zero := c.push(cl0, j0, 1, 6)
	c.heldFrom(1, 1)
	one := c.idle(1, 1)
	c.want(zero, true, 2)
	c.want(one, true, 2)
	c.row(-3)
}

// Parts that wait for others do not delay a checkpoint's cut, and no step is closed while the cut holds the
// gate.
func TestAHoldWaitsForNoOpenStep(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	a := c.push(cl0, j0, 1, 2)
	c.heldFrom(1, 1)
	began := time.Now()
	release := c.hold(0, t.TempDir())
	b := c.push(cl1, j1, 1, 2)
	testutil.Eventually(t, "the step is whole", func() bool {
		return c.state().HighestOpen == 1 && len(c.state().WaitingFor) == 0
	})
	if s := c.state(); time.Since(began) >= holdLease {
		t.Log("the machine was too slow: the hold had ended before the look")
	} else if s.LastClosed != 0 {
		t.Errorf("a step was closed under a hold: %v", s)
	}
	release()
	c.want(a, true, 2)
	c.want(b, true, 2)
	c.row(-2)
}

// A part that never becomes complete does not delay workers that continue.
func TestHalfAPartHoldsUpNobody(t *testing.T) {
	c := startStepCluster(t)
	c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1)
	_, err := c.table().PushStep(c.ctx, &rowraftv1.PushStepRequest{
		MapVersion: uint64(c.dial().Map().SlotsVersion), Job: testJob[:], Generation: 1, Rank: 1, Incarnation: 1, Step: 1,
		Fragments: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	cl0, j0 := c.worker(1, 0, 1)
	cl1, j1 := c.worker(1, 1, 1)
	a, b := c.push(cl0, j0, 2, 2), c.push(cl1, j1, 2, 2)
	c.want(a, true, 3)
	c.want(b, true, 3)
	c.want(c.push(cl1, j1, 1, 2), false, 3)
	c.row(-2)
	testutil.Eventually(t, "no step is open", func() bool { return c.state().HighestOpen == 0 })
}
