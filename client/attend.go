package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// attendSilence is how long the scheduler may say nothing; it speaks twice a second.
	attendSilence = 3 * time.Second
	silenceTicks  = 6 // in attendSilence
	stateChunk    = 256 << 10
)

// Attendance is a trainer that takes part in checkpoints.
type Attendance struct {
	Job            string
	Rank, Trainers int
	Checkpoint     string            // id of the one that it goes on from; "": none
	Tables         []rowraft.TableID // that it trains
	// Pause stops the training at its next batch boundary, where every push is
	// acknowledged, until Release is called. Called on goroutines of the client, one
	// at a time, also after the training is over: then it gives the last state.
	//
	// Trainers that wait for each other must stand at one boundary. Such a one Announces;
	// it goes no further than the first boundary at which it could stand, gives that to
	// agree, and stands at the one that agree returns. It may fail with ErrNotNow. agree is
	// nil if the scheduler asks nobody.
	Pause     func(ctx context.Context, agree Agree) (*Paused, error)
	Announces bool

	// Destinations are those that Parking may name. The scheduler refuses the call at once
	// (CodeDenied) if this trainer may have no checkpoint written to one of them.
	Destinations []string

	// Member is the trainer's membership of its job; nil if it entered none. While the
	// call lives Beat is called about once a second, and what it returns keeps the
	// member's lease. OnMembers is told of each new generation from the member's first on,
	// OnStop once, when somebody stops the job. All may be nil; none may block.
	Member    *Member
	Beat      func() Beat
	OnMembers func(Members)
	OnStop    func()
}

// tables are the ids as they travel.
func (a *Attendance) tables() (ids []uint64) {
	for _, id := range a.Tables {
		ids = append(ids, uint64(id))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Agree tells the job's other trainers the first boundary at which this one could stand,
// and returns the greatest of any of them.
type Agree func(ctx context.Context, boundary int64) (target int64, err error)

// ErrNotNow says that a trainer cannot stand still now, and goes on; another pause may do.
var ErrNotNow = errors.New("the trainer cannot stand still now")

// Paused is a trainer that stands still.
type Paused struct {
	Step     int64
	Boundary int64                 // at which it stands; 0 if it has not announced any
	Size     int64                 // bytes that Write writes
	Parts    []PartReached         // of the data, that it has
	Write    func(io.Writer) error // the state; called after Release, beside the training
	Release  func()
}

// Parking is what a trainer asks for when it is done.
type Parking struct {
	Ended       bool          // it did all that it was to do; else it was stopped
	Destination string        // of a checkpoint to make before it leaves; "": none
	SkipAbsent  bool          // also if trainers of the job do not answer
	Patience    time.Duration // how long to look for a scheduler that is not there; 0: for ever
}

// Attending is a trainer's place in checkpoints, from Attend to Close.
//
// Goroutines: one keeps the call to the scheduler, through elections, with two that
// listen to it; while it waits for Pause there is one more, and one for each state that is sent. All end in Close, and with the client.
type Attending struct {
	c        *Client
	a        Attendance
	instance [16]byte
	ctx      context.Context
	cancel   context.CancelFunc
	ended    chan struct{} // closed when the call is over for good
	wake     chan struct{} // capacity 1: there is a park to be sent

	mu     sync.Mutex
	epoch  uint64 // of the tables; 0 before the first welcome
	park   *rowraftv1.AttendPark
	leave  *rowraftv1.AttendLeave
	err    error
	closed bool
	lost   time.Time // when the call broke; zero while there is one

	stopped bool // OnStop was called; of the goroutine of the call
}

// Attend makes a trainer take part in checkpoints. It returns when the scheduler has
// logged that it begins, or cannot be reached until ctx ends.
//
// Errors: CodePrecondition if the cluster's tables are not those of the checkpoint
// that it goes on from, or have been trained on since.
func (c *Client) Attend(ctx context.Context, a Attendance) (*Attending, error) {
	t := &Attending{c: c, a: a, ended: make(chan struct{}), wake: make(chan struct{}, 1)}
	if t.instance = a.instance(); a.Member == nil {
		_, _ = rand.Read(t.instance[:]) // never fails (crypto/rand)
	}
	t.ctx, t.cancel = context.WithCancel(c.ctx)
	welcomed := make(chan struct{})
	if err := c.spawn(func() { t.run(sync.OnceFunc(func() { close(welcomed) })) }); err != nil {
		return nil, err
	}
	select {
	case <-welcomed:
		if a.Member != nil {
			a.Member.attended()
		}
		return t, nil
	case <-t.ended:
	case <-ctx.Done():
		t.Close()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err := t.err
	if err == nil {
		err = ctx.Err()
	}
	return nil, fmt.Errorf("trainer %d of job %s: %w", a.Rank, a.Job, err)
}

func (a *Attendance) instance() (id [16]byte) {
	if a.Member != nil {
		id = a.Member.instance
	}
	return id
}

// Close ends the call. The scheduler goes on to expect the trainer unless it has
// parked, and left.
func (t *Attending) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	<-t.ended
}

// Ended is closed when the scheduler has ended the trainer's part for good: it has
// left, or, if Err is not nil, another process has taken its place or the tables
// were replaced by those of a checkpoint.
func (t *Attending) Ended() <-chan struct{} { return t.ended }

// Err tells why it ended, nil if the trainer left or closed it.
func (t *Attending) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leave != nil || t.closed || t.c.ctx.Err() != nil {
		return nil
	}
	return t.err
}

// Park says that the training is over and waits until nobody needs the trainer's
// state any more: its job's other trainers are done too, if it Ended, and the
// checkpoint that it asks for is made. It returns where that lies.
func (t *Attending) Park(ctx context.Context, p Parking) (checkpoint string, err error) {
	t.mu.Lock()
	t.park = &rowraftv1.AttendPark{Ended: p.Ended, Destination: p.Destination, SkipAbsent: p.SkipAbsent}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	if err := t.awaitEnd(ctx, p.Patience); err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.leave == nil && t.err == nil:
		return "", errClosed
	case t.leave == nil:
		return "", t.err
	case t.leave.GetError() != "":
		return "", rowraft.Errorf(rowraft.CodePrecondition, "no checkpoint was made: %s", t.leave.GetError())
	}
	return t.leave.GetCheckpoint(), nil
}

