package jobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// control is what this package needs of a client. Its methods are those of [client.Control].
type control interface {
	Context() context.Context
	Go(f func()) error
	Conn(addr string) (grpc.ClientConnInterface, error)
	Walk() *route.Walk
	Call(ctx context.Context, what string, call func(context.Context, grpc.ClientConnInterface) error) error
	Adopt(ctx context.Context, as rowraft.ClientID, id *rowraftv1.JobIdentity) error
}

// ErrDone means that the other workers finished the job's run after this worker was lost: there is
// nothing left to train.
var ErrDone = errors.New("the job is done; the others have read this worker's share since it was lost")

// maxEnters limits how often Enter retries after the worker's lease ran out before an answer arrived.
const maxEnters = 3

// Entry is a worker's request to enter a job.
type Entry struct {
	Job    string
	Worker string // a restarted worker keeps this name
	// Workers is the number that is expected at the start. More may join if the scheduler divides the data and Settings
	// has no "trainers"; otherwise all workers must agree.
	Workers  int
	Settings map[string]string // all workers must agree
	Rank     *int              // the rank that the worker needs; nil: any
	Splits   SplitPlan         // for a run that begins
	Lease    time.Duration     // time without a beat after which the worker is lost; 0: 10 s
	Gather   bool              // no worker begins before all have entered
	InShards bool              // every shard must know the members, for steps and clocks
	Quorum   float64           // share of the members that closes a step; 0: all
	Deadline time.Duration     // the time that a step may take after its first batch; 0: no limit
	Restart  bool              // the worker reads its share of the data from the beginning
	// Checkpoint is the id of the checkpoint that the worker resumes from; "": none.
	Checkpoint string
	// From is how far the data was read in that checkpoint; nil: a run that begins reads from the
	// beginning.
	From *checkpoint.Splits
	// BaseStep is the number of steps that the job had in that checkpoint, if its workers keep step.
	BaseStep int64
}

// Member is a worker's membership in a run of a job. Safe for concurrent use.
type Member struct {
	control     control
	identity    *rowraftv1.JobIdentity
	instance    [16]byte
	lease       time.Duration
	left        atomic.Bool // Leave was called
	steps       atomic.Int64
	inShards    bool
	keeping     context.Context // ends when a Stream keeps the lease, or the member leaves
	stopKeeping context.CancelFunc

	Generation uint64 // at the time of entry; 0: some workers had not entered
	Splits     SplitPlan
	BaseStep   int64 // steps of the job before this run
	Workers    int   // number of workers at the time of entry, this one included; later workers may join
	First      bool  // no other worker trained in the job at the time of entry
	Began      bool  // the member began a new run of the job
	Steps      int64 // steps that members that have left the job have trained on these tables
}

// Enter makes this process a member of a job. The member gets the rank that its name had before, or a
// free one. The client's sessions become those of the rank: each shard refuses another process that had the
// rank, from the member's first push to that shard on. Call Enter before anything is pushed.
//
// Errors: CodeInvalidArgument if the entry differs from that of the other workers (the error names both
// values), or if there are too many workers; CodeAlreadyExists if another worker trains under the rank;
// CodePrecondition while the job is being stopped.
func Enter(ctx context.Context, c *client.Client, e Entry) (*Member, error) {
	return enter(ctx, c.Control(), e)
}

func enter(ctx context.Context, c control, e Entry) (*Member, error) {
	m, over := &Member{control: c, lease: e.Lease, inShards: e.InShards}, false
	q := &rowraftv1.EnterRequest{
		Job: e.Job, Worker: e.Worker, Workers: uint32(e.Workers), LeaseNs: uint64(e.Lease), Gather: e.Gather,
		InShards: e.InShards, Quorum: e.Quorum, DeadlineNs: uint64(e.Deadline), Restart: e.Restart, Checkpoint: e.Checkpoint,
		Data: e.Splits.toProto(), BaseStep: uint64(e.BaseStep),
	}
	if e.From != nil {
		resumeAt(q.Data, e.From)
	}
	for name, value := range e.Settings {
		q.Settings = append(q.Settings, &rowraftv1.JobSetting{Name: name, Value: value})
	}
	if e.Rank != nil {
		q.WantRank = uint32(*e.Rank) + 1
	}
	call := func(ctx context.Context, stub rowraftv1.JobsClient) error {
		reply, err := stub.Enter(ctx, q)
		if err != nil {
			return err
		}
		d := reply.GetData()
		m.identity, m.Generation = reply.GetIdentity(), reply.GetGeneration()
		m.Splits = SplitPlan{int64(d.GetExamples()), int64(d.GetSplitExamples()), int64(d.GetEpochs()), d.GetByRank(),
			d.GetInLog()}
		m.BaseStep, over = int64(reply.GetBaseStep()), reply.GetDone()
		m.Workers = int(reply.GetWorkers())
		m.First, m.Began, m.Steps = reply.GetFirst(), reply.GetBegan(), int64(reply.GetSteps())
		return nil
	}
	for tries := 0; ; tries++ {
		_, _ = rand.Read(m.instance[:]) // never fails (crypto/rand)
		q.Instance = m.instance[:]
		err := jobsCall(ctx, c, fmt.Sprintf("enter job %s as worker %s", e.Job, e.Worker), call)
		if err == nil {
			break
		}
		// The answer to an earlier try was lost, and the lease ran out before this try.
		if rowraft.CodeOf(err) != rowraft.CodeSessionExpired || tries == maxEnters {
			return nil, err
		}
	}
	if over {
		return nil, fmt.Errorf("worker %s of job %s: %w", e.Worker, e.Job, ErrDone)
	}
	if err := c.Adopt(ctx, memberClient(m.identity), m.identity); err != nil {
		return nil, err
	}
	m.keeping, m.stopKeeping = context.WithCancel(c.Context())
	return m, c.Go(m.keepLease)
}

