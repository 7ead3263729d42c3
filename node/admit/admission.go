package admit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

// Limits bound the memory that a server uses for its clients, in bytes. A push counts from its arrival
// until it is applied or refused, whether or not its caller still waits. A pull counts from its arrival,
// with its reply, until the transport has sent the reply.
//
// One client, or one shard, never gets more than half of a shared pool while others need it: see pool.fits.
// A request that is larger than a limit by itself is admitted when nothing else is in flight.
type Limits struct {
	InFlight int64 // of all clients together; 0: a sixteenth of Memory, 64 MiB to 1 GiB
	Shard    int64 // of one shard; 0: half of InFlight
	Client   int64 // of one client: an identity or, without certificates, a connection; 0: a quarter of InFlight
	// Memory is the memory limit of the process: above nine tenths of it the server refuses pushes. 0: the
	// limit of its cgroup or, without one, the memory of the machine.
	Memory int64
}

// Op is the operation that bytes in flight belong to.
type Op uint8

// The operations:
const (
	Push Op = iota
	Pull
	ops
)

var opNames = [ops]string{"push", "pull"}

// refusal is the reason of a refused request, a label of the metrics.
type refusal uint8

const (
	refusedNode refusal = iota
	refusedShard
	refusedClient
	refusedShare
	refusedMemory
	refusals
)

var refusalNames = [refusals]string{"server", "shard", "client", "share", "memory"}

// Admission counts the bytes in flight of a server and refuses requests above the limits at once: it queues
// nothing. A nil Admission admits everything.
//
// mu is held for a few map lookups, never across a call out of this file.
type Admission struct {
	limits Limits

	mu      sync.Mutex
	node    pool
	shards  map[rowraft.ShardID]*pool
	conns   map[any]map[*Ticket]struct{} // replies that open connections have not read
	used    [ops]int64
	refused [refusals]uint64
	hint    hint
	full    string // why there is no memory for pushes; "" if there is
	memory  int64  // memory of the process; 0: not known yet
}

// New returns an admission with the given limits; SetDefaults must have filled them in.
func New(l Limits) *Admission {
	return &Admission{limits: l, node: newPool(l.InFlight), shards: make(map[rowraft.ShardID]*pool),
		conns: make(map[any]map[*Ticket]struct{})}
}

// pool is a shared number of bytes in flight, counted by client.
type pool struct {
	limit, used int64
	by          map[any]int64 // clients without bytes in flight are not in it
}

func newPool(limit int64) pool { return pool{limit: limit, by: make(map[any]int64)} }

// fits reports whether client may have n more bytes of p. While half of p is free, it may. Each client with
// bytes in flight gets an equal share of the other half: so a client below that share is never refused
// because of others that ask for more.
func (p *pool) fits(client any, n int64) (bool, refusal) {
	have := p.by[client]
	switch {
	case p.used == 0:
		return true, 0
	case p.used+n > p.limit:
		return false, refusedNode
	case p.used+n <= p.limit/2 || have == 0:
		return true, 0
	}
	return have+n <= p.limit/int64(2*len(p.by)), refusedShare
}

func (p *pool) add(client any, n int64) {
	p.used += n
	if have := p.by[client] + n; have > 0 {
		p.by[client] = have
	} else {
		delete(p.by, client)
	}
}

// Ticket stands for admitted bytes. Release returns them once; further calls do nothing.
type Ticket struct {
	a            *Admission
	client, conn any
	shard        rowraft.ShardID
	op           Op
	bytes        int64
	over         bool // under a.mu
}

// Admit admits n bytes, or refuses them with an *rowraft.OverloadedError.
func (a *Admission) Admit(ctx context.Context, shard rowraft.ShardID, op Op, n int) (*Ticket, error) {
	if a == nil {
		return nil, nil
	}
	t := &Ticket{a: a, shard: shard, op: op, bytes: int64(n)}
	t.client, t.conn = rpc.ClientOf(ctx)
	a.mu.Lock()
	err := a.admitLocked(t)
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Write admits a part for a shard's log. When memory is short, it admits only operations that free memory.
func (a *Admission) Write(ctx context.Context, shard rowraft.ShardID, p *wire.Part) (*Ticket, error) {
	if p.Op != wire.OpDelete {
		if err := a.CheckMemory(); err != nil {
			return nil, err
		}
	}
	return a.Admit(ctx, shard, Push, p.Size())
}

// CheckMemory returns an error if there is no memory for operations that may create rows.
func (a *Admission) CheckMemory() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.full == "" {
		return nil
	}
	a.refused[refusedMemory]++
	return &rowraft.OverloadedError{What: a.full, Limit: refusalNames[refusedMemory], RetryAfter: hintMost}
}

