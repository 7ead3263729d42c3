package reference

import (
	"cmp"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
)

// This file implements docs/formats/streaming.md, line by line.

const (
	kindSweep = 9

	condExpire, condUnseen, condCount, condNorm = 1, 2, 4, 8
)

// Candidate is a key that was pushed but has no row yet.
type Candidate struct {
	Count uint32
	Tick  uint32 // of the last push
}

type sweep struct {
	table       rowraft.TableID
	first, past int // slots
	conditions  uint32
	unseen      uint32
	count       uint32
	norm        float32
}

func decodeSweep(b []byte) (*sweep, error) {
	if len(b) != 32 || !zero(b[28:]) {
		return nil, corrupt("impossible sweep")
	}
	s := &sweep{
		table: rowraft.TableID(le.Uint64(b)), first: int(le.Uint16(b[8:])), conditions: le.Uint32(b[12:]),
		unseen: le.Uint32(b[16:]), count: le.Uint32(b[20:]), norm: float(b[24:]),
	}
	s.past = int(le.Uint16(b[10:])) + 1
	unasked := s.conditions&condUnseen == 0 && !zero(b[16:20]) || s.conditions&condCount == 0 && !zero(b[20:24]) ||
		s.conditions&condNorm == 0 && !zero(b[24:28])
	switch {
	case s.past <= s.first, s.conditions < 1 || s.conditions > 15, unasked,
		s.conditions&condCount != 0 && s.count == 0,
		s.conditions&condNorm != 0 && (!(s.norm > 0) || math.IsInf(float64(s.norm), 0)):
		return nil, corrupt("impossible sweep")
	}
	return s, nil
}

// tick is seconds of logged time.
func (m *Machine) tick() uint32 { return uint32(min(m.LogTime/1_000_000_000, math.MaxUint32)) }

func tracked(s *rowraft.Schema) bool {
	return s.Admission.Kind != rowraft.AdmitAll || s.Expire > 0 || s.Capacity.Rows > 0
}

// perSlot is m of the page; 0: no capacity.
func (t *Table) perSlot() uint64 { return (t.Schema.Capacity.Rows + t.slots - 1) / t.slots }

func (t *Table) maxCandidates() int {
	if t.Schema.Capacity.Rows == 0 {
		return 4096
	}
	return int(min(4096, max(64, 4*t.perSlot())))
}

// countNow returns the count of r when the counter of its slot is c.
func (t *Table) countNow(r *Row, c uint64) uint32 {
	if t.Schema.Capacity.Evict != rowraft.EvictLFU {
		return r.Count
	}
	period := 8 * t.perSlot()
	halvings := c/period - r.Version/period
	if halvings >= 32 {
		return 0
	}
	return r.Count >> halvings
}

// admits decides on a push of a key without a row. If it returns false, it has applied all effects of the push.
func (m *Machine) admits(t *Table, slot rowraft.Slot, key rowraft.Key) bool {
	s := &t.Schema
	switch s.Admission.Kind {
	case rowraft.AdmitProbability:
		c := t.Counters[slot] + 1
		a := mix64(mix64(mix64(s.Initializer.Seed+gamma+gamma)^uint64(s.ID)) ^ uint64(key))
		u := float64(mix64(a+c*gamma)>>11) / (1 << 53)
		if u < float64(s.Admission.Probability) {
			return true
		}
	case rowraft.AdmitCount:
		before, known := t.Candidates[key]
		if before.Count+1 >= s.Admission.Count {
			return true
		}
		if !known && len(t.candidatesOf(slot)) >= t.maxCandidates() {
			m.thin(t, slot)
		}
		m.setCandidate(t, key, Candidate{before.Count + 1, m.tick()})
	default:
		return true
	}
	t.Counters[slot]++
	return false
}

// touch counts a push of r, whose next version is v.
func (t *Table) touch(r *Row, v uint64, tick uint32) {
	if !tracked(&t.Schema) {
		return
	}
	r.Recency, r.Count = tick, t.countNow(r, v)
	if r.Count < math.MaxUint32 {
		r.Count++
	}
}

// candidatesOf returns the candidates of one slot in the order in which they leave.
func (t *Table) candidatesOf(slot rowraft.Slot) (keys []rowraft.Key) {
	for k := range t.Candidates {
		if t.slotOf(k) == slot {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b rowraft.Key) int {
		x, y := t.Candidates[a], t.Candidates[b]
		return cmp.Or(cmp.Compare(x.Tick, y.Tick), cmp.Compare(x.Count, y.Count), cmp.Compare(a, b))
	})
	return keys
}

// thin makes room for a candidate.
func (m *Machine) thin(t *Table, slot rowraft.Slot) {
	most := t.maxCandidates()
	keys := t.candidatesOf(slot)
	for _, k := range keys[:len(keys)-(most-most/8)] {
		m.setCandidate(t, k, Candidate{})
		t.Counters[slot]++
	}
}

