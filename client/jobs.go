package client

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
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// ErrJobDone says that the job's run was done by the other workers after this one had been lost:
// there is nothing to train.
var ErrJobDone = errors.New("the job is done; the others have read this worker's share since it was lost")

// maxEnters is how often a worker enters once more that was lost on its way.
const maxEnters = 3

// Entry is what a worker says when it enters a job.
type Entry struct {
	Job      string
	Worker   string            // name that a restarted worker keeps
	Workers  int               // expected; all must agree
	Settings map[string]string // on which all must agree
	Rank     *int              // that it must have; nil: any
	Parts    PartPlan          // of a run that begins
	Lease    time.Duration     // how long it may be silent; 0: 10 s
	Gather   bool              // nobody begins before all workers are there
	InShards bool              // every shard must know the members, for steps and clocks
	Quorum   float64           // share of the members that closes a step; 0: all
	Deadline time.Duration     // after the first part of a step; 0: none
	Restart  bool              // it reads its share of the data from the beginning
	// Checkpoint is the id of the one that the worker goes on from; "": none.
	Checkpoint string
	// From is how far the data was read in that checkpoint; nil: a run that begins reads
	// it from the beginning.
	From *checkpoint.Parts
	// BaseStep is how many steps the job had in that checkpoint, where its workers keep step.
	BaseStep int64
}

// PartPlan is how the training part of the data is divided. The zero value leaves it
// to the trainers.
type PartPlan struct {
	Examples, PartExamples int64
	Epochs                 int64 // 0: no end
	// ByRank deals the parts out in turn, so that who reads what does not depend on who asks
	// first; only those of a worker that does not train go to whoever asks.
	ByRank bool
	// InLog says that the workers' pushes carry what [Part.Reached] gives: where a worker that has gone was
	// is asked of the shards.
	InLog bool
}

func (p *PartPlan) toProto() *rowraftv1.JobData {
	return &rowraftv1.JobData{Examples: uint64(p.Examples), PartExamples: uint64(p.PartExamples), Epochs: uint64(p.Epochs), ByRank: p.ByRank, InLog: p.InLog}
}

// number counts the parts of all epochs.
func (p *PartPlan) number(epoch, part int64) uint64 {
	return uint64(epoch*((p.Examples+p.PartExamples-1)/p.PartExamples) + part)
}

// Member is a worker's membership of a job's run. Safe for concurrent use.
type Member struct {
	c        *Client
	identity *rowraftv1.JobIdentity
	instance [16]byte
	lease    time.Duration
	left     atomic.Bool // it was said, or tried
	inShards bool
	attends  context.Context // ends when a call keeps the lease, or the member leaves
	attended context.CancelFunc

	Generation uint64 // when it entered; 0: not all workers were there
	Began      bool   // the run began with it
	Parts      PartPlan
	BaseStep   int64 // steps of the job before this run
}

