package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// JobOptions identify a worker of a job. The values come from the scheduler.
type JobOptions struct {
	ID          rowraft.JobID
	Generation  rowraft.Generation
	Rank        rowraft.Rank
	Incarnation rowraft.Incarnation // the worker's, not that of the client's session
	// Patience is how long PushStep waits for a shard; 0: until its context ends. The wait for other workers does not
	// count: a shard says at least twice a second that it waits for some.
	Patience time.Duration
}

// Job is one worker's side of synchronous training. Safe for concurrent use, but a worker pushes one step
// after the other.
type Job struct {
	c          *Client
	cluster    rowraft.ClusterID
	opts       JobOptions
	generation atomic.Uint64 // the newest one that a shard or Adopt has named
	epoch      atomic.Uint64 // the epoch of the tables, from a shard's first reply; 0: none yet
}

// Job returns the worker's handle. It makes no call.
//
// Errors: CodeInvalidArgument.
func (c *Client) Job(o JobOptions) (*Job, error) {
	if o.ID == (rowraft.JobID{}) || o.Generation == 0 || o.Incarnation == 0 || o.Rank >= rowraft.MaxRanks {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"job %x, generation %d, rank %d, incarnation %d: want an id, a rank below %d, and the others from 1", o.ID[:4],
			o.Generation, o.Rank, o.Incarnation, rowraft.MaxRanks)
	}
	j := &Job{c: c, cluster: c.cluster.Load().Cluster, opts: o}
	j.generation.Store(uint64(o.Generation))
	return j, nil
}

// Generation returns the newest generation of the job that this worker knows.
func (j *Job) Generation() rowraft.Generation { return rowraft.Generation(j.generation.Load()) }

// tableEpoch returns the epoch of the tables that this worker began with; 0: not known yet. A restore ends
// the job. Only the epoch distinguishes that case from a job that is over.
func (j *Job) tableEpoch() uint64 { return max(j.epoch.Load(), j.c.sessions.epoch.Load()) }

// Adopt records a later generation that the scheduler has named. Replies of shards name it, too.
func (j *Job) Adopt(g rowraft.Generation) {
	for {
		have := j.generation.Load()
		if have >= uint64(g) || j.generation.CompareAndSwap(have, uint64(g)) {
			return
		}
	}
}

// StepResult is the outcome of a worker's gradients.
type StepResult struct {
	// Late are the shards that closed the step without this worker's gradients, ascending. Unsure are the
	// shards that no longer know whether they did.
	Late, Unsure []rowraft.ShardID
	// Next is the step to push next: the following one or, where a shard was late, the first step that is
	// open there.
	Next rowraft.Step
	// Index has, for each shard that applied the gradients, an index at which the step is visible.
	Index map[rowraft.ShardID]rowraft.Index
}

// PushStep pushes the gradients of all segments for a step. It returns when the step is closed in every
// shard: either the shard applied the mean of all contributors, or it closed the step without this worker.
// Each shard gets a message, even if it is empty. PushStep resends the messages to the current leaders
// until the outcome is known. If ctx or JobOptions.Patience ends first, the outcome is unknown, and the
// caller can call PushStep again with the same gradients. read are the positions in the data that the
// gradients cover.
//
// If the job has a newer generation that includes the worker, PushStep resends under that generation.
//
// Errors: *rowraft.RestoredError if a checkpoint was restored meanwhile; CodeNotMember if the worker is no
// longer a member, or a later incarnation of it exists; CodeNotFound if the job has ended;
// CodeInvalidArgument; CodeTableNotFound; CodeDeadline when ctx or the patience ends.
func (j *Job) PushStep(ctx context.Context, step rowraft.Step, read []rowraft.Position,
	segs ...Segment) (StepResult, error) {
	return j.pushStep(ctx, step, false, read, segs)
}