// setCandidate replaces the candidate key; count 0 removes it.
func (m *Machine) setCandidate(t *Table, key rowraft.Key, c Candidate) {
	if old, known := t.Candidates[key]; known {
		m.sum = m.sum.minus(old.hash(key))
	}
	delete(t.Candidates, key)
	if c.Count > 0 {
		t.Candidates[key] = c
		m.sum = m.sum.plus(c.hash(key))
	}
}

func (c Candidate) hash(key rowraft.Key) Sum {
	b := le.AppendUint64(nil, uint64(key))
	b = le.AppendUint32(b, c.Count)
	h := xxh3.Hash128(le.AppendUint32(b, 0))
	return Sum{h.Hi, h.Lo}
}

// evict removes rows of a full slot.
func (m *Machine) evict(t *Table, slot rowraft.Slot) {
	most := t.perSlot()
	if most == 0 {
		return
	}
	keys := t.rowsOf(slot)
	if uint64(len(keys)) < most {
		return
	}
	c := t.Counters[slot]
	slices.SortFunc(keys, func(a, b rowraft.Key) int {
		x, y := t.Rows[a], t.Rows[b]
		if t.Schema.Capacity.Evict == rowraft.EvictLFU {
			return cmp.Or(cmp.Compare(t.countNow(x, c), t.countNow(y, c)), cmp.Compare(x.Version, y.Version), cmp.Compare(a, b))
		}
		return cmp.Or(cmp.Compare(x.Version, y.Version), cmp.Compare(a, b))
	})
	stay := most - max(1, most/8)
	for _, k := range keys[:uint64(len(keys))-stay] {
		m.remove(t, k)
	}
}

func (t *Table) rowsOf(slot rowraft.Slot) (keys []rowraft.Key) {
	for k := range t.Rows {
		if t.slotOf(k) == slot {
			keys = append(keys, k)
		}
	}
	return keys
}

// applySweep applies an entry of kind 9.
func (m *Machine) applySweep(w *sweep) rowraft.Code {
	t := m.Tables[w.table]
	switch {
	case t == nil:
		return rowraft.CodeTableNotFound
	case t.Schema.Kind == rowraft.Dense,
		w.conditions&condExpire != 0 && t.Schema.Expire == 0,
		w.conditions&(condUnseen|condCount) != 0 && !tracked(&t.Schema):
		return rowraft.CodeInvalidArgument
	}
	var rows, candidates []rowraft.Key
	for k, r := range t.Rows {
		slot := t.slotOf(k)
		if m.meets(t, w, slot, r.Recency, t.countNow(r, t.Counters[slot]), r.Weights) {
			rows = append(rows, k)
		}
	}
	for k, c := range t.Candidates {
		if m.meets(t, w, t.slotOf(k), c.Tick, c.Count, nil) {
			candidates = append(candidates, k)
		}
	}
	for _, k := range rows {
		m.remove(t, k)
	}
	for _, k := range candidates {
		m.setCandidate(t, k, Candidate{})
		t.Counters[t.slotOf(k)]++
	}
	return rowraft.CodeUnknown
}

// meets reports whether all conditions of w hold; nil weights mean a candidate.
func (m *Machine) meets(t *Table, w *sweep, slot rowraft.Slot, recency, count uint32, weights []float32) bool {
	if int(slot) < w.first || int(slot) >= w.past {
		return false
	}
	age := m.tick() - min(recency, m.tick())
	if w.conditions&condExpire != 0 && age <= t.Schema.Expire ||
		w.conditions&condUnseen != 0 && age <= w.unseen ||
		w.conditions&condCount != 0 && count >= w.count {
		return false
	}
	if w.conditions&condNorm == 0 {
		return true
	}
	sum, x := float32(0), float32(w.norm*w.norm)
	for _, v := range weights {
		sum = sum + float32(v*v)
	}
	return weights != nil && sum < x
}

// addCandidates adds the candidates of one slot from their bytes. After an error the state is not usable.
func (m *Machine) addCandidates(t *Table, slot rowraft.Slot, b []byte) rowraft.Code {
	if t.Schema.Admission.Kind != rowraft.AdmitCount || len(b) == 0 || len(b)/16+len(t.candidatesOf(slot)) > 65536 {
		return rowraft.CodeCorrupt
	}
	last, first := rowraft.Key(0), true
	for ; len(b) > 0; b = b[16:] {
		key, c := rowraft.Key(le.Uint64(b)), Candidate{le.Uint32(b[8:]), le.Uint32(b[12:])}
		if t.slotOf(key) != slot || t.Rows[key] != nil || t.Candidates[key].Count > 0 || c.Count < 1 ||
			c.Count >= t.Schema.Admission.Count ||
			!first && key <= last {
			return rowraft.CodeCorrupt
		}
		last, first = key, false
		m.setCandidate(t, key, c)
	}
	return rowraft.CodeUnknown
}