// EnterJob makes this process a member of a job: of the rank that its name had, or of
// a free one. The client's sessions are the member's from here on: those of another
// process that had the rank are refused in each shard from the first push there on.
// Call it before anything is pushed.
//
// Errors: CodeInvalidArgument if it does not agree with the job's other workers, named
// with both values, or if there are too many; CodeAlreadyExists if the rank is that of
// another worker who trains; CodePrecondition while the job is being stopped.
func (c *Client) EnterJob(ctx context.Context, e Entry) (*Member, error) {
	m, over := &Member{c: c, lease: e.Lease, inShards: e.InShards}, false
	q := &rowraftv1.EnterRequest{
		Job: e.Job, Worker: e.Worker, Workers: uint32(e.Workers), LeaseNs: uint64(e.Lease), Gather: e.Gather,
		InShards: e.InShards, Quorum: e.Quorum, DeadlineNs: uint64(e.Deadline), Restart: e.Restart, Checkpoint: e.Checkpoint,
		Data: e.Parts.toProto(), BaseStep: uint64(e.BaseStep),
	}
	if e.From != nil {
		goOn(q.Data, e.From)
	}
	for name, value := range e.Settings {
		q.Settings = append(q.Settings, &rowraftv1.JobSetting{Name: name, Value: value})
	}
	if e.Rank != nil {
		q.WantRank = uint32(*e.Rank) + 1
	}
	enter := func(ctx context.Context, stub rowraftv1.JobsClient) error {
		reply, err := stub.Enter(ctx, q)
		if err != nil {
			return err
		}
		d := reply.GetData()
		m.identity, m.Generation, m.Began = reply.GetIdentity(), reply.GetGeneration(), reply.GetBegan()
		m.Parts = PartPlan{int64(d.GetExamples()), int64(d.GetPartExamples()), int64(d.GetEpochs()), d.GetByRank(), d.GetInLog()}
		m.BaseStep, over = int64(reply.GetBaseStep()), reply.GetDone()
		return nil
	}
	for tries := 0; ; tries++ {
		_, _ = rand.Read(m.instance[:]) // never fails (crypto/rand)
		q.Instance = m.instance[:]
		err := c.jobsCall(ctx, fmt.Sprintf("enter job %s as worker %s", e.Job, e.Worker), enter)
		if err == nil {
			break
		}
		// An answer was lost, and the lease ran out before the call was sent again.
		if rowraft.CodeOf(err) != rowraft.CodeSessionExpired || tries == maxEnters {
			return nil, err
		}
	}
	if over {
		return nil, fmt.Errorf("worker %s of job %s: %w", e.Worker, e.Job, ErrJobDone)
	}
	if err := c.adopt(ctx, m.identity); err != nil {
		return nil, err
	}
	m.attends, m.attended = context.WithCancel(c.ctx)
	return m, c.spawn(m.keepLease)
}

// goOn makes a plan go on where the data was read to.
func goOn(d *rowraftv1.JobData, from *checkpoint.Parts) {
	d.Epoch, d.Part, d.AgainKnown, d.AgainMost = from.Epoch, from.Part, from.AgainKnown, from.AgainMost
	switch {
	case d.Epochs == 0:
	case d.Part > 0: // the epoch that was begun is read to its end, also if it is one too many
		d.Epochs = max(d.Epochs, d.Epoch+1)
	default:
		d.Epochs = max(d.Epochs, d.Epoch)
	}
	for _, p := range from.Open {
		d.Open = append(d.Open, &rowraftv1.JobPart{Epoch: p.Epoch, Part: p.Part, Offset: p.Offset})
	}
}

// keepLease renews the lease until a call of Attend does.
func (m *Member) keepLease() {
	tick := time.NewTicker(m.beatEvery())
	defer tick.Stop()
	for {
		select {
		case <-m.attends.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(m.attends, 5*time.Second)
		err := m.c.jobsCall(ctx, "renew the lease", func(ctx context.Context, stub rowraftv1.JobsClient) error {
			_, err := stub.Renew(ctx, &rowraftv1.RenewRequest{Identity: m.identity})
			return err
		})
		cancel()
		if err != nil && !rowraft.CodeOf(err).Retryable() {
			return // Attend is told the same
		}
	}
}

// beatEvery keeps several beats within a lease.
func (m *Member) beatEvery() time.Duration {
	if m.lease == 0 {
		return time.Second
	}
	return min(time.Second, m.lease/5)
}

// memberClient is the client id of whoever has a rank in a run, so that each fences
// the one before it.
func memberClient(id *rowraftv1.JobIdentity) (out rowraft.ClientID) {
	sum := sha256.Sum256(binary.LittleEndian.AppendUint32(append([]byte("rowraft member "), id.GetRun()...), id.GetRank()))
	copy(out[:], sum[:])
	return out
}

// adopt makes the sessions that are opened from here on those of a member of a job. A worker
// that waits for others enters its job again and again, and adopts a newer one each time.
func (c *Client) adopt(ctx context.Context, id *rowraftv1.JobIdentity) error {
	if err := c.lock(ctx, c.session.naming); err != nil {
		return err
	}
	defer c.session.naming.unlock()
	for shard := range c.session.shards {
		if c.session.underway.Load() > 0 || c.session.shards[shard].Load() != nil {
			return rowraft.Errorf(rowraft.CodeInternal, "a client that has pushed entered a job")
		}
	}
	c.opts.ClientID, c.session.inc, c.session.cluster = own(c.tls, memberClient(id)), rowraft.Incarnation(id.GetIncarnation()), c.cluster.Load().Cluster
	c.session.member.Store(id)
	return nil
}

func (c *Client) jobsCall(ctx context.Context, what string, call func(context.Context, rowraftv1.JobsClient) error) error {
	return c.schedulerConn(ctx, what, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, rowraftv1.NewJobsClient(conn))
	})
}

