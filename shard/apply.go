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

// Apply applies a committed entry and returns *Applied, or *FatalError if this
// replica must stop. It ignores entries up to AppliedIndex and returns nil for them. A fenced
// replica applies nothing and returns its *FencedError.
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
		return m.fail(index, err)
	}
	m.applied.Store(uint64(index))
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
	err := m.usableLocked()
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
		return a, m.change(h, a, func(st *state, now uint64) (error, error) {
			evicted, err := st.open(&o, index, now)
			if evicted {
				m.evicted.Add(1)
			}
			return err, nil
		})
	case wire.EntryCloseSession:
		client, inc, err := wire.ParseCloseSession(body)
		if err != nil {
			return nil, err
		}
		return a, m.change(h, a, func(st *state, _ uint64) (error, error) {
			st.closeSession(client, inc, index)
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
		return a, m.change(h, a, func(st *state, _ uint64) (error, error) { return st.createTable(s, m.owned) })
	case wire.EntryDropTable:
		id, err := wire.ParseDropTable(body)
		if err != nil {
			return nil, err
		}
		return a, m.change(h, a, func(*state, uint64) (error, error) { m.dropTable(id); return nil, nil })
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
func (m *Machine) change(h wire.EntryHeader, a *Applied, do func(st *state, now uint64) (result, fatal error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.tick(h)
	result, fatal := m.checkEpoch(h), error(nil)
	if result == nil {
		result, fatal = do(m.mu.state, now)
	}
	m.publishLocked() // the set of tables may have changed
	a.Parts = []PartResult{{Err: result}}
	return fatal
}

// tick advances log time to that of h and returns it. Log time never decreases.
func (m *Machine) tick(h wire.EntryHeader) uint64 {
	now := max(m.logTime.Load(), h.LogTime)
	m.logTime.Store(now)
	return now
}

// checkEpoch refuses an entry that was proposed for the tables of another epoch.
func (m *Machine) checkEpoch(h wire.EntryHeader) error {
	if have := m.Epoch(); h.Epoch != have {
		return rowraft.Errorf(rowraft.CodeSessionExpired,
			"shard %d: the entry is for table epoch %d, but the tables have epoch %d: open a new session",
			m.shard, h.Epoch, have)
	}
	return nil
}

func (st *state) createTable(s rowraft.Schema, owned *ownedSlots) (result, fatal error) {
	if s.ID == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has no id", s.Name), nil
	}
	for _, t := range st.tables {
		switch {
		case t.schema == s:
			return nil, nil
		case t.schema.ID == s.ID:
			return rowraft.Errorf(rowraft.CodeTableExists, "table id %#x exists as %q with another schema",
				uint64(s.ID), t.schema.Name), nil
		case t.schema.Name == s.Name:
			return rowraft.Errorf(rowraft.CodeTableExists, "table %q exists with id %#x", s.Name, uint64(t.schema.ID)), nil
		}
	}
	if len(st.tables) >= MaxTables {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the shard has %d tables, the limit: drop one first", MaxTables),
			nil
	}
	_, fatal = st.addTable(s, owned)
	return nil, fatal
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
	wrongEpoch := m.checkEpoch(h)
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
	m.mu.Lock()
	s, err := m.mu.check(p.Client, p.Incarnation, now)
	if err != nil {
		m.mu.Unlock()
		return PartResult{Err: err}, nil
	}
	s = m.mu.writable(s)
	s.LastUsed = now
	known, err := lookup(s, p)
	if known || err != nil {
		m.mu.Unlock()
		return PartResult{Err: err, Duplicate: err == nil}, nil
	}
	raiseFloor(s, p.Floor)
	m.mu.Unlock()

	refusal := m.Validate(p.Op, p.Payload)
	if refusal == nil {
		if err := m.applyRows(p); err != nil {
			return PartResult{}, err
		}
		if p.Op == wire.OpClocked {
			m.setClock(p.Payload)
		}
	}
	m.mu.Lock()
	record(s, p.Seq, refusal) // s is still valid: only this goroutine changes sessions
	m.mu.Unlock()
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
		lr := t.schema.Optimizer.LR
		if seg.Flags&wire.FlagLR != 0 {
			lr = seg.LR
		}
		if err := m.applySegment(op, t, seg, body, lr); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) applySegment(op wire.Op, t *table, seg wire.Segment, body wire.Body, lr float32) error {
	var scratch [chunkRows]rowraft.Key
	rowBytes := seg.Dim * seg.DType.Size()
	for from := 0; from < seg.N; from += chunkRows {
		to := min(from+chunkRows, seg.N)
		keys := wire.Keys(scratch[:], body.Keys[8*from:8*to])
		var values []byte
		if op != wire.OpDelete {
			values = body.Values[from*rowBytes : to*rowBytes]
		}
		if err := m.applyChunk(op, t, keys, values, seg.DType, lr); err != nil {
			return fmt.Errorf("table %s: %w", t.schema.Name, err)
		}
	}
	return nil
}

func (m *Machine) applyChunk(op wire.Op, t *table, keys []rowraft.Key, values []byte, dt rowraft.DType,
	lr float32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	t.rows.SetTick(rowraft.TickOf(m.logTime.Load()))
	if canary.Is(canary.MapOrder) && op == wire.OpPush {
		return updateInMapOrder(t, keys, values, dt, lr)
	}
	switch op {
	case wire.OpAssign:
		return t.rows.Assign(keys, values, dt)
	case wire.OpDelete:
		return t.rows.Delete(keys)
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
