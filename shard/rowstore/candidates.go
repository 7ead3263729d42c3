package rowstore

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore/candidate"
)

// CandidateBytes is the size of a candidate as a snapshot stores it: key, count
// and tick, little-endian.
const CandidateBytes = candidate.Bytes

// candidateDigest returns what a candidate adds to its slot's digest. The digest excludes the tick, as
// it excludes the recency of a row.
func candidateDigest(c candidate.Candidate) Digest {
	var b [CandidateBytes]byte
	binary.LittleEndian.PutUint64(b[:], uint64(c.Key))
	binary.LittleEndian.PutUint32(b[8:], c.Count)
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
func (ss *snapshots) keepCandidates(slot rowraft.Slot, set *candidate.Set) {
	ss.prepareSlot(slot)
	for _, s := range ss.running {
		s.kept.Lock()
		c := s.kept.candidates
		if _, kept := c.kept[slot]; !kept && !c.isSaved(slot) {
			was := slices.Clone(set.Words)
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
		words = s.t.track.of(slot).Words
	}
	from := candidate.Set{Words: words}
	all := make([]candidate.Candidate, 0, len(from.Words)/2)
	for i := range uint32(len(from.Words) / 2) {
		if c := from.At(i); c.Count != 0 {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b candidate.Candidate) int { return cmp.Compare(a.Key, b.Key) })
	for _, c := range all {
		dst = c.Append(dst)
	}
	return dst
}
