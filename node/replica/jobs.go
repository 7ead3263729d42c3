package replica

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/steps"
	"github.com/rowraft/rowraft/node/traffic"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// PushStepMany handles each batch as PushStep does.
func (s *tableService) PushStepMany(req *rowraftv1.PushStepManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.PushStepReply]) error {
	return rpc.PushStepMany(s.h.batches, req, stream, s.PushStep)
}

// PushStep gives a worker's gradients to the step, and waits for its outcome.
func (s *tableService) PushStep(ctx context.Context, req *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
	call := s.h.traffic.Begin(traffic.StepPush, req.Payload)
	reply, err := s.pushStep(ctx, req)
	call.End(err)
	return reply, err
}

func (s *tableService) pushStep(ctx context.Context,
	req *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
	r, err := s.h.replicaFor(req.Shard, req.MapVersion, req.TableEpoch)
	if err != nil {
		return nil, err
	}
	p, err := stepPushOf(req)
	if err != nil {
		return nil, err
	}
	if err := r.mayChange(ctx, p.Payload); err != nil {
		return nil, err
	}
	if r.leading.Load() != 0 {
		r.heat.Add(p.Payload, true)
	}
	result, err := r.pushStep(ctx, p)
	if err != nil {
		return nil, err
	}
	return &rowraftv1.PushStepReply{
		TableEpoch: uint64(r.machine.Epoch()), AppliedIndex: uint64(r.machine.AppliedIndex()),
		Outcome: rowraftv1.StepOutcome(result.Outcome), WaitingFor: uint64(result.WaitingFor),
	}, nil
}

func stepPushOf(req *rowraftv1.PushStepRequest) (*steps.Push, error) {
	job, err := jobID(req.Job)
	if err != nil {
		return nil, err
	}
	p := &steps.Push{
		StepPart: shard.StepPart{
			Job: job, Generation: rowraft.Generation(req.Generation), Rank: rowraft.Rank(req.Rank),
			Incarnation: rowraft.Incarnation(req.Incarnation), Step: rowraft.Step(req.Step),
		},
		Fragment: int(req.Fragment), Fragments: int(req.Fragments), Payload: req.Payload, Probe: req.Probe, Idle: req.Idle,
	}
	switch {
	case p.Rank >= rowraft.MaxRanks, p.Step == 0, p.Generation == 0, p.Incarnation == 0:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"rank %d, incarnation %d, step %d, generation %d: ranks are less than %d, the others count from 1", p.Rank,
			p.Incarnation, p.Step, p.Generation, rowraft.MaxRanks)
	case p.Fragments < 1 || p.Fragments > steps.MaxFragments || p.Fragment >= p.Fragments:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "fragment %d of %d: want at most %d, counted from 0",
			p.Fragment, p.Fragments, steps.MaxFragments)
	case len(req.Positions) > wire.MaxPushPositions:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d positions: want at most %d", len(req.Positions),
			wire.MaxPushPositions)
	case p.Idle && len(p.Payload) > 0:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"an idle worker pushes %d bytes of gradients: an idle worker has none", len(p.Payload))
	case p.Probe && len(p.Payload) > 0:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a probe with a payload of %d bytes: a probe has none",
			len(p.Payload))
	}
	for i, at := range req.Positions {
		if i > 0 && at.Id <= req.Positions[i-1].Id {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "data parts must be strictly ascending")
		}
		p.Positions = append(p.Positions, rowraft.Position{ID: rowraft.PositionID(at.Id), Offset: at.Offset})
	}
	return p, nil
}

// replicaOfJob is replicaFor for a call that names a job.
func (h *Host) replicaOfJob(shard uint32, epoch uint64, job []byte) (r *replica, id rowraft.JobID, err error) {
	if r, err = h.replicaFor(shard, anyMapVersion, epoch); err == nil {
		id, err = jobID(job)
	}
	return r, id, err
}

