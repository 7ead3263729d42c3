package shard

import (
	"errors"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// stage is what a restore has brought so far: tables beside those that serve,
// built by entries. It is part of the replicated state, yet in no snapshot: none
// is taken while there is a stage, so the log keeps the entries that made it.
//
// The apply goroutine owns it; next, rows and broken are also read under m.mu.
type stage struct {
	id     wire.RestoreID
	epoch  rowraft.TableEpoch
	state  *state
	base   uint32 // tick that ages are counted back from
	next   uint64 // number of the chunk that comes next
	rows   uint64
	broken error // why it will never be closed
}

// Stage tells how far the restore id is here.
type Stage struct {
	ID     wire.RestoreID
	Epoch  rowraft.TableEpoch
	Next   uint64 // number of the chunk that comes next
	Rows   uint64
	Digest checkpoint.Digest
	Err    error // why it will never be closed
}

// Stage returns the stage, if there is one. It waits for an entry that is being
// applied.
func (m *Machine) Stage() (s Stage, ok bool) {
	m.entry.Lock()
	defer m.entry.Unlock()
	m.mu.RLock()
	defer m.mu.RUnlock()
	g := m.mu.stage
	if g == nil {
		return s, false
	}
	sum, _ := g.state.digest()
	return Stage{ID: g.id, Epoch: g.epoch, Next: g.next, Rows: g.rows, Digest: sum.Bytes(), Err: g.broken}, true
}

// StageID returns the id of the stage, if there is one, without waiting.
func (m *Machine) StageID() (id wire.RestoreID, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.stage == nil {
		return id, false
	}
	return m.mu.stage.id, true
}

// dropStageLocked forgets the stage.
// REQUIRES: m.mu is held for writing.
func (m *Machine) dropStageLocked() error {
	g := m.mu.stage
	m.mu.stage = nil
	if g == nil {
		return nil
	}
	return g.state.close()
}

// applyRestore applies an entry of a restore.
// REQUIRES: m.entry is held.
func (m *Machine) applyRestore(h wire.EntryHeader, body []byte, a *Applied) error {
	switch h.Kind {
	case wire.EntryRestoreBegin:
		b, err := wire.ParseRestoreBegin(h.Version, body)
		if err != nil {
			return err
		}
		return m.change(h, a, func(_ *state, now uint64) (error, error) { return m.beginStage(&b, now) })
	case wire.EntryRestoreRows:
		return m.applyStageRows(h, body, a)
	case wire.EntryRestoreClose:
		c, err := wire.ParseRestoreClose(body)
		if err != nil {
			return err
		}
		return m.change(h, a, func(*state, uint64) (error, error) { return m.closeStage(&c), nil })
	}
	id, err := wire.ParseRestoreDrop(body)
	if err != nil {
		return err
	}
	return m.change(h, a, func(*state, uint64) (error, error) {
		if g := m.mu.stage; g != nil && g.id == id {
			_ = m.dropStageLocked() // an error can only mean that memory was not given back
		}
		return nil, nil
	})
}

// beginStage makes an empty stage. An epoch above that of the tables announces a restore
// of all tables, the present one a restore of these tables alone. It never takes the place of another one, which
// may be decided by now: who may drop that is known elsewhere.
// REQUIRES: m.entry and m.mu are held.
func (m *Machine) beginStage(b *wire.RestoreBegin, now uint64) (answer, fatal error) {
	if b.Epoch < m.Epoch() || b.Epoch == m.Epoch() && len(b.Tables) == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: a restore to table epoch %d, the tables are of %d", m.shard, b.Epoch, m.Epoch()), nil
	}
	if g := m.mu.stage; g != nil && g.id == b.ID {
		return nil, nil // a copy of the entry that began it
	} else if g != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: restore %x has its stage here, %x waits for its end", m.shard, g.id[:4], b.ID[:4]), nil
	}
	names := make(map[string]bool, len(b.Tables))
	for _, s := range b.Tables {
		if names[s.Name] || len(b.Tables) > MaxTables {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: a restore of %d tables, of which two may be called %q", m.shard, len(b.Tables), s.Name), nil
		}
		names[s.Name] = true
		if b.Epoch == m.Epoch() && m.mu.table(s.ID) != nil {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: a restore of table %s alone brings id %#x, which is in use", m.shard, s.Name, uint64(s.ID)), nil
		}
	}
	g := &stage{id: b.ID, epoch: b.Epoch, state: &state{}, next: 1, base: max(b.Base, rowraft.TickOf(now))}
	if b.Epoch == m.Epoch() {
		g.base = rowraft.TickOf(now) // the log time is that of tables that stay, too
	}
	for _, s := range b.Tables {
		if _, err := g.state.addTable(s, m.owned); err != nil {
			return nil, errors.Join(err, g.state.close())
		}
	}
	m.mu.stage = g
	return nil, nil
}

