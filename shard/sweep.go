package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/wire"
)

// Swept counts what a sweep removed, or would remove.
type Swept struct {
	Rows       uint64
	Candidates uint64
}

// applySweep removes the rows and candidates that meet the conditions of the entry
// (docs/formats/streaming.md). It holds mu for one slot at a time.
// REQUIRES: m.applyMu is held.
func (m *Machine) applySweep(h wire.EntryHeader, body []byte, a *Applied) error {
	w, err := wire.ParseSweep(body)
	if err != nil {
		return err
	}
	err = m.change(h, a, func(uint64) (result, fatal error) {
		t := m.mu.tables.get(w.Table)
		if t == nil {
			return m.notFound(w.Table), nil
		}
		return t.rows.CheckSweep(&w), nil
	})
	if err != nil || a.Parts[0].Err != nil {
		return err
	}
	for slot := w.First; slot < w.First+rowraft.Slot(w.Slots); slot++ {
		if !m.owned.has(slot) {
			continue
		}
		if err := m.sweepSlot(&w, slot, a); err != nil {
			return fmt.Errorf("sweep slot %d: %w", slot, err)
		}
	}
	return nil
}

func (m *Machine) sweepSlot(w *wire.Sweep, slot rowraft.Slot, a *Applied) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows, candidates, err := m.mu.tables.get(w.Table).rows.Sweep(slot, w, rowraft.TickOf(m.logTime.Load()))
	a.Swept.Rows += uint64(rows)
	a.Swept.Candidates += uint64(candidates)
	return err
}

// SweepPreview is the result of PreviewSweep for some slots.
type SweepPreview struct {
	Next   rowraft.Slot // first slot that was not read; the number of slots if all were read
	Looked uint64       // rows and candidates read
	Found  Swept

	// First and Slots are the range from the first to the last slot in which something was
	// found; Slots is 0 if nothing was found.
	First rowraft.Slot
	Slots int
}

// PreviewSweep counts what the sweep w would remove at tick. It starts at slot w.First and stops
// after the slot in which it has read at least most rows. It ignores w.Slots.
//
// Errors: CodeTableNotFound; CodeInvalidArgument if the conditions of w do not apply to the
// table; *FatalError; CodeClosing.
func (m *Machine) PreviewSweep(w *wire.Sweep, tick uint32, most uint64) (p SweepPreview, err error) {
	for p.Next = w.First; p.Next < rowraft.Slot(m.owned.count) && p.Looked < most; p.Next++ {
		if !m.owned.has(p.Next) {
			continue
		}
		var slot slotPreview
		for done := false; !done && err == nil; {
			done, err = slot.next(m, w, p.Next, tick)
		}
		slot.listing.end()
		if err != nil {
			return p, err
		}
		p.Looked += slot.looked
		p.Found.Rows += slot.found.Rows
		p.Found.Candidates += slot.found.Candidates
		if slot.found != (Swept{}) {
			if p.Slots == 0 {
				p.First = p.Next
			}
			p.Slots = int(p.Next-p.First) + 1
		}
	}
	return p, nil
}

// slotPreview counts what a sweep would remove from one slot, in several steps. Rows may change in between.
type slotPreview struct {
	listing slotListing
	looked  uint64
	found   Swept
}

// next counts the next rows of slot.
func (p *slotPreview) next(m *Machine, w *wire.Sweep, slot rowraft.Slot, tick uint32) (done bool, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.mu.usable(); err != nil {
		return false, err
	}
	t := m.mu.tables.get(w.Table)
	if t == nil {
		return false, m.notFound(w.Table)
	}
	if p.listing.table != t {
		if err := t.rows.CheckSweep(w); err != nil {
			return false, err
		}
		p.looked, p.found = uint64(t.rows.SlotCounts(slot).Rows+t.rows.SlotCandidates(slot)), Swept{}
		if p.looked == 0 {
			return true, nil
		}
		p.listing.begin(t, slot)
	}
	rows, candidates, done := t.rows.CountSweep(p.listing.rows, slot, w, tick, t.listEntries())
	p.found.Rows += uint64(rows)
	p.found.Candidates += uint64(candidates)
	return done, t.rows.Tier().Broken()
}

// listEntries limits the index entries that are read while a lock is held once: about
// 0.3 ms if every record must be fetched from memory.
const listEntries = 8192

// listEntries returns that limit for t: that of a snapshot's walk if rows of t are on disk.
func (t *table) listEntries() int {
	if t.rows.Tier() != nil {
		return walkEntries
	}
	return listEntries
}

// slotListing is a rowstore.Listing and its table. The table may be dropped between two steps.
type slotListing struct {
	table *table
	rows  *rowstore.Listing
}

// begin lists slot of t. REQUIRES: those of rowstore.Table.List.
func (l *slotListing) begin(t *table, slot rowraft.Slot) {
	l.end()
	l.table, l.rows = t, t.rows.List(slot)
}

func (l *slotListing) end() {
	if l.rows != nil {
		l.rows.End()
		l.table, l.rows = nil, nil
	}
}
