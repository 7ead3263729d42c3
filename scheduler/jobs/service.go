package jobs

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// DefaultLease is the silence after which a worker counts as dead, unless the worker requests another lease.
const DefaultLease = 10 * time.Second

// Service implements the Jobs service of one server, and the control loop of jobs.
//
// Goroutines: Run blocks; every other goroutine belongs to a call of Trainers.Attend, and ends with it.
//
// Lock order: leases.mu, generations.mu, registry.mu and lastRanks.mu are each held alone. No call leaves the package
// under any of them.
type Service struct {
	rowraftv1.UnimplementedJobsServer
	env
	workers uint32 // number of workers that every job must have; 0: any number
	entered func()
	kick    chan struct{} // capacity 1: wakes Run
	rounds  histogram.Durations

	ranks       lastRanks
	leases      *leases
	generations *generations
	trainers    *Trainers
}

// env is what the parts of this package need of the scheduler. It is immutable.
type env struct {
	lead    Leader
	machine *meta.Machine
	view    *meta.View
	logger  *slog.Logger
}

// Options are what a Service needs.
type Options struct {
	Leader  Leader
	Machine *meta.Machine
	View    *meta.View
	Logger  *slog.Logger
	Workers int    // number of workers that every job must have; 0: any number
	Entered func() // called after a worker has entered a job
}

// Leader is the scheduler's leader, as jobs need it.
type Leader interface {
	// Leading returns the term in which this member leads the scheduler, or an error that redirects the caller.
	Leading() (rowraft.Term, error)
	// LeadsFor returns for how long this member has led the scheduler's group.
	LeadsFor() time.Duration
	// InSync returns nil after this leader has applied what earlier leaders committed.
	InSync(ctx context.Context) error
	// Propose logs a command and returns the error with which the state machine or the group refuses it.
	Propose(ctx context.Context, c *rowraftv1.MetaCommand) error
	// ProposeResult is Propose for a command with a result.
	ProposeResult(ctx context.Context, c *rowraftv1.MetaCommand) (any, error)
	// OnLeader calls fn with a connection to the leader of sh. It follows hints and waits for elections, and starts no
	// attempt after patience.
	OnLeader(ctx context.Context, sh clustermap.Shard, patience time.Duration, fn func(*grpc.ClientConn) error) error
	// CheckPause calls DiscountPause if this process was suspended a moment ago. The loop calls it before it decides
	// that a worker is dead.
	CheckPause()
}

// New returns the service. The caller gives its trainers the service of checkpoints (Trainers.Serve).
func New(o Options) *Service {
	e := env{lead: o.Leader, machine: o.Machine, view: o.View, logger: o.Logger}
	s := &Service{
		env: e, workers: uint32(o.Workers), entered: o.Entered, kick: make(chan struct{}, 1),
		leases: &leases{}, generations: newGenerations(e),
	}
	s.trainers = newTrainers(e, s.leases, s.generations)
	return s
}

// Trainers returns the connected trainers.
func (s *Service) Trainers() *Trainers { return s.trainers }

// DiscountPause subtracts the time for which this process was suspended from the silence of every worker.
func (s *Service) DiscountPause(lost time.Duration) { s.leases.discountPause(lost) }

// resultOf converts the result of a command. Use it around Leader.ProposeResult.
func resultOf[T any](result any, err error) (T, error) {
	t, ok := result.(T)
	if err == nil && !ok {
		err = rowraft.Errorf(rowraft.CodeInternal, "a command of the scheduler returned %T, want %T", result, t)
	}
	return t, err
}

