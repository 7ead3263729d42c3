package rowstore

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/candidate"
)

const (
	gamma = 0x9E3779B97F4A7C15

	// maxCandidates and minRoom bound the candidates of a slot. All these constants are part of the
	// format version (docs/formats/streaming.md).
	maxCandidates = 4096
	minRoom       = 64
	maxRestored   = maxCandidates * rowraft.MaxSlots / rowraft.DefaultSlots // limit of candidates in a restored slot
	roomPerRow    = 4
	evictShare    = 8 // a full slot evicts one of this many rows at a time
	agingRounds   = 8 // length of an LFU period: this many pushes for each row of a full slot
)

// track is the policy and the state of a tracked table: one with admission, expiry or
// capacity. Other tables have none, and do not pay for it.
//
// Invariants: a key with a row is no candidate; total is the number of candidates of all slots.
type track struct {
	index *index
	snaps *snapshots

	admission rowraft.Admission
	draws     uint64 // the part of a draw that depends only on the table
	maxRows   uint64 // limit of rows in a slot; 0: none
	lfu       bool
	room      int // limit of candidates in a slot

	slots  []candidate.Set // by slot; nil without count admission
	blocks slab.Blocks     // memory of slots
	ranks  ranking         // of the rows or candidates of one slot
	tick   uint32          // tick of the entry that is being applied

	base, source uint32       // arguments of SetAges; source 0: ticks are restored unchanged
	total        atomic.Int64 // number of candidates

	counters struct{ admitted, rejected, evicted, expired atomic.Uint64 }
}

// Counters counts what happened to keys since this process made or restored the table. They are
// not part of the replicated state.
type Counters struct {
	Admitted   uint64 // rows made for keys that had none
	Rejected   uint64 // pushes that were counted but created no row
	Evicted    uint64 // rows removed to make room
	Expired    uint64 // rows that a sweep removed
	Candidates uint64 // keys that wait for a row now
}

// newTrack returns nil for a table that is not tracked.
func newTrack(t *Table) *track {
	s := &t.schema
	if !s.Tracked() {
		return nil
	}
	k := &track{
		index: &t.index, snaps: &t.snaps, ranks: ranking{records: &t.index.records},
		admission: s.Admission, lfu: s.Capacity.Evict == rowraft.EvictLFU, room: maxCandidates,
		draws: clustermap.Mix64(clustermap.Mix64(s.Initializer.Seed+gamma+gamma) ^ uint64(s.ID)),
	}
	if s.Capacity.Rows > 0 {
		k.maxRows = (s.Capacity.Rows-1)/uint64(t.index.slotCount) + 1
		k.room = int(min(maxCandidates, max(minRoom, roomPerRow*k.maxRows)))
	}
	if s.Admission.Kind == rowraft.AdmitCount {
		k.slots = make([]candidate.Set, t.index.n)
	}
	return k
}

// SetTick sets the tick of the entry whose changes follow: the time when it was logged
// (docs/formats/streaming.md).
func (t *Table) SetTick(tick uint32) {
	if t.track != nil {
		t.track.tick = tick
	}
}

// SetAges sets how RestoreRow and RestoreCandidates translate ticks: a tick that was counted in a
// cluster at time source becomes a tick of the same age at time base. With source 0 ticks are
// restored unchanged.
func (t *Table) SetAges(base, source uint32) {
	if t.track != nil {
		t.track.base, t.track.source = base, source
	}
}

// restored returns the translated tick of a restored row or candidate.
func (k *track) restored(tick uint32) uint32 {
	if k.source == 0 {
		return tick
	}
	age := k.source - min(tick, k.source)
	return k.base - min(age, k.base)
}

// Counters may be called concurrently with changes.
func (t *Table) Counters() Counters {
	k := t.track
	if k == nil {
		return Counters{}
	}
	c := &k.counters
	return Counters{c.admitted.Load(), c.rejected.Load(), c.evicted.Load(), c.expired.Load(), uint64(k.total.Load())}
}