// PushIdle is PushStep of a worker without data, which stays in step so that it can take over from a worker
// that is lost. Its zeros count in the mean. Where a quorum or a deadline closes steps, an idle push does
// not close a step that other workers have still to push.
func (j *Job) PushIdle(ctx context.Context, step rowraft.Step, read []rowraft.Position) (StepResult, error) {
	return j.pushStep(ctx, step, true, read, nil)
}

func (j *Job) pushStep(ctx context.Context, step rowraft.Step, idle bool, read []rowraft.Position,
	segs []Segment) (StepResult, error) {
	if step == 0 {
		return StepResult{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "step 0: steps count from 1")
	}
	m := j.c.cluster.Load()
	reqs, err := planPush(m, wire.OpPush, segs, j.c.opts.DType)
	if err != nil {
		return StepResult{}, err
	}
	batches := make([]*stepBatch, len(m.Shards))
	for i := range batches {
		batches[i] = &stepBatch{j: j, shard: rowraft.ShardID(i), step: step, idle: idle, read: read}
	}
	for _, r := range reqs {
		p := batches[r.shard]
		p.fragments = append(p.fragments, r.encode(wire.OpPush, j.c.opts.DType))
	}
	return j.pushAll(ctx, step, batches)
}

// pushAll sends the batches to their shards concurrently.
func (j *Job) pushAll(caller context.Context, step rowraft.Step, batches []*stepBatch) (StepResult, error) {
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	var wg sync.WaitGroup
	tries := wave.New(j.c.ctx, j.c.spawn, &wave.Steps, len(batches))
	for i, p := range batches {
		if len(p.fragments) == 0 {
			p.fragments = [][]byte{nil}
		}
		p.first = tries[i]
		wg.Go(func() {
			defer p.first.Skip()
			if p.err = p.push(ctx); p.err != nil {
				cancel(p.err) // the others may wait for a step that will not close now
			}
		})
	}
	wg.Wait()
	result := StepResult{Next: step + 1, Index: make(map[rowraft.ShardID]rowraft.Index)}
	var first error // the one that ended the others, if caller has not
	for _, p := range batches {
		switch {
		case p.err != nil:
			if first == nil || p.err == context.Cause(ctx) {
				first = p.err
			}
		case p.late == nil:
			result.Index[p.shard] = p.index
		default:
			result.Next = max(result.Next, p.late.Next)
			if p.late.Unsure {
				result.Unsure = append(result.Unsure, p.shard)
			} else {
				result.Late = append(result.Late, p.shard)
			}
		}
	}
	switch {
	case first == nil:
		return result, nil
	case caller.Err() != nil:
		return StepResult{}, rowraft.Errorf(rowraft.CodeDeadline, "push of step %d: the outcome is not known: %w", step,
			first)
	}
	return StepResult{}, fmt.Errorf("push of step %d: %w", step, first)
}

// stepBatch is a worker's gradients of a step for one shard.
type stepBatch struct {
	j         *Job
	shard     rowraft.ShardID
	step      rowraft.Step
	idle      bool
	fragments [][]byte
	read      []rowraft.Position
	first     *wave.Try[rowraftv1.PushStepRequest, *rowraftv1.PushStepReply]

	waitingFor uint64 // workers for which the shard waits, by its last answer

	index rowraft.Index            // at which the step is visible in the shard
	late  *rowraft.StepClosedError // the shard closed the step without this batch
	err   error
}

// push sends b until its outcome is known, or the patience of the job ends.
func (b *stepBatch) push(caller context.Context) error {
	ctx, cancel := context.WithCancel(caller)
	defer cancel()
	waits := func() {}
	if d := b.j.opts.Patience; d > 0 {
		end := time.AfterFunc(d, cancel)
		defer end.Stop()
		waits = func() { end.Reset(d) }
	}
	err := b.pushUntilKnown(ctx, waits)
	if err != nil && ctx.Err() != nil && caller.Err() == nil && rowraft.CodeOf(err).Retryable() {
		return rowraft.Errorf(rowraft.CodeDeadline, "shard %d: no result within %v, so the outcome is not known: %w",
			b.shard, b.j.opts.Patience, err)
	}
	return err
}

