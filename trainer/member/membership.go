package member

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
)

// restartPoll is how often a trainer whose job is done without it checks whether other trainers have started the job
// again.
const restartPoll = 250 * time.Millisecond

// Enter calls enter. If the job is done without this trainer, it tries again for a lease: other trainers that start the
// job once more may come a moment later. It does not try again for a process that was lost from that run itself.
func Enter(ctx context.Context, lease time.Duration, lost bool,
	enter func(context.Context) (*jobs.Member, error)) (*jobs.Member, error) {
	over := time.NewTimer(lease)
	defer over.Stop()
	tick := time.NewTicker(restartPoll)
	defer tick.Stop()
	for {
		m, err := enter(ctx)
		if !errors.Is(err, jobs.ErrDone) || lost {
			return m, err
		}
		select {
		case <-tick.C:
		case <-over.C:
			return m, err
		case <-ctx.Done():
			return m, err
		}
	}
}

// StepTables are tables whose trainers depend on each other through the shards.
type StepTables interface {
	Join(client.JobOptions) error
	// Adopt installs a later generation.
	Adopt(rowraft.Generation)
}

// Options describe a trainer to its membership.
type Options struct {
	Job             string
	Rank, Trainers  int
	Patience, Lease time.Duration
	PushPatience    time.Duration // how long a shard may leave a push of a step unanswered; 0: as long as it wants
	Checkpoint      CheckpointConfig
	Note            func(format string, args ...any) // reports a text for people
	Reached         func() []jobs.SplitReached       // how far the trainer is in its splits
}

// Membership is a trainer in its job, while it trains. Safe for concurrent use.
type Membership struct {
	Options
	client *client.Client
	member *jobs.Member // nil if the trainer entered no job

	mu     sync.Mutex
	newest jobs.Members  // from the scheduler
	joined StepTables    // nil before Join
	first  chan struct{} // closed at the first update
}

// New returns the membership of a trainer that entered its job as m; m is nil if it entered none.
func New(o Options, c *client.Client, m *jobs.Member) *Membership {
	return &Membership{Options: o, client: c, member: m, first: make(chan struct{})}
}

// Update takes a new generation of the job's members from the scheduler.
func (m *Membership) Update(now jobs.Members) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest.Generation == 0 {
		close(m.first)
	}
	m.newest = now
	// Under mu, so that a generation that arrives while Join runs is neither lost nor adopted before the tables have
	// joined.
	if m.joined != nil {
		m.joined.Adopt(rowraft.Generation(now.Generation))
	}
}

// Join waits for the first generation that every shard knows, and joins it. It returns the job's next step. Trainers
// that do not wait for each other join nothing.
func (m *Membership) Join(ctx context.Context, tables StepTables) (step int64, err error) {
	if m.member == nil || !m.member.InShards() {
		return 0, nil
	}
	if m.Trainers > 1 {
		m.Note("waiting for the job's other trainers")
	}
	patience := time.NewTimer(m.Patience)
	defer patience.Stop()
	select {
	case <-m.first:
	case <-patience.C:
		return 0, rowraft.Errorf(rowraft.CodeDeadline,
			"not all of the job's %d trainers registered within %v; `rowraft job describe %s` lists those that did",
			m.Trainers, m.Patience, m.Job)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	me := m.member
	err = tables.Join(client.JobOptions{
		ID: rowraft.JobID(me.Run()), Generation: rowraft.Generation(m.newest.Generation),
		Rank: rowraft.Rank(me.Rank()), Incarnation: me.Incarnation(), Patience: m.PushPatience,
	})
	m.joined = tables
	return m.newest.FirstStep, err
}

// Leave tells the registry that this trainer has ended: it failed, was interrupted, or is done.
func (m *Membership) Leave(ctx context.Context, interrupted bool, failure error) {
	if m.member == nil || m.member.Left() {
		return
	}
	patience := m.Patience
	switch {
	case failure != nil:
		patience = min(patience, LeavePatience)
	case interrupted: // the others wait for it as long as its lease
		patience = min(patience, max(LeavePatience, m.Lease))
	}
	// The run's context has usually ended, and the job should learn of it before the lease expires.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	why, reason := jobs.LeaveEnded, ""
	switch {
	case failure != nil:
		why, reason = jobs.LeaveFailed, failure.Error()
	case interrupted:
		why = jobs.LeaveStopped
	}
	parts := m.Reached()
	for i := range parts {
		if failure == nil { // what was read ahead is not trained
			parts[i].Read = parts[i].Acknowledged
		}
	}
	err := m.member.Leave(ctx, why, reason, parts)
	// If the call fails the lease expires; nothing else depends on it.
	if err != nil && failure == nil && rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		m.Note("left without telling the scheduler: %v", err)
	}
}