// awaitEnd waits until it is over, or there was no call for patience.
func (t *Attending) awaitEnd(ctx context.Context, patience time.Duration) error {
	tick := time.NewTicker(attendSilence / 3)
	defer tick.Stop()
	for {
		select {
		case <-t.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		t.mu.Lock()
		lost, err := t.lost, t.err
		t.mu.Unlock()
		if patience > 0 && !lost.IsZero() && time.Since(lost) > patience {
			return rowraft.Errorf(rowraft.CodeDeadline, "no scheduler within %v: %w", patience, err)
		}
	}
}

// errLeft ends a call whose trainer was told to leave.
var errLeft = errors.New("left")

// run keeps a call to the leader of the metadata group until it is over for good.
func (t *Attending) run(welcomed func()) {
	defer close(t.ended)
	defer t.cancel()
	for w := t.c.schedulerWalk(); t.ctx.Err() == nil; {
		err := t.call(w.Addr(), func() { welcomed(); w.Answered() })
		t.mu.Lock()
		t.err = err
		if t.lost.IsZero() {
			t.lost = time.Now()
		}
		t.mu.Unlock()
		if err == errLeft || !w.Again(t.ctx, err) {
			return
		}
	}
}

// call is one call, to the server at addr, until it breaks.
func (t *Attending) call(addr string, welcomed func()) error {
	conn, err := t.c.conns.Get(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	stream, err := rowraftv1.NewCheckpointsClient(conn).Attend(ctx)
	if err != nil {
		return rpc.FromStatus(err)
	}
	t.mu.Lock()
	epoch := t.epoch
	t.mu.Unlock()
	hello := &rowraftv1.AttendHello{
		Job: t.a.Job, Rank: uint32(t.a.Rank), Trainers: uint32(t.a.Trainers), Instance: t.instance[:], Checkpoint: t.a.Checkpoint, TableEpoch: epoch,
		Announces: t.a.Announces, Tables: t.a.tables(), Destinations: t.a.Destinations,
	}
	if t.a.Member != nil {
		hello.Member = t.a.Member.identity
	}
	// An error of Send says nothing; that of Recv does.
	_ = stream.Send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Hello{Hello: hello}})
	call := &attendCall{t: t, conn: conn, stream: stream, ctx: ctx, end: cancel, replies: make(chan *rowraftv1.AttendReply), reached: make(chan reached), announced: make(chan announced), welcomed: welcomed}
	broken := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { broken <- call.receive() })
	wg.Go(call.endInSilence)
	return call.serve(broken)
}

// attendCall is one call. Its goroutine owns what is neither a channel nor silence.
type attendCall struct {
	t         *Attending
	conn      grpc.ClientConnInterface
	stream    grpc.BidiStreamingClient[rowraftv1.AttendRequest, rowraftv1.AttendReply]
	ctx       context.Context
	end       context.CancelFunc
	replies   chan *rowraftv1.AttendReply
	announced chan announced
	reached   chan reached
	welcomed  func()

	silence silence

	pausing *pausing // nil: it trains
	parked  bool     // it was said

	uploads sync.WaitGroup
}

