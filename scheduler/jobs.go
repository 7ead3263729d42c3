package scheduler

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// DefaultLease is the silence after which a worker counts as dead, unless the worker requests another lease.
const DefaultLease = 10 * time.Second

// Jobs implements the Jobs service of one server. Its data are in the log (runstate.go, datastate.go), except the beats
// of the workers, which are in the leader's memory.
type Jobs struct {
	rowraftv1.UnimplementedJobsServer
	s *Scheduler
}

// Jobs returns the service of training jobs.
func (s *Scheduler) Jobs() *Jobs { return s.jobs }

// Enter makes a worker a member of a job.
func (j *Jobs) Enter(ctx context.Context, q *rowraftv1.EnterRequest) (*rowraftv1.EnterReply, error) {
	if q.GetLeaseNs() == 0 {
		q.LeaseNs = uint64(DefaultLease)
	}
	meta.SetOwner(rpc.CallerOf(ctx), q)
	slices.SortFunc(q.Settings, func(a, b *rowraftv1.JobSetting) int { return strings.Compare(a.GetName(), b.GetName()) })
	var run [16]byte
	_, _ = rand.Read(run[:]) // never fails (crypto/rand)
	if err := j.s.expects(q.GetJob(), q.GetWorker(), q.GetWorkers()); err != nil {
		return nil, err
	}
	if _, err := j.s.leadingInSync(ctx); err != nil {
		return nil, err
	}
	if err := j.s.machine.CheckRoom(q); err != nil {
		return nil, err
	}
	if q.GetInShards() {
		if err := j.s.roomInShards(q.GetJob()); err != nil {
			return nil, err
		}
	}
	before := j.s.ranks.before(j.s.machine.JobStatuses(), q.GetJob(), q.GetWorker())
	e, err := proposeFor[*meta.EnterResult](ctx, j.s, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Request: q, Run: run[:]}}})
	if err != nil {
		return nil, err
	}
	if e.Done {
		return &rowraftv1.EnterReply{Done: true}, nil
	}
	id := e.Identity
	j.s.workers.renew(id)
	j.s.wakeJobs()
	j.s.logger.Info("a worker enters", "job", id.GetJob(), "worker", q.GetWorker(), "rank", id.GetRank(), "incarnation", id.GetIncarnation(), "generation", e.Generation, "new", e.Began)
	j.s.tellRank(ctx, q.GetWorker(), before, int(id.GetRank()))
	j.s.tellConnected()
	return &rowraftv1.EnterReply{Identity: id, Generation: e.Generation, Began: e.Began, Data: e.Data, BaseStep: e.BaseStep}, nil
}

// Leave removes a member from its job.
func (j *Jobs) Leave(ctx context.Context, q *rowraftv1.LeaveRequest) (*rowraftv1.LeaveReply, error) {
	if q.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a worker cannot say of itself that it is lost")
	}
	if err := j.checkOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	if err := j.s.leave(ctx, q.GetIdentity(), q.GetState(), q.GetReason(), q.GetParts()); err != nil {
		return nil, err
	}
	return &rowraftv1.LeaveReply{}, nil
}

func (s *Scheduler) leave(ctx context.Context, id *rowraftv1.JobIdentity, st rowraftv1.MemberState, reason string, reached []*rowraftv1.PartReached) error {
	err := s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_LeaveJob{LeaveJob: &rowraftv1.MetaLeaveJob{
		Identity: id, State: st, Reason: reason, Parts: reached, AtNs: uint64(time.Now().UnixNano()),
	}}})
	if err != nil {
		return err
	}
	s.wakeJobs()
	s.logger.Info("a worker leaves", "job", id.GetJob(), "rank", id.GetRank(), "incarnation", id.GetIncarnation(), "as", strings.ToLower(strings.TrimPrefix(st.String(), "MEMBER_STATE_")), "reason", reason)
	return nil
}

// Renew renews the lease of a member.
func (j *Jobs) Renew(ctx context.Context, q *rowraftv1.RenewRequest) (*rowraftv1.RenewReply, error) {
	if _, err := j.s.leadingInSync(ctx); err != nil {
		return nil, err
	}
	if err := j.checkOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	if err := j.s.machine.CheckMember(q.GetIdentity()); err != nil {
		return nil, err
	}
	j.s.workers.renew(q.GetIdentity())
	return &rowraftv1.RenewReply{}, nil
}