// REQUIRES, for recency and count: the table is tracked.
func (r record) recency() *uint32 { return (*uint32)(unsafe.Add(r.p, recencyAt)) }
func (r record) count() *uint32   { return (*uint32)(unsafe.Add(r.p, countAt)) }

// draw reports whether draw number n of a slot admits key.
func (k *track) draw(key rowraft.Key, n uint64) bool {
	a := clustermap.Mix64(k.draws ^ uint64(key))
	u := float64(clustermap.Mix64(a+n*gamma)>>11) / (1 << 53) // exact
	return u < float64(k.admission.Probability)
}

// aged returns the value at counter of a count that was stored at version. With LFU, each
// period since then halves it.
func (k *track) aged(count uint32, version, counter uint64) uint32 {
	if !k.lfu {
		return count
	}
	period := agingRounds * k.maxRows
	return count >> min(32, counter/period-version/period) // a shift by 32 gives 0
}

// countPush counts a push of r. r still has its old version; counter is the counter of its slot before
// the push.
func (k *track) countPush(r record, counter uint64) {
	c := r.count()
	*c, *r.recency() = increased(k.aged(*c, *r.version()&^busy, counter+1)), k.tick
}

// of returns the candidates of slot s. REQUIRES: the table has admission by count.
func (k *track) of(s rowraft.Slot) *candidate.Set { return &k.slots[s-k.index.first] }

// waiting returns the number of candidates of slot. k may be nil.
func (k *track) waiting(slot rowraft.Slot) int {
	if k == nil || k.slots == nil {
		return 0
	}
	return k.of(slot).N
}

// waits reports whether key is a candidate. k may be nil.
func (k *track) waits(slot rowraft.Slot, tag uint32, key rowraft.Key) (ok bool) {
	if k.waiting(slot) > 0 {
		_, ok = k.of(slot).Find(key, tag)
	}
	return ok
}

// admit decides whether a push of a key without a row creates the row. If not, admit has applied
// all effects of the push.
func (k *track) admit(slot rowraft.Slot, tag uint32, key rowraft.Key) (bool, error) {
	s := k.index.slot(slot)
	switch k.admission.Kind {
	case rowraft.AdmitProbability:
		if k.draw(key, s.version+1) {
			return true, nil
		}
		k.snaps.prepareSlot(slot)
		s.version++
	case rowraft.AdmitCount:
		c, err := k.count(slot, tag, key)
		if err != nil || c >= k.admission.Count {
			return true, err
		}
	default:
		return true, nil
	}
	k.counters.rejected.Add(1)
	return false, nil
}

// count counts a push of a key without a row, and returns the number of its pushes. It does not
// store the push that reaches the admission limit.
func (k *track) count(slot rowraft.Slot, tag uint32, key rowraft.Key) (uint32, error) {
	s, set := k.index.slot(slot), k.of(slot)
	c := candidate.Candidate{Key: key, Count: 1, Tick: k.tick}
	at, known := uint32(0), false
	if set.N > 0 {
		if at, known = set.Find(key, tag); known {
			c.Count = set.At(at).Count + 1
		}
	}
	if c.Count >= k.admission.Count {
		return c.Count, nil
	}
	k.snaps.keepCandidates(slot, k.of(slot))
	if known {
		s.digest = s.digest.Sub(candidateDigest(set.At(at)))
		set.Set(at, c)
	} else {
		if set.N >= k.room {
			k.thin(slot)
		}
		if err := set.Put(&k.blocks, &k.index.secret, c, tag); err != nil {
			return 0, err
		}
		k.total.Add(1)
	}
	s.digest = s.digest.Add(candidateDigest(c))
	s.version++
	return c.Count, nil
}

