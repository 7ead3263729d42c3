package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/wire"
)

// Swept counts what a sweep removed, or would.
type Swept struct {
	Rows       uint64
	Candidates uint64 // keys that waited for a row
}

// applySweep removes what meets the conditions of the entry
// (docs/formats/streaming.md), a slot under one hold of the lock.
// REQUIRES: m.entry is held.
func (m *Machine) applySweep(h wire.EntryHeader, body []byte, a *Applied) error {
	w, err := wire.ParseSweep(h, body)
	if err != nil {
		return err
	}
	err = m.change(h, a, func(st *state, _ uint64) (answer, fatal error) {
		t := st.table(w.Table)
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
	rows, candidates, err := m.mu.table(w.Table).rows.Sweep(slot, w, rowraft.TickOf(m.logTime.Load()))
	a.Swept.Rows += uint64(rows)
	a.Swept.Candidates += uint64(candidates)
	return err
}

// Piece is what a look at some slots found.
type Piece struct {
	Next   rowraft.Slot // first that was not looked at; NumSlots if all were
	Looked uint64       // rows and candidates
	Found  Swept

	// First and Slots are those from the first to the last in which something was
	// found; Slots is 0 if nothing was.
	First rowraft.Slot
	Slots int
}

// LookForSweep counts what the sweep w would remove at tick, from slot w.First on
// and until it has looked at most rows (it ends with a whole slot). w.Slots does
// not count.
//
// Errors: CodeTableNotFound; CodeInvalidArgument if w cannot be asked of the
// table; *FatalError; CodeClosing.
func (m *Machine) LookForSweep(w *wire.Sweep, tick uint32, most uint64) (p Piece, err error) {
	for p.Next = w.First; p.Next < rowraft.NumSlots && p.Looked < most; p.Next++ {
		if !m.owned.has(p.Next) {
			continue
		}
		looked, found, err := m.lookAt(w, p.Next, tick)
		if err != nil {
			return p, err
		}
		p.Looked += looked
		p.Found.Rows += found.Rows
		p.Found.Candidates += found.Candidates
		if found != (Swept{}) {
			if p.Slots == 0 {
				p.First = p.Next
			}
			p.Slots = int(p.Next-p.First) + 1
		}
	}
	return p, nil
}

// lookAt looks at one slot, in pieces, between which rows may change.
func (m *Machine) lookAt(w *wire.Sweep, slot rowraft.Slot, tick uint32) (looked uint64, found Swept, err error) {
	var l slotListing
	defer l.end()
	for done := false; !done && err == nil; {
		done, err = m.lookAtSome(&l, w, slot, tick, &looked, &found)
	}
	return looked, found, err
}

func (m *Machine) lookAtSome(l *slotListing, w *wire.Sweep, slot rowraft.Slot, tick uint32, looked *uint64, found *Swept) (done bool, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(); err != nil {
		return false, err
	}
	t := m.mu.table(w.Table)
	if t == nil {
		return false, m.notFound(w.Table)
	}
	if l.table != t {
		if err := t.rows.CheckSweep(w); err != nil {
			return false, err
		}
		*looked, *found = uint64(t.rows.SlotRows(slot)+t.rows.SlotCandidates(slot)), Swept{}
		if *looked == 0 {
			return true, nil
		}
		l.begin(t, slot)
	}
	rows, candidates, done := t.rows.CountSweep(l.rows, slot, w, tick, listEntries)
	found.Rows += uint64(rows)
	found.Candidates += uint64(candidates)
	return done, nil
}

// listEntries bounds the index entries that are looked at under one hold of a lock: some
// 0.3 ms where every record has to be fetched from memory.
const listEntries = 8192

// slotListing is a rowstore.Listing and the table that it is of, which may go between two
// pieces.
type slotListing struct {
	table *table
	rows  *rowstore.Listing
}

// begin lists slot of t. REQUIRES: as List of rowstore.
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
