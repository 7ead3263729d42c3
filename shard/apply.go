package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/wire"
)

// chunkRows is how many rows change while Apply holds mu once, so that a
// snapshot can read in between. Pulls do not wait for mu.
const chunkRows = 1024

// Applied is the result of an entry that the state machine understood.
type Applied struct {
	Index rowraft.Index
	Parts []PartResult // for an EntryParts, one result per part; for any other kind, exactly one result

	Swept Swept // of an EntrySweep

	mark *wire.MarkID // of an EntryMark
}

// PartResult is the result of one part.
type PartResult struct {
	Err       error // nil: the part is applied, by this entry or an earlier one
	Duplicate bool  // an earlier entry applied the part; this one changed nothing
}

// FatalError reports an entry that this replica cannot apply: the entry is corrupt or of
// a later version, or memory ran out while it was applied. The replica must stop: its rows may
// match no index, and Machine serves nothing until Restore.
type FatalError struct {
	Shard rowraft.ShardID
	Index rowraft.Index
	Err   error
}

func (e *FatalError) Error() string {
	return fmt.Sprintf("shard %d: the replica stops, because it cannot apply entry %d: %v", e.Shard, e.Index, e.Err)
}
func (e *FatalError) Unwrap() error { return e.Err }

// Code is CodeInternal, whatever the code of Err: this replica does not know whether the
// other replicas applied the entry, so for the client the outcome is open.
func (e *FatalError) Code() rowraft.Code { return rowraft.CodeInternal }

// Apply applies a committed entry and returns *Applied, *FatalError if this
// replica must stop, or *FencedError if it cannot read its cold rows. It ignores entries up
// to AppliedIndex and returns nil for them. A fenced replica applies nothing and returns its *FencedError.
//
// It keeps no part of entry. One goroutine calls it, in log order.
func (m *Machine) Apply(index rowraft.Index, entry []byte) any {
	if index <= m.AppliedIndex() {
		return nil
	}
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	if fenced := m.Fenced(); fenced != nil {
		return fenced
	}
	a, err := m.applyEntry(index, entry)
	if err != nil {
		if fenced := checkTiers(m); fenced != nil {
			return fenced
		}
		return m.fail(index, err)
	}
	m.applied.Store(uint64(index))
	// After applied has changed: the snapshot of a mark carries the index of the mark itself.
	if a.mark != nil && a.Parts[0].Err == nil {
		m.takeMark(*a.mark)
	}
	return a
}

// fail stops the replica until Restore.
func (m *Machine) fail(index rowraft.Index, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.failed == nil {
		m.mu.failed = &FatalError{Shard: m.shard, Index: index, Err: err}
		m.publishLocked()
	}
	return m.mu.failed
}

// applyEntry applies entry. An error means that the replica must stop; a refused request is
// a result in Applied.
// REQUIRES: m.applyMu is held.
func (m *Machine) applyEntry(index rowraft.Index, entry []byte) (*Applied, error) {
	m.mu.RLock()
	err := m.mu.usable()
	m.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	h, body, err := wire.ParseEntryHeader(entry)
	if err != nil {
		return nil, err
	}
	a := &Applied{Index: index}
	switch h.Kind {
	case wire.EntryParts:
		return a, m.applyParts(h, body, a)
	case wire.EntryOpenSession:
		o, err := wire.ParseOpenSession(body)
		if err != nil {
			return nil, err
		}
		return a, m.change(h, a, func(now uint64) (error, error) { return m.Sessions.open(&o, index, now), nil })
	case wire.EntryCloseSession:
		client, inc, err := wire.ParseCloseSession(body)
		if err != nil {
			return nil, err
		}
		return a, m.change(h, a, func(uint64) (error, error) {
			m.Sessions.table.close(client, inc, index)
			return nil, nil
		})
	case wire.EntryCreateTable:
		s, rest, err := wire.ParseSchema(body)
		if err != nil {
			return nil, err
		}
		if len(rest) != 0 {
			return nil, rowraft.Errorf(rowraft.CodeCorrupt, "%d bytes follow the schema of table %s: want none",
				len(rest), s.Name)
		}
		return a, m.change(h, a, func(uint64) (error, error) { return m.mu.tables.create(s, &m.maker) })
	case wire.EntryDropTable:
		id, err := wire.ParseDropTable(body)
		if err != nil {
			return nil, err
		}
		return a, m.change(h, a, func(uint64) (error, error) {
			m.mu.tables.drop(id)
			m.freeDroppedLocked()
			return nil, nil
		})
	case wire.EntryMark:
		return a, m.applyMark(h, body, a)
	case wire.EntrySweep:
		return a, m.applySweep(h, body, a)
	case wire.EntryProof:
		return a, m.applyProof(h, index, body, a)
	case wire.EntryMembership:
		return a, m.applyMembership(h, body, a)
	case wire.EntryStep:
		return a, m.applyStep(h, body, a)
	case wire.EntryRestoreBegin, wire.EntryRestoreRows, wire.EntryRestoreClose, wire.EntryRestoreDrop:
		return a, m.applyRestore(h, body, a)
	}
	return nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "this binary does not know log entries of kind %d: upgrade it",
		h.Kind)
}

