package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

const (
	overloadKeys   = 64
	overloadDim    = 16
	overloadPace   = 100 * time.Millisecond // between two pushes of a modest client
	overloadWindow = 900                    // the most unanswered numbers of a session
	overloadTry    = 5 * time.Second
)

// overloadLoad has the clients that push. All pushes are equal, and a row counts them.
type overloadLoad struct {
	cluster *localcluster.Cluster
	reader  *client.Client
	table   *client.Table
	keys    []rowraft.Key
	payload []byte
	greeds  []*greedyClient
	modests []*modestClient
}

func newOverloadLoad(ctx context.Context, cluster *localcluster.Cluster) (l *overloadLoad, err error) {
	setup, cancel := context.WithTimeout(ctx, overloadPatience)
	defer cancel()
	l = &overloadLoad{cluster: cluster}
	if l.reader, err = client.Dial(setup, client.Options{Endpoints: cluster.Endpoints()}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	l.table, err = l.reader.CreateTable(setup, rowraft.Schema{
		Name: "bench.overload", Kind: rowraft.Sparse, Dim: overloadDim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		return nil, err
	}
	for k := range rowraft.Key(overloadKeys) {
		l.keys = append(l.keys, k+1)
	}
	seg := wire.Segment{Table: l.table.Schema().ID, N: overloadKeys, Dim: overloadDim, DType: rowraft.Float32}
	l.payload = make([]byte, seg.Size())
	body := seg.Put(l.payload)
	for i, k := range l.keys {
		binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(k))
	}
	ones := make([]float32, overloadKeys*overloadDim)
	for i := range ones {
		ones[i] = -1
	}
	wire.PutFloats(body.Values, rowraft.Float32, ones)
	for range overloadModest {
		m := &modestClient{l: l, grads: ones}
		if m.client, err = client.Dial(setup, client.Options{Endpoints: cluster.Endpoints()}); err != nil {
			return nil, err
		}
		l.modests = append(l.modests, m)
		if m.table, err = m.client.Table(setup, "bench.overload"); err != nil {
			return nil, err
		}
	}
	for range overloadGreedy {
		g := &greedyClient{l: l, next: 1, low: 1, open: make(map[uint64]bool)}
		l.greeds = append(l.greeds, g)
		if err = g.begin(setup); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *overloadLoad) close() error {
	errs := []error{l.reader.Close()}
	for _, m := range l.modests {
		if m.end != nil {
			m.end()
			<-m.done
		}
		errs = append(errs, m.client.Close())
	}
	for _, g := range l.greeds {
		for _, c := range g.conns {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// greedyClient pushes without waiting for answers and heeds no hint. It uses the calls
// themselves: package client would hold it back.
type greedyClient struct {
	l     *overloadLoad
	conns []*grpc.ClientConn // to each server
	at    atomic.Int64       // index in conns of the last known leader
	id    rowraft.ClientID
	inc   uint64

	acked atomic.Int64

	mu   sync.Mutex
	next uint64
	low  uint64          // all below have an answer
	open map[uint64]bool // numbers without one
}

// begin connects to the servers and opens a session.
func (g *greedyClient) begin(ctx context.Context) (err error) {
	_, _ = rand.Read(g.id[:])
	for _, s := range g.l.cluster.Servers() {
		conn, err := rpc.Dial(s.Addr, nil, nil)
		if err != nil {
			return err
		}
		g.conns = append(g.conns, conn)
	}
	for {
		if err = g.openAt(ctx); err == nil {
			return nil
		}
		g.at.Add(1)
		if perr := scaffold.PauseFor(ctx, 20*time.Millisecond); perr != nil {
			return fmt.Errorf("session of a client: %w", errors.Join(perr, err))
		}
	}
}

// leader returns the connection to the last known leader.
func (g *greedyClient) leader() *grpc.ClientConn {
	return g.conns[int(g.at.Load())%len(g.conns)]
}

// openAt asks one server for an incarnation, then for the session.
func (g *greedyClient) openAt(ctx context.Context) error {
	if g.inc == 0 {
		reply, err := rowraftv1.NewClusterClient(g.leader()).IssueIncarnation(ctx,
			&rowraftv1.IssueIncarnationRequest{ClientId: g.id[:]})
		if err != nil {
			return err
		}
		g.inc = reply.GetIncarnation()
	}
	_, err := rowraftv1.NewTableClient(g.leader()).OpenSession(ctx, &rowraftv1.OpenSessionRequest{ClientId: g.id[:],
		Incarnation: g.inc, Ticket: 1})
	return err
}

// take numbers a push; false: too many are unanswered.
func (g *greedyClient) take() (seq uint64, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next >= g.floorLocked()+overloadWindow {
		return 0, false
	}
	seq = g.next
	g.next++
	g.open[seq] = true
	return seq, true
}

// floorLocked is the number up to which all have an answer.
// REQUIRES: g.mu is held.
func (g *greedyClient) floorLocked() uint64 {
	for g.low < g.next && !g.open[g.low] {
		g.low++
	}
	return g.low - 1
}

// push sends one number until its outcome is known, and reports whether it was applied.
func (g *greedyClient) push(ctx context.Context, seq uint64) (applied bool, err error) {
	defer func() {
		if err == nil {
			g.mu.Lock()
			delete(g.open, seq)
			g.mu.Unlock()
		}
	}()
	for maybe := false; ; {
		at := g.at.Load()
		err := g.try(ctx, g.conns[int(at)%len(g.conns)], seq)
		switch {
		case err == nil:
			g.acked.Add(1)
			return true, nil
		case status.Code(err) == codes.ResourceExhausted && !maybe:
			return false, nil // this number is never sent again
		}
		err = rpc.FromStatus(err)
		code := rowraft.CodeOf(err)
		if !code.Retryable() || ctx.Err() != nil {
			return false, err
		}
		maybe = maybe || code.MaybeApplied()
		if code != rowraft.CodeOverloaded {
			g.at.CompareAndSwap(at, at+1) // the server no longer leads, or does not answer
		}
		if err := scaffold.PauseFor(ctx, 20*time.Millisecond); err != nil {
			return false, err
		}
	}
}

// try sends a number once. It does not read the details of an error, so that a refusal costs this
// process little: the servers share its cores.
func (g *greedyClient) try(ctx context.Context, conn *grpc.ClientConn, seq uint64) error {
	ctx, cancel := context.WithTimeout(ctx, overloadTry)
	defer cancel()
	g.mu.Lock()
	floor := g.floorLocked()
	g.mu.Unlock()
	call, err := conn.NewStream(ctx, &overloadCall, rowraftv1.Table_Write_FullMethodName)
	if err != nil {
		return err
	}
	if err := call.SendMsg(&rowraftv1.WriteRequest{
		Op:         rowraftv1.WriteOp_WRITE_OP_PUSH,
		MapVersion: ^uint64(0), ClientId: g.id[:], Incarnation: g.inc, Seq: seq, Floor: floor, Payload: g.l.payload,
	}); err != nil {
		return err
	}
	return call.RecvMsg(new(rowraftv1.WriteReply))
}

// overloadCall describes a unary call.
var overloadCall grpc.StreamDesc

// greedyPhase counts the pushes of the greedy clients.
type greedyPhase struct {
	offered, admitted, refused int64
	took                       time.Duration
	err                        error
}

// greedy has the greedy clients push for so long: perSecond together, or, if that is 0,
// as fast as they get in. All of their pushes have an answer when it returns.
func (l *overloadLoad) greedy(ctx context.Context, long time.Duration, perSecond float64) (p greedyPhase) {
	var offered, admitted, refused atomic.Int64
	var wg sync.WaitGroup
	var once sync.Once
	begin := time.Now()
	one := func(g *greedyClient, seq uint64) {
		ok, err := g.push(ctx, seq)
		switch {
		case err != nil:
			once.Do(func() { p.err = err })
		case ok:
			admitted.Add(1)
		default:
			refused.Add(1)
		}
	}
	for _, g := range l.greeds {
		wg.Go(func() {
			if perSecond == 0 {
				for time.Since(begin) < long && ctx.Err() == nil {
					if seq, ok := g.take(); ok {
						offered.Add(1)
						one(g, seq)
					}
				}
				return
			}
			sent, tick := 0.0, time.NewTicker(2*time.Millisecond)
			defer tick.Stop()
			for now := begin; now.Sub(begin) < long && ctx.Err() == nil; now = <-tick.C {
				for due := now.Sub(begin).Seconds() * perSecond / float64(len(l.greeds)); sent < due; sent++ {
					seq, ok := g.take()
					if !ok {
						continue // it asks for more than a session may have: not offered
					}
					offered.Add(1)
					wg.Go(func() { one(g, seq) })
				}
			}
		})
	}
	wg.Wait()
	p.offered, p.admitted, p.refused, p.took = offered.Load(), admitted.Load(), refused.Load(), long
	return p
}

// modestClient pushes ten times a second, through package client.
type modestClient struct {
	l      *overloadLoad
	client *client.Client
	table  *client.Table
	grads  []float32
	end    context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	phase modestPhase
	took  [modestPhases][]time.Duration
	last  time.Time // begin of the newest push that was acknowledged
	acked int64
	err   error
}

type modestPhase int

const (
	modestCalm modestPhase = iota
	modestCounts
	modestLoaded
	modestAfter
	modestPhases
)

func (l *overloadLoad) phase(p modestPhase) {
	for _, m := range l.modests {
		m.mu.Lock()
		m.phase = p
		m.mu.Unlock()
	}
}

func (l *overloadLoad) beginModest() {
	for _, m := range l.modests {
		ctx, cancel := context.WithCancel(context.Background())
		m.end, m.done = cancel, make(chan struct{})
		go m.run(ctx)
	}
}

func (m *modestClient) run(ctx context.Context) {
	defer close(m.done)
	tick := time.NewTicker(overloadPace)
	defer tick.Stop()
	for {
		m.mu.Lock()
		phase := m.phase
		m.mu.Unlock()
		begin := time.Now()
		try, cancel := context.WithTimeout(context.Background(), overloadPatience) // not ctx: it must have an answer
		_, err := m.table.Push(try, m.l.keys, m.grads)
		cancel()
		m.mu.Lock()
		if err != nil {
			m.err = err
			m.mu.Unlock()
			return
		}
		m.took[phase] = append(m.took[phase], time.Since(begin))
		m.last, m.acked = begin, m.acked+1
		m.mu.Unlock()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// recovered is how long after the load every modest client had a push acknowledged that
// was begun after it.
func (l *overloadLoad) recovered(ctx context.Context, after time.Time) (time.Duration, error) {
	l.phase(modestAfter)
	ctx, cancel := context.WithTimeout(ctx, overloadPatience)
	defer cancel()
	for {
		waits := false
		for _, m := range l.modests {
			m.mu.Lock()
			waits = waits || m.err == nil && !m.last.After(after)
			m.mu.Unlock()
		}
		if !waits {
			return time.Since(after), nil
		}
		if err := scaffold.PauseFor(ctx, 5*time.Millisecond); err != nil {
			return 0, fmt.Errorf("after the load a client is not served: %w", err)
		}
	}
}

func (l *overloadLoad) endModest() (out []overloadModestResult, err error) {
	at := func(all []time.Duration, p float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return all[min(int(p*float64(len(all))), len(all)-1)].Seconds()
	}
	for _, m := range l.modests {
		m.end()
		<-m.done
		calm, loaded := m.took[modestCalm], m.took[modestLoaded]
		slices.Sort(calm)
		slices.Sort(loaded)
		r := overloadModestResult{Calm: len(calm), CalmP99: at(calm, 0.99), Loaded: len(loaded), P50: at(loaded, 0.5),
			P99: at(loaded, 0.99), Max: at(loaded, 1)}
		if m.err != nil {
			r.FirstErr = m.err.Error()
		}
		out = append(out, r)
	}
	return out, nil
}

func (l *overloadLoad) acknowledged() (n int64) {
	for _, g := range l.greeds {
		n += g.acked.Load()
	}
	for _, m := range l.modests {
		n += m.acked
	}
	return n
}

// applied is how often the rows were pushed: all must say the same.
func (l *overloadLoad) applied(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, overloadPatience)
	defer cancel()
	got := make([]float32, len(l.keys)*overloadDim)
	if err := l.reader.PullLinearizable(ctx, client.Segment{Table: l.table, Keys: l.keys, Values: got}); err != nil {
		return 0, err
	}
	for i, v := range got {
		if v != got[0] {
			return 0, rowraft.Errorf(rowraft.CodeInternal, "key %d has %v pushes, key %d has %v: a push was applied in part",
				l.keys[0], got[0], l.keys[i/overloadDim], v)
		}
	}
	return int64(got[0]), nil
}
