package jobs

import (
	"context"
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
	// maxSilence is how long the scheduler may send nothing before the client ends the call. The
	// scheduler sends a beat twice a second.
	maxSilence   = 3 * time.Second
	silenceTicks = 6 // ticks in maxSilence
	stateChunk   = 256 << 10
)

// Registration describes a trainer that takes part in checkpoints.
type Registration struct {
	Checkpoint string            // id of the checkpoint that it resumes from; "": none
	Tables     []rowraft.TableID // tables that it trains
	// Pause stops the training at the next batch boundary, after every push is acknowledged, until Release
	// is called. Goroutines of the client call it, one at a time, also after the training has ended; then
	// Pause returns the last state.
	//
	// Trainers that wait for each other must pause at the same boundary: such a trainer sets Announces. It
	// stops at the first boundary at which it could pause, passes it to agree, and pauses at the boundary
	// that agree returns. Pause may fail with ErrNotNow. agree is nil if the scheduler needs no agreement.
	Pause     func(ctx context.Context, agree Agree) (*Paused, error)
	Announces bool

	// Destinations are those that Parking may name. The scheduler refuses the call at once (CodeDenied) if
	// this trainer may not write checkpoints to one of them.
	Destinations []string

	// While the call is open, the client calls Beat about once a second and sends the result, which renews
	// the member's lease. It calls OnMembers for each new generation, from the member's own on, and OnStop
	// once, when the job is stopped; its reason is "" if an operator stops it. All may be nil; none may block.
	Beat      func() Beat
	OnMembers func(Members)
	OnStop    func(reason string)
}

// tables returns the ids in the form of the message: ascending, each one once.
func (a *Registration) tables() (ids []uint64) {
	for _, id := range a.Tables {
		ids = append(ids, uint64(id))
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Agree reports to the job's other trainers the first boundary at which this one could pause. It returns
// the greatest boundary of all trainers.
type Agree func(ctx context.Context, boundary int64) (target int64, err error)

// ErrNotNow means that a trainer cannot pause now and continues to train. A later pause may succeed.
var ErrNotNow = errors.New("the trainer cannot pause now")

// Paused is a trainer that has paused.
type Paused struct {
	Step     int64
	Boundary int64                 // at which it paused; 0 if it did not announce one
	Size     int64                 // bytes that Write writes
	Splits   []SplitReached        // the splits of the data that it holds
	Write    func(io.Writer) error // writes the state; called after Release, concurrently with the training
	Release  func()
}

// Parking is what a trainer requests when its training ends.
type Parking struct {
	Ended       bool          // it finished its work; false: it was stopped
	Destination string        // of a checkpoint to make before it leaves; "": none
	SkipAbsent  bool          // make the checkpoint even if some trainers of the job do not answer
	Patience    time.Duration // how long to try when no scheduler answers; 0: forever
}

// Stream is a trainer's stream to the scheduler, from Register to Close.
//
// Goroutines: one keeps the call to the scheduler open, through elections, with two that listen to it.
// There is one more while the client waits for Pause, and one for each state that the client sends. All end
// in Close, and when the client closes.
type Stream struct {
	member  *Member
	control control
	a       Registration
	ctx     context.Context
	cancel  context.CancelFunc
	ended   chan struct{} // closed when the call has ended for good
	wake    chan struct{} // signals that park is set; capacity 1

	mu     sync.Mutex
	epoch  uint64 // of the tables; 0 before the first welcome
	park   *rowraftv1.AttendPark
	leave  *rowraftv1.AttendLeave
	err    error
	closed bool
	lost   time.Time // when the call broke; zero while a call is open

	stopped bool // OnStop was called; only the goroutine of the call uses it
}

// Register makes a member of a job take part in checkpoints. It returns when the scheduler has logged that, or
// when ctx ends before a scheduler answers. A trainer without other trainers enters a job of one worker first
// ([Enter]).
//
// Errors: CodePrecondition if the cluster's tables are not those of the checkpoint that the trainer resumes
// from, or were trained since; CodeSessionExpired if it is no longer a member of its job.
func (m *Member) Register(ctx context.Context, a Registration) (*Stream, error) {
	t := &Stream{member: m, control: m.control, a: a, ended: make(chan struct{}), wake: make(chan struct{}, 1)}
	t.ctx, t.cancel = context.WithCancel(m.control.Context())
	welcomed := make(chan struct{})
	if err := m.control.Go(func() { t.run(sync.OnceFunc(func() { close(welcomed) })) }); err != nil {
		return nil, err
	}
	select {
	case <-welcomed:
		m.stopKeeping()
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
	return nil, fmt.Errorf("trainer %d of job %s: %w", m.Rank(), m.Job(), err)
}

// Close ends the call. The scheduler still expects the trainer, unless it has parked and left.
func (t *Stream) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	<-t.ended
}

// Ended is closed when the scheduler has ended the trainer's stream for good. Either the trainer has left or,
// if Err is not nil, another process has taken its place or a restore has replaced the tables.
func (t *Stream) Ended() <-chan struct{} { return t.ended }

// Err returns why the trainer's stream ended; nil if the trainer left or closed it.
func (t *Stream) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leave != nil || t.closed || t.control.Context().Err() != nil {
		return nil
	}
	return t.err
}

// Park reports that the training has ended. It waits until the trainer's state is not needed any more: the
// job's other trainers have ended too, if p.Ended is set, and the requested checkpoint exists. It returns
// the place of that checkpoint.
func (t *Stream) Park(ctx context.Context, p Parking) (checkpoint string, err error) {
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
		return "", rowraft.Errorf(rowraft.CodeClosing, "the client is closed")
	case t.leave == nil:
		return "", t.err
	case t.leave.GetError() != "":
		return "", rowraft.Errorf(rowraft.CodePrecondition, "no checkpoint was made: %s", t.leave.GetError())
	}
	return t.leave.GetCheckpoint(), nil
}