// Left reports that Leave was called.
func (m *Member) Left() bool { return m.left.Load() }

// InShards reports that the job's members are told to all shards.
func (m *Member) InShards() bool { return m.inShards }

// Job is the name of the job.
func (m *Member) Job() string { return m.identity.GetJob() }

// Run is the id of the job's run.
func (m *Member) Run() (id [16]byte) {
	copy(id[:], m.identity.GetRun())
	return id
}

// Rank is the worker's.
func (m *Member) Rank() int { return int(m.identity.GetRank()) }

// Incarnation is the worker's.
func (m *Member) Incarnation() rowraft.Incarnation {
	return rowraft.Incarnation(m.identity.GetIncarnation())
}

// Part is a part of the data that a member is to read.
type Part struct {
	Epoch, Part int64
	From, To    int64 // numbers of its first example and of the one behind its last
	Offset      int64 // of its examples that are trained already
	Reading     int64 // how many times the part was given to a worker, from 1
}

// Reached is what a push carries that takes a worker's reading of p, the part of a plan, to
// an example, when all up to another one is acknowledged.
func (p *Part) Reached(plan *PartPlan, acknowledged, applied int64) [2]rowraft.Position {
	a, b := rowraft.ReadParts(plan.number(p.Epoch, p.Part), uint64(p.Reading))
	return [2]rowraft.Position{{Part: a, Offset: uint64(acknowledged)}, {Part: b, Offset: uint64(applied)}}
}

// ErrNoParts says that every part of the data is read.
var ErrNoParts = errors.New("no part of the data is left")

// ErrPartsHeld says that others have all parts that are left; they may come back.
var ErrPartsHeld = errors.New("others have the parts of the data that are left")

// NextPart asks for a part to read: the take-th of this member, from 1. One that was
// asked for may be asked for again. ahead is how many parts the member has that it has not begun: near the end of
// the data the scheduler keeps the last parts for members that have none. It waits for a scheduler that is away
// until ctx ends.
//
// Errors: ErrNoParts; ErrPartsHeld; CodeSessionExpired if it is no member any more.
func (m *Member) NextPart(ctx context.Context, take int64, ahead int) (p Part, err error) {
	err = m.c.jobsCall(ctx, "next part of the data", func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.NextPart(ctx, &rowraftv1.NextPartRequest{Identity: m.identity, Take: uint64(take), Ahead: uint32(ahead)})
		p = Part{int64(r.GetEpoch()), int64(r.GetPart()), int64(r.GetFrom()), int64(r.GetTo()), int64(r.GetOffset()), int64(r.GetReading())}
		if r.GetDone() || r.GetWait() {
			p.Part = -1
			if r.GetWait() {
				p.Part = -2
			}
		}
		return err
	})
	switch {
	case err != nil:
		return Part{}, err
	case p.Part == -1:
		return Part{}, ErrNoParts
	case p.Part == -2:
		return Part{}, ErrPartsHeld
	}
	return p, nil
}

