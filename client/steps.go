package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// JobOptions name a worker of a job, as the scheduler told it.
type JobOptions struct {
	ID          rowraft.JobID
	Generation  rowraft.Generation
	Rank        rowraft.Rank
	Incarnation rowraft.Incarnation // of the worker, not that of the client's session
}

// Job is one worker's side of training in step. Safe for concurrent use, but a worker
// pushes one step after the other.
type Job struct {
	c          *Client
	cluster    rowraft.ClusterID
	opts       JobOptions
	generation atomic.Uint64 // the newest that a shard has told
	epoch      atomic.Uint64 // of the tables at the first answer of a shard; 0: none yet
}

// Job returns the worker's handle. It asks nobody.
//
// Errors: CodeInvalidArgument.
func (c *Client) Job(o JobOptions) (*Job, error) {
	if o.ID == (rowraft.JobID{}) || o.Generation == 0 || o.Incarnation == 0 || o.Rank >= rowraft.MaxRanks {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "job %x, generation %d, rank %d, incarnation %d: want an id, a rank below %d, and the others from 1", o.ID[:4], o.Generation, o.Rank, o.Incarnation, rowraft.MaxRanks)
	}
	j := &Job{c: c, cluster: c.cluster.Load().Cluster, opts: o}
	j.generation.Store(uint64(o.Generation))
	return j, nil
}

// Generation is the newest generation of the job that this worker knows.
func (j *Job) Generation() rowraft.Generation { return rowraft.Generation(j.generation.Load()) }

// tableEpoch is that of the tables that this worker began with; 0: not known yet. A
// restore ends the job, and only this tells it from a job that is over.
func (j *Job) tableEpoch() uint64 { return max(j.epoch.Load(), j.c.session.epoch.Load()) }

// Adopt makes a later generation known, as the scheduler tells it. Shards tell it, too.
func (j *Job) Adopt(g rowraft.Generation) {
	for {
		have := j.generation.Load()
		if have >= uint64(g) || j.generation.CompareAndSwap(have, uint64(g)) {
			return
		}
	}
}

// StepResult tells what became of a worker's gradients.
type StepResult struct {
	// Late are the shards that closed the step without this worker's gradients,
	// ascending; those of Unsure cannot tell any more whether they did.
	Late, Unsure []rowraft.ShardID
	// Next is the step to go on with: the following one or, where a shard was late, the
	// first that is open there.
	Next rowraft.Step
	// Index is, per shard that has applied the gradients, an index at which the step is
	// visible.
	Index map[rowraft.ShardID]rowraft.Index
}

// PushStep gives the gradients of all segments to a step and returns when the step is
// closed in every shard: applied with the mean of all contributors, or closed without
// this worker. Each shard gets a part, an empty one too. Parts are sent again until the
// outcome is known, whoever leads the shard by then; if ctx ends first it is not, and
// PushStep can be called again with the same gradients. read are positions in the data
// that the gradients cover.
//
// If the job has a newer generation, of which the worker is still a member, the parts
// are sent again under that one.
//
// Errors: *rowraft.RestoredError if a checkpoint was restored meanwhile; CodeNotMember if the worker is no member any more, or its incarnation has been
// followed by another; CodeNotFound if the job has ended; CodeInvalidArgument;
// CodeTableNotFound; CodeDeadline when ctx ends.
func (j *Job) PushStep(ctx context.Context, step rowraft.Step, read []rowraft.Position, segs ...Segment) (StepResult, error) {
	return j.pushStep(ctx, step, false, read, segs)
}

// PushIdle is PushStep of a worker that has nothing to read, and keeps step so that it can go on
// where another one dies: it is in the mean, as zeros, but a step that others are still to push is
// not closed by it where a quorum, or a deadline, closes steps.
func (j *Job) PushIdle(ctx context.Context, step rowraft.Step, read []rowraft.Position) (StepResult, error) {
	return j.pushStep(ctx, step, true, read, nil)
}

