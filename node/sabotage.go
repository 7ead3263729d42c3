package node

import (
	"bytes"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

// stateMachine returns the state machine that raftstore drives for r. Only tests and canaries change the entries that it
// applies.
func (n *Node) stateMachine(r *replica) raftstore.StateMachine {
	m := stateMachine{r.machine, r}
	if n.cfg.tamper == nil {
		return m
	}
	return tampered{m, n.cfg.tamper}
}

// tampered is a stateMachine that applies other entries than those of the log.
type tampered struct {
	stateMachine
	tamper func(r *replica, index rowraft.Index, entry []byte) []byte
}

func (m tampered) Apply(index rowraft.Index, entry []byte) any {
	return m.stateMachine.Apply(index, m.tamper(m.r, index, entry))
}

// sabotage returns the change that a canary build makes to the entries that a replica applies; nil in other builds.
func sabotage() func(*replica, rowraft.Index, []byte) []byte {
	if canary.Is(canary.KeepDeleted) {
		return func(r *replica, _ rowraft.Index, entry []byte) []byte {
			if r.leading.Load() != 0 {
				return entry
			}
			return keepDeleted(entry)
		}
	}
	if !canary.Is(canary.FollowerMisapplies) && !canary.Is(canary.LeaderMisapplies) {
		return nil
	}
	return func(r *replica, _ rowraft.Index, entry []byte) []byte {
		if (r.leading.Load() != 0) != canary.Is(canary.LeaderMisapplies) {
			return entry
		}
		return misapply(entry, &misapplied)
	}
}

// rotten is set after canary.MemoryRots has done its damage.
var rotten atomic.Bool

// misapplied is set after a canary has done its damage.
var misapplied atomic.Bool

// misapply negates the first non-zero number in an entry, once.
func misapply(entry []byte, done *atomic.Bool) []byte {
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