// NextPart assigns a part of the data to a member, or tells it to wait.
func (j *Jobs) NextPart(ctx context.Context, q *rowraftv1.NextPartRequest) (*rowraftv1.NextPartReply, error) {
	if err := j.checkOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	if _, err := j.s.leadingInSync(ctx); err != nil {
		return nil, err
	}
	if j.s.machine.MustWait(q) { // the worker asks again, so the call need not be logged
		return &rowraftv1.NextPartReply{Wait: true}, nil
	}
	t, err := proposeFor[*meta.TakeResult](ctx, j.s, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_TakePart{TakePart: &rowraftv1.MetaTakePart{
		Identity: q.GetIdentity(), Take: q.GetTake(),
	}}})
	if err != nil {
		return nil, err
	}
	return &rowraftv1.NextPartReply{
		Wait: t.Wait, Done: t.Done, Epoch: t.Part.GetEpoch(), Part: t.Part.GetPart(), Offset: t.Part.GetOffset(), From: t.From, To: t.To, Reading: t.Part.GetReading(),
	}, nil
}

// EndPart records that a member read a part to its end.
func (j *Jobs) EndPart(ctx context.Context, q *rowraftv1.EndPartRequest) (*rowraftv1.EndPartReply, error) {
	if err := j.checkOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	err := j.s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndPart{EndPart: &rowraftv1.MetaEndPart{
		Identity: q.GetIdentity(), Epoch: q.GetEpoch(), Part: q.GetPart(),
	}}})
	if err != nil {
		return nil, err
	}
	return &rowraftv1.EndPartReply{}, nil
}

// ListJobs returns all jobs.
func (j *Jobs) ListJobs(ctx context.Context, _ *rowraftv1.ListJobsRequest) (*rowraftv1.ListJobsReply, error) {
	if _, err := j.s.leadingInSync(ctx); err != nil {
		return nil, err
	}
	reply := &rowraftv1.ListJobsReply{}
	for _, r := range j.s.machine.Runs() {
		reply.Jobs = append(reply.Jobs, j.infoFor(ctx, r))
	}
	return reply, nil
}

// DescribeJob returns one job.
func (j *Jobs) DescribeJob(ctx context.Context, q *rowraftv1.DescribeJobRequest) (*rowraftv1.DescribeJobReply, error) {
	r, err := j.find(ctx, q.GetJob())
	if err != nil {
		return nil, err
	}
	return &rowraftv1.DescribeJobReply{Job: j.infoFor(ctx, r)}, nil
}

func (j *Jobs) find(ctx context.Context, job string) (*rowraftv1.MetaRun, error) {
	if _, err := j.s.leadingInSync(ctx); err != nil {
		return nil, err
	}
	r := j.s.machine.RunOf(job)
	if r == nil {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no job %s; `rowraft job list` names those that there are", job)
	}
	return r, nil
}

// StopJob lets the members of a job stop.
func (j *Jobs) StopJob(ctx context.Context, q *rowraftv1.StopJobRequest) (*rowraftv1.StopJobReply, error) {
	r, err := j.find(ctx, q.GetJob())
	if err != nil {
		return nil, err
	}
	if err := j.checkOwner(ctx, q.GetJob()); err != nil {
		return nil, err
	}
	err = j.s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StopJob{StopJob: &rowraftv1.MetaStopJob{Job: r.GetJob(), Run: r.GetRun()}}})
	if err != nil {
		return nil, err
	}
	j.s.wakeJobs()
	j.s.logger.Info("a job is to stop", "job", r.GetJob(), "training", len(meta.TrainingRanks(r)))
	return &rowraftv1.StopJobReply{Job: j.s.jobInfo(j.s.machine.RunOf(q.GetJob()))}, nil
}

// jobInfo describes a run for ListJobs and DescribeJob.
func (s *Scheduler) jobInfo(r *rowraftv1.MetaRun) *rowraftv1.JobInfo {
	if r == nil {
		return nil
	}
	info := &rowraftv1.JobInfo{
		Job: r.GetJob(), Run: r.GetRun(), Workers: r.GetWorkers(), State: r.GetState(), Reason: r.GetReason(), Stopping: r.GetStopping(),
		Generation: r.GetGeneration(), Settings: r.GetSettings(), Data: r.GetData(), LeaseNs: r.GetLeaseNs(),
		GenerationInShards: s.generations.of(r.GetRun()).number,
	}
	connected := make(map[uint64]bool)
	for _, a := range s.attendance.list() {
		connected[a.member.GetIncarnation()] = true
	}
	for _, m := range r.GetMembers() {
		one := &rowraftv1.MemberInfo{Member: m, Connected: connected[m.GetIncarnation()]}
		if w, known := s.workers.get(m.GetIncarnation()); known && meta.IsTraining(m) {
			one.SinceHeardNs, one.Beat = uint64(time.Since(w.heard)), w.beat
		}
		info.Members = append(info.Members, one)
	}
	return info
}