// applyStageRows adds one chunk. It walks the whole entry before it changes
// anything, and holds m.mu for none of the rows: nobody reads them yet.
func (m *Machine) applyStageRows(h wire.EntryHeader, body []byte, a *Applied) error {
	id, seq, blocks, err := wire.ParseRestoreRows(body)
	if err != nil {
		return err
	}
	var b wire.RestoreBlock
	for rest := blocks; len(rest) > 0; {
		if rest, err = wire.ParseRestoreBlock(h.Version, rest, &b); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.tick(h)
	answer := m.checkEpoch(h)
	g := m.mu.stage
	m.mu.Unlock()
	if answer == nil {
		answer = m.stageTakes(g, id, seq)
	}
	a.Parts = []PartResult{{Err: answer}}
	if answer != nil || seq < g.next {
		a.Parts[0].Duplicate = answer == nil
		return nil
	}
	rows, err := g.add(blocks)
	if rowraft.CodeOf(err) == rowraft.CodeOverloaded {
		return err // no memory here; other replicas may have some
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		g.broken = fmt.Errorf("shard %d: chunk %d of the restore: %w", m.shard, seq, err)
		a.Parts[0].Err = g.broken
		return nil
	}
	g.next++
	g.rows += rows
	return nil
}

// stageTakes reports why chunk seq of the restore id does not belong into g.
func (m *Machine) stageTakes(g *stage, id wire.RestoreID, seq uint64) error {
	switch {
	case g == nil || g.id != id:
		return rowraft.Errorf(rowraft.CodeNotFound, "shard %d: no restore %x is under way", m.shard, id[:4])
	case g.broken != nil:
		return g.broken
	case seq == 0 || seq > g.next:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: chunk %d of the restore, chunk %d comes next", m.shard, seq, g.next)
	}
	return nil
}

// add puts the rows of blocks into the stage.
func (g *stage) add(blocks []byte) (rows uint64, err error) {
	var b wire.RestoreBlock
	for len(blocks) > 0 {
		if blocks, err = wire.ParseRestoreBlock(wire.EntryVersion, blocks, &b); err != nil {
			return rows, err
		}
		block := checkpoint.Block{
			Slot: checkpoint.Slot{Table: b.Table, Slot: b.Slot, Counter: b.Counter, RecordBytes: b.RecordBytes},
			Rows: b.Rows, Records: b.Records,
		}
		if b.Candidates {
			block.Rows, block.Records, block.Candidates = 0, nil, b.Records
		}
		if t := g.state.table(b.Table); t != nil {
			t.rows.SetAges(g.base, b.Tick)
		}
		if err := g.state.addRows(&block); err != nil {
			return rows, err
		}
		rows += uint64(block.Rows)
	}
	return rows, nil
}

// closeStage puts the stage in the place of all tables: new epoch, no sessions. A stage of
// the present epoch takes the place of the tables of the same names only; all else stays.
// REQUIRES: m.entry and m.mu are held.
func (m *Machine) closeStage(c *wire.RestoreClose) error {
	g := m.mu.stage
	mine := g != nil && g.id == c.ID && g.epoch == c.Epoch
	switch {
	case !mine && c.Epoch == m.Epoch():
		return nil // a copy of the entry that closed it
	case !mine:
		return rowraft.Errorf(rowraft.CodeNotFound, "shard %d: no restore %x to table epoch %d is under way", m.shard, c.ID[:4], c.Epoch)
	case g.broken != nil:
		return g.broken
	}
	if sum, _ := g.state.digest(); g.next-1 != c.Chunks || g.rows != c.Rows || sum.Bytes() != c.Digest {
		return rowraft.Errorf(rowraft.CodeCorrupt, "shard %d: the restore brought %d chunks with %d rows of digest %x, want %d with %d of %x",
			m.shard, g.next-1, g.rows, sum.Bytes(), c.Chunks, c.Rows, c.Digest)
	}
	m.mu.stage = nil
	if g.epoch == m.Epoch() {
		m.replaceTables(g.state.tables)
		return nil
	}
	m.mu.snapshots = nil
	// An error can only mean that memory was not given back.
	_ = m.replaceLocked(g.state, func() {
		m.epoch.Store(uint64(g.epoch))
		m.logTime.Store(max(m.logTime.Load(), uint64(g.base)*uint64(rowraft.Tick)))
	})
	return nil
}