func jobID(b []byte) (id rowraft.JobID, err error) {
	if len(b) != len(id) {
		return id, rowraft.Errorf(rowraft.CodeInvalidArgument, "job id of %d bytes, want %d", len(b), len(id))
	}
	return rowraft.JobID(b), nil
}

// pushStep accepts a part of a step as the leader.
func (r *replica) pushStep(ctx context.Context, p *steps.Push) (steps.Result, error) {
	var result steps.Result
	try := func() error {
		err := r.mustServe()
		if err == nil && !p.Probe {
			if err = r.machine.Validate(wire.OpPush, p.Payload); err == nil {
				err = r.machine.CheckRoom(wire.OpPush, p.Payload)
			}
		}
		if err == nil {
			result, err = r.steps.Push(ctx, p)
		}
		return err
	}
	err := try()
	switch rowraft.CodeOf(err) {
	case rowraft.CodeNotFound, rowraft.CodeNotMember, rowraft.CodeTableNotFound:
		// The error is final for the worker, so the state must be the newest: see checkPart.
		if _, err := r.confirm(ctx); err != nil {
			return result, err
		}
		err = try()
	}
	return result, err
}

func (s *tableService) WaitClock(ctx context.Context,
	req *rowraftv1.WaitClockRequest) (*rowraftv1.WaitClockReply, error) {
	r, job, err := s.h.replicaOfJob(req.Shard, req.TableEpoch, req.Job)
	if err != nil {
		return nil, err
	}
	if err := r.mustServe(); err != nil {
		return nil, err
	}
	slowest, err := r.steps.WaitClock(ctx, job, req.AtLeast)
	if rowraft.CodeOf(err) == rowraft.CodeNotFound {
		if _, err := r.confirm(ctx); err != nil {
			return nil, err
		}
		slowest, err = r.steps.WaitClock(ctx, job, req.AtLeast)
	}
	if err != nil {
		return nil, err
	}
	return &rowraftv1.WaitClockReply{Slowest: slowest, AppliedIndex: uint64(r.machine.AppliedIndex()),
		TableEpoch: uint64(r.machine.Epoch())}, nil
}

func (s *replicaService) EnsureJob(ctx context.Context,
	req *rowraftv1.EnsureJobRequest) (*rowraftv1.EnsureJobReply, error) {
	r, job, err := s.h.replicaOfJob(req.Shard, req.TableEpoch, req.Job)
	if err != nil {
		return nil, err
	}
	w := wire.Membership{
		Job: job, Generation: rowraft.Generation(req.Generation), First: rowraft.Step(req.FirstStep),
		Deadline: req.DeadlineNs, Quorum: int(req.Quorum),
	}
	for _, m := range req.Members {
		w.Members = append(w.Members, wire.Member{Rank: rowraft.Rank(m.Rank),
			Incarnation: rowraft.Incarnation(m.Incarnation)})
	}
	if len(w.Members) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "job %x: no members; a job is ended by EndJob", job[:4])
	}
	index, err := r.ensureJob(ctx, &w, rowraft.TableEpoch(req.TableEpoch))
	if err != nil {
		return nil, err
	}
	reply := &rowraftv1.EnsureJobReply{AppliedIndex: uint64(index)}
	if plan, err := r.machine.Jobs.Plan(job); err == nil {
		reply.LastClosed = uint64(plan.LastClosed)
	}
	return reply, nil
}

// ensureJob logs a membership in table epoch epoch (0: the current one), unless the shard has it.
func (r *replica) ensureJob(ctx context.Context, w *wire.Membership, epoch rowraft.TableEpoch) (rowraft.Index, error) {
	if err := w.Validate(); err != nil {
		return 0, err
	}
	// A leader that was just elected may not have applied the previous membership yet.
	if _, err := r.confirm(ctx); err != nil {
		return 0, err
	}
	if r.machine.Jobs.HasMembership(w) && (epoch == 0 || epoch == r.machine.Epoch()) {
		return r.machine.AppliedIndex(), nil
	}
	// ensureJob does not log what apply would refuse: the caller tries repeatedly, and each try would add
	// an entry.
	if err := r.machine.Jobs.CheckMembership(w); err != nil {
		return 0, err
	}
	return r.steps.ChangeMembers(ctx, w, func(ctx context.Context) (rowraft.Index, error) {
		if err := r.steps.CheckNotEnded(w); err != nil {
			return 0, err
		}
		return r.logMembership(ctx, w, epoch)
	})
}

