package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
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

func (m *Machine) lookAt(w *wire.Sweep, slot rowraft.Slot, tick uint32) (looked uint64, found Swept, err error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(); err != nil {
		return 0, found, err
	}
	t := m.mu.table(w.Table)
	if t == nil {
		return 0, found, m.notFound(w.Table)
	}
	if err := t.rows.CheckSweep(w); err != nil {
		return 0, found, err
	}
	looked = uint64(t.rows.SlotRows(slot) + t.rows.SlotCandidates(slot))
	if looked == 0 {
		return 0, found, nil
	}
	rows, candidates := t.rows.CountSweep(slot, w, tick)
	return looked, Swept{uint64(rows), uint64(candidates)}, nil
}
