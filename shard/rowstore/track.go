package rowstore

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/slab"
)

const (
	gamma = 0x9E3779B97F4A7C15

	// maxCandidates and minRoom bound the candidates of a slot; constants of apply
	// version 2 (docs/formats/streaming.md), as are the others of this file.
	maxCandidates = 4096
	minRoom       = 64
	roomPerRow    = 4
	evictShare    = 8 // one row of so many leaves at a time
	agingRounds   = 8 // a period of LFU: so many pushes for each row of a full slot
)

// track is what a tracked table decides by: one that has admission, expiry or
// capacity. Other tables have none, and pay for none of it.
type track struct {
	admission rowraft.Admission
	draws     uint64 // the part of a draw that depends on the table alone
	expire    uint32 // ticks; 0: never
	most      uint64 // rows in a slot; 0: any number
	lfu       bool
	room      int // candidates in a slot

	slots  []candidates // by slot; nil without count admission
	blocks slab.Blocks  // theirs
	ranks  []rank       // scratch
	tick   uint32       // of the entry that is applied

	base, source uint32       // of a restore; source 0: ticks are taken as they are
	total        atomic.Int64 // candidates

	counters struct{ admitted, rejected, evicted, expired atomic.Uint64 }
}

// Counters tells what became of keys since the table was made or restored by
// this process. They are no part of the state.
type Counters struct {
	Admitted   uint64 // rows made for keys that had none
	Rejected   uint64 // pushes that were counted and dropped
	Evicted    uint64 // rows that made room
	Expired    uint64 // rows that a sweep removed
	Candidates uint64 // keys that wait for a row now
}

// newTrack returns nil for a table that is not tracked.
func newTrack(s *rowraft.Schema) *track {
	if !s.Tracked() {
		return nil
	}
	k := &track{
		admission: s.Admission, expire: s.Expire, lfu: s.Capacity.Evict == rowraft.EvictLFU, room: maxCandidates,
		draws: clustermap.Mix64(clustermap.Mix64(s.Initializer.Seed+gamma+gamma) ^ uint64(s.ID)),
	}
	if s.Capacity.Rows > 0 {
		k.most = (s.Capacity.Rows-1)/rowraft.NumSlots + 1
		k.room = int(min(maxCandidates, max(minRoom, roomPerRow*k.most)))
	}
	if s.Admission.Kind == rowraft.AdmitCount {
		k.slots = make([]candidates, rowraft.NumSlots)
	}
	return k
}

// SetTick says when the changes that follow were logged: the tick of their entry
// (docs/formats/streaming.md).
func (t *Table) SetTick(tick uint32) {
	if t.track != nil {
		t.track.tick = tick
	}
}

// SetAges says how old what is restored from now on is: its ticks were counted
// where the time was source, and it is as old at base. Source 0: ticks are taken
// as they are.
func (t *Table) SetAges(base, source uint32) {
	if t.track != nil {
		t.track.base, t.track.source = base, source
	}
}

// restored is a tick of a restore as it is kept.
func (k *track) restored(tick uint32) uint32 {
	if k.source == 0 {
		return tick
	}
	age := k.source - min(tick, k.source)
	return k.base - min(age, k.base)
}

// Tracked reports whether the table keeps recency and counts of its rows.
func (t *Table) Tracked() bool { return t.track != nil }

// Counters is safe beside changes.
func (t *Table) Counters() Counters {
	k := t.track
	if k == nil {
		return Counters{}
	}
	c := &k.counters
	return Counters{c.admitted.Load(), c.rejected.Load(), c.evicted.Load(), c.expired.Load(), uint64(k.total.Load())}
}

func (r record) recency() *uint32 { return (*uint32)(r.p) }
func (r record) count() *uint32   { return (*uint32)(unsafe.Add(r.p, countOffset)) }

// draw reports whether the draw number n of a slot admits key.
func (k *track) draw(key rowraft.Key, n uint64) bool {
	a := clustermap.Mix64(k.draws ^ uint64(key))
	u := float64(clustermap.Mix64(a+n*gamma)>>11) / (1 << 53) // exact
	return u < float64(k.admission.Probability)
}

