package packer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/fifo"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/uncleared"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// Limits of what one shard's leader holds before the log:
const (
	// gatherBytes is how much pack takes from the queue at a time while all of it may be summed.
	gatherBytes     = 4 << 20
	maxQueuedBytes  = 32 << 20 // pushes that wait for an entry
	maxQueuedParts  = 4096
	maxEntriesAhead = 8 // entries proposed and not yet applied
	maxSumsAhead    = 1 // the same while sums of waiting pushes would make the log smaller
)

// Proposer is the part of a Raft group that a Packer needs.
type Proposer interface {
	Propose(entry []byte) *raftstore.Future
}

// Packer packs the waiting writes of a shard into log entries of up to 512 KiB, so that the writes of an entry share
// an fsync. Before that it sums the gradients that waiting pushes have for the same key, where this makes the log
// smaller (summer).
//
// Goroutines: pack takes parts from queue and proposes entries; deliver waits for the entries in log order
// and gives the parts their results. It also proposes again what a refused sum left without one. Close ends both
// after every part has a result.
//
// mu is held for short updates, and for the send to more, which never blocks.
type Packer struct {
	group  Proposer
	header func() wire.EntryHeader // log time and epoch of the next entry
	waited *histogram.Durations    // time of parts in queue; nil: not counted
	sums   summer
	counts Sums
	linger linger

	ahead chan proposed
	stop  chan struct{}
	more  chan struct{} // of 1, from Submit to pack, which empties queue before it waits: there is a part
	// unfinished counts the proposed entries without a result; deliver sends to finished when it changes.
	unfinished atomic.Int32
	finished   chan struct{}
	wg         sync.WaitGroup

	mu    sync.Mutex
	queue fifo.Queue[*queuedPart] // at most maxQueuedParts
	// queued counts the bytes of the parts that are not proposed: those in queue and the one that pack holds.
	queued int
	closed bool // set before stop is closed: no part enters or leaves queue, except for drain
}

// queuedPart is one part on its way into the log: the batch of a client, as an entry holds it.
// The packer owns the part's payload and returns it to the pool once it is copied into the
// entry.
type queuedPart struct {
	ctx  context.Context // the caller's; if it ends before the part is proposed, the part is dropped
	part wire.Part
	at   time.Time             // when Submit was called
	done chan shard.PartResult // capacity 1: the caller may have stopped waiting

	ticket *admit.Ticket // held until the part has a result, whether or not the caller waits
	inside *atomic.Int32 // linger.inside, which counts the part until then

	segments []segment // of a push that may be summed; else nil
}

// respond gives the part its result.
func (w *queuedPart) respond(r shard.PartResult) {
	w.ticket.Release()
	w.inside.Add(-1)
	w.done <- r
}

// item is one part of an entry: that of one push, or the sum of several.
type item struct {
	part   *wire.Part
	pushes []*queuedPart
	saved  int // bytes of a sum less than those of its pushes
}

func (i *item) isSum() bool { return i.part.Op == wire.OpSum }

// proposed is an entry in the log or on its way there, with its items in the entry's order.
type proposed struct {
	at     time.Time // when the entry was proposed
	future *raftstore.Future
	items  []item
}

// Sums counts what sums have done since the Packer was made.
type Sums struct {
	Pushes     atomic.Uint64 // applied as part of a sum
	SavedBytes atomic.Uint64 // that the log is smaller for it
	Refused    atomic.Uint64 // sums that were refused, and whose pushes were logged one by one
}

// New returns a running Packer. tables reports which tables sum pushes; nil: none. waited counts how long parts are in
// its queue; it may be shared and may be nil.
func New(group Proposer, header func() wire.EntryHeader, tables SumTables, waited *histogram.Durations) *Packer {
	k := newIdle(group, header)
	k.waited, k.sums.tables = waited, tables
	k.wg.Go(k.pack)
	k.wg.Go(k.deliver)
	return k
}

// newIdle returns a Packer whose goroutines do not run.
func newIdle(group Proposer, header func() wire.EntryHeader) *Packer {
	return &Packer{
		group:  group,
		header: header,
		ahead:  make(chan proposed, maxEntriesAhead),
		stop:   make(chan struct{}),
		more:   make(chan struct{}, 1),

		finished: make(chan struct{}, 1),
	}
}

// Submit queues a part and returns the channel for its result; t is released before the
// result is sent. Submit never waits: if the queue is full it returns CodeOverloaded, and the
// caller still owns t.
func (k *Packer) Submit(ctx context.Context, p wire.Part, t *admit.Ticket) (<-chan shard.PartResult, error) {
	w := &queuedPart{ctx: ctx, part: p, at: time.Now(), done: make(chan shard.PartResult, 1), ticket: t,
		inside: &k.linger.inside}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")
	}
	switch {
	case k.queued+p.Size() > maxQueuedBytes:
		return nil, overloaded("the push queue of the shard is full")
	case k.queue.Len() == maxQueuedParts:
		return nil, overloaded("too many pushes wait for the shard")
	case k.queue.Len() == 0:
		select {
		case k.more <- struct{}{}:
		default:
		}
	}
	w.inside.Add(1)
	k.queue.Add(w)
	k.queued += p.Size()
	return w.done, nil
}