// RepeatedExamples returns, and notes, how many examples of the job's splits were read again after trainers had died;
// false if that is unknown.
func (m *Membership) RepeatedExamples(ctx context.Context) (least, most int64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	least, most, err := jobs.RepeatedExamples(ctx, m.client, m.Job)
	if err != nil {
		m.Note("the number of examples that were read more than once is unknown: %v", err)
		return 0, 0, false
	}
	switch {
	case most == 0:
		m.Note("no example was read twice in an epoch")
	case least == most:
		m.Note("%d examples were read again, after trainers had died", most)
	default:
		m.Note("%d to %d examples were read again, after trainers had died", least, most)
	}
	return least, most, true
}

// SetPolicy makes the cluster create the job's regular checkpoints until the run is done: the rows do not change after
// that. The first trainer calls it for all.
func (m *Membership) SetPolicy(ctx context.Context) error {
	conf := &m.Checkpoint
	if conf.Every == 0 || m.Rank != 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.Patience)
	defer cancel()
	keep := conf.Keep
	if keep == 0 {
		keep = 5
	}
	return jobs.SetPolicy(ctx, m.client, jobs.Policy{
		Name: "job-" + m.Job[:min(len(m.Job), 56)], Destination: conf.To, Every: conf.Every, Keep: keep,
		KeepWithin: conf.KeepWithin, Job: m.Job, SkipAbsent: conf.SkipAbsent, FullEvery: conf.FullEvery, UntilDone: true,
	})
}

// stopPatience is how long a trainer with a stop request waits for its on_stop checkpoint. A second signal ends it
// at once.
const stopPatience = 10 * time.Minute

// Park waits until the cluster no longer needs the state of a trainer that is done, or was interrupted, and for the
// checkpoint at the end or on stop. It returns the path of that checkpoint, "" without one, and whether the trainer was
// interrupted.
func (m *Membership) Park(ctx context.Context, at *jobs.Stream, interrupted bool) (string, bool, error) {
	conf := &m.Checkpoint
	p := jobs.Parking{Ended: !interrupted, Destination: conf.atEnd(), SkipAbsent: conf.SkipAbsent,
		Patience: m.Patience}
	if interrupted {
		patience := LeavePatience
		if p.Destination = ""; conf.OnStop {
			p.Destination, patience = conf.To, stopPatience
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
	}
	if p.Destination != "" {
		m.Note("making a checkpoint in %s", p.Destination)
	} else if m.Trainers > 1 && p.Ended {
		m.Note("done; waiting for the job's other trainers")
	}
	path, err := at.Park(ctx, p)
	switch {
	case path != "":
		m.Note("made checkpoint %s", path)
	case p.Destination != "" && err != nil:
		return "", interrupted, fmt.Errorf("checkpoint in %s: %w", p.Destination, err)
	case err != nil && ctx.Err() != nil && p.Ended:
		interrupted = true
	case err != nil:
		m.Note("left without telling the scheduler: %v", err) // nothing depends on it
	}
	return path, interrupted, nil
}

// LeavePatience is how long a trainer that stops tries to tell the scheduler.
const LeavePatience = 5 * time.Second
