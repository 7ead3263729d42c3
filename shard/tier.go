package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// tend is called after a pull of t, a table with cold rows, which ended with err. It fences the replica if its cold
// rows cannot be read. It moves rows between memory and disk if no entry is being applied.
func tend(m *Machine, t *table, err error) error {
	tier := t.rows.Tier()
	if tier.Broken() != nil {
		if fenced := checkTiers(m); fenced != nil {
			return fenced
		}
		return tier.Broken()
	}
	if tier.NeedsSettle() && m.mu.TryLock() {
		defer m.mu.Unlock()
		if m.mu.usable() == nil && m.mu.tables.get(t.schema.ID) == t {
			_ = tier.Settle() // without memory for them, rows stay on disk
		}
	}
	return err
}

// checkTiers fences the replica if a table has cold rows that cannot be read, and returns the reason.
func checkTiers(m *Machine) error {
	for _, t := range m.view.Load().list {
		if err := t.rows.Tier().Broken(); err != nil {
			return m.Fence(err.Error())
		}
	}
	return nil
}

// CheckRoom refuses an op on a table whose cold rows could not be written to disk: applied, it would take more memory
// than the table may have. Only the leader asks, before the log; the answer is no part of the state.
//
// Errors: CodeOverloaded; CodeCorrupt.
func (d *Reads) CheckRoom(op wire.Op, payload []byte) error {
	for _, t := range d.view.Load().list {
		full := t.rows.Tier().Full()
		if full == nil {
			continue
		}
		if err := d.tend(t, nil); err != nil { // the disk may have room again
			return err
		}
		if full = t.rows.Tier().Full(); full == nil {
			continue
		}
		named, err := names(op, payload, t.schema.ID)
		if err != nil {
			return err
		}
		if named {
			return full
		}
	}
	return nil
}

// names reports whether payload has a segment of table id.
func names(op wire.Op, payload []byte, id rowraft.TableID) (bool, error) {
	if op == wire.OpClocked {
		_, segments, err := wire.ParseClock(payload)
		if err != nil {
			return false, err
		}
		payload = segments
	}
	for len(payload) > 0 {
		seg, _, rest, err := wire.ParseSegment(payload)
		if err != nil || seg.Table == id {
			return err == nil, err
		}
		payload = rest
	}
	return false, nil
}