// Enter makes a worker a member of a job.
func (s *Service) Enter(ctx context.Context, q *rowraftv1.EnterRequest) (*rowraftv1.EnterReply, error) {
	if q.GetLeaseNs() == 0 {
		q.LeaseNs = uint64(DefaultLease)
	}
	meta.SetOwner(rpc.CallerOf(ctx), q)
	slices.SortFunc(q.Settings, func(a, b *rowraftv1.JobSetting) int { return strings.Compare(a.GetName(), b.GetName()) })
	// Each attempt has an id in case it begins a run. The leader draws it, because all members must apply the same one.
	var run [16]byte
	_, _ = rand.Read(run[:]) // never fails (crypto/rand)
	if s.workers > 0 && q.GetWorkers() != s.workers {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"worker %s of job %s expects %d workers, the scheduler was started for %d", q.GetWorker(), q.GetJob(),
			q.GetWorkers(), s.workers)
	}
	if err := s.lead.InSync(ctx); err != nil {
		return nil, err
	}
	// These checks read the state without the log, so two calls may pass them at once. CheckRoom is repeated by the
	// command; roomInShards is not: the shards refuse a job beyond their limit.
	if err := s.machine.CheckRoom(q); err != nil {
		return nil, err
	}
	if q.GetInShards() {
		if err := s.roomInShards(q.GetJob()); err != nil {
			return nil, err
		}
	}
	before := s.ranks.before(s.machine.JobStatuses(), q.GetJob(), q.GetWorker())
	e, err := resultOf[*meta.EnterResult](s.lead.ProposeResult(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Request: q,
			Run: run[:]}}}))
	if err != nil {
		return nil, err
	}
	if e.Done {
		return &rowraftv1.EnterReply{Done: true}, nil
	}
	id := e.Identity
	s.leases.heard(id.GetIncarnation(), nil)
	s.wake()
	s.logger.Info("a worker enters", "job", id.GetJob(), "worker", q.GetWorker(), "rank", id.GetRank(), "incarnation",
		id.GetIncarnation(), "generation", e.Generation, "new", e.Began)
	s.logRank(ctx, q.GetWorker(), before, int(id.GetRank()))
	s.entered()
	return &rowraftv1.EnterReply{Identity: id, Generation: e.Generation, Data: e.Data,
		BaseStep: e.BaseStep, First: e.First, Began: e.Began, Steps: e.Steps, Workers: e.Workers}, nil
}

// roomInShards refuses a job if the shards already hold MaxJobs other jobs with training workers.
func (s *Service) roomInShards(job string) error {
	others := 0
	for _, r := range s.machine.Runs() {
		if r.GetJob() == job && len(meta.TrainingRanks(r)) > 0 {
			return nil
		}
		if r.GetInShards() && len(meta.TrainingRanks(r)) > 0 {
			others++
		}
	}
	if others < checkpoint.MaxJobs {
		return nil
	}
	return rowraft.Errorf(rowraft.CodePrecondition, "job %s: %d jobs train in step or with clocks, as many as the "+
		"shards keep: stop one with `rowraft job stop`, or wait until one ends (`rowraft job list` shows them)", job, others)
}

// Leave removes a member from its job.
func (s *Service) Leave(ctx context.Context, q *rowraftv1.LeaveRequest) (*rowraftv1.LeaveReply, error) {
	// A worker is lost when its lease has expired, and only the scheduler knows that.
	if q.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a worker cannot say of itself that it is lost")
	}
	if err := s.CheckOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	if err := s.leave(ctx, &rowraftv1.MetaLeaveJob{Identity: q.GetIdentity(), State: q.GetState(), Reason: q.GetReason(),
		Splits: q.GetSplits(), Steps: q.GetSteps(), Exact: q.GetExact()}); err != nil {
		return nil, err
	}
	return &rowraftv1.LeaveReply{}, nil
}

// leave logs l.
func (s *Service) leave(ctx context.Context, l *rowraftv1.MetaLeaveJob) error {
	err := s.lead.Propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_LeaveJob{LeaveJob: l}})
	if err != nil {
		return err
	}
	s.wake()
	id := l.GetIdentity()
	s.logger.Info("a worker leaves", "job", id.GetJob(), "rank", id.GetRank(), "incarnation", id.GetIncarnation(), "as",
		strings.ToLower(strings.TrimPrefix(l.GetState().String(), "MEMBER_STATE_")), "reason", l.GetReason())
	return nil
}

// Renew renews the lease of a member.
func (s *Service) Renew(ctx context.Context, q *rowraftv1.RenewRequest) (*rowraftv1.RenewReply, error) {
	if err := s.lead.InSync(ctx); err != nil {
		return nil, err
	}
	if err := s.CheckOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	if err := s.machine.CheckMember(q.GetIdentity()); err != nil {
		return nil, err
	}
	s.leases.heard(q.GetIdentity().GetIncarnation(), nil)
	return &rowraftv1.RenewReply{}, nil
}