// EndPart says that every example of p is trained and acknowledged.
func (m *Member) EndPart(ctx context.Context, p Part) error {
	return m.c.jobsCall(ctx, "end a part of the data", func(ctx context.Context, stub rowraftv1.JobsClient) error {
		_, err := stub.EndPart(ctx, &rowraftv1.EndPartRequest{Identity: m.identity, Epoch: uint64(p.Epoch), Part: uint64(p.Part)})
		return err
	})
}

// LeaveReason is why a member leaves.
type LeaveReason int

// Reasons to leave.
const (
	LeaveEnded   = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_ENDED)   // it did all that it was to do
	LeaveStopped = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_STOPPED) // it was told to stop
	LeaveFailed  = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_FAILED)
)

// PartReached is how far a member is in a part.
type PartReached struct {
	Epoch, Part  int64
	Acknowledged int64 // examples, without a gap
	Read         int64
}

// Leave says that this worker trains no more. It reads no more either: what parts says
// is where others go on.
func (m *Member) Leave(ctx context.Context, why LeaveReason, reason string, parts []PartReached) error {
	m.left.Store(true)
	m.attended()
	return m.c.jobsCall(ctx, "leave job "+m.Job(), func(ctx context.Context, stub rowraftv1.JobsClient) error {
		_, err := stub.Leave(ctx, &rowraftv1.LeaveRequest{Identity: m.identity, State: rowraftv1.MemberState(why), Reason: reason, Parts: reachedToProto(parts, true)})
		return err
	})
}

func reachedToProto(parts []PartReached, exact bool) (out []*rowraftv1.PartReached) {
	for _, p := range parts {
		out = append(out, &rowraftv1.PartReached{Epoch: uint64(p.Epoch), Part: uint64(p.Part), Acknowledged: uint64(p.Acknowledged), Read: uint64(p.Read), Exact: exact})
	}
	return out
}

// RepeatedExamples says how many examples of the job's data were given to a worker
// again after another one had read them: at least, and at most.
func (c *Client) RepeatedExamples(ctx context.Context, job string) (least, most int64, err error) {
	err = c.jobsCall(ctx, "describe job "+job, func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: job})
		least, most = int64(r.GetJob().GetData().GetAgainKnown()), int64(r.GetJob().GetData().GetAgainMost())
		return err
	})
	return least, most, err
}

// Lost says whether the job's run counts this member as lost, and its place is free.
func (m *Member) Lost(ctx context.Context) (lost bool, err error) {
	err = m.c.jobsCall(ctx, "describe job "+m.Job(), func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: m.Job()})
		if err != nil {
			return err
		}
		for _, info := range r.GetJob().GetMembers() {
			one := info.GetMember()
			lost = lost || bytes.Equal(r.GetJob().GetRun(), m.identity.GetRun()) && one.GetIncarnation() == m.identity.GetIncarnation() && one.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST
		}
		return nil
	})
	return lost, err
}

// Beat is what a worker says of itself. Numbers that it does not know are NaN.
type Beat struct {
	Step, Examples, BatchesSkipped    int64
	StepsPerSecond, ExamplesPerSecond float64 // of late
	Loss, AUC, StalenessSteps         float64
	Waiting                           float64 // share of its time
	Stopping                          bool
	Parts                             []PartReached
}

func (b *Beat) toProto() *rowraftv1.WorkerBeat {
	return &rowraftv1.WorkerBeat{
		Step: uint64(b.Step), Examples: uint64(b.Examples), StepsPerSecond: b.StepsPerSecond, ExamplesPerSecond: b.ExamplesPerSecond,
		Loss: b.Loss, Auc: b.AUC, StalenessSteps: b.StalenessSteps, Waiting: b.Waiting, BatchesSkipped: uint64(b.BatchesSkipped),
		Stopping: b.Stopping, Parts: reachedToProto(b.Parts, false),
	}
}

// Members are those who train in a job's present generation.
type Members struct {
	Generation uint64
	Ranks      []int // ascending
	FirstStep  int64 // of the generation, where the shards count steps
}