// aged returns what a count that was stored with version is worth at counter:
// with LFU it is halved with each period since.
func (k *track) aged(count uint32, version, counter uint64) uint32 {
	if !k.lfu {
		return count
	}
	period := agingRounds * k.most
	return count >> min(32, counter/period-version/period) // a shift by 32 leaves 0
}

// touch counts a push of r, which has its old version yet, in the slot whose
// counter will give it the next one.
func (k *track) touch(r record, counter uint64) {
	c := r.count()
	*c, *r.recency() = increased(k.aged(*c, *r.version()&^busy, counter+1)), k.tick
}

// changeTracked is change in a tracked table: the order of
// docs/formats/streaming.md.
func (t *Table) changeTracked(keys []rowraft.Key, arg []byte, dt rowraft.DType, assign bool, do func(w, state, arg []float32)) error {
	var c chunk
	rowBytes := t.dim * dt.Size()
	touched := t.RecordBytes()
	for base := 0; base < len(keys); base += chunkKeys {
		part := keys[base:min(base+chunkKeys, len(keys))]
		t.lookup(&c, part, touched)
		t.expect(&c, len(part))
		for i, key := range part {
			values := floats(arg[:rowBytes:rowBytes], dt, t.scratch)
			arg = arg[rowBytes:]
			ok, err := t.mayPush(&c, i, key, assign)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			r, err := t.open(&c, i, key)
			if err != nil {
				return err
			}
			t.track.touch(r, t.slots[c.slot[i]].version)
			w := floats(t.weights(r), t.storage, t.wide)
			do(w, t.state(r), values)
			t.store(r, w)
			t.seal(c.slot[i], c.tag[i], r)
		}
	}
	return nil
}

// mayPush reports whether keys[i] has a row, or room for one that it may have.
func (t *Table) mayPush(c *chunk, i int, key rowraft.Key, assign bool) (bool, error) {
	slot, tag := c.slot[i], c.tag[i]
	if _, ok := t.record(c, i, key); ok {
		return true, nil
	}
	if _, ok := t.find(slot, tag, key); ok { // an earlier key of the chunk
		return true, nil
	}
	if !assign {
		if ok, err := t.admit(slot, tag, key); !ok {
			return false, err
		}
	}
	t.forget(slot, tag, key)
	t.track.counters.admitted.Add(1)
	evicted, err := t.makeRoom(slot)
	if evicted { // what lookup found may be gone
		for j := i + 1; j < len(c.addr); j++ {
			c.addr[j] = unsafe.Pointer(&noRow)
		}
	}
	return true, err
}

// admit decides on a push of a key without a row. If it says no, all that the
// push does is done.
func (t *Table) admit(slot rowraft.Slot, tag uint32, key rowraft.Key) (bool, error) {
	k, s := t.track, &t.slots[slot]
	switch k.admission.Kind {
	case rowraft.AdmitProbability:
		if k.draw(key, s.version+1) {
			return true, nil
		}
		t.touch(slot)
		s.version++
	case rowraft.AdmitCount:
		c, err := t.candidacy(slot, tag, key)
		if err != nil || c >= k.admission.Count {
			return true, err
		}
	default:
		return true, nil
	}
	k.counters.rejected.Add(1)
	return false, nil
}

// candidacy counts a push of a key without a row, and returns how many there
// were. The last one before admission is not kept.
func (t *Table) candidacy(slot rowraft.Slot, tag uint32, key rowraft.Key) (uint32, error) {
	k, s, set := t.track, &t.slots[slot], &t.track.slots[slot]
	c := candidate{key: key, count: 1, tick: k.tick}
	at, known := uint32(0), false
	if set.n > 0 {
		if at, known = set.find(key, tag); known {
			c.count = set.at(at).count + 1
		}
	}
	if c.count >= k.admission.Count {
		return c.count, nil
	}
	t.keepCandidates(slot)
	if known {
		s.digest = s.digest.Sub(set.at(at).digest())
		set.set(at, c)
	} else {
		if set.n >= k.room {
			t.thinCandidates(slot)
		}
		if err := set.put(&k.blocks, &t.secret, c, tag); err != nil {
			return 0, err
		}
		k.total.Add(1)
	}
	s.digest = s.digest.Add(c.digest())
	s.version++
	return c.count, nil
}