// Early returns the error that Admit would return now. It reserves no bytes: Admit counts the request when
// it has arrived.
func (a *Admission) Early(ctx context.Context, shard rowraft.ShardID, n int) error {
	if a == nil {
		return nil
	}
	client, _ := rpc.ClientOf(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.checkLimitsLocked(client, a.shardLocked(shard), shard, int64(n))
}

// shardLocked returns the pool of a shard.
// REQUIRES: a.mu is held.
func (a *Admission) shardLocked(id rowraft.ShardID) *pool {
	s := a.shards[id]
	if s == nil {
		p := newPool(a.limits.Shard)
		s = &p
		a.shards[id] = s
	}
	return s
}

// checkLimitsLocked returns an error if n more bytes of client do not fit into the shard whose pool is s.
// REQUIRES: a.mu is held.
func (a *Admission) checkLimitsLocked(client any, s *pool, shard rowraft.ShardID, n int64) error {
	if have := a.node.by[client]; have > 0 && have+n > a.limits.Client {
		return a.refuseLocked(refusedClient, "this client has %d bytes in flight on this server, at most %d: wait for "+
			"answers before asking for more (--client-in-flight-bytes)", have, a.limits.Client)
	}
	if ok, why := s.fits(client, n); !ok {
		if why == refusedNode {
			why = refusedShard
		}
		return a.refuseLocked(why,
			"shard %d has %d bytes in flight, %d of them of this client, at most %d: ask again later (--shard-in-flight-bytes)",
			shard, s.used, s.by[client], s.limit)
	}
	if ok, why := a.node.fits(client, n); !ok {
		return a.refuseLocked(why,
			"the server has %d bytes in flight, %d of them of this client, at most %d: ask again later (--in-flight-bytes)",
			a.node.used, a.node.by[client], a.node.limit)
	}
	return nil
}

// REQUIRES: a.mu is held.
func (a *Admission) admitLocked(t *Ticket) error {
	s := a.shardLocked(t.shard)
	if err := a.checkLimitsLocked(t.client, s, t.shard, t.bytes); err != nil {
		return err
	}
	a.node.add(t.client, t.bytes)
	s.add(t.client, t.bytes)
	a.used[t.op] += t.bytes
	a.hint.admitted()
	if open := a.conns[t.conn]; open != nil && t.op == Pull {
		open[t] = struct{}{}
	}
	return nil
}

// REQUIRES: a.mu is held.
func (a *Admission) refuseLocked(why refusal, format string, args ...any) error {
	a.refused[why]++
	return &rowraft.OverloadedError{What: fmt.Sprintf(format, args...), Limit: refusalNames[why],
		RetryAfter: a.hint.refused(time.Now())}
}

// Release returns the bytes of t.
func (t *Ticket) Release() {
	if t == nil {
		return
	}
	t.a.mu.Lock()
	t.a.releaseLocked(t)
	t.a.mu.Unlock()
}

// Grow raises the bytes of t to n, if the additional bytes fit. If it returns an error, t has been
// released.
func (t *Ticket) Grow(n int) error {
	if t == nil {
		return nil
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if t.over || int64(n) <= t.bytes { // over: the connection has ended, and so does the call
		return nil
	}
	t.a.releaseLocked(t) // without its own bytes, which must not count against it
	t.bytes = int64(n)
	err := t.a.admitLocked(t)
	t.over = err != nil
	return err
}

// Shrink lowers the bytes of t to n, after the caller has freed the rest.
func (t *Ticket) Shrink(n int) {
	if t == nil {
		return
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	less := t.bytes - int64(n)
	if t.over || less <= 0 {
		return
	}
	t.bytes -= less
	t.a.node.add(t.client, -less)
	t.a.shards[t.shard].add(t.client, -less)
	t.a.used[t.op] -= less
}

// REQUIRES: a.mu is held.
func (a *Admission) releaseLocked(t *Ticket) {
	if t.over {
		return
	}
	t.over = true
	a.node.add(t.client, -t.bytes)
	a.shards[t.shard].add(t.client, -t.bytes)
	a.used[t.op] -= t.bytes
	delete(a.conns[t.conn], t)
}

// hint computes how long a refused client should wait: 20 ms, times one plus the recent refusals per
// admission. So the rate at which waiting clients ask is about the rate of admissions.
type hint struct {
	since     time.Time
	ins, outs int
}

const (
	hintBase   = 20 * time.Millisecond
	hintMost   = time.Second
	hintWindow = 200 * time.Millisecond
)

func (h *hint) admitted() { h.ins++ }

func (h *hint) refused(now time.Time) time.Duration {
	if now.Sub(h.since) > hintWindow {
		h.since, h.ins, h.outs = now, h.ins/2, h.outs/2
	}
	h.outs++
	return min(hintBase*time.Duration(1+h.outs/(1+h.ins)), hintMost)
}

// stats are the numbers of the metrics.
type stats struct {
	limits  Limits
	used    [ops]int64
	refused [refusals]uint64
	clients int // with bytes in flight
	shards  map[rowraft.ShardID]int64
	full    bool
	memory  int64
}

// InFlight returns the number of bytes of op in flight.
func (a *Admission) InFlight(op Op) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used[op]
}

func (a *Admission) stats() stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := stats{limits: a.limits, used: a.used, refused: a.refused, clients: len(a.node.by),
		shards: make(map[rowraft.ShardID]int64), full: a.full != "", memory: a.memory}
	for id, p := range a.shards {
		s.shards[id] = p.used
	}
	return s
}