func overloaded(what string) error {
	return &rowraft.OverloadedError{What: what, Limit: "queue", RetryAfter: 20 * time.Millisecond}
}

// take takes the next part from the queue; nil: there is none, or the packer closes.
func (k *Packer) take() *queuedPart {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil
	}
	w, _ := k.queue.Take()
	return w
}

// Close ends the parts in the queue with CodeClosing, and waits for the results of the entries
// that are proposed.
func (k *Packer) Close() {
	k.mu.Lock()
	closed := k.closed
	k.closed = true
	k.mu.Unlock()
	if !closed {
		close(k.stop)
	}
	k.wg.Wait()
}

// Sums returns the counters of this Packer.
func (k *Packer) Sums() *Sums { return &k.counts }

// pack is the goroutine that builds entries: of the parts in the queue, each up to TargetEntryBytes. A part that is
// larger is an entry by itself.
func (k *Packer) pack() {
	defer close(k.ahead)
	var over *queuedPart // taken from the queue, too large for the last parts: the first of the next ones
	for {
		first := over
		over = nil
		if first == nil {
			first = k.take()
		}
		if first == nil {
			select {
			case <-k.more:
				continue
			case <-k.stop:
				k.drain()
				return
			}
		}
		k.awaitSums()
		var parts []*queuedPart
		if parts, over = k.gather(first); len(parts) == 0 {
			continue
		}
		var items []item
		size := wire.EntryHeaderSize
		for _, i := range k.sums.items(parts) {
			if size+i.part.Size() > rowraft.TargetEntryBytes && len(items) > 0 {
				k.propose(items, size)
				items, size = nil, wire.EntryHeaderSize
			}
			items = append(items, i)
			size += i.part.Size()
		}
		k.propose(items, size)
	}
}

// awaitSums waits for the entries before, while other pushes gather in the queue, if their sums would make the log
// smaller. So the window in which pushes are summed is the time that the log takes for an entry.
func (k *Packer) awaitSums() {
	for k.sums.recent.worth && k.unfinished.Load() >= maxSumsAhead {
		select {
		case <-k.finished:
		case <-k.stop:
			return
		}
	}
}

// gather takes parts from the queue, beginning with first, and returns those whose callers still wait: as many as an
// entry holds, or more if they may be summed. It lingers for more. over is the part after them if it was taken, too.
func (k *Packer) gather(first *queuedPart) (parts []*queuedPart, over *queuedPart) {
	limit := rowraft.TargetEntryBytes - wire.EntryHeaderSize
	size, expected := 0, k.linger.expected()
	var deadline <-chan time.Time
	for next := first; next != nil && over == nil; {
		if size > 0 && size+next.part.Size() > limit {
			over = next
			break
		}
		parts = append(parts, next)
		size += next.part.Size()
		k.linger.add(next.part.Client)
		if next.segments = k.sums.segments(next); next.segments != nil && len(parts) == 1 {
			limit = gatherBytes
		}
		if next = k.take(); next != nil {
			continue
		}
		if len(parts) < expected && fits(len(parts), size) && !k.sums.recent.worth {
			if deadline == nil {
				deadline = k.linger.deadline()
			}
			next = k.await(deadline)
		}
	}
	parts = k.dropAbandoned(parts)
	if k.waited != nil {
		now := time.Now()
		for _, w := range parts {
			k.waited.Observe(now.Sub(w.at))
		}
	}
	return parts, over
}

// await returns the next part of the queue, or nil if there is none until deadline receives. A nil deadline has passed.
func (k *Packer) await(deadline <-chan time.Time) *queuedPart {
	if deadline == nil {
		return nil
	}
	for {
		select {
		case <-k.more:
			if next := k.take(); next != nil {
				return next
			}
		case <-deadline:
			return nil
		case <-k.stop:
			return nil
		}
	}
}

// propose makes one entry of items and proposes it.
func (k *Packer) propose(items []item, size int) {
	p := k.entry(items, size)
	if canary.Is(canary.AckBeforeCommit) {
		for i := range p.items {
			p.items[i].respond(shard.PartResult{})
		}
		p.items = nil
	}
	// This waits while maxEntriesAhead entries have no result. Meanwhile parts gather in the
	// queue, so that the next entry is larger.
	k.unfinished.Add(1)
	k.ahead <- p
}

