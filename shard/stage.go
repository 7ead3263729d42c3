package shard

import (
	"errors"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// stage is the state of a running restore: tables that entries of the log build while the present
// tables serve. It is part of the replicated state, but not of a snapshot: no snapshot
// is taken while there is a stage, so the log keeps the entries that built it.
//
// The apply goroutine owns it. Other goroutines read next, rows and broken under m.mu.
type stage struct {
	id     wire.RestoreID
	epoch  rowraft.TableEpoch
	tables *tableSet
	base   uint32 // tick from which ages are subtracted
	next   uint64 // number of the next chunk
	rows   uint64
	broken error // the reason why it cannot be closed, or nil
}

// Stage is the progress of a restore on this replica.
type Stage struct {
	ID     wire.RestoreID
	Epoch  rowraft.TableEpoch
	Next   uint64 // number of the next chunk
	Rows   uint64
	Digest checkpoint.Digest
	Err    error // the reason why it cannot be closed, or nil
}

// Stage returns the progress of the running restore, if there is one. It waits for the end of an
// entry that is being applied.
func (m *Machine) Stage() (s Stage, ok bool) {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.RLock()
	defer m.mu.RUnlock()
	g := m.mu.stage
	if g == nil {
		return s, false
	}
	sum, _ := g.tables.digest()
	return Stage{ID: g.id, Epoch: g.epoch, Next: g.next, Rows: g.rows, Digest: sum.Bytes(), Err: g.broken}, true
}

// StageID returns the id of the running restore, if there is one, without waiting.
func (m *Machine) StageID() (id wire.RestoreID, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.stage == nil {
		return id, false
	}
	return m.mu.stage.id, true
}

// close frees g, which may be nil.
func (g *stage) close() error {
	if g == nil {
		return nil
	}
	return g.tables.close()
}

// applyRestore applies an entry of a restore.
// REQUIRES: m.applyMu is held.
func (m *Machine) applyRestore(h wire.EntryHeader, body []byte, a *Applied) error {
	switch h.Kind {
	case wire.EntryRestoreBegin:
		b, err := wire.ParseRestoreBegin(body)
		if err != nil {
			return err
		}
		return m.change(h, a, func(now uint64) (error, error) { return m.beginStage(&b, now) })
	case wire.EntryRestoreRows:
		return m.applyStageRows(h, body, a)
	case wire.EntryRestoreClose:
		c, err := wire.ParseRestoreClose(body)
		if err != nil {
			return err
		}
		return m.change(h, a, func(uint64) (error, error) { return m.closeStage(&c), nil })
	}
	id, err := wire.ParseRestoreDrop(body)
	if err != nil {
		return err
	}
	return m.change(h, a, func(uint64) (error, error) {
		if g := m.mu.stage; g != nil && g.id == id {
			m.mu.stage = nil
			_ = g.close() // an error only means that the system did not take back memory
		}
		return nil, nil
	})
}

// beginStage makes an empty stage. If b has a higher epoch than the tables, the restore replaces
// all tables; with the present epoch, it replaces only the tables that it names. beginStage never
// replaces another stage: the scheduler may have decided to close that one by now. Only an
// EntryRestoreDrop removes it.
// REQUIRES: m.applyMu and m.mu are held.
func (m *Machine) beginStage(b *wire.RestoreBegin, now uint64) (result, fatal error) {
	if b.Epoch < m.Epoch() || b.Epoch == m.Epoch() && len(b.Tables) == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"shard %d: a restore of %d tables to table epoch %d, but the tables have epoch %d",
			m.shard, len(b.Tables), b.Epoch, m.Epoch()), nil
	}
	if g := m.mu.stage; g != nil && g.id == b.ID {
		return nil, nil // a copy of the entry that began this restore
	} else if g != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: restore %x must wait until restore %x ends",
			m.shard, b.ID[:4], g.id[:4]), nil
	}
	names := make(map[string]bool, len(b.Tables))
	for _, s := range b.Tables {
		if names[s.Name] || len(b.Tables) > MaxTables {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"shard %d: a restore of %d tables: want at most %d with different names, table %q",
				m.shard, len(b.Tables), MaxTables, s.Name), nil
		}
		names[s.Name] = true
		if b.Epoch == m.Epoch() && m.mu.tables.get(s.ID) != nil {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"shard %d: the restore of table %s uses id %#x, which another table has",
				m.shard, s.Name, uint64(s.ID)), nil
		}
	}
	g := &stage{id: b.ID, epoch: b.Epoch, tables: &tableSet{}, next: 1, base: max(b.Base, rowraft.TickOf(now))}
	if b.Epoch == m.Epoch() {
		g.base = rowraft.TickOf(now) // the tables that stay use this log time, too
	}
	for _, s := range b.Tables {
		if _, err := g.tables.add(s, &m.maker); err != nil {
			return nil, errors.Join(err, g.tables.close())
		}
	}
	m.mu.stage = g
	return nil, nil
}