// pushUntilKnown is push without its limit. It calls waits each time the shard has said that it waits for others.
func (b *stepBatch) pushUntilKnown(ctx context.Context, waits func()) error {
	var backoff route.Backoff
	for {
		outcome, err := b.send(ctx)
		for err == nil && outcome == rowraftv1.StepOutcome_STEP_OUTCOME_HELD {
			if b.waitingFor > 0 {
				waits()
			}
			outcome, err = b.call(ctx, len(b.fragments)-1, true)
		}
		if err == nil && outcome == rowraftv1.StepOutcome_STEP_OUTCOME_APPLIED {
			b.j.c.cluster.within(b.j.cluster, func() { b.j.c.acked.raise(b.shard, uint64(b.index)) })
			return nil
		}
		if err != nil { // without an error a new leader does not have the batch: send it again
			switch route.On(route.Step, err) {
			case route.Late:
				late, ok := errors.AsType[*rowraft.StepClosedError](err)
				if !ok {
					return err
				}
				b.late = late
				return nil
			case route.Adopt:
				stale, ok := errors.AsType[*rowraft.StaleGenerationError](err)
				if !ok {
					return err
				}
				b.j.Adopt(stale.Want)
			case route.Resend:
				// This server cannot tell the outcome; the next leader can.
				if b.j.c.pause(ctx, &backoff, 0) != nil {
					return err
				}
			default:
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// send sends all fragments and returns the outcome of the last one.
func (b *stepBatch) send(ctx context.Context) (outcome rowraftv1.StepOutcome, err error) {
	for i := range b.fragments {
		if outcome, err = b.call(ctx, i, false); err != nil {
			return outcome, err
		}
	}
	return outcome, nil
}

// call sends one fragment, or asks for its outcome if probe is set, until a leader answers.
func (b *stepBatch) call(ctx context.Context, fragment int, probe bool) (outcome rowraftv1.StepOutcome, err error) {
	o := &b.j.opts
	req := &rowraftv1.PushStepRequest{
		MapVersion: uint64(b.j.c.cluster.Load().SlotsVersion), Shard: uint32(b.shard), Job: o.ID[:], Rank: uint32(o.Rank),
		Incarnation: uint64(o.Incarnation), Step: uint64(b.step), Generation: b.j.generation.Load(),
		Fragment: uint32(fragment), Fragments: uint32(len(b.fragments)), Probe: probe, Idle: b.idle,
		TableEpoch: b.j.tableEpoch(),
	}
	if !probe {
		req.Payload = b.fragments[fragment]
	}
	if fragment == 0 && !probe {
		req.Positions = rpc.PositionsToProto(b.read)
	}
	c := b.j.c
	_, err = c.router.onLeader(ctx, b.j.cluster, b.shard, callKind{}, func(at server) error {
		defer b.first.Skip()
		return c.router.try(ctx, b.shard, at, func(ctx context.Context, stub stub) error {
			reply, err := wave.Steps.Send(ctx, b.first, stub, req)
			outcome, b.index = reply.GetOutcome(), rowraft.Index(reply.GetAppliedIndex())
			b.waitingFor = reply.GetWaitingFor()
			b.j.epoch.CompareAndSwap(0, reply.GetTableEpoch())
			return c.cluster.retryUntilTableKnown(err, req.Payload)
		})
	})
	if err != nil {
		err = fmt.Errorf("shard %d: %w", b.shard, err)
	}
	return outcome, err
}

// ClockResult is the result of an acknowledged PushClock.
type ClockResult struct {
	Ack
	Slowest uint64 // lowest clock of the job's members when the push was applied
}

// PushClock applies gradients at once, as Push does, and sets the worker's clock. The clock is set exactly
// once, by an entry of the job's clock shard that also has the last of the push's rows there. The client
// sends that entry's batch after all other batches are acknowledged: a reader that sees the clock sees all
// rows of the push, in every shard. Without gradients, PushClock only sets the clock. A clock never falls;
// 2^64−1 means that the worker has read all of its data.
//
// Every batch names the worker and how far it has read. A shard refuses the batches of a worker that is no
// longer a member, even if it does not know the worker's earlier batches.
//
// Errors: those of Push; CodeNotMember and CodeNotFound as for PushStep.
func (j *Job) PushClock(ctx context.Context, clock uint64, read []rowraft.Position,
	segs ...Segment) (ClockResult, error) {
	if len(read) > wire.MaxPushPositions || !slices.IsSortedFunc(read, func(a, b rowraft.Position) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	}) {
		return ClockResult{}, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"%d positions: want at most %d, data parts ascending", len(read), wire.MaxPushPositions)
	}
	c := wire.Clock{Job: j.opts.ID, Incarnation: j.opts.Incarnation, Rank: j.opts.Rank, Clock: clock, Positions: read}
	batches, err := j.c.cutBatches(wire.OpPush, segs)
	if err != nil {
		return ClockResult{}, err
	}
	clocked := j.clocked(&batches, &c)
	before := slices.DeleteFunc(batches, func(p *batch) bool { return p == clocked })
	worker := c
	worker.Clock = 0 // these batches must not raise the clock
	for _, p := range before {
		p.prepend(&worker)
	}
	clocked.after = before
	ack, err := j.c.sendBatches(ctx, append(slices.Clone(before), clocked))
	if err != nil {
		return ClockResult{}, err // the batch with the clock may still be in progress
	}
	return ClockResult{Ack: ack, Slowest: clocked.slowest}, nil
}

// clocked puts c into the last batch for the clock shard, or adds a batch for it.
func (j *Job) clocked(batches *[]*batch, c *wire.Clock) *batch {
	home := j.clockShard()
	var p *batch
	for _, have := range *batches {
		if have.shard == home {
			p = have
		}
	}
	if p == nil {
		p = &batch{cluster: j.cluster, shard: home, done: make(chan struct{})}
		*batches = append(*batches, p)
	}
	p.prepend(c)
	return p
}

// prepend puts c before the segments of p.
func (p *batch) prepend(c *wire.Clock) {
	payload := wire.AppendClock(rpc.Pool.Bytes(c.Size() + len(p.payload))[:0], c)
	payload = append(payload, p.payload...)
	rpc.Pool.Release(p.payload)
	p.op, p.payload = wire.OpClocked, payload
}

func (j *Job) clockShard() rowraft.ShardID {
	m := j.c.cluster.Load()
	return m.ShardOf(clustermap.JobSlot(j.opts.ID, m.SlotCount()))
}

// WaitClock waits until the slowest worker of the job has reached atLeast. It returns the clock of the
// slowest worker.
//
// Errors: CodeNotFound if the job has ended; CodeDeadline when ctx ends.
func (j *Job) WaitClock(ctx context.Context, atLeast uint64) (slowest uint64, err error) {
	for {
		_, err := j.c.router.call(ctx, j.cluster, j.clockShard(), func(ctx context.Context, stub stub) error {
			reply, err := stub.WaitClock(ctx, &rowraftv1.WaitClockRequest{Shard: uint32(j.clockShard()), Job: j.opts.ID[:],
				AtLeast: atLeast, TableEpoch: j.tableEpoch()})
			slowest = reply.GetSlowest()
			j.epoch.CompareAndSwap(0, reply.GetTableEpoch())
			return err
		})
		if err != nil || slowest >= atLeast {
			return slowest, err
		}
		if err := ctx.Err(); err != nil {
			return slowest, rowraft.Errorf(rowraft.CodeDeadline, "the slowest worker is at %d, not at %d: %w", slowest, atLeast,
				err)
		}
	}
}
