package replica

import (
	"bytes"
	"context"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

// stateMachine returns the state machine that raftstore drives for r. Only tests and canaries change the entries that
// it applies.
func (h *Host) stateMachine(r *replica) raftstore.StateMachine {
	m := stateMachine{r.machine, r}
	if h.opts.Tamper == nil {
		return m
	}
	return tampered{m, h.opts.Tamper}
}

// Applier is a replica that applies an entry, as Options.Tamper sees it. Tests also log and hold with it.
type Applier struct{ r *replica }

// Place returns the server and the shard of the replica.
func (a Applier) Place() (rowraft.NodeID, rowraft.ShardID) { return a.r.node, a.r.shard }

// Leads reports whether the replica serves as the leader.
func (a Applier) Leads() bool { return a.r.leading.Load() != 0 }

// Propose logs the entry that build makes with the header of a new entry.
func (a Applier) Propose(ctx context.Context, build func(wire.EntryHeader) []byte) error {
	_, err := a.r.propose(ctx, build(a.r.header()))
	return err
}

// Hold holds pushes until release is called, as a checkpoint does.
func (a Applier) Hold(ctx context.Context) (release func() time.Duration, err error) {
	h, err := a.r.pushes.hold(ctx, time.Minute)
	if err != nil {
		return nil, err
	}
	return h.release, nil
}

// tampered is a stateMachine that applies other entries than those of the log.
type tampered struct {
	stateMachine
	tamper func(at Applier, index rowraft.Index, entry []byte) []byte
}

func (m tampered) Apply(index rowraft.Index, entry []byte) any {
	return m.stateMachine.Apply(index, m.tamper(Applier{m.r}, index, entry))
}

// sabotage returns the change that a canary build makes to the entries that a replica applies; nil in other builds.
func sabotage() func(Applier, rowraft.Index, []byte) []byte {
	if canary.Is(canary.KeepDeleted) {
		return func(at Applier, _ rowraft.Index, entry []byte) []byte {
			if at.Leads() {
				return entry
			}
			return keepDeleted(entry)
		}
	}
	if !canary.Is(canary.FollowerMisapplies) && !canary.Is(canary.LeaderMisapplies) {
		return nil
	}
	return func(at Applier, _ rowraft.Index, entry []byte) []byte {
		if at.Leads() != canary.Is(canary.LeaderMisapplies) {
			return entry
		}
		return Misapply(entry, &misapplied)
	}
}

// rotten is set after canary.MemoryRots has done its damage.
var rotten atomic.Bool

// misapplied is set after a canary has done its damage.
var misapplied atomic.Bool

// Misapply negates the first non-zero number in an entry, once.
func Misapply(entry []byte, done *atomic.Bool) []byte {
	h, _, err := wire.ParseEntryHeader(entry)
	if err != nil || h.Kind != wire.EntryParts || h.Parts == 0 || done.Load() {
		return entry
	}
	changed := bytes.Clone(entry) // other goroutines hold entry
	var p wire.Part
	if _, err := wire.ParsePart(changed[wire.EntryHeaderSize:], &p); err != nil || p.Op != wire.OpPush {
		return entry
	}
	seg, body, _, err := wire.ParseSegment(p.Payload)
	if err != nil {
		return entry
	}
	for size := seg.DType.Size(); len(body.Values) >= size; body.Values = body.Values[size:] {
		if number := body.Values[:size]; number[size-1]&0x7F != 0 && done.CompareAndSwap(false, true) {
			number[size-1] ^= 0x80
			return changed
		}
	}
	return entry
}

// keepDeleted returns the entry with empty deletes, which change nothing.
func keepDeleted(entry []byte) []byte {
	h, body, err := wire.ParseEntryHeader(entry)
	if err != nil || h.Kind != wire.EntryParts {
		return entry
	}
	out := bytes.Clone(entry[:wire.EntryHeaderSize])
	for len(body) > 0 {
		var p wire.Part
		if body, err = wire.ParsePart(body, &p); err != nil {
			return entry
		}
		if p.Op == wire.OpDelete {
			p.Payload = nil
		}
		out = wire.AppendPart(out, &p)
	}
	return out
}