// forget removes the candidate key, and reports whether there was one. The caller increments the
// slot's counter.
func (k *track) forget(slot rowraft.Slot, tag uint32, key rowraft.Key) bool {
	if k.waiting(slot) == 0 {
		return false
	}
	at, ok := k.of(slot).Find(key, tag)
	if ok {
		k.snaps.keepCandidates(slot, k.of(slot))
		k.drop(slot, at)
	}
	return ok
}

// drop removes one entry. The caller increments the slot's counter.
func (k *track) drop(slot rowraft.Slot, at uint32) {
	s, set := k.index.slot(slot), k.of(slot)
	s.digest = s.digest.Sub(candidateDigest(set.At(at)))
	set.Remove(at, &k.index.secret)
	k.total.Add(-1)
}

// thin makes room in a slot that is full of candidates: it removes those that were pushed
// least recently.
func (k *track) thin(slot rowraft.Slot) {
	set := k.of(slot)
	k.ranks.list = k.ranks.list[:0]
	for i := range uint32(len(set.Words) / 2) {
		if c := set.At(i); c.Count != 0 {
			k.ranks.list = append(k.ranks.list, rank{hi: uint64(c.Tick)<<32 | uint64(c.Count), lo: uint64(c.Key)})
		}
	}
	gone := k.ranks.lowest(k.ranks.list, set.N-k.room+k.room/evictShare)
	for _, r := range gone {
		at, _ := set.Find(rowraft.Key(r.lo), k.index.secret.Tag(rowraft.Key(r.lo)))
		k.drop(slot, at)
	}
	k.index.slot(slot).version += uint64(len(gone))
}

// SlotCandidates returns how many keys of slot wait for a row.
func (t *Table) SlotCandidates(slot rowraft.Slot) int { return t.track.waiting(slot) }

// RestoreCandidates adds candidates of one slot from their bytes, as Snapshot.AppendCandidates wrote them: strictly
// ascending by key. It keeps no part of b. After a restore from a cluster with more slots, a slot has the candidates of
// several, perhaps more than its room; the next new candidate removes those that are too many.
//
// Errors: CodeCorrupt, before anything changes, if the table has no candidates
// or cannot have these; CodeWrongShard if the slot is not owned; CodeOverloaded.
func (t *Table) RestoreCandidates(slot rowraft.Slot, b []byte) error {
	k := t.track
	bad := func(what string) error {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s slot %d: candidates %s", t.schema.Name, slot, what)
	}
	if err := t.index.checkSlot(slot); err != nil {
		return err
	}
	n, waiting := len(b)/CandidateBytes, k.waiting(slot)
	switch {
	case k == nil || k.slots == nil:
		return bad("in a table that has no admission by count")
	case n == 0 || len(b)%CandidateBytes != 0 || n+waiting > maxRestored:
		return bad(fmt.Sprintf("of %d bytes after %d others: want 1 to %d of %d bytes in all",
			len(b), waiting, maxRestored, CandidateBytes))
	}
	last := rowraft.Key(0)
	for i := range n {
		c := candidate.Parse(b[CandidateBytes*i:])
		at, tag := t.index.locate(c.Key)
		if at != slot {
			return bad(fmt.Sprintf("include key %d, which is in slot %d", c.Key, at))
		}
		if t.index.has(at, tag, c.Key) || k.waits(slot, tag, c.Key) || c.Count == 0 || c.Count >= k.admission.Count ||
			i > 0 && c.Key <= last {
			return bad(fmt.Sprintf("include key %d, which cannot be there", c.Key))
		}
		last = c.Key
	}
	for ; len(b) > 0; b = b[CandidateBytes:] {
		c := candidate.Parse(b)
		c.Tick = k.restored(c.Tick)
		if err := k.of(slot).Put(&k.blocks, &t.index.secret, c, t.index.secret.Tag(c.Key)); err != nil {
			return err
		}
		k.total.Add(1)
		t.index.slot(slot).digest = t.index.slot(slot).digest.Add(candidateDigest(c))
	}
	return nil
}