func (j *Job) pushStep(ctx context.Context, step rowraft.Step, idle bool, read []rowraft.Position, segs []Segment) (StepResult, error) {
	if step == 0 {
		return StepResult{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "step 0: steps count from 1")
	}
	ready, err := j.c.prepare(wire.OpPush, segs)
	if err != nil {
		return StepResult{}, err
	}
	m := j.c.cluster.Load()
	if err := ofCluster(m, ready); err != nil {
		return StepResult{}, err
	}
	perRow := func(s *Segment) load { return load{sent: 8 + s.Table.schema.Dim*j.c.opts.DType.Size()} }
	parts := make([]*stepPart, len(m.Shards))
	for i := range parts {
		parts[i] = &stepPart{j: j, shard: rowraft.ShardID(i), step: step, idle: idle, read: read}
	}
	for _, r := range plan(m, ready, perRow, load{sent: batchBytes}) {
		p := parts[r.shard]
		p.fragments = append(p.fragments, j.c.encode(wire.OpPush, &r).payload)
	}
	return j.pushAll(ctx, step, parts)
}

// pushAll sends the parts to their shards at the same time.
func (j *Job) pushAll(caller context.Context, step rowraft.Step, parts []*stepPart) (StepResult, error) {
	ctx, cancel := context.WithCancel(caller)
	defer cancel()
	var wg sync.WaitGroup
	for _, p := range parts {
		if len(p.fragments) == 0 {
			p.fragments = [][]byte{nil}
		}
		wg.Go(func() {
			if p.err = p.push(ctx); p.err != nil {
				cancel() // the others may wait for a step that nobody closes now
			}
		})
	}
	wg.Wait()
	result := StepResult{Next: step + 1, Index: make(map[rowraft.ShardID]rowraft.Index)}
	var first error
	for _, p := range parts {
		switch {
		case p.err != nil:
			if first == nil || rowraft.CodeOf(first).Retryable() { // that of a call that was cut short
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
	if caller.Err() != nil && first != nil {
		return StepResult{}, rowraft.Errorf(rowraft.CodeDeadline, "push of step %d: the outcome is not known: %w", step, first)
	}
	if first != nil {
		return StepResult{}, fmt.Errorf("push of step %d: %w", step, first)
	}
	return result, nil
}

// stepPart is what one shard gets of a step.
type stepPart struct {
	j         *Job
	shard     rowraft.ShardID
	step      rowraft.Step
	idle      bool
	fragments [][]byte
	read      []rowraft.Position

	index rowraft.Index            // at which the step is visible here
	late  *rowraft.StepClosedError // it was closed without the part
	err   error
}

// push sends p until its outcome is known.
func (p *stepPart) push(ctx context.Context) error {
	var b route.Backoff
	for {
		outcome, err := p.send(ctx)
		for err == nil && outcome == rowraftv1.StepOutcome_STEP_OUTCOME_HELD {
			outcome, err = p.call(ctx, len(p.fragments)-1, true)
		}
		stale, isStale := errors.AsType[*rowraft.StaleGenerationError](err)
		late, isLate := errors.AsType[*rowraft.StepClosedError](err)
		switch {
		case err == nil && outcome == rowraftv1.StepOutcome_STEP_OUTCOME_APPLIED:
			p.j.c.inCluster(p.j.cluster, func() { p.j.c.raise(p.shard, uint64(p.index)) })
			return nil
		case err == nil: // a new leader that does not have it
		case isLate:
			p.late = late
			return nil
		case isStale:
			p.j.Adopt(stale.Want)
		case rowraft.CodeOf(err) == rowraft.CodeInternal:
			// This server cannot tell; whoever leads next can.
			if p.j.c.pause(ctx, &b, 0) != nil {
				return err
			}
		default:
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// send sends all fragments and returns the outcome of the last one.
func (p *stepPart) send(ctx context.Context) (outcome rowraftv1.StepOutcome, err error) {
	for i := range p.fragments {
		if outcome, err = p.call(ctx, i, false); err != nil {
			return outcome, err
		}
	}
	return outcome, nil
}

// call sends one fragment, or asks what has become of it, until a leader answers.
func (p *stepPart) call(ctx context.Context, fragment int, probe bool) (outcome rowraftv1.StepOutcome, err error) {
	o := &p.j.opts
	req := &rowraftv1.PushStepRequest{
		MapVersion: uint64(p.j.c.cluster.Load().SlotsVersion), Shard: uint32(p.shard), Job: o.ID[:], Rank: uint32(o.Rank),
		Incarnation: uint64(o.Incarnation), Step: uint64(p.step), Generation: p.j.generation.Load(),
		Fragment: uint32(fragment), Fragments: uint32(len(p.fragments)), Probe: probe, Idle: p.idle, TableEpoch: p.j.tableEpoch(),
	}
	if !probe {
		req.Payload = p.fragments[fragment]
	}
	if fragment == 0 && !probe {
		req.Positions = rpc.PositionsToProto(p.read)
	}
	_, err = p.j.c.shardCall(ctx, p.j.cluster, p.shard, func(ctx context.Context, stub rowraftv1.TableClient) error {
		reply, err := stub.PushStep(ctx, req)
		outcome, p.index = reply.GetOutcome(), rowraft.Index(reply.GetAppliedIndex())
		p.j.epoch.CompareAndSwap(0, reply.GetTableEpoch())
		return p.j.c.retryUntilTableKnown(err, req.Payload)
	})
	if err != nil {
		err = fmt.Errorf("shard %d: %w", p.shard, err)
	}
	return outcome, err
}

// ClockResult tells of an acknowledged PushClock.
type ClockResult struct {
	Ack
	Slowest uint64 // lowest clock of the job's members, as the push was applied
}

// PushClock applies gradients at once, as Push does, and with them the worker's clock:
// exactly once, in the log of the job's clock shard, with the last of the push's rows
// there. That part is sent when all others are acknowledged, so a reader that sees the
// clock finds all rows of the push, in every shard. Without gradients it only sets the
// clock. A clock never falls; 2^64−1 says that the worker has read all of its data.
//
// Every part names the worker and how far it has read: a shard refuses those of a worker
// that is no member any more, whatever is known of its earlier parts.
//
// Errors: those of Push; CodeNotMember, CodeNotFound as PushStep.
func (j *Job) PushClock(ctx context.Context, clock uint64, read []rowraft.Position, segs ...Segment) (ClockResult, error) {
	if len(read) > wire.MaxPushPositions || !slices.IsSortedFunc(read, func(a, b rowraft.Position) int {
		if a.Part < b.Part {
			return -1
		}
		return 1
	}) {
		return ClockResult{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d positions: want at most %d, data parts ascending", len(read), wire.MaxPushPositions)
	}
	c := wire.Clock{Job: j.opts.ID, Incarnation: j.opts.Incarnation, Rank: j.opts.Rank, Clock: clock, Positions: read}
	parts, err := j.c.batches(wire.OpPush, segs)
	if err != nil {
		return ClockResult{}, err
	}
	clocked := j.clocked(&parts, &c)
	before := slices.DeleteFunc(parts, func(p *batch) bool { return p == clocked })
	worker := c
	worker.Clock = 0 // it raises nothing
	for _, p := range before {
		p.prepend(&worker)
	}
	clocked.after = before
	ack, err := j.c.sendBatches(ctx, append(slices.Clone(before), clocked))
	if err != nil {
		return ClockResult{}, err // clocked may still be under way
	}
	return ClockResult{Ack: ack, Slowest: clocked.slowest}, nil
}

// clocked puts c before the last part for the clock shard, or makes one of it.
func (j *Job) clocked(parts *[]*batch, c *wire.Clock) *batch {
	home := j.clockShard()
	var p *batch
	for _, have := range *parts {
		if have.shard == home {
			p = have
		}
	}
	if p == nil {
		p = &batch{cluster: j.cluster, shard: home, done: make(chan struct{})}
		*parts = append(*parts, p)
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
	return j.c.cluster.Load().ShardOf(clustermap.JobSlot(j.opts.ID))
}

// WaitClock waits until the slowest worker of the job has reached atLeast and returns
// how far it is.
//
// Errors: CodeNotFound if the job has ended; CodeDeadline when ctx ends.
func (j *Job) WaitClock(ctx context.Context, atLeast uint64) (slowest uint64, err error) {
	for {
		_, err := j.c.shardCall(ctx, j.cluster, j.clockShard(), func(ctx context.Context, stub rowraftv1.TableClient) error {
			reply, err := stub.WaitClock(ctx, &rowraftv1.WaitClockRequest{Shard: uint32(j.clockShard()), Job: j.opts.ID[:], AtLeast: atLeast, TableEpoch: j.tableEpoch()})
			slowest = reply.GetSlowest()
			j.epoch.CompareAndSwap(0, reply.GetTableEpoch())
			return err
		})
		if err != nil || slowest >= atLeast {
			return slowest, err
		}
		if err := ctx.Err(); err != nil {
			return slowest, rowraft.Errorf(rowraft.CodeDeadline, "the slowest worker is at %d, not at %d: %w", slowest, atLeast, err)
		}
	}
}
