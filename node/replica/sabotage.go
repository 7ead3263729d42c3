//go:build rowraft_canary

package replica

import (
	"bytes"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/wire"
)

// sabotaged is a stateMachine that breaks the promise that the canary names.
type sabotaged struct{ stateMachine }

func sabotage(m stateMachine) raftstore.StateMachine { return sabotaged{m} }

// damaged is set after a canary that does its damage once has done it.
var damaged atomic.Bool

func (m sabotaged) Apply(index rowraft.Index, entry []byte) any {
	leads := m.r.leading.Load() != 0
	switch {
	case canary.Is(canary.KeepDeleted) && !leads:
		entry = keepDeleted(entry)
	case canary.Is(canary.FollowerMisapplies) && !leads, canary.Is(canary.LeaderMisapplies) && leads:
		entry = misapply(entry)
	case canary.Is(canary.MemoryRots) && !leads && !damaged.Load():
		damaged.Store(m.Machine.Rot())
	}
	return m.stateMachine.Apply(index, entry)
}

// misapply returns the entry of a push with its first non-zero number negated, once.
func misapply(entry []byte) []byte {
	h, _, err := wire.ParseEntryHeader(entry)
	if err != nil || h.Kind != wire.EntryParts || h.Parts == 0 || damaged.Load() {
		return entry
	}
	changed := bytes.Clone(entry) // other goroutines hold entry
	var p wire.Part
	_, err = wire.ParsePart(changed[wire.EntryHeaderSize:], &p)
	if err != nil || p.Op != wire.OpPush && p.Op != wire.OpSum {
		return entry
	}
	segments := p.Payload
	if p.Op == wire.OpSum {
		_, segments = wire.ParseSum(&p)
	}
	seg, body, _, err := wire.ParseSegment(segments)
	if err != nil {
		return entry
	}
	for size := seg.DType.Size(); len(body.Values) >= size; body.Values = body.Values[size:] {
		if number := body.Values[:size]; number[size-1]&0x7F != 0 && damaged.CompareAndSwap(false, true) {
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