// NextSplit assigns a split of the data to a member, or tells it to wait.
func (s *Service) NextSplit(ctx context.Context, q *rowraftv1.NextSplitRequest) (*rowraftv1.NextSplitReply, error) {
	if err := s.CheckOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	if err := s.lead.InSync(ctx); err != nil {
		return nil, err
	}
	if s.machine.MustWait(q) { // the worker asks again, so the call need not be logged
		return &rowraftv1.NextSplitReply{Wait: true}, nil
	}
	t, err := resultOf[*meta.TakeResult](s.lead.ProposeResult(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_TakeSplit{TakeSplit: &rowraftv1.MetaTakeSplit{
			Identity: q.GetIdentity(), Take: q.GetTake(),
		}}}))
	if err != nil {
		return nil, err
	}
	return &rowraftv1.NextSplitReply{
		Wait: t.Wait, Done: t.Done, Epoch: t.Split.GetEpoch(), Split: t.Split.GetSplit(), Offset: t.Split.GetOffset(),
		From: t.From, To: t.To, Reading: t.Split.GetReading(),
	}, nil
}

// EndSplit records that a member read a split to its end.
func (s *Service) EndSplit(ctx context.Context, q *rowraftv1.EndSplitRequest) (*rowraftv1.EndSplitReply, error) {
	if err := s.CheckOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	err := s.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndSplit{EndSplit: &rowraftv1.MetaEndSplit{
			Identity: q.GetIdentity(), Epoch: q.GetEpoch(), Split: q.GetSplit(),
		}}})
	if err != nil {
		return nil, err
	}
	return &rowraftv1.EndSplitReply{}, nil
}

// ReportScore records a score of held-out examples in the run of a member.
func (s *Service) ReportScore(ctx context.Context,
	q *rowraftv1.ReportScoreRequest) (*rowraftv1.ReportScoreReply, error) {
	if err := s.CheckOwner(ctx, q.GetIdentity().GetJob()); err != nil {
		return nil, err
	}
	all, err := resultOf[*rowraftv1.JobScores](s.lead.ProposeResult(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ReportScore{ReportScore: q}}))
	if err != nil {
		return nil, err
	}
	return &rowraftv1.ReportScoreReply{Scores: all}, nil
}

// ListJobs returns all jobs.
func (s *Service) ListJobs(ctx context.Context, _ *rowraftv1.ListJobsRequest) (*rowraftv1.ListJobsReply, error) {
	if err := s.lead.InSync(ctx); err != nil {
		return nil, err
	}
	reply := &rowraftv1.ListJobsReply{}
	for _, r := range s.machine.Runs() {
		reply.Jobs = append(reply.Jobs, s.infoFor(ctx, r))
	}
	return reply, nil
}

// DescribeJob returns one job.
func (s *Service) DescribeJob(ctx context.Context,
	q *rowraftv1.DescribeJobRequest) (*rowraftv1.DescribeJobReply, error) {
	r, err := s.find(ctx, q.GetJob())
	if err != nil {
		return nil, err
	}
	return &rowraftv1.DescribeJobReply{Job: s.infoFor(ctx, r)}, nil
}

func (s *Service) find(ctx context.Context, job string) (*rowraftv1.MetaRun, error) {
	if err := s.lead.InSync(ctx); err != nil {
		return nil, err
	}
	r := s.machine.RunOf(job)
	if r == nil {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "there is no job %s; `rowraft job list` names those that there are",
			job)
	}
	return r, nil
}