// keepLease renews the lease until a call of Register does.
func (m *Member) keepLease() {
	tick := time.NewTicker(m.beatEvery())
	defer tick.Stop()
	for {
		select {
		case <-m.keeping.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(m.keeping, 5*time.Second)
		err := jobsCall(ctx, m.control, "renew the lease", func(ctx context.Context, stub rowraftv1.JobsClient) error {
			_, err := stub.Renew(ctx, &rowraftv1.RenewRequest{Identity: m.identity})
			return err
		})
		cancel()
		if err != nil && !rowraft.CodeOf(err).Retryable() {
			return // Register gets the same error and returns it
		}
	}
}

// beatEvery returns the interval of beats: at least five fit into a lease.
func (m *Member) beatEvery() time.Duration {
	if m.lease == 0 {
		return time.Second
	}
	return min(time.Second, m.lease/5)
}

// memberClient returns the client id of a rank in a run. It depends on the run and the rank only, so that
// each worker with the rank fences the worker before it.
func memberClient(id *rowraftv1.JobIdentity) (out rowraft.ClientID) {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint32(append([]byte("rowraft member "), id.GetRun()...), id.GetRank()))
	copy(out[:], sum[:])
	return out
}

func jobsCall(ctx context.Context, c control, what string,
	call func(context.Context, rowraftv1.JobsClient) error) error {
	return c.Call(ctx, what, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, rowraftv1.NewJobsClient(conn))
	})
}

// Left reports whether Leave was called.
func (m *Member) Left() bool { return m.left.Load() }

// InShards reports whether all shards know the job's members.
func (m *Member) InShards() bool { return m.inShards }

// Job returns the name of the job.
func (m *Member) Job() string { return m.identity.GetJob() }

// Run returns the id of the job's run.
func (m *Member) Run() (id [16]byte) {
	copy(id[:], m.identity.GetRun())
	return id
}

// Rank returns the worker's rank.
func (m *Member) Rank() int { return int(m.identity.GetRank()) }

// Incarnation returns the worker's incarnation.
func (m *Member) Incarnation() rowraft.Incarnation {
	return rowraft.Incarnation(m.identity.GetIncarnation())
}

// LeaveReason is why a member leaves.
type LeaveReason int

// Reasons to leave.
const (
	LeaveEnded   = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_ENDED)   // the member finished its work
	LeaveStopped = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_STOPPED) // the member was asked to stop
	LeaveFailed  = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_FAILED)
)

// SetTrained sets the number of steps that Leave reports: the batches of this worker or, in a job whose workers close
// steps together, the steps of the job.
func (m *Member) SetTrained(steps int64) { m.steps.Store(steps) }

// Leave ends this worker's training. The worker must read nothing more: other workers read on from the positions in
// splits. A split that this worker has and that is not in splits counts as not read.
func (m *Member) Leave(ctx context.Context, why LeaveReason, reason string, splits []SplitReached) error {
	m.left.Store(true)
	m.stopKeeping()
	return jobsCall(ctx, m.control, "leave job "+m.Job(), func(ctx context.Context, stub rowraftv1.JobsClient) error {
		_, err := stub.Leave(ctx, &rowraftv1.LeaveRequest{Identity: m.identity, State: rowraftv1.MemberState(why),
			Reason: reason, Splits: reachedToProto(splits), Steps: uint64(m.steps.Load()), Exact: true})
		return err
	})
}

// Lost reports whether the job's run counts this member as lost, so that its rank is free.
func (m *Member) Lost(ctx context.Context) (lost bool, err error) {
	err = jobsCall(ctx, m.control, "describe job "+m.Job(), func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: m.Job()})
		if err != nil {
			return err
		}
		for _, info := range r.GetJob().GetMembers() {
			one := info.GetMember()
			lost = lost || bytes.Equal(r.GetJob().GetRun(), m.identity.GetRun()) &&
				one.GetIncarnation() == m.identity.GetIncarnation() && one.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST
		}
		return nil
	})
	return lost, err
}

// Beat is a worker's report about itself. Unknown numbers are NaN.
type Beat struct {
	Step, Examples, BatchesSkipped    int64
	StepsPerSecond, ExamplesPerSecond float64 // recent rates
	Loss, AUC, StalenessSteps         float64
	Waiting                           float64 // share of the worker's time
	Stopping                          bool
	Splits                            []SplitReached
}

func (b *Beat) toProto() *rowraftv1.WorkerBeat {
	return &rowraftv1.WorkerBeat{
		Step: uint64(b.Step), Examples: uint64(b.Examples), StepsPerSecond: b.StepsPerSecond,
		ExamplesPerSecond: b.ExamplesPerSecond,
		Loss:              b.Loss, Auc: b.AUC, StalenessSteps: b.StalenessSteps, Waiting: b.Waiting,
		BatchesSkipped: uint64(b.BatchesSkipped),
		Stopping:       b.Stopping, Splits: reachedToProto(b.Splits),
	}
}

// Members are the workers that train in a job's current generation.
type Members struct {
	Generation uint64
	Ranks      []int // ascending
	FirstStep  int64 // first step of the generation, if the shards count steps
}
