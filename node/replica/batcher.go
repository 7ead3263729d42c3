package replica

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

// proposer is the part of a Raft group that the batcher needs.
type proposer interface {
	Propose(entry []byte) *raftstore.Future
}

// batcher packs the waiting pushes of a shard into one log entry, so that they share an fsync.
//
// Goroutines: pack takes parts from queue and proposes entries; finish waits for the entries in log order
// and gives the parts their results. close ends both after every part has a result.
type batcher struct {
	group  proposer
	header func() wire.EntryHeader // log time and epoch of the next entry

	queue chan *waiting
	ahead chan proposed
	stop  chan struct{}
	wg    sync.WaitGroup

	mu     sync.Mutex
	queued int // bytes in queue
	closed bool
}

// waiting is one part on its way into the log: the batch of a client, as an entry holds it.
// The batcher owns the part's payload and returns it to the pool once it is copied into the
// entry.
type waiting struct {
	ctx  context.Context // the caller's; if it ends before the part is proposed, the part is dropped
	part wire.Part
	done chan shard.PartResult // capacity 1: the caller may have stopped waiting

	ticket *admit.Ticket // held until the part has a result, whether or not the caller waits
}

// answer gives the part its result.
func (w *waiting) answer(r shard.PartResult) {
	w.ticket.Release()
	w.done <- r
}

// proposed is an entry in the log or on its way there, with its parts in the entry's order.
type proposed struct {
	future *raftstore.Future
	parts  []*waiting
}

func newBatcher(group proposer, header func() wire.EntryHeader) *batcher {
	b := &batcher{
		group:  group,
		header: header,
		queue:  make(chan *waiting, maxQueuedParts),
		ahead:  make(chan proposed, maxEntriesAhead),
		stop:   make(chan struct{}),
	}
	b.wg.Go(b.pack)
	b.wg.Go(b.finish)
	return b
}

// submit queues a part and returns the channel for its result; t is released before the
// result is sent. submit never waits: if the queue is full it returns CodeOverloaded, and the
// caller still owns t.
func (b *batcher) submit(ctx context.Context, p wire.Part, t *admit.Ticket) (<-chan shard.PartResult, error) {
	w := &waiting{ctx: ctx, part: p, done: make(chan shard.PartResult, 1), ticket: t}
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

// close ends the parts in the queue with CodeClosing, and waits for the results of the entries
// that are proposed.
func (b *batcher) close() {
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
func (b *batcher) pack() {
	defer close(b.ahead)
	var held *waiting // taken from the queue, too large for the last entry
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
		parts, size := []*waiting{first}, wire.EntryHeaderSize+first.part.Size()
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
func (b *batcher) poll() *waiting {
	select {
	case w := <-b.queue:
		return w
	default:
		return nil
	}
}

// propose makes one entry of parts and proposes it.
func (b *batcher) propose(parts []*waiting, size int) {
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
			w.answer(shard.PartResult{})
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
func (b *batcher) dropAbandoned(parts []*waiting) []*waiting {
	kept, bytes := parts[:0], 0
	for _, w := range parts {
		bytes += w.part.Size()
		if w.ctx.Err() != nil {
			rpc.Pool.Release(w.part.Payload)
			w.answer(shard.PartResult{Err: rowraft.Errorf(rowraft.CodeDeadline, "the caller stopped waiting before the push was proposed")})
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
func (b *batcher) drain() {
	for w := b.poll(); w != nil; w = b.poll() {
		w.answer(shard.PartResult{Err: rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")})
	}
}

// finish is the goroutine that gives parts their results, in log order.
func (b *batcher) finish() {
	for p := range b.ahead {
		answer(p)
	}
}

// answer waits for the result of an entry and gives each part its own.
func answer(p proposed) {
	result, _, err := p.future.Wait(context.Background())
	applied, ok := result.(*shard.Applied)
	if err == nil && (!ok || len(applied.Parts) != len(p.parts)) {
		if rerr, isErr := result.(error); isErr {
			err = rerr
		} else {
			err = rowraft.Errorf(rowraft.CodeInternal, "apply answered %T for an entry of %d parts", result, len(p.parts))
		}
	}
	for i, w := range p.parts {
		if err != nil {
			w.answer(shard.PartResult{Err: err})
			continue
		}
		w.answer(applied.Parts[i])
	}
}

// wait returns the result of a submitted part, or CodeDeadline if ctx ends first: then the
// part may still be applied.
func wait(ctx context.Context, done <-chan shard.PartResult) (shard.PartResult, error) {
	select {
	case r := <-done:
		return r, r.Err
	case <-ctx.Done():
		err := context.Cause(ctx)
		if errors.Is(err, context.Canceled) {
			return shard.PartResult{}, rowraft.Errorf(rowraft.CodeDeadline, "the caller stopped waiting before the push was acknowledged")
		}
		return shard.PartResult{}, rowraft.Errorf(rowraft.CodeDeadline, "the push was not acknowledged in time: %w", err)
	}
}