// forget removes the candidate key, if there is one. The counter is the caller's
// to raise.
func (t *Table) forget(slot rowraft.Slot, tag uint32, key rowraft.Key) bool {
	if t.track.slots == nil || t.track.slots[slot].n == 0 {
		return false
	}
	at, ok := t.track.slots[slot].find(key, tag)
	if ok {
		t.keepCandidates(slot)
		t.dropCandidate(slot, at)
	}
	return ok
}

// dropCandidate removes one entry. The counter is the caller's to raise.
func (t *Table) dropCandidate(slot rowraft.Slot, at uint32) {
	s, set := &t.slots[slot], &t.track.slots[slot]
	s.digest = s.digest.Sub(set.at(at).digest())
	set.remove(at, &t.secret)
	t.track.total.Add(-1)
}

// thinCandidates makes room in a slot that is full of candidates: those that
// were unseen for longest leave.
func (t *Table) thinCandidates(slot rowraft.Slot) {
	k, set := t.track, &t.track.slots[slot]
	k.ranks = k.ranks[:0]
	for i := range uint32(len(set.words) / 2) {
		if c := set.at(i); c.count != 0 {
			k.ranks = append(k.ranks, rank{hi: uint64(c.tick)<<32 | uint64(c.count), lo: uint64(c.key)})
		}
	}
	gone := lowest(k.ranks, set.n-k.room+k.room/evictShare)
	for _, r := range gone {
		at, _ := set.find(rowraft.Key(r.lo), t.secret.tag(rowraft.Key(r.lo)))
		t.dropCandidate(slot, at)
	}
	t.slots[slot].version += uint64(len(gone))
}

// SlotCandidates returns how many keys of slot wait for a row.
func (t *Table) SlotCandidates(slot rowraft.Slot) int {
	if t.track == nil || t.track.slots == nil {
		return 0
	}
	return t.track.slots[slot].n
}

// RestoreCandidates adds the candidates of one slot from their bytes, as
// Snapshot.AppendCandidates wrote them: strictly ascending by key. It keeps no
// part of b.
//
// Errors, and then nothing changed: CodeCorrupt if the table has no candidates,
// or cannot have these; CodeWrongShard if the slot is not owned; CodeOverloaded.
func (t *Table) RestoreCandidates(slot rowraft.Slot, b []byte) error {
	bad := func(what string) error {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s slot %d: candidates %s", t.schema.Name, slot, what)
	}
	n := len(b) / CandidateBytes
	switch {
	case !t.Owns(slot):
		return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: this shard does not hold slot %d", t.schema.Name, slot)
	case t.track == nil || t.track.slots == nil:
		return bad("of a table that has none")
	case n == 0 || len(b)%CandidateBytes != 0 || n > t.track.room:
		return bad("of an impossible number")
	case t.track.slots[slot].n != 0:
		return bad("come twice")
	}
	last := rowraft.Key(0)
	for i := range n {
		c := parseCandidate(b[CandidateBytes*i:])
		at, tag := t.locate(c.key)
		_, row := t.find(at, tag, c.key)
		if at != slot || row || c.count == 0 || c.count >= t.track.admission.Count || i > 0 && c.key <= last {
			return bad("that cannot be there")
		}
		last = c.key
	}
	for ; len(b) > 0; b = b[CandidateBytes:] {
		c := parseCandidate(b)
		c.tick = t.track.restored(c.tick)
		if err := t.track.slots[slot].put(&t.track.blocks, &t.secret, c, t.secret.tag(c.key)); err != nil {
			return err
		}
		t.track.total.Add(1)
		t.slots[slot].digest = t.slots[slot].digest.Add(c.digest())
	}
	return nil
}

func parseCandidate(b []byte) candidate {
	return candidate{rowraft.Key(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
}
