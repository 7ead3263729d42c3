package average

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// Members are the trainers that average in a generation.
type Members struct {
	Generation uint64   // from 1
	Ranks      []int    // ascending, at least one
	Addresses  []string // of Ranks
}

// Registry is the authority on members. It is safe for concurrent use.
type Registry interface {
	// Next returns the newest generation, after waiting until it is newer than than.
	Next(ctx context.Context, than uint64) (Members, error)
}

// Feed is a Registry that its owner updates. It is safe for concurrent use.
type Feed struct {
	mu      sync.Mutex
	members Members
	changed chan struct{} // closed, and replaced, by Begin
}

// NewFeed returns a Feed without a generation.
func NewFeed() *Feed { return &Feed{changed: make(chan struct{})} }

// Begin announces a generation. It ignores one that is not newer, or that has no ranks.
func (f *Feed) Begin(next Members) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(next.Ranks) == 0 || next.Generation <= f.members.Generation {
		return
	}
	f.members = next
	close(f.changed)
	f.changed = make(chan struct{})
}

// Next implements [Registry].
func (f *Feed) Next(ctx context.Context, than uint64) (Members, error) {
	for {
		f.mu.Lock()
		m, changed := f.members, f.changed
		f.mu.Unlock()
		if m.Generation > than {
			return m, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m, ctx.Err()
		}
	}
}

// Keeper stores the numbers that a member which is behind must load, for example weights and optimizer state. Only
// Average calls it.
type Keeper interface {
	Save() []float32
	Load(values []float32) error
}

// Options of a Group. All but Dial are required.
type Options struct {
	Job      [16]byte // the hub refuses trainers of another job
	Rank     int
	Listener net.Listener // this trainer's address, below TLS or above; the Group closes it
	Registry Registry
	Keeper   Keeper
	Limit    int // limit of the numbers in a share, and in what Keeper saves
	// Dial opens a connection to an address, with TLS if needed; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Group is one trainer's membership in the averaging.
type Group struct {
	opts   Options
	ctx    context.Context // ends in Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	round  uint64 // the next round of Average
	link   *link  // nil: none; owned by Average

	mu      sync.Mutex
	members Members
	failure error         // of the registry
	changed chan struct{} // closed when members or failure change
	hub     *hub          // nil unless this trainer has the lowest rank
}

// link is a member's connection to its hub. It ends with its generation.
type link struct {
	conn       net.Conn
	generation uint64
	convey     frameCodec
	values     []float32 // scratch
	stop       func()
}

func (l *link) close() {
	l.stop()
	l.conn.Close()
}

// Result is the result of a round.
type Result struct {
	Round        uint64 // the next round
	Contributors int    // number of trainers in the mean
	// Behind means that there is no mean: this trainer was behind and has loaded the numbers of another one, as
	// they are before Round.
	Behind bool
}

// retryAfter is the pause between two attempts to reach a hub.
const retryAfter = 50 * time.Millisecond

// Open makes this trainer a member. It returns at once; the first Average waits.
func Open(opts Options) (*Group, error) {
	if opts.Listener == nil || opts.Registry == nil || opts.Keeper == nil || opts.Limit < 4 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"averaging needs a listener, a registry, a keeper and a limit of 4 or more")
	}
	if opts.Dial == nil {
		d := &net.Dialer{}
		opts.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		}
	}
	g := &Group{opts: opts, changed: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.wg.Go(g.watch)
	g.wg.Go(g.accept)
	return g, nil
}

