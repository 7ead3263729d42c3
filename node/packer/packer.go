package packer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/internal/histogram"
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

// Proposer is the part of a Raft group that a Packer needs.
type Proposer interface {
	Propose(entry []byte) *raftstore.Future
}

// Packer packs the waiting writes of a shard into log entries of up to 512 KiB, so that the writes of an entry share
// an fsync.
//
// Goroutines: pack takes parts from queue and proposes entries; deliver waits for the entries in log order
// and gives the parts their results. Close ends both after every part has a result.
//
// mu is held for short updates, and for the send to queue, which never blocks.
type Packer struct {
	group  Proposer
	header func() wire.EntryHeader // log time and epoch of the next entry
	waited *histogram.Durations    // time of parts in queue; nil: not counted

	queue chan *queuedPart
	ahead chan proposed
	stop  chan struct{}
	wg    sync.WaitGroup

	mu sync.Mutex
	// queued counts the bytes of the parts that are not proposed: those in queue and the one that pack holds.
	queued int
	// closed is set before stop is closed. Submit sends to queue under mu, so that no part enters it after drain.
	closed bool
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

// New returns a running Packer. waited counts how long parts are in its queue; it may be shared and may be nil.
func New(group Proposer, header func() wire.EntryHeader, waited *histogram.Durations) *Packer {
	k := newIdle(group, header)
	k.waited = waited
	k.wg.Go(k.pack)
	k.wg.Go(k.deliver)
	return k
}

// newIdle returns a Packer whose goroutines do not run.
func newIdle(group Proposer, header func() wire.EntryHeader) *Packer {
	return &Packer{
		group:  group,
		header: header,
		queue:  make(chan *queuedPart, maxQueuedParts),
		ahead:  make(chan proposed, maxEntriesAhead),
		stop:   make(chan struct{}),
	}
}

// Submit queues a part and returns the channel for its result; t is released before the
// result is sent. Submit never waits: if the queue is full it returns CodeOverloaded, and the
// caller still owns t.
func (k *Packer) Submit(ctx context.Context, p wire.Part, t *admit.Ticket) (<-chan shard.PartResult, error) {
	w := &queuedPart{ctx: ctx, part: p, at: time.Now(), done: make(chan shard.PartResult, 1), ticket: t}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")
	}
	if k.queued+p.Size() > maxQueuedBytes {
		return nil, &rowraft.OverloadedError{What: "the push queue of the shard is full", Limit: "queue",
			RetryAfter: 20 * time.Millisecond}
	}
	select {
	case k.queue <- w:
		k.queued += p.Size()
		return w.done, nil
	default:
		return nil, &rowraft.OverloadedError{What: "too many pushes wait for the shard", Limit: "queue",
			RetryAfter: 20 * time.Millisecond}
	}
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

// pack is the goroutine that builds entries: of all parts in the queue, up to TargetEntryBytes.
// A part that is larger is an entry by itself.
func (k *Packer) pack() {
	defer close(k.ahead)
	var over *queuedPart // taken from the queue, too large for the last entry: the first part of the next one
	for {
		first := over
		over = nil
		if first == nil {
			select {
			case first = <-k.queue:
			case <-k.stop:
				k.drain()
				return
			}
		}
		parts, size := []*queuedPart{first}, wire.EntryHeaderSize+first.part.Size()
		for more := true; more && over == nil; {
			select {
			case next := <-k.queue:
				if size+next.part.Size() > rowraft.TargetEntryBytes {
					over = next
					break
				}
				parts = append(parts, next)
				size += next.part.Size()
			default:
				more = false
			}
		}
		k.propose(parts, size)
	}
}

// propose makes one entry of parts and proposes it.
func (k *Packer) propose(parts []*queuedPart, size int) {
	parts = k.dropAbandoned(parts)
	if len(parts) == 0 {
		return
	}
	if k.waited != nil {
		now := time.Now()
		for _, w := range parts {
			k.waited.Observe(now.Sub(w.at))
		}
	}
	h := k.header()
	h.Kind, h.Parts = wire.EntryParts, len(parts)
	buf := rpc.Pool.Get(size)
	entry := (*buf)[:wire.EntryHeaderSize]
	wire.PutEntryHeader(entry, h)
	for _, w := range parts {
		entry = wire.AppendPart(entry, &w.part)
		rpc.Pool.Release(w.part.Payload)
		w.part.Payload = nil
	}
	future := k.group.Propose(entry) // copies it
	rpc.Pool.Put(buf)
	if canary.Is(canary.AckBeforeCommit) {
		for _, w := range parts {
			w.respond(shard.PartResult{})
		}
		parts = nil
	}
	// This waits while maxEntriesAhead entries have no result. Meanwhile parts gather in the
	// queue, so that the next entry is larger.
	k.ahead <- proposed{future: future, parts: parts}
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
		select {
		case w := <-k.queue:
			w.respond(shard.PartResult{Err: rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")})
		default:
			return
		}
	}
}

// deliver is the goroutine that gives parts their results: it waits for each entry in the order of the log.
func (k *Packer) deliver() {
	for p := range k.ahead {
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