// awaitEnd waits until the stream has ended for good. It returns an error if no call was open for patience.
func (t *Stream) awaitEnd(ctx context.Context, patience time.Duration) error {
	tick := time.NewTicker(maxSilence / 3)
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

// errLeft ends a call after the scheduler asked the trainer to leave.
var errLeft = errors.New("left")

// run keeps a call to the scheduler's leader open until the trainer has left or lost its place.
func (t *Stream) run(welcomed func()) {
	defer close(t.ended)
	defer t.cancel()
	for w := t.control.Walk(); t.ctx.Err() == nil; {
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

// call is one call to the server at addr, until it breaks.
func (t *Stream) call(addr string, welcomed func()) error {
	conn, err := t.control.Conn(addr)
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
		Member: t.member.identity, Checkpoint: t.a.Checkpoint, TableEpoch: epoch,
		Announces: t.a.Announces, Tables: t.a.tables(), Destinations: t.a.Destinations,
	}
	// Send returns no cause; Recv does.
	_ = stream.Send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Hello{Hello: hello}})
	call := &streamCall{t: t, conn: conn, stream: stream, ctx: ctx, end: cancel,
		replies: make(chan *rowraftv1.AttendReply), reached: make(chan reached), announced: make(chan announced),
		welcomed: welcomed}
	broken := make(chan error, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { broken <- call.receive() })
	wg.Go(call.endInSilence)
	return call.serve(broken)
}

// streamCall is one call. The goroutine of serve owns every field except the channels and silence.
type streamCall struct {
	t         *Stream
	conn      grpc.ClientConnInterface
	stream    grpc.BidiStreamingClient[rowraftv1.AttendRequest, rowraftv1.AttendReply]
	ctx       context.Context
	end       context.CancelFunc
	replies   chan *rowraftv1.AttendReply
	announced chan announced
	reached   chan reached
	welcomed  func()

	silence silence

	pausing *pausing // nil while it trains
	parked  bool     // the park message was sent

	uploads sync.WaitGroup
}

// silence measures in ticks how long the scheduler has sent nothing. It does not use the clock, because a
// process that was suspended has messages to read that arrived meanwhile; it gets no ticks while it is
// suspended.
type silence struct {
	heard atomic.Bool
	quiet int // ticks; only the caller of tick uses it
}

// tick reports whether the scheduler has sent nothing for maxSilence.
func (s *silence) tick() bool {
	if s.quiet++; s.heard.Swap(false) {
		s.quiet = 0
	}
	return s.quiet >= silenceTicks
}

// endInSilence ends the call when the scheduler is silent.
func (c *streamCall) endInSilence() {
	tick := time.NewTicker(maxSilence / silenceTicks)
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

// receive passes the scheduler's messages to serve.
func (c *streamCall) receive() error {
	for {
		r, err := c.stream.Recv()
		if err != nil {
			if c.ctx.Err() != nil && c.t.ctx.Err() == nil {
				return rowraft.Errorf(rowraft.CodeNoLeader, "the scheduler has said nothing for %v", maxSilence)
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

// serve handles the scheduler's messages until the call breaks.
func (c *streamCall) serve(broken <-chan error) error {
	var wg sync.WaitGroup // counts the goroutines that wait for Pause
	defer wg.Wait()
	defer c.uploads.Wait()
	defer c.end()
	defer c.endPause()
	welcome := false
	beats := time.NewTicker(c.t.member.beatEvery())
	defer beats.Stop()
	for {
		if welcome && !c.parked {
			c.sendPark()
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
				c.t.members(step.Members)
			case *rowraftv1.AttendReply_Stop:
				if c.t.a.OnStop != nil && !c.t.stopped { // each new call repeats the message
					c.t.stopped = true
					c.t.a.OnStop(step.Stop.GetReason())
				}
			}
		case <-beats.C:
			if welcome {
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

func (t *Stream) members(m *rowraftv1.AttendMembers) {
	if t.a.OnMembers == nil {
		return
	}
	if m.GetGeneration() < t.member.Generation {
		return // the shards do not have the member's own generation yet, and refuse it in this one
	}
	out := Members{Generation: m.GetGeneration(), FirstStep: int64(m.GetFirstStep())}
	for _, r := range m.GetRanks() {
		out.Ranks = append(out.Ranks, int(r))
	}
	t.a.OnMembers(out)
}

func (c *streamCall) beat() {
	b := Beat{}
	if c.t.a.Beat != nil {
		b = c.t.a.Beat()
	}
	c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Beat{Beat: b.toProto()}})
}

func (c *streamCall) send(r *rowraftv1.AttendRequest) { _ = c.stream.Send(r) } // Recv returns the error

func (c *streamCall) sendPark() {
	c.t.mu.Lock()
	park := c.t.park
	c.t.mu.Unlock()
	if park != nil {
		c.parked = true
		c.send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Park{Park: park}})
	}
}
