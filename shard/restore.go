package shard

import (
	"errors"
	"fmt"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// Restore replaces the state by the snapshot in r. It builds the new state separately
// and verifies checksums, order, counts and the digest of the rows before it
// replaces the old one. Until then, and after an error, the Machine is unchanged. Restore clears a
// fatal error.
//
// Errors: CodeCorrupt; CodeVersionTooNew; CodeIdentity if r is a snapshot of another shard;
// CodeWrongShard if a row is in a slot that this shard does not hold; CodeClosing; errors of r.
func (m *Machine) Restore(r io.Reader) error {
	rd, err := checkpoint.NewLocalReader(r)
	if err != nil {
		return err
	}
	h := rd.Header()
	if h.Local && m.maker.tier == nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"restore shard %d: the snapshot refers to rows in files, and this machine has none", m.shard)
	}
	if h.Shard != m.shard {
		return rowraft.Errorf(rowraft.CodeIdentity, "restore shard %d: the snapshot belongs to shard %d", m.shard, h.Shard)
	}
	if h.Delta {
		return rowraft.Errorf(rowraft.CodeCorrupt, "restore shard %d: the stream is a delta, which does not have all rows",
			m.shard)
	}
	if canary.Is(canary.RestoreInPlace) {
		return m.restoreInPlace(rd)
	}
	st, err := build(rd, &m.maker)
	if err != nil {
		return fmt.Errorf("restore shard %d: %w", m.shard, errors.Join(err, st.tables.close()))
	}

	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return errors.Join(rowraft.Errorf(rowraft.CodeClosing, "shard %d is closed", m.shard), st.tables.close())
	}
	if m.mu.fenced != nil {
		return errors.Join(m.mu.fenced, st.tables.close()) // its disk and rows are kept as evidence
	}
	_ = m.mu.stage.close() // the snapshot contains no stage: none is taken during a restore
	m.mu.stage, m.mu.failed = nil, nil
	m.Rounds.reset()
	// An error only means that the system did not take back memory. The new state is valid.
	_ = m.replaceLocked(st, func() {
		m.logTime.Store(h.LogTime)
		m.epoch.Store(uint64(h.Epoch))
		m.applied.Store(uint64(h.Applied))
	})
	return nil
}

// coldRefs returns what rd refers to, by table.
func coldRefs(rd *checkpoint.Reader) map[rowraft.TableID]*rowstore.TierRef {
	refs := map[rowraft.TableID]*rowstore.TierRef{}
	for _, f := range rd.ColdFiles() {
		refs[f.Table] = liveColdFile(&f)
	}
	return refs
}

// restoreInPlace implements the sabotage canary.RestoreInPlace: after an error, readers and later
// entries use the part of the snapshot that was read before it.
func (m *Machine) restoreInPlace(rd *checkpoint.Reader) error {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.Lock()
	closed := m.replaceLocked(state{tables: &tableSet{}}, func() {})
	m.mu.Unlock()
	st, err := build(rd, &m.maker)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.mu.failed = nil
	}
	h := rd.Header()
	_ = m.replaceLocked(st, func() {
		if err == nil {
			m.logTime.Store(h.LogTime)
			m.epoch.Store(uint64(h.Epoch))
			m.applied.Store(uint64(h.Applied))
		}
	})
	if err != nil {
		return fmt.Errorf("restore shard %d: %w", m.shard, errors.Join(err, closed))
	}
	return closed
}

// build reads all of rd into a new state. The state has tables even if there is
// an error, so that the caller can free them.
func build(rd *checkpoint.Reader, maker *tableMaker) (state, error) {
	st := state{tables: &tableSet{}}
	names := map[string]bool{}
	refs := coldRefs(rd)
	for _, s := range rd.Tables() {
		if s.ID == 0 || names[s.Name] || len(st.tables.list) >= MaxTables {
			return st, rowraft.Errorf(rowraft.CodeCorrupt,
				"the snapshot has an impossible table %q: its id is 0, its name is not unique, or it is beyond the limit of "+
					"%d tables", s.Name, MaxTables)
		}
		names[s.Name] = true
		if _, err := st.tables.addFrom(s, maker, refs[s.ID]); err != nil {
			return st, err
		}
	}
	if n := len(rd.Sessions()); n > MaxSessions {
		return st, rowraft.Errorf(rowraft.CodeCorrupt, "the snapshot has %d sessions: want at most %d", n, MaxSessions)
	}
	for _, s := range rd.Sessions() {
		st.sessions.list = append(st.sessions.list, liveSession(&s)) // rd has checked the order
	}
	st.sessions.ended.restore(rd.Ended())
	for _, j := range rd.Jobs() {
		st.jobs.list = append(st.jobs.list, liveJob(&j)) // rd has checked the order
	}
	for {
		b, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return st, err
		}
		if err := st.tables.addRows(&b); err != nil {
			return st, err
		}
		if err := st.tables.get(b.Table).rows.RestoreSlotVersion(b.Slot.Slot, b.Counter, b.Removed); err != nil {
			return st, err
		}
	}
	for _, t := range st.tables.list {
		if refs[t.schema.ID] != nil {
			if err := t.rows.Tier().Restored(); err != nil {
				return st, err
			}
		}
	}
	want := rowstore.DigestOf(rd.Trailer().Digest)
	if sum, _ := st.tables.digest(); sum != want {
		return st, rowraft.Errorf(rowraft.CodeCorrupt, "the rows have digest %s, but the snapshot states %s", sum, want)
	}
	return st, nil
}
