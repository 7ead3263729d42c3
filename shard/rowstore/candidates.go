package rowstore

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// CandidateBytes is the size of a candidate as a snapshot stores it: key, count
// and tick, little-endian.
const CandidateBytes = 16

// candidate is a key that was pushed but has no row yet.
type candidate struct {
	key   rowraft.Key
	count uint32 // pushes of the key, at least 1
	tick  uint32 // tick of the last push
}

// candidates holds the candidates of one slot: an exact open-addressing table off the Go
// heap, with two words per entry, probed from the low bits of the key's tag. An entry with
// count 0 is empty.
type candidates struct {
	words []uint64
	n     int
}

// minCandidates is the number of entries that a new table has: two cache lines.
const minCandidates = 8

func pack(c candidate) uint64 { return uint64(c.tick)<<32 | uint64(c.count) }

func (s *candidates) at(i uint32) candidate {
	return candidate{rowraft.Key(s.words[2*i]), uint32(s.words[2*i+1]), uint32(s.words[2*i+1] >> 32)}
}

func (s *candidates) set(i uint32, c candidate) {
	s.words[2*i], s.words[2*i+1] = uint64(c.key), pack(c)
}

func (s *candidates) mask() uint32 { return uint32(len(s.words)/2 - 1) }

// find returns the entry of key, or the empty entry where its probe ends.
// REQUIRES: there are entries.
func (s *candidates) find(key rowraft.Key, tag uint32) (i uint32, ok bool) {
	for i = tag & s.mask(); s.words[2*i+1] != 0; i = (i + 1) & s.mask() {
		if s.words[2*i] == uint64(key) {
			return i, true
		}
	}
	return i, false
}

// put adds c, which must not be in the table. tag is the tag of its key.
func (s *candidates) put(blocks *slab.Blocks, by *secret, c candidate, tag uint32) error {
	if (s.n+1)*10 > len(s.words)/2*8 {
		if err := s.grow(blocks, by); err != nil {
			return err
		}
	}
	i, _ := s.find(c.key, tag)
	s.set(i, c)
	s.n++
	return nil
}

// grow doubles the table.
func (s *candidates) grow(blocks *slab.Blocks, by *secret) error {
	words, err := blocks.Alloc(max(2*minCandidates, 2*len(s.words)))
	if err != nil {
		return err
	}
	old := *s
	s.words = words
	for i := range uint32(len(old.words) / 2) {
		if c := old.at(i); c.count != 0 {
			to, _ := s.find(c.key, by.tag(c.key))
			s.set(to, c)
		}
	}
	if old.words != nil {
		blocks.Free(old.words)
	}
	return nil
}

// remove empties entry i and moves later entries into the gap, so that no probe ends at it.
func (s *candidates) remove(i uint32, by *secret) {
	s.n--
	for j := i; ; {
		j = (j + 1) & s.mask()
		if s.words[2*j+1] == 0 {
			s.words[2*i], s.words[2*i+1] = 0, 0
			return
		}
		home := by.tag(rowraft.Key(s.words[2*j])) & s.mask()
		if (j-home)&s.mask() < (j-i)&s.mask() {
			continue // its probe starts after the gap
		}
		s.words[2*i], s.words[2*i+1] = s.words[2*j], s.words[2*j+1]
		i = j
	}
}

// digest returns what a candidate adds to its slot's digest. The digest excludes the tick, as
// it excludes the recency of a row.
func (c candidate) digest() Digest {
	var b [CandidateBytes]byte
	binary.LittleEndian.PutUint64(b[:], uint64(c.key))
	binary.LittleEndian.PutUint32(b[8:], c.count)
	h := xxh3.Hash128(b[:])
	return Digest{Hi: h.Hi, Lo: h.Lo}
}

// candidateCut is the candidates of all slots at the time when a snapshot began. While a slot
// is unchanged, its candidates are read from the table. Before the first change of a slot, the
// writer copies them to kept. A slot has few candidates, so it copies all of them.
type candidateCut struct {
	kept     map[rowraft.Slot][]uint64
	saved    []uint64 // a bit for each slot from first on
	first    rowraft.Slot
	words    int // size of kept now
	maxWords int // largest value of words so far
}

// bytes returns the memory that kept uses now.
func (c *candidateCut) bytes() int64 {
	if c == nil {
		return 0
	}
	return 8 * int64(c.words)
}

// mostBytes returns the most memory that kept has used so far.
func (c *candidateCut) mostBytes() int64 {
	if c == nil {
		return 0
	}
	return 8 * int64(c.maxWords)
}

func (c *candidateCut) isSaved(slot rowraft.Slot) bool {
	i := slot - c.first
	return c.saved[i/64]>>(i%64)&1 != 0
}

// keepCandidates must be called before set, the candidates of slot, changes. It includes prepareSlot.
func (ss *snapshots) keepCandidates(slot rowraft.Slot, set *candidates) {
	ss.prepareSlot(slot)
	for _, s := range ss.running {
		s.kept.Lock()
		c := s.kept.candidates
		if _, kept := c.kept[slot]; !kept && !c.isSaved(slot) {
			was := slices.Clone(set.words)
			c.kept[slot], c.words = was, c.words+len(was)
			c.maxWords = max(c.maxWords, c.words)
		}
		s.kept.Unlock()
	}
}

// AppendCandidates appends to dst the candidates that slot had when the snapshot began,
// ascending by key, CandidateBytes each, and returns the longer slice. It may be called at most
// once per slot, under the rules of AppendSlot.
func (s *Snapshot) AppendCandidates(dst []byte, slot rowraft.Slot) []byte {
	if !s.t.Owns(slot) {
		return dst
	}
	s.enter(slot)
	defer s.exit()
	s.kept.Lock()
	defer s.kept.Unlock()
	c := s.kept.candidates
	if c == nil || c.isSaved(slot) {
		return dst
	}
	c.saved[(slot-c.first)/64] |= 1 << ((slot - c.first) % 64)
	words, kept := c.kept[slot]
	if kept {
		delete(c.kept, slot)
		c.words -= len(words)
	} else {
		words = s.t.track.of(slot).words
	}
	from := candidates{words: words}
	all := make([]candidate, 0, len(from.words)/2)
	for i := range uint32(len(from.words) / 2) {
		if c := from.at(i); c.count != 0 {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.key, b.key) })
	for _, c := range all {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(c.key))
		dst = binary.LittleEndian.AppendUint64(dst, pack(c))
	}
	return dst
}
