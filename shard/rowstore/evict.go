package rowstore

import (
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/candidate"
	"github.com/rowraft/rowraft/wire"
)

// each calls do with the index entry and the record of every row of slot. All of them are in memory: see
// Tier.loadSlot. It prefetches the first touched bytes of each record from its key on. do must not change the index.
func (x *index) each(slot rowraft.Slot, touched int, do func(e uint64, r record)) {
	w := window{from: -x.lead, to: touched}
	for e := range x.slot(slot).entries() {
		if e, r := w.swap(e, x.at(slab.Place(uint32(e)-1))); r.p != nil {
			do(e, r)
		}
	}
	for e, r := range w.rest {
		do(e, r)
	}
}

// removeEntry removes the row of the index entry e of slot.
func (t *Table) removeEntry(slot rowraft.Slot, e uint64) error {
	tag := uint32(e >> 32)
	at, _ := t.index.slot(slot).bucket(tag).root.load().find(e)
	return t.remove(slot, tag, at)
}

// makeRoom removes rows of slot if the slot is full.
func (t *Table) makeRoom(slot rowraft.Slot) error {
	k, s := t.track, t.index.slot(slot)
	if k.maxRows == 0 || uint64(s.rows) < k.maxRows {
		return nil
	}
	if err := t.index.tier.loadSlot(slot); err != nil {
		return err
	}
	k.ranks.list = k.ranks.list[:0]
	period := agingRounds * k.maxRows
	present := s.version / period * period // the version at which the current period began
	t.index.each(slot, weightsAt, func(e uint64, r record) {
		v := *r.version()
		if k.lfu {
			count := *r.count()
			if v < present { // a row changed in this period has not aged: skip two divisions
				count = k.aged(count, v, s.version)
			}
			k.ranks.list = append(k.ranks.list, rank{hi: uint64(count), lo: v, ref: e})
		} else {
			k.ranks.list = append(k.ranks.list, rank{hi: v, ref: e})
		}
	})
	stay := k.maxRows - max(1, k.maxRows/evictShare)
	gone := k.ranks.lowest(k.ranks.list, len(k.ranks.list)-int(stay))
	for _, r := range gone {
		if err := t.removeEntry(slot, r.ref); err != nil {
			return err
		}
	}
	k.counters.evicted.Add(uint64(len(gone)))
	return nil
}

// CheckSweep returns an error if the conditions of w do not apply to this table.
//
// Errors: CodeInvalidArgument.
func (t *Table) CheckSweep(w *wire.Sweep) error {
	switch {
	case t.index.dense:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s is dense: its tensors are whole", t.schema.Name)
	case w.Conditions&wire.SweepExpire != 0 && t.schema.Expire == 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has no expiry", t.schema.Name)
	case w.Conditions&(wire.SweepUnseen|wire.SweepCount) != 0 && t.track == nil:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s keeps no count of pushes: only a table with admission, expiry or capacity does", t.schema.Name)
	}
	return nil
}

// CountSweep returns how many rows a Sweep would remove among the next most (> 0) index entries of
// l, a Listing of slot. With the last entries it also returns the number of candidates.
// It changes nothing.
//
// REQUIRES: CheckSweep(w) is nil, and the table does not change during the call.
func (t *Table) CountSweep(
	l *Listing, slot rowraft.Slot, w *wire.Sweep, tick uint32, most int,
) (rows, candidates int, done bool) {
	c := t.condition(slot, w, tick)
	done = l.next(most, c.touched, func(r record) {
		if *r.version() != gone && c.meets(t, r) {
			rows++
		}
	})
	if done {
		t.track.eachCandidate(slot, func(_ uint32, k candidate.Candidate) {
			if c.meetsCandidate(k) {
				candidates++
			}
		})
	}
	return rows, candidates, done
}