func (r *replica) logMembership(ctx context.Context, w *wire.Membership,
	epoch rowraft.TableEpoch) (rowraft.Index, error) {
	h := r.header()
	if epoch != 0 {
		h.Epoch = epoch
	}
	return r.propose(ctx, wire.MembershipEntry(h, w))
}

func (s *replicaService) EndJob(ctx context.Context, req *rowraftv1.EndJobRequest) (*rowraftv1.EndJobReply, error) {
	r, job, err := s.h.replicaOfJob(req.Shard, req.TableEpoch, req.Job)
	if err != nil {
		return nil, err
	}
	if _, err := r.confirm(ctx); err != nil {
		return nil, err
	}
	w := &wire.Membership{Job: job}
	index, err := r.steps.ChangeMembers(ctx, w, func(ctx context.Context) (rowraft.Index, error) {
		plan, err := r.machine.Jobs.Plan(job)
		// A delayed call must not end the job of workers that have entered since.
		if err == nil && req.Generation != 0 && uint64(plan.Generation) > req.Generation {
			return 0, rowraft.Errorf(rowraft.CodePrecondition, "shard %d: job %x is at generation %d, not at %d", r.shard,
				job[:4], plan.Generation, req.Generation)
		}
		r.steps.MarkEnded(job, rowraft.Generation(req.Generation))
		if err != nil {
			return r.machine.AppliedIndex(), nil // the shard never had the job, or has forgotten it
		}
		return r.logMembership(ctx, w, rowraft.TableEpoch(req.TableEpoch))
	})
	if err != nil {
		return nil, err
	}
	return &rowraftv1.EndJobReply{AppliedIndex: uint64(index)}, nil
}

func (s *replicaService) JobState(ctx context.Context,
	req *rowraftv1.JobStateRequest) (*rowraftv1.JobStateReply, error) {
	r, id, err := s.h.replicaOfJob(req.Shard, 0, req.Job)
	if err != nil {
		return nil, err
	}
	if _, err := r.confirm(ctx); err != nil {
		return nil, err
	}
	j, err := r.machine.Jobs.Get(id)
	if err != nil {
		return nil, err
	}
	highest, missing := r.steps.Progress(id)
	reply := &rowraftv1.JobStateReply{
		AppliedIndex: uint64(r.machine.AppliedIndex()), Generation: uint64(j.Generation), FirstStep: uint64(j.First),
		LastClosed: uint64(j.LastClosed), HighestOpen: uint64(highest), Quorum: uint32(j.Quorum), DeadlineNs: j.Deadline,
		Positions: rpc.PositionsToProto(j.Positions),
	}
	for _, w := range j.Members {
		reply.Members = append(reply.Members, &rowraftv1.JobMember{Rank: uint32(w.Rank), Incarnation: uint64(w.Incarnation),
			Clock: w.Clock})
	}
	for _, rank := range missing {
		reply.WaitingFor = append(reply.WaitingFor, uint32(rank))
	}
	return reply, nil
}

// stepLeader is a replica as package steps uses it.
type stepLeader struct{ r *replica }

func (l stepLeader) CheckMemory() error { return l.r.admit.CheckMemory() }

func (l stepLeader) Enter(sizeBytes int) error { return l.r.pushes.enter(l.r.ctx, sizeBytes) }

func (l stepLeader) Exit() { l.r.pushes.exit() }

func (l stepLeader) Propose(step *wire.Step) (applied func() (*shard.Applied, error)) {
	f := l.r.group.Propose(wire.AppendStepEntry(make([]byte, 0, step.Size()), l.r.header(), step))
	return func() (*shard.Applied, error) { return l.r.result(context.Background(), f) }
}
