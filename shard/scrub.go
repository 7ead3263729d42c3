package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
)

// Bounds of what Scrub looks at under one hold of the lock.
const (
	scrubSlots = 64
	scrubBytes = 64 << 10
)

// scrubber is where Scrub goes on. The goroutine that calls it owns it.
type scrubber struct {
	table  rowraft.TableID
	slot   rowraft.Slot // perhaps within it: then the table knows where
	passes int          // over all rows
	owed   int          // bytes that were read beyond what was asked for
}

// Scrub reads so many bytes of rows, less what it read too much last time, from where it
// stopped, and compares them with the digests that apply keeps: a row at rest may be damaged
// in memory, and a proof entry would not notice before the row changes next. It reads about
// scrubBytes under one hold of the lock, however large a slot is, and stops at the end
// of a pass. A replica with damage is fenced.
//
// One goroutine calls it, beside Apply and Pull.
//
// Errors: *FencedError if the replica is fenced, now or before; *FatalError;
// CodeClosing.
func (m *Machine) Scrub(bytes int) error {
	bytes -= m.scrub.owed
	for pass := m.scrub.passes; bytes > 0 && m.scrub.passes == pass; {
		read, err := m.scrubSome()
		if err != nil {
			return err
		}
		bytes -= max(read, 1)
	}
	m.scrub.owed = max(0, -bytes)
	return nil
}

// scrubSome checks some slots under one hold of the lock.
func (m *Machine) scrubSome() (read int, err error) {
	read, where, err := m.scrubSlots()
	if err != nil || where == "" {
		return read, err
	}
	return read, m.Fence("the rows of " + where + " are not those that were written: the memory of this server was damaged")
}

// Fence stops the replica for good: it has found by itself that its rows are wrong.
//
// Errors: *FencedError, that of now or of before; *FatalError; CodeClosing.
func (m *Machine) Fence(reason string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usableLocked(); err != nil {
		return err
	}
	m.mu.fenced = &FencedError{Shard: m.shard, Reason: reason, AppliedTo: m.AppliedIndex()}
	m.publishLocked()
	return m.mu.fenced
}

// scrubSlots reads on. where names a slot with damage.
func (m *Machine) scrubSlots() (read int, where string, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(); err != nil {
		return 0, "", err
	}
	c := &m.scrub
	for range scrubSlots {
		t := m.mu.tableFrom(c.table)
		if t == nil {
			c.table, c.slot = 0, 0
			c.passes++
			return read, "", nil
		}
		if t.schema.ID != c.table {
			c.table, c.slot = t.schema.ID, 0
		}
		n, done, ok := t.rows.CheckSlot(c.slot, scrubBytes-read)
		if !ok {
			return read, fmt.Sprintf("slot %d of table %s", c.slot, t.schema.Name), nil
		}
		read += n
		if !done {
			return read, "", nil
		}
		if c.slot++; c.slot == rowraft.NumSlots {
			c.table, c.slot = c.table+1, 0
		}
		if read >= scrubBytes {
			break
		}
	}
	return read, "", nil
}

// tableFrom returns the first table whose id is at least id, or nil.
func (st *state) tableFrom(id rowraft.TableID) *table {
	for _, t := range st.tables {
		if t.schema.ID >= id {
			return t
		}
	}
	return nil
}

// Rot is the sabotage canary.MemoryRots.
func (m *Machine) Rot() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.mu.tables {
		if t.rows.Rot() {
			return true
		}
	}
	return false
}
