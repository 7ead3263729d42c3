package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
)

// Limits of one step of Scrub, during which it holds mu.
const (
	scrubSlots = 64
	scrubBytes = 64 << 10
)

// scrubber is the position of Scrub. The goroutine that calls Scrub owns it.
type scrubber struct {
	table  rowraft.TableID
	slot   rowraft.Slot // the table stores the position within the slot
	passes int          // passes over all rows
	owed   int          // bytes that earlier calls read beyond their budget
}

// Scrub checks rows against the digests that Apply keeps up to date: memory may damage a row at rest,
// and a digest round would notice only after the next change of the row. Scrub continues where the
// last call stopped and reads the given number of bytes, minus what earlier calls read beyond their
// budget. It reads about scrubBytes per hold of mu, however large a slot is, and stops at
// the end of a pass. It fences a replica with damage.
//
// One goroutine calls it, concurrently with Apply and Pull.
//
// Errors: *FencedError if the replica is fenced, by this call or before; *FatalError;
// CodeClosing.
func (m *Machine) Scrub(bytes int) error {
	bytes -= m.scrub.owed
	for pass := m.scrub.passes; bytes > 0 && m.scrub.passes == pass; {
		m.mu.RLock()
		err, where, read := m.mu.usable(), "", 0
		if err == nil {
			read, where = m.scrub.next(m.mu.tables, m.owned)
		}
		m.mu.RUnlock()
		if fenced := checkTiers(m); fenced != nil {
			return fenced
		}
		if where != "" {
			err = m.Fence("the rows of " + where + " changed without a write: the memory of this server is damaged")
		}
		if err != nil {
			return err
		}
		bytes -= max(read, 1)
	}
	m.scrub.owed = max(0, -bytes)
	return nil
}

// Fence stops the replica for good, because its rows are wrong.
//
// Errors: *FencedError, of this call or an earlier one; *FatalError; CodeClosing.
func (m *Machine) Fence(reason string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.mu.usable(); err != nil {
		return err
	}
	m.mu.fenced = &FencedError{Shard: m.shard, Reason: reason, AppliedTo: m.AppliedIndex()}
	m.publishLocked()
	return m.mu.fenced
}

// next checks the next slots of tables. where names a slot with damage.
func (c *scrubber) next(tables *tableSet, owned *slotSet) (read int, where string) {
	for range scrubSlots {
		t := tables.from(c.table)
		if t == nil {
			c.table, c.slot = 0, 0
			c.passes++
			return read, ""
		}
		if t.schema.ID != c.table {
			c.table, c.slot = t.schema.ID, owned.first
		}
		n, done, ok := t.rows.CheckSlot(c.slot, scrubBytes-read)
		if !ok {
			return read, fmt.Sprintf("slot %d of table %s", c.slot, t.schema.Name)
		}
		read += n
		if !done {
			return read, ""
		}
		if c.slot++; c.slot >= owned.past {
			c.table, c.slot = c.table+1, owned.first
		}
		if read >= scrubBytes {
			break
		}
	}
	return read, ""
}
