package batch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// Limits of what one shard's leader holds before the log:
const (
	maxQueuedBytes  = 32 << 20 // pushes that wait for an entry
	maxQueuedParts  = 4096
	maxEntriesAhead = 8 // entries proposed and not yet applied
)

// Proposer is the part of a Raft group that the batcher needs.
type Proposer interface {
	Propose(entry []byte) *raftstore.Future
}

// Batcher packs the waiting pushes of a shard into one log entry, so that they share an fsync.
//
// Goroutines: pack takes parts from queue and proposes entries; finish waits for the entries in log order
// and gives the parts their results. Close ends both after every part has a result.
type Batcher struct {
	group  Proposer
	header func() wire.EntryHeader // log time and epoch of the next entry

	queue chan *queuedPart
	ahead chan proposed
	stop  chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	queued int // bytes in queue
	closed bool
}

// queuedPart is one part on its way into the log: the batch of a client, as an entry holds it.
// The batcher owns the part's payload and returns it to the pool once it is copied into the
// entry.
type queuedPart struct {
	ctx  context.Context // the caller's; if it ends before the part is proposed, the part is dropped
	part wire.Part
	done chan shard.PartResult // capacity 1: the caller may have stopped waiting

	ticket *admit.Ticket // held until the part has a result, whether or not the caller waits
}

// respond gives the part its result.
func (w *queuedPart) respond(r shard.PartResult) {
	w.ticket.Release()
	w.done <- r
}

// proposed is an entry in the log or on its way there, with its parts in the entry's order.
type proposed struct {
	future *raftstore.Future
	parts  []*queuedPart
}

func New(group Proposer, header func() wire.EntryHeader) *Batcher {
	b := &Batcher{
		group:  group,
		header: header,
		queue:  make(chan *queuedPart, maxQueuedParts),
		ahead:  make(chan proposed, maxEntriesAhead),
		stop:   make(chan struct{}),
	}
	b.wg.Go(b.pack)
	b.wg.Go(b.finish)
	return b
}

// Submit queues a part and returns the channel for its result; t is released before the
// result is sent. Submit never waits: if the queue is full it returns CodeOverloaded, and the
// caller still owns t.
func (b *Batcher) Submit(ctx context.Context, p wire.Part, t *admit.Ticket) (<-chan shard.PartResult, error) {
	w := &queuedPart{ctx: ctx, part: p, done: make(chan shard.PartResult, 1), ticket: t}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")
	}
	if b.queued+p.Size() > maxQueuedBytes {
		return nil, &rowraft.OverloadedError{What: "the push queue of the shard is full", RetryAfter: 20 * time.Millisecond}
	}
	select {
	case b.queue <- w:
		b.queued += p.Size()
		return w.done, nil
	default:
		return nil, &rowraft.OverloadedError{What: "too many pushes wait for the shard", RetryAfter: 20 * time.Millisecond}
	}
}

// Close ends the parts in the queue with CodeClosing, and waits for the results of the entries
// that are proposed.
func (b *Batcher) Close() {
	b.mu.Lock()
	closed := b.closed
	b.closed = true
	b.mu.Unlock()
	if !closed {
		close(b.stop)
	}
	b.wg.Wait()
}

// pack is the goroutine that builds entries: of all parts in the queue, up to TargetEntryBytes.
// A part that is larger is an entry by itself.
func (b *Batcher) pack() {
	defer close(b.ahead)
	var held *queuedPart // taken from the queue, too large for the last entry
	for {
		first := held
		held = nil
		if first == nil {
			select {
			case first = <-b.queue:
			case <-b.stop:
				b.drain()
				return
			}
		}
		parts, size := []*queuedPart{first}, wire.EntryHeaderSize+first.part.Size()
		for held == nil {
			next := b.poll()
			if next == nil {
				break
			}
			if size+next.part.Size() > rowraft.TargetEntryBytes {
				held = next
				break
			}
			parts = append(parts, next)
			size += next.part.Size()
		}
		b.propose(parts, size)
	}
}

// poll takes a part from the queue, nil if there is none.
func (b *Batcher) poll() *queuedPart {
	select {
	case w := <-b.queue:
		return w
	default:
		return nil
	}
}

// propose makes one entry of parts and proposes it.
func (b *Batcher) propose(parts []*queuedPart, size int) {
	parts = b.dropAbandoned(parts)
	if len(parts) == 0 {
		return
	}
	h := b.header()
	h.Kind, h.Parts = wire.EntryParts, len(parts)
	buf := rpc.Pool.Get(size)
	entry := (*buf)[:wire.EntryHeaderSize]
	wire.PutEntryHeader(entry, h)
	for _, w := range parts {
		entry = wire.AppendPart(entry, &w.part)
		rpc.Pool.Release(w.part.Payload)
		w.part.Payload = nil
	}
	future := b.group.Propose(entry) // copies it
	rpc.Pool.Put(buf)
	if canary.Is(canary.AckBeforeCommit) {
		for _, w := range parts {
			w.respond(shard.PartResult{})
		}
		parts = nil
	}
	// This waits while maxEntriesAhead entries have no result. Meanwhile parts gather in the
	// queue, so that the next entry is larger.
	b.ahead <- proposed{future: future, parts: parts}
}

// dropAbandoned subtracts parts from the queued bytes and returns those whose caller still
// waits. It ends the others: their client sends them again, so under overload each copy in the
// queue would take room in the log for nothing.
func (b *Batcher) dropAbandoned(parts []*queuedPart) []*queuedPart {
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
	b.mu.Lock()
	b.queued -= bytes
	b.mu.Unlock()
	return kept
}

// drain refuses the parts that are still queued: none of them was proposed.
func (b *Batcher) drain() {
	for w := b.poll(); w != nil; w = b.poll() {
		w.respond(shard.PartResult{Err: rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")})
	}
}

// finish is the goroutine that gives parts their results, in log order.
func (b *Batcher) finish() {
	for p := range b.ahead {
		deliver(p)
	}
}

// deliver waits for the result of an entry and gives each part its own.
func deliver(p proposed) {
	result, _, err := p.future.Wait(context.Background())
	applied, ok := result.(*shard.Applied)
	if err == nil && (!ok || len(applied.Parts) != len(p.parts)) {
		if rerr, isErr := result.(error); isErr {
			err = rerr
		} else {
			err = rowraft.Errorf(rowraft.CodeInternal, "apply returned %T for an entry of %d parts", result, len(p.parts))
		}
	}
	for i, w := range p.parts {
		if err != nil {
			w.respond(shard.PartResult{Err: err})
			continue
		}
		w.respond(applied.Parts[i])
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