// change applies an entry that has one result. do returns the result, and an error
// if the replica must stop.
func (m *Machine) change(h wire.EntryHeader, a *Applied, do func(now uint64) (result, fatal error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.tick(h)
	result, fatal := m.checkEpoch(m.shard, h), error(nil)
	if result == nil {
		result, fatal = do(now)
	}
	m.publishLocked() // the set of tables may have changed
	a.Parts = []PartResult{{Err: result}}
	return fatal
}

// applyParts parses the whole entry before it changes anything, so that a corrupt
// entry has no effect.
func (m *Machine) applyParts(h wire.EntryHeader, body []byte, a *Applied) error {
	if h.Parts > len(body)/wire.PartHeaderSize {
		return rowraft.Errorf(rowraft.CodeCorrupt, "a log entry of %d bytes claims to have %d parts", len(body), h.Parts)
	}
	var p wire.Part
	rest, err := body, error(nil)
	for range h.Parts {
		if rest, err = wire.ParsePart(rest, &p); err != nil {
			return err
		}
	}
	if len(rest) != 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%d bytes follow the parts of a log entry: want none", len(rest))
	}
	now := m.tick(h)
	wrongEpoch := m.checkEpoch(m.shard, h)
	a.Parts = make([]PartResult, h.Parts)
	rest = body
	for i := range a.Parts {
		rest, _ = wire.ParsePart(rest, &p)
		if a.Parts[i].Err = wrongEpoch; wrongEpoch == nil {
			if a.Parts[i], err = m.applyPart(&p, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// applyPart applies or refuses one part as a whole and returns its result. It records the result
// only if the part's session is alive and its number is in the window.
// The error is fatal.
func (m *Machine) applyPart(p *wire.Part, now uint64) (PartResult, error) {
	if p.Op == wire.OpSum {
		contributors, segments := wire.ParseSum(p)
		return m.Sessions.applyIfNew(contributors, now, func() error { return m.validateSum(p, segments) },
			func() error { return m.applyRows(&wire.Part{Op: wire.OpSum, Payload: segments}) })
	}
	s, known, err := m.Sessions.begin(p, now)
	if known || err != nil {
		return PartResult{Err: err, Duplicate: err == nil}, nil
	}
	// Validated again, although the leader has done it: a table may have been dropped between the leader's check and this
	// entry. All replicas get the same answer.
	refusal := m.Validate(p.Op, p.Payload)
	if refusal == nil {
		if err := m.applyRows(p); err != nil {
			return PartResult{}, err
		}
		if p.Op == wire.OpClocked {
			m.Jobs.setClock(p.Payload)
		}
	}
	m.Sessions.record(s, p.Seq, refusal)
	return PartResult{Err: refusal}, nil
}

// applyRows runs the op on every row of p. It holds mu for chunkRows at a
// time. Any error is fatal, since some rows may have changed.
// REQUIRES: Validate(p.Op, p.Payload) == nil.
func (m *Machine) applyRows(p *wire.Part) error {
	op, payload := p.Op, p.Payload
	if op == wire.OpClocked {
		_, segments, err := wire.ParseClock(payload)
		if err != nil {
			return err
		}
		op, payload = wire.OpPush, segments
	}
	for len(payload) > 0 {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		t, err := m.find(seg.Table)
		if err != nil {
			return err
		}
		if err := m.applySegment(op, t, seg, body); err != nil {
			return fmt.Errorf("table %s: %w", t.schema.Name, err)
		}
	}
	return nil
}

func (m *Machine) applySegment(op wire.Op, t *table, seg wire.Segment, body wire.Body) error {
	lr := t.schema.Optimizer.LR
	if seg.Flags&wire.FlagLR != 0 {
		lr = seg.LR
	}
	var scratch [chunkRows]rowraft.Key
	rowBytes := seg.Dim * seg.DType.Size()
	for from := 0; from < seg.N; from += chunkRows {
		to := min(from+chunkRows, seg.N)
		keys := wire.Keys(scratch[:], body.Keys[8*from:8*to])
		if err := t.rows.Tier().Prefetch(keys); err != nil {
			return err
		}
		var values []byte
		if op != wire.OpDelete {
			values = body.Values[from*rowBytes : to*rowBytes]
		}
		var err error
		m.mu.Lock()
		t.rows.SetTick(rowraft.TickOf(m.logTime.Load()))
		if len(body.Counts) > 0 {
			err = t.rows.UpdateCounted(keys, values, seg.DType, lr, body.Counts[from:to])
		} else {
			err = t.apply(op, keys, values, seg.DType, lr)
		}
		m.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// apply runs the op on rows of t. REQUIRES: Machine.mu is held for writing.
func (t *table) apply(op wire.Op, keys []rowraft.Key, values []byte, dt rowraft.DType, lr float32) error {
	switch {
	case op == wire.OpAssign:
		return t.rows.Assign(keys, values, dt)
	case op == wire.OpDelete:
		return t.rows.Delete(keys)
	case canary.Is(canary.MapOrder):
		return updateInMapOrder(t, keys, values, dt, lr)
	}
	return t.rows.Update(keys, values, dt, lr)
}

// updateInMapOrder implements the sabotage canary.MapOrder: it breaks invariant 1.
func updateInMapOrder(t *table, keys []rowraft.Key, values []byte, dt rowraft.DType, lr float32) error {
	rowBytes := len(values) / len(keys)
	for _, i := range canary.Order(len(keys)) {
		if err := t.rows.Update(keys[i:i+1], values[i*rowBytes:(i+1)*rowBytes], dt, lr); err != nil {
			return err
		}
	}
	return nil
}
