package jobs

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/checkpoints"
	"github.com/rowraft/rowraft/scheduler/meta"
)

const (
	attendBeat = 500 * time.Millisecond
	// maxDestinations bounds the destinations in a trainer's first message. The scheduler checks each one against a
	// disk.
	maxDestinations = 8
)

// Trainers are the connected trainers of all jobs. They implement checkpoints.Trainers.
//
// Goroutines: a call of Attend has three: listen receives, beat sends heartbeats, and serve sends members and stop
// requests. All end with the call.
type Trainers struct {
	env
	*registry
	leases      *leases
	generations *generations
	checkpoints *checkpoints.Service // immutable after Serve
	patience    patience             // the constants, except in tests
}

func newTrainers(e env, l *leases, g *generations) *Trainers {
	return &Trainers{
		env: e, registry: newRegistry(), leases: l, generations: g,
		patience: patience{absent: absentPatience, pause: pausePatience, ignored: ignoredPatience, quick: quickPatience,
			announce: announcePatience, release: releasePatience, state: statePatience},
	}
}

// Serve sets the service that makes the checkpoints of trainers that leave. Call it before the first trainer connects.
func (c *Trainers) Serve(s *checkpoints.Service) { c.checkpoints = s }

// Connected returns the connected trainers.
func (c *Trainers) Connected() (out []*rowraftv1.TrainerId) {
	for _, a := range c.list() {
		out = append(out, &rowraftv1.TrainerId{Job: a.id.Job, Rank: a.id.Rank})
	}
	return out
}

// Trains reports whether a trainer of the job is connected and does not wait for others to begin.
func (c *Trainers) Trains(job string) bool {
	return !c.jobWaits(job) && len(c.Callers(job)) > 0
}

// Callers returns the certificates of the connected trainers of a job; nil stands for a caller without TLS.
func (c *Trainers) Callers(job string) (callers []*rpc.Caller) {
	for _, a := range c.list() {
		if a.id.Job == job {
			callers = append(callers, a.caller)
		}
	}
	return callers
}

// Attend serves one trainer. It returns when the trainer leaves, its call breaks, or this server loses the leadership
// of the scheduler's group.
func (c *Trainers) Attend(stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]) error {
	term, err := c.lead.Leading()
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	id := meta.TrainerID{Job: hello.GetMember().GetJob(), Rank: hello.GetMember().GetRank()}
	if id.Job == "" {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"the first message of Attend must name the member of a job: enter a job first")
	}
	if err := c.CheckOwner(stream.Context(), id.Job); err != nil {
		return err
	}
	if n := len(hello.GetDestinations()); n > maxDestinations {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s names %d checkpoint destinations, at most %d", id, n,
			maxDestinations)
	}
	for _, d := range hello.GetDestinations() { // check now, not at the end of the training
		if err := c.checkpoints.CheckDestination(stream.Context(), rpc.CallerOf(stream.Context()), d); err != nil {
			return err
		}
	}
	a := &trainer{
		id: id, member: hello.GetMember(), announces: hello.GetAnnounces(), caller: rpc.CallerOf(stream.Context()),
		gone: make(chan struct{}), replaced: make(chan struct{}),
	}
	if err := c.welcomeMember(stream.Context(), a); err != nil {
		return err
	}
	a.send.stream, a.send.mutex = stream, semaphore.NewWeighted(1)
	// The state machine may refuse the trainer, because its tables were replaced. A checkpoint must not pause a trainer
	// that may not train, so the trainer is listed after this.
	if err := c.logAttend(stream.Context(), hello); err != nil {
		return err
	}
	c.add(a)
	defer c.remove(a)
	if err := a.tell(c.welcome()); err != nil {
		return err
	}
	// The goroutine ends just after this function returns: gRPC then ends the call, and with it Recv.
	broken := make(chan error, 1)
	go func() { broken <- c.listen(a) }()
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	var wg sync.WaitGroup
	// beat uses the stream, which gRPC invalidates when Attend returns.
	defer wg.Wait()
	wg.Go(func() { c.beat(ctx, cancel, a, term) })
	err = c.serve(ctx, a, broken)
	cancel(nil)
	return err
}

// beat sends the trainer a heartbeat until ctx ends. It cancels ctx when this server no longer leads in that term.
func (c *Trainers) beat(ctx context.Context, lost context.CancelCauseFunc, a *trainer, term rowraft.Term) {
	tick := time.NewTicker(attendBeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now, err := c.lead.Leading()
		if err == nil && now != term {
			err = rowraft.Errorf(rowraft.CodeNoLeader, "the scheduler's leader changed")
		}
		if err == nil {
			err = a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Beat{Beat: &rowraftv1.AttendBeat{}}})
		}
		if err != nil {
			lost(err)
			return
		}
	}
}

