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

// ErrJobDone means that the other workers finished the job's run after this worker was lost: there is
// nothing left to train.
var ErrJobDone = errors.New("the job is done; the others have read this worker's share since it was lost")

// maxEnters limits how often EnterJob retries after the worker's lease ran out before an answer arrived.
const maxEnters = 3

// Entry is a worker's request to enter a job.
type Entry struct {
	Job      string
	Worker   string            // a restarted worker keeps this name
	Workers  int               // expected number; all workers must agree
	Settings map[string]string // all workers must agree
	Rank     *int              // the rank that the worker needs; nil: any
	Parts    PartPlan          // for a run that begins
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
	From *checkpoint.Parts
	// BaseStep is the number of steps that the job had in that checkpoint, if its workers keep step.
	BaseStep int64
}

// PartPlan is how the scheduler divides the training data. The zero value leaves that to the trainers.
type PartPlan struct {
	Examples, PartExamples int64
	Epochs                 int64 // 0: no end
	// ByRank assigns the parts to the ranks in turn, so that the assignment does not depend on the order of
	// requests. Only the parts of a worker that does not train go to any worker that asks.
	ByRank bool
	// InLog means that the workers' pushes carry the positions of [Part.Reached]: the shards then know how
	// far a lost worker had read.
	InLog bool
}

func (p *PartPlan) toProto() *rowraftv1.JobData {
	return &rowraftv1.JobData{Examples: uint64(p.Examples), PartExamples: uint64(p.PartExamples), Epochs: uint64(p.Epochs), ByRank: p.ByRank, InLog: p.InLog}
}

// number returns the number of a part, counted over all epochs.
func (p *PartPlan) number(epoch, part int64) uint64 {
	return uint64(epoch*((p.Examples+p.PartExamples-1)/p.PartExamples) + part)
}

// Member is a worker's membership in a run of a job. Safe for concurrent use.
type Member struct {
	c        *Client
	identity *rowraftv1.JobIdentity
	instance [16]byte
	lease    time.Duration
	left     atomic.Bool // Leave was called
	inShards bool
	attends  context.Context // ends when a trainer call keeps the lease, or the member leaves
	attended context.CancelFunc

	Generation uint64 // at the time of entry; 0: some workers had not entered
	Began      bool   // this entry began the run
	Parts      PartPlan
	BaseStep   int64 // steps of the job before this run
}

// EnterJob makes this process a member of a job. The member gets the rank that its name had before, or a
// free one. The client's sessions become those of the rank: each shard refuses another process that had the
// rank, from the member's first push to that shard on. Call EnterJob before anything is pushed.
//
// Errors: CodeInvalidArgument if the entry differs from that of the other workers (the error names both
// values), or if there are too many workers; CodeAlreadyExists if another worker trains under the rank;
// CodePrecondition while the job is being stopped.
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
		// The answer to an earlier try was lost, and the lease ran out before this try.
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

// goOn makes a plan continue where the checkpoint's reading ended.
func goOn(d *rowraftv1.JobData, from *checkpoint.Parts) {
	d.Epoch, d.Part, d.AgainKnown, d.AgainMost = from.Epoch, from.Part, from.AgainKnown, from.AgainMost
	switch {
	case d.Epochs == 0:
	case d.Part > 0: // an epoch that was begun is read to its end, even if it is beyond the last one
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
			return // Attend gets the same error and returns it
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

// adopt makes the client open its sessions as the member id. A worker that waits for other workers enters
// its job several times and adopts a newer identity each time.
func (c *Client) adopt(ctx context.Context, id *rowraftv1.JobIdentity) error {
	if err := c.lock(ctx, c.session.naming); err != nil {
		return err
	}
	defer c.session.naming.unlock()
	for _, st := range c.shards.all() {
		if c.session.underway.Load() > 0 || st.session.Load() != nil {
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

// Part is a part of the data that a member reads.
type Part struct {
	Epoch, Part int64
	From, To    int64 // numbers of the first example and of the one after the last
	Offset      int64 // examples of the part that are already trained
	Reading     int64 // how many times a worker was given the part, from 1
}

// Reached returns the two positions that a push carries: the examples of p up to acknowledged are all
// acknowledged, and the push applies those up to applied. plan is the plan that p belongs to.
func (p *Part) Reached(plan *PartPlan, acknowledged, applied int64) [2]rowraft.Position {
	a, b := rowraft.ReadParts(plan.number(p.Epoch, p.Part), uint64(p.Reading))
	return [2]rowraft.Position{{Part: a, Offset: uint64(acknowledged)}, {Part: b, Offset: uint64(applied)}}
}

// ErrNoParts means that every part of the data is read.
var ErrNoParts = errors.New("no part of the data is left")

// ErrPartsHeld means that other members hold all parts that are left. The scheduler may still free some of
// them.
var ErrPartsHeld = errors.New("others have the parts of the data that are left")

// NextPart requests a part to read. take numbers the requests of this member from 1; a request with the
// same number gets the same part again. ahead is the number of parts that the member holds and has not
// begun: near the end of the data the scheduler keeps the last parts for members that hold none. If no
// scheduler answers, NextPart tries until ctx ends.
//
// Errors: ErrNoParts; ErrPartsHeld; CodeSessionExpired if this worker is no longer a member.
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

// EndPart reports that every example of p is trained and acknowledged.
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
	LeaveEnded   = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_ENDED)   // the member finished its work
	LeaveStopped = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_STOPPED) // the member was asked to stop
	LeaveFailed  = LeaveReason(rowraftv1.MemberState_MEMBER_STATE_FAILED)
)

// PartReached is how far a member is in a part.
type PartReached struct {
	Epoch, Part  int64
	Acknowledged int64 // examples up to the first one that is not acknowledged
	Read         int64
}

// Leave ends this worker's training. The worker must read nothing more: other workers continue where parts
// ends.
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

// RepeatedExamples returns how many examples of the job's data were given to a worker after another worker
// had read them: a lower and an upper bound.
func (c *Client) RepeatedExamples(ctx context.Context, job string) (least, most int64, err error) {
	err = c.jobsCall(ctx, "describe job "+job, func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: job})
		least, most = int64(r.GetJob().GetData().GetAgainKnown()), int64(r.GetJob().GetData().GetAgainMost())
		return err
	})
	return least, most, err
}

// Lost reports whether the job's run counts this member as lost, so that its rank is free.
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

// Beat is a worker's report about itself. Unknown numbers are NaN.
type Beat struct {
	Step, Examples, BatchesSkipped    int64
	StepsPerSecond, ExamplesPerSecond float64 // recent rates
	Loss, AUC, StalenessSteps         float64
	Waiting                           float64 // share of the worker's time
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

// Members are the workers that train in a job's current generation.
type Members struct {
	Generation uint64
	Ranks      []int // ascending
	FirstStep  int64 // first step of the generation, if the shards count steps
}