// silence is how long nothing was heard, in ticks: while this process stands still there
// are none, and what was said meanwhile has yet to be read.
type silence struct {
	heard atomic.Bool
	quiet int // ticks; of who calls tick
}

// tick reports that nothing was heard for attendSilence.
func (s *silence) tick() bool {
	if s.quiet++; s.heard.Swap(false) {
		s.quiet = 0
	}
	return s.quiet >= silenceTicks
}

// endInSilence ends the call when the scheduler says nothing.
func (c *attendCall) endInSilence() {
	tick := time.NewTicker(attendSilence / silenceTicks)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if c.silence.tick() {
				c.end()
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// receive hands on what the scheduler says.
func (c *attendCall) receive() error {
	for {
		r, err := c.stream.Recv()
		if err != nil {
			if c.ctx.Err() != nil && c.t.ctx.Err() == nil {
				return rowraft.Errorf(rowraft.CodeNoLeader, "the scheduler has said nothing for %v", attendSilence)
			}
			if errors.Is(err, io.EOF) {
				return rowraft.Errorf(rowraft.CodeNoLeader, "the scheduler has ended the call")
			}
			return rpc.FromStatus(err)
		}
		c.silence.heard.Store(true)
		if r.GetBeat() != nil {
			continue
		}
		select {
		case c.replies <- r:
		case <-c.ctx.Done():
		}
	}
}

// serve does what the scheduler says until the call breaks.
func (c *attendCall) serve(broken <-chan error) error {
	var wg sync.WaitGroup // of Pause
	defer wg.Wait()
	defer c.uploads.Wait()
	defer c.end()
	defer c.goOn()
	welcome := false
	beats := time.NewTicker(c.t.a.beatEvery())
	defer beats.Stop()
	for {
		if welcome && !c.parked {
			c.sayPark()
		}
		select {
		case r := <-c.replies:
			switch step := r.GetStep().(type) {
			case *rowraftv1.AttendReply_Welcome:
				welcome = true
				c.t.mu.Lock()
				c.t.epoch, c.t.lost = step.Welcome.GetTableEpoch(), time.Time{}
				c.t.mu.Unlock()
				c.welcomed()
			case *rowraftv1.AttendReply_Pause:
				c.pause(&wg, step.Pause)
			case *rowraftv1.AttendReply_Target:
				c.target(step.Target)
			case *rowraftv1.AttendReply_Release:
				c.release(step.Release)
			case *rowraftv1.AttendReply_Leave:
				c.t.mu.Lock()
				c.t.leave = step.Leave
				c.t.mu.Unlock()
				return errLeft
			case *rowraftv1.AttendReply_Members:
				c.t.a.members(step.Members)
			case *rowraftv1.AttendReply_Stop:
				if c.t.a.OnStop != nil && !c.t.stopped { // a new call is told again
					c.t.stopped = true
					c.t.a.OnStop()
				}
			}
		case <-beats.C:
			if welcome && c.t.a.Member != nil {
				c.beat()
			}
		case a := <-c.announced:
			if a.of == c.pausing {
				c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Announced{Announced: &rowraftv1.AttendAnnounced{
					Id: a.of.id, Boundary: uint64(a.boundary),
				}}})
			}
		case r := <-c.reached:
			c.paused(r)
		case <-c.t.wake:
		case err := <-broken:
			return err
		}
	}
}

func (a *Attendance) beatEvery() time.Duration {
	if a.Member == nil {
		return time.Second
	}
	return a.Member.beatEvery()
}

func (a *Attendance) members(m *rowraftv1.AttendMembers) {
	if a.OnMembers == nil {
		return
	}
	if a.Member != nil && m.GetGeneration() < a.Member.Generation {
		return // the shards do not have its own yet, and refuse it in this one
	}
	out := Members{Generation: m.GetGeneration(), FirstStep: int64(m.GetFirstStep())}
	for _, r := range m.GetRanks() {
		out.Ranks = append(out.Ranks, int(r))
	}
	a.OnMembers(out)
}

func (c *attendCall) beat() {
	b := Beat{}
	if c.t.a.Beat != nil {
		b = c.t.a.Beat()
	}
	c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Beat{Beat: b.toProto()}})
}

func (c *attendCall) send(r *rowraftv1.AttendRequest) { _ = c.stream.Send(r) } // Recv tells of errors

func (c *attendCall) sayPark() {
	c.t.mu.Lock()
	park := c.t.park
	c.t.mu.Unlock()
	if park != nil {
		c.parked = true
		c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Park{Park: park}})
	}
}