func (c *Trainers) welcome() *rowraftv1.AttendReply {
	_, epoch := c.machine.Sources()
	return &rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Welcome{
		Welcome: &rowraftv1.AttendWelcome{TableEpoch: uint64(epoch)}}}
}

// logAttend logs that checkpoints need the state of a trainer, unless that is logged already.
func (c *Trainers) logAttend(ctx context.Context, h *rowraftv1.AttendHello) error {
	id := h.GetMember()
	if _, epoch := c.machine.Sources(); c.machine.Attends(id) &&
		(h.GetTableEpoch() == 0 || h.GetTableEpoch() == uint64(epoch)) {
		return nil // the trainer reconnects
	}
	err := c.lead.Propose(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{
		Identity: id, Checkpoint: h.GetCheckpoint(), TableEpoch: h.GetTableEpoch(), Tables: h.GetTables(),
	}}})
	if err == nil {
		c.logger.Info("a trainer begins", "job", id.GetJob(), "rank", id.GetRank(), "checkpoint", h.GetCheckpoint())
	}
	return err
}

// logDetach logs that checkpoints no longer need the state of a member.
func (c *Trainers) logDetach(ctx context.Context, id *rowraftv1.JobIdentity) error {
	return c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Detach{Detach: &rowraftv1.MetaDetach{Identity: id}}})
}

// listen receives the trainer's messages until the call ends. It must not wait: each message renews the trainer's
// lease.
func (c *Trainers) listen(a *trainer) error {
	for {
		req, err := a.send.stream.Recv()
		if err != nil {
			return err
		}
		c.leases.heard(a.member.GetIncarnation(), req.GetBeat())
		if park := req.GetPark(); park != nil {
			c.mu.Lock()
			if a.park == nil {
				a.park, a.parkedAt = park, time.Now()
				c.changeLocked()
			}
			c.mu.Unlock()
			continue
		}
		if req.GetBeat() != nil {
			continue
		}
		if p := a.pause.Load(); p != nil {
			p.take(req)
		}
	}
}

// serve sends the trainer new members and stop requests, and lets a parked trainer leave when mayLeave permits it.
func (c *Trainers) serve(ctx context.Context, a *trainer, broken <-chan error) error {
	tick := time.NewTicker(attendBeat)
	defer tick.Stop()
	for {
		changed := c.watch()
		if err := c.tellMember(ctx, a); err != nil {
			return err
		}
		if leave := c.mayLeave(ctx, a); leave != nil {
			if err := c.logDetach(ctx, a.member); err != nil {
				return err
			}
			c.remove(a) // before the message: a checkpoint must not ask a process that exits
			return a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Leave{Leave: leave}})
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-a.replaced:
			return rowraft.Errorf(rowraft.CodeAlreadyExists, "another call of %s has begun", a.id)
		case err := <-broken:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// welcomeMember refuses a trainer that is not a member of the run it names, and renews its lease.
func (c *Trainers) welcomeMember(ctx context.Context, a *trainer) error {
	if err := c.lead.InSync(ctx); err != nil { // the trainer may have entered under an earlier leader
		return err
	}
	if err := c.machine.CheckMember(a.member); err != nil {
		return err
	}
	a.trainers = c.machine.RunOf(a.id.Job).GetWorkers()
	c.leases.heard(a.member.GetIncarnation(), nil)
	return nil
}

// tellMember sends the trainer a new generation of its job, or a stop request. It returns an error if the trainer is no
// longer a member.
func (c *Trainers) tellMember(ctx context.Context, a *trainer) error {
	if err := c.machine.CheckMember(a.member); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if a.park != nil {
			return nil // the trainer has left its job and stays connected for the checkpoints of others
		}
		return err
	}
	r := c.machine.RunOf(a.member.GetJob())
	if g := c.generations.of(a.member.GetRun()); g.number > a.told && g.has(r, a.member.GetRank()) {
		a.told = g.number
		err := a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Members{Members: &rowraftv1.AttendMembers{
			Generation: g.number, Ranks: g.ranks, FirstStep: g.firstStep,
		}}})
		if err != nil {
			return err
		}
	}
	if r.GetStopping() && !a.toldToStop.Load() && c.canStop(ctx, a, r) {
		return a.stop(r.GetReason())
	}
	return nil
}