// applyStageRows adds one chunk. It parses the whole entry before it changes
// anything. It does not hold m.mu while it adds rows: no other goroutine reads them yet.
func (m *Machine) applyStageRows(h wire.EntryHeader, body []byte, a *Applied) error {
	id, seq, blocks, err := wire.ParseRestoreRows(body)
	if err != nil {
		return err
	}
	var b wire.RestoreBlock
	for rest := blocks; len(rest) > 0; {
		if rest, err = wire.ParseRestoreBlock(rest, &b); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.tick(h)
	result := m.checkEpoch(m.shard, h)
	g := m.mu.stage
	m.mu.Unlock()
	if result == nil {
		result = g.check(m.shard, id, seq)
	}
	a.Parts = []PartResult{{Err: result}}
	if result != nil || seq < g.next {
		a.Parts[0].Duplicate = result == nil
		return nil
	}
	rows, err := g.add(blocks)
	if c := rowraft.CodeOf(err); c == rowraft.CodeOverloaded || c == rowraft.CodeFenced {
		return err // this replica has no memory, or a bad disk; the other replicas may have some, or a good one
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

// check returns the reason why chunk seq of the restore id does not belong to g, or nil. g may be nil.
func (g *stage) check(shard rowraft.ShardID, id wire.RestoreID, seq uint64) error {
	switch {
	case g == nil || g.id != id:
		return rowraft.Errorf(rowraft.CodeNotFound, "shard %d: no restore %x is running", shard, id[:4])
	case g.broken != nil:
		return g.broken
	case seq == 0 || seq > g.next:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"shard %d: chunk %d of the restore arrived, but chunk %d is next", shard, seq, g.next)
	}
	return nil
}

// add adds the rows of blocks to the stage.
func (g *stage) add(blocks []byte) (rows uint64, err error) {
	var b wire.RestoreBlock
	for len(blocks) > 0 {
		if blocks, err = wire.ParseRestoreBlock(blocks, &b); err != nil {
			return rows, err
		}
		block := checkpoint.Block{
			Slot: checkpoint.Slot{Table: b.Table, Slot: b.Slot, Counter: b.Counter, RecordBytes: b.RecordBytes},
			Rows: b.Rows, Records: b.Records,
		}
		if b.Candidates {
			block.Rows, block.Records, block.Candidates = 0, nil, b.Records
		}
		if t := g.tables.get(b.Table); t != nil {
			t.rows.SetAges(g.base, b.Tick)
		}
		if err := g.tables.addRows(&block); err != nil {
			return rows, err
		}
		if err := g.tables.get(b.Table).rows.RaiseSlotVersion(b.Slot, b.Counter); err != nil {
			return rows, err
		}
		rows += uint64(block.Rows)
	}
	return rows, nil
}

// closeStage makes the stage the state: all tables are replaced, the epoch is new, and there are no
// sessions. A stage of the present epoch replaces only the tables of the same names; everything else
// stays.
// REQUIRES: m.applyMu and m.mu are held.
func (m *Machine) closeStage(c *wire.RestoreClose) error {
	g := m.mu.stage
	mine := g != nil && g.id == c.ID && g.epoch == c.Epoch
	switch {
	case !mine && c.Epoch == m.Epoch():
		return nil // a copy of the entry that closed this restore
	case !mine:
		return rowraft.Errorf(rowraft.CodeNotFound, "shard %d: no restore %x to table epoch %d is running",
			m.shard, c.ID[:4], c.Epoch)
	case g.broken != nil:
		return g.broken
	}
	if sum, _ := g.tables.digest(); g.next-1 != c.Chunks || g.rows != c.Rows || sum.Bytes() != c.Digest {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"shard %d: the restore has %d chunks with %d rows of digest %x, want %d with %d of %x",
			m.shard, g.next-1, g.rows, sum.Bytes(), c.Chunks, c.Rows, c.Digest)
	}
	m.mu.stage = nil
	if g.epoch == m.Epoch() {
		m.mu.tables.replace(g.tables.list)
		m.freeDroppedLocked()
		return nil
	}
	// An error only means that the system did not take back memory.
	_ = m.replaceLocked(state{tables: g.tables}, func() {
		m.epoch.Store(uint64(g.epoch))
		m.logTime.Store(max(m.logTime.Load(), uint64(g.base)*uint64(rowraft.Tick)))
	})
	return nil
}