// Sweep removes the rows and candidates of slot that meet all conditions of w at
// tick (docs/formats/streaming.md), and returns their numbers.
//
// REQUIRES: CheckSweep(w) is nil, and no other writer uses the table at the same time.
//
// Errors: CodeOverloaded as for Update.
func (t *Table) Sweep(slot rowraft.Slot, w *wire.Sweep, tick uint32) (rows, candidates int, err error) {
	t.beginChange()
	defer t.endChange()
	if err := t.index.tier.loadSlot(slot); err != nil {
		return 0, 0, err
	}
	c := t.condition(slot, w, tick)
	var found []uint64
	t.index.each(slot, c.touched, func(e uint64, r record) {
		if c.meets(t, r) {
			found = append(found, e)
		}
	})
	for _, e := range found {
		if err := t.removeEntry(slot, e); err != nil {
			return 0, 0, err
		}
	}
	var keys []rowraft.Key
	t.track.eachCandidate(slot, func(_ uint32, k candidate.Candidate) {
		if c.meetsCandidate(k) {
			keys = append(keys, k.Key)
		}
	})
	for _, key := range keys {
		t.track.forget(slot, t.index.secret.Tag(key), key)
		t.index.slot(slot).version++
	}
	if t.track != nil {
		t.track.counters.expired.Add(uint64(len(found)))
	}
	return len(found), len(keys), nil
}

// condition is a sweep, prepared for the rows of one slot.
type condition struct {
	conditions uint32 // wire.Sweep.Conditions
	unseen     uint64 // a row is old after more ticks than this; the larger of the two limits
	tick       uint32
	count      uint32
	square     float32 // the norm limit, squared
	counter    uint64  // version counter of the slot
	track      *track
	touched    int       // bytes of a record that meets reads
	wide       []float32 // scratch for weights that are not stored as float32
}

func (t *Table) condition(slot rowraft.Slot, w *wire.Sweep, tick uint32) condition {
	c := condition{
		conditions: w.Conditions, tick: tick, count: w.Count, square: float32(w.Norm * w.Norm),
		counter: t.index.slot(slot).version, track: t.track, touched: weightsAt,
	}
	if w.Conditions&wire.SweepExpire != 0 {
		c.unseen = uint64(t.schema.Expire)
	}
	if w.Conditions&wire.SweepUnseen != 0 {
		c.unseen = max(c.unseen, uint64(w.Unseen))
	}
	if w.Conditions&wire.SweepNorm != 0 {
		c.touched, c.wide = t.index.stateAt, make([]float32, t.index.dim)
	}
	return c
}

func (c *condition) old(tick uint32) bool {
	return c.conditions&(wire.SweepExpire|wire.SweepUnseen) == 0 || uint64(c.tick) > uint64(tick)+c.unseen
}

func (c *condition) meets(t *Table, r record) bool {
	if c.track != nil && !c.old(*r.recency()) {
		return false
	}
	if c.conditions&wire.SweepCount != 0 && c.track.aged(*r.count(), *r.version(), c.counter) >= c.count {
		return false
	}
	if c.conditions&wire.SweepNorm == 0 {
		return true
	}
	sum := float32(0)
	for _, w := range wire.Floats(c.wide, t.index.storage, t.index.weights(r)) {
		sum += float32(w * w)
	}
	return sum < c.square
}

func (c *condition) meetsCandidate(k candidate.Candidate) bool {
	return c.conditions&wire.SweepNorm == 0 && c.old(k.Tick) && (c.conditions&wire.SweepCount == 0 || k.Count < c.count)
}

// eachCandidate calls do with the candidates of slot. k may be nil. do must not change them.
func (k *track) eachCandidate(slot rowraft.Slot, do func(at uint32, c candidate.Candidate)) {
	if k.waiting(slot) == 0 {
		return
	}
	set := k.of(slot)
	for i := range uint32(len(set.Words) / 2) {
		if c := set.At(i); c.Count != 0 {
			do(i, c)
		}
	}
}

// increased returns count + 1, or count if it is at its limit.
func increased(count uint32) uint32 {
	if count == math.MaxUint32 {
		return count
	}
	return count + 1
}