// StopJob lets the members of a job stop.
func (s *Service) StopJob(ctx context.Context, q *rowraftv1.StopJobRequest) (*rowraftv1.StopJobReply, error) {
	r, err := s.find(ctx, q.GetJob())
	if err != nil {
		return nil, err
	}
	if err := s.CheckOwner(ctx, q.GetJob()); err != nil {
		return nil, err
	}
	err = s.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StopJob{StopJob: &rowraftv1.MetaStopJob{Job: r.GetJob(),
			Run: r.GetRun(), Reason: q.GetReason()}}})
	if err != nil {
		return nil, err
	}
	s.wake()
	s.logger.Info("a job is to stop", "job", r.GetJob(), "training", len(meta.TrainingRanks(r)), "reason", q.GetReason())
	return &rowraftv1.StopJobReply{Job: s.Info(s.machine.RunOf(q.GetJob()))}, nil
}

// DeleteJob deletes a job without training workers from the registry.
func (s *Service) DeleteJob(ctx context.Context, q *rowraftv1.DeleteJobRequest) (*rowraftv1.DeleteJobReply, error) {
	if _, err := s.find(ctx, q.GetJob()); err != nil {
		return nil, err
	}
	if err := s.CheckOwner(ctx, q.GetJob()); err != nil {
		return nil, err
	}
	err := s.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetJob{ForgetJob: &rowraftv1.MetaForgetJob{
			Job: q.GetJob(), Run: q.GetRun(), Asked: true,
		}}})
	if err != nil {
		return nil, err
	}
	s.wake()
	s.logger.Info("a job is deleted", "job", q.GetJob())
	return &rowraftv1.DeleteJobReply{}, nil
}

// Info describes a run. It returns nil for nil.
func (s *Service) Info(r *rowraftv1.MetaRun) *rowraftv1.JobInfo {
	if r == nil {
		return nil
	}
	info := &rowraftv1.JobInfo{
		Job: r.GetJob(), Run: r.GetRun(), Workers: r.GetWorkers(), State: r.GetState(), Reason: r.GetReason(),
		Stopping:   r.GetStopping(),
		Generation: r.GetGeneration(), Settings: r.GetSettings(), Data: r.GetData(), LeaseNs: r.GetLeaseNs(),
		GenerationInShards: s.generations.of(r.GetRun()).number, IdleSinceNs: r.GetIdleSinceNs(),
		Scores: r.GetScores(),
	}
	connected := make(map[uint64]bool)
	for _, a := range s.trainers.list() {
		connected[a.member.GetIncarnation()] = true
	}
	for _, m := range r.GetMembers() {
		one := &rowraftv1.MemberInfo{Member: m, Connected: connected[m.GetIncarnation()]}
		if w, known := s.leases.get(m.GetIncarnation()); known && meta.IsTraining(m) {
			one.SinceHeardNs, one.Beat = uint64(time.Since(w.heard)), w.beat
		}
		info.Members = append(info.Members, one)
	}
	return info
}

// infoFor describes a run. For a caller that does not own the run it omits the ids with which one can act in the run.
func (s *Service) infoFor(ctx context.Context, r *rowraftv1.MetaRun) *rowraftv1.JobInfo {
	info := s.Info(r)
	if info == nil || owns(rpc.CallerOf(ctx), r) {
		return info
	}
	info = proto.CloneOf(info)
	info.Run = nil
	for _, m := range info.GetMembers() {
		m.Member.Incarnation, m.Member.Attending, m.Member.Instance = 0, 0, nil
	}
	return info
}

// owns reports whether the caller may act in a run: as its owner, or as an admin or operator of the cluster.
func owns(caller *rpc.Caller, r *rowraftv1.MetaRun) bool {
	if caller == nil || caller.Role == certs.Admin || caller.Role == certs.Operator {
		return true
	}
	owner := meta.OwnerOf(r)
	return owner == "" || owner == caller.Name
}

// CheckOwner refuses a call for a job of another owner.
func (e *env) CheckOwner(ctx context.Context, job string) error {
	caller := rpc.CallerOf(ctx)
	if caller == nil {
		return nil
	}
	if err := e.lead.InSync(ctx); err != nil { // an old state may have an old owner
		return err
	}
	r := e.machine.RunOf(job)
	if r == nil || owns(caller, r) {
		return nil // the caller of CheckOwner reports an absent job
	}
	return &rowraft.DeniedError{What: "job " + job + ", which is of " + meta.OwnerOf(r) + ",",
		Need: "admin or operator, or its owner's name", Have: caller.String()}
}