// entry proposes the entry of items, which has size bytes. It frees the payloads of all but the pushes of sums, which
// may have to be proposed again.
func (k *Packer) entry(items []item, size int) proposed {
	h := k.header()
	h.Kind, h.Parts = wire.EntryParts, len(items)
	entry := uncleared.Bytes(size)[:wire.EntryHeaderSize]
	wire.PutEntryHeader(entry, h)
	for i := range items {
		entry = wire.AppendPart(entry, items[i].part)
		rpc.Pool.Release(items[i].part.Payload)
		items[i].part.Payload = nil
	}
	return proposed{at: time.Now(), future: k.group.Propose(entry), items: items}
}

// dropAbandoned subtracts parts from the queued bytes and returns those whose caller still
// waits. It ends the others: their client sends them again, so under overload each copy in the
// queue would take room in the log for nothing.
func (k *Packer) dropAbandoned(parts []*queuedPart) []*queuedPart {
	kept, bytes := parts[:0], 0
	for _, w := range parts {
		bytes += w.part.Size()
		if w.ctx.Err() != nil {
			rpc.Pool.Release(w.part.Payload)
			w.respond(shard.PartResult{Err: rowraft.Errorf(rowraft.CodeDeadline,
				"the caller stopped waiting before the push was proposed")})
			continue
		}
		kept = append(kept, w)
	}
	k.mu.Lock()
	k.queued -= bytes
	k.mu.Unlock()
	return kept
}

// drain refuses the parts that are still queued: none of them was proposed.
func (k *Packer) drain() {
	for {
		k.mu.Lock()
		w, ok := k.queue.Take()
		k.mu.Unlock()
		if !ok {
			return
		}
		w.respond(shard.PartResult{Err: rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")})
	}
}

// deliver is the goroutine that gives parts their results: it waits for each entry in the order of the log. It proposes
// the pushes of refused sums one by one, and waits for them before it continues.
func (k *Packer) deliver() {
	for p := range k.ahead {
		for alone := k.finish(p); len(alone) > 0; {
			var items []item
			size := wire.EntryHeaderSize
			for len(alone) > 0 && (len(items) == 0 || size+alone[0].part.Size() <= rowraft.TargetEntryBytes) {
				items = append(items, item{part: &alone[0].part, pushes: alone[:1:1]})
				size += alone[0].part.Size()
				alone = alone[1:]
			}
			k.finish(k.entry(items, size))
		}
		k.unfinished.Add(-1)
		select {
		case k.finished <- struct{}{}:
		default:
		}
	}
}

// finish waits for the outcome of p and gives its pushes their results, except those of refused sums, which it returns:
// a refused sum had no effect, so each of its pushes gets its own result from an entry without sums.
func (k *Packer) finish(p proposed) (alone []*queuedPart) {
	result, _, err := p.future.Wait(context.Background())
	if err == nil {
		k.linger.observe(time.Since(p.at))
	}
	applied, ok := result.(*shard.Applied)
	if err == nil && (!ok || len(applied.Parts) != len(p.items)) {
		if rerr, isErr := result.(error); isErr {
			err = rerr
		} else {
			err = rowraft.Errorf(rowraft.CodeInternal, "apply returned %T for an entry of %d parts", result, len(p.items))
		}
	}
	for i := range p.items {
		it := &p.items[i]
		if err != nil {
			it.respond(shard.PartResult{Err: err})
			continue
		}
		r := applied.Parts[i]
		switch {
		case it.isSum() && rowraft.CodeOf(r.Err) == shard.CodeSumRefused:
			k.counts.Refused.Add(1)
			alone = append(alone, it.pushes...)
			continue
		case it.isSum() && r.Err == nil:
			k.counts.Pushes.Add(uint64(len(it.pushes)))
			k.counts.SavedBytes.Add(uint64(it.saved))
		}
		it.respond(r)
	}
	return alone
}

// respond gives all pushes of i the result r.
func (i *item) respond(r shard.PartResult) {
	for _, w := range i.pushes {
		rpc.Pool.Release(w.part.Payload)
		w.part.Payload = nil
		w.respond(r)
	}
}

// Wait returns the result of a submitted part, or CodeDeadline if ctx ends first: then the
// part may still be applied.
func Wait(ctx context.Context, done <-chan shard.PartResult) (shard.PartResult, error) {
	select {
	case r := <-done:
		return r, r.Err
	case <-ctx.Done():
		err := context.Cause(ctx)
		if errors.Is(err, context.Canceled) {
			return shard.PartResult{}, rowraft.Errorf(rowraft.CodeDeadline,
				"the caller stopped waiting before the push was acknowledged")
		}
		return shard.PartResult{}, rowraft.Errorf(rowraft.CodeDeadline, "the push was not acknowledged in time: %w", err)
	}
}