// watch follows the registry until Close.
func (g *Group) watch() {
	var m Members
	for {
		next, err := g.opts.Registry.Next(g.ctx, m.Generation)
		if g.ctx.Err() != nil {
			return
		}
		if err == nil && (len(next.Ranks) == 0 || len(next.Ranks) != len(next.Addresses) ||
			!slices.IsSorted(next.Ranks) || next.Generation <= m.Generation) {
			err = rowraft.Errorf(rowraft.CodeInternal, "the registry says that generation %d has members %v at %v",
				next.Generation, next.Ranks, next.Addresses)
		}
		g.mu.Lock()
		if m = next; err == nil {
			g.members = m
			if g.hub != nil {
				g.hub.end()
			}
			// The lowest rank is the hub, so no election is needed: the registry is the only authority, and all members see the
			// same list.
			if g.hub = nil; m.Ranks[0] == g.opts.Rank {
				h := newHub(g.ctx, g.opts, m)
				g.hub = h
				g.wg.Go(h.run)
			}
		}
		g.failure = err
		close(g.changed)
		g.changed = make(chan struct{})
		g.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// accept passes connections to the hub, if this trainer is one.
func (g *Group) accept() {
	var greeting sync.WaitGroup
	defer greeting.Wait()
	for {
		conn, err := g.opts.Listener.Accept()
		if err != nil {
			if g.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // for example out of files
			case <-time.After(retryAfter):
			case <-g.ctx.Done():
			}
			continue
		}
		greeting.Go(func() { g.readHello(conn) })
	}
}

// helloWithin is how long a connection may take to send its hello.
const helloWithin = 10 * time.Second

// readHello reads the hello of conn and gives conn to the hub, or closes it.
func (g *Group) readHello(conn net.Conn) {
	stop := context.AfterFunc(g.ctx, func() { conn.Close() })
	defer stop()
	var c frameCodec
	_ = conn.SetDeadline(time.Now().Add(helloWithin))
	f, err := c.read(conn, 4, nil)
	if err != nil || f.kind != hello || len(f.values) != 4 {
		conn.Close()
		return
	}
	if !slices.Equal(jobValues(g.opts.Job), bitsOf(f.values)) {
		_ = c.write(conn, &frame{kind: refused, who: uint32(rowraft.CodeInvalidArgument)})
		conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	g.mu.Lock()
	h := g.hub
	g.mu.Unlock()
	// A hub of another generation may come soon, or this trainer is not the hub: the member tries again.
	if h == nil || f.generation != h.members.Generation || !h.accept(conn, f) {
		conn.Close()
	}
}

// Average replaces values by their mean over the members. It waits for all members, through deaths and new
// generations, until ctx ends.
//
// If the result is Behind, values were not used: the Keeper has loaded others, and the caller continues with the
// round in the result.
//
// Errors: CodeInvalidArgument if the trainers have different jobs or sizes; CodePrecondition if this trainer is no
// longer a member; those of the Keeper and the registry; that of ctx. After an error the Group can only be closed.
func (g *Group) Average(ctx context.Context, values []float32) (Result, error) {
	if len(values) > g.opts.Limit {
		return Result{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d numbers to average: at most %d", len(values),
			g.opts.Limit)
	}
	for {
		if g.link == nil {
			behind, err := g.join(ctx)
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			if err != nil || behind {
				return Result{Round: g.round, Behind: behind}, err
			}
		}
		contributors, err := g.exchange(ctx, values)
		if err == nil {
			g.round++
			return Result{Round: g.round, Contributors: contributors}, nil
		}
		g.link.close()
		g.link = nil
		if ctx.Err() != nil {
			return Result{}, ctx.Err()
		}
		if final(ctx, err) {
			return Result{}, err
		}
	}
}

// final reports whether another attempt is useless.
func final(ctx context.Context, err error) bool {
	code := rowraft.CodeOf(err)
	return ctx.Err() != nil || code == rowraft.CodeInvalidArgument || code == rowraft.CodeVersionTooNew ||
		code == rowraft.CodePrecondition
}

// exchange sends this trainer's share and reads the result into values.
func (g *Group) exchange(ctx context.Context, values []float32) (contributors int, err error) {
	l := g.link
	// A deadline in the past ends reads and writes that are under way.
	stop := context.AfterFunc(ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := l.convey.write(l.conn, &frame{kind: part, generation: l.generation, round: g.round,
		who: uint32(g.opts.Rank), values: values}); err != nil {
		// A hub that refuses stops reading; its refusal can still be read.
		if f, rerr := l.convey.read(l.conn, 0, nil); rerr == nil && f.kind == refused {
			return 0, refusal(f)
		}
		return 0, err
	}
	got, err := g.receive(l, result)
	if err != nil {
		return 0, err
	}
	if got.round != g.round || len(got.values) != len(values) {
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "a result of round %d with %d numbers, want round %d with %d",
			got.round, len(got.values), g.round, len(values))
	}
	copy(values, got.values)
	return int(got.who), nil
}

// receive reads a frame that must have one of these kinds.
func (g *Group) receive(l *link, kinds ...kind) (*frame, error) {
	f, err := l.convey.read(l.conn, g.opts.Limit, l.values)
	if err != nil {
		return nil, err
	}
	l.values = f.values
	if f.kind == refused {
		return nil, refusal(f)
	}
	if !slices.Contains(kinds, f.kind) || f.generation != l.generation {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt,
			"a frame of kind %d, generation %d: want kinds %d, generation %d", f.kind, f.generation, kinds, l.generation)
	}
	return f, nil
}

func refusal(f *frame) error {
	return rowraft.Errorf(rowraft.Code(f.who), "the trainers average different jobs or sizes")
}

// join connects to the hub of the newest generation until the hub begins a round. It reports whether this trainer
// was behind.
func (g *Group) join(ctx context.Context) (behind bool, err error) {
	for {
		m, changed, err := g.newest(ctx)
		if err != nil {
			return false, err
		}
		if !slices.Contains(m.Ranks, g.opts.Rank) {
			if err := g.await(ctx, m, changed); err != nil {
				return false, err
			}
			continue
		}
		behind, err := g.enter(ctx, m, changed)
		if err == nil || final(ctx, err) {
			return behind, err
		}
		select {
		case <-changed:
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// await waits for a generation newer than m, which lacks this trainer: the registry may already know a newer one
// that has just admitted it.
func (g *Group) await(ctx context.Context, m Members, changed chan struct{}) error {
	now, err := g.opts.Registry.Next(ctx, 0)
	if err == nil && now.Generation <= m.Generation {
		err = rowraft.Errorf(rowraft.CodePrecondition, "rank %d is not a member of generation %d, which has ranks %v",
			g.opts.Rank, m.Generation, m.Ranks)
	}
	if err != nil {
		return err
	}
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newest waits until there is a generation, and returns it.
func (g *Group) newest(ctx context.Context) (Members, chan struct{}, error) {
	for {
		g.mu.Lock()
		m, changed, err := g.members, g.changed, g.failure
		g.mu.Unlock()
		if err != nil || m.Generation > 0 {
			return m, changed, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return m, nil, ctx.Err()
		}
	}
}

// enter makes one attempt to join.
func (g *Group) enter(ctx context.Context, m Members, changed chan struct{}) (behind bool, err error) {
	conn, err := g.opts.Dial(ctx, m.Addresses[0])
	if err != nil {
		return false, err
	}
	// The connection ends with its generation, and all reads on it.
	over, cancel := context.WithCancel(g.ctx)
	g.wg.Go(func() {
		select {
		case <-changed:
		case <-over.Done():
		}
		cancel()
		conn.Close()
	})
	l := &link{conn: conn, generation: m.Generation, stop: cancel}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if behind, err = g.greetHub(l); err != nil {
		l.close()
		return false, err
	}
	g.link = l
	return behind, nil
}

// greetHub sends the hello and answers the hub until a round begins.
func (g *Group) greetHub(l *link) (behind bool, err error) {
	h := &frame{kind: hello, generation: l.generation, round: g.round, who: uint32(g.opts.Rank),
		values: jobFloats(g.opts.Job)}
	if err := l.convey.write(l.conn, h); err != nil {
		return false, err
	}
	for {
		f, err := g.receive(l, begin, wanted, state)
		if err != nil {
			return false, err
		}
		switch {
		case f.kind == wanted:
			saved := g.opts.Keeper.Save()
			if len(saved) > g.opts.Limit {
				return false, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d numbers to hand over: at most %d",
					len(saved), g.opts.Limit)
			}
			if err := l.convey.write(l.conn, &frame{kind: state, generation: l.generation, round: g.round,
				who: uint32(g.opts.Rank), values: saved}); err != nil {
				return false, err
			}
		case f.kind == state:
			if err := g.opts.Keeper.Load(f.values); err != nil {
				return false, rowraft.Errorf(rowraft.CodeInvalidArgument, "load the numbers of another trainer: %w",
					err)
			}
			// Only after Load has succeeded: a trainer that is behind must not take part in a round with its own numbers.
			g.round = f.round
			return true, nil
		case f.round == g.round:
			return false, nil
		default:
			return false, rowraft.Errorf(rowraft.CodeCorrupt, "the hub begins round %d, want %d", f.round, g.round)
		}
	}
}

// Close sends a farewell, so that the others continue without this trainer, and ends the Group. If others still
// need it as their hub it first serves them until all have sent a farewell, or another trainer is their hub, or ctx
// ends.
func (g *Group) Close(ctx context.Context) error {
	defer func() {
		g.cancel()
		g.opts.Listener.Close()
		g.wg.Wait()
	}()
	if g.link == nil && g.round == 0 { // no hub knows this trainer
		return nil
	}
	for !g.leave() {
		if g.link != nil {
			g.link.close()
			g.link = nil
		}
		if _, err := g.join(ctx); rowraft.CodeOf(err) == rowraft.CodePrecondition {
			return nil // no longer a member
		} else if err != nil {
			return fmt.Errorf("farewell: %w", err)
		}
	}
	defer g.link.close()
	for {
		g.mu.Lock()
		h, changed := g.hub, g.changed
		g.mu.Unlock()
		if h == nil {
			return nil
		}
		select {
		case <-h.drained:
			return nil
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("trainers still average here: %w", ctx.Err())
		}
	}
}

// leave sends a farewell and reports whether the hub has received it.
func (g *Group) leave() bool {
	l := g.link
	if l == nil || l.convey.write(l.conn, &frame{kind: farewell, generation: l.generation, round: g.round,
		who: uint32(g.opts.Rank)}) != nil {
		return false
	}
	_, err := g.receive(l, farewell)
	return err == nil
}
