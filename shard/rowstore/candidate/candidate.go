package candidate

import (
	"encoding/binary"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
)

// Bytes is the size of a candidate as a snapshot stores it: key, count and tick, little-endian.
const Bytes = 16

// Candidate is a key that was pushed but has no row yet.
type Candidate struct {
	Key   rowraft.Key
	Count uint32 // pushes of the key, at least 1
	Tick  uint32 // tick of the last push
}

// Parse reads the Bytes of a candidate.
func Parse(b []byte) Candidate {
	return Candidate{rowraft.Key(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint32(b[8:]),
		binary.LittleEndian.Uint32(b[12:])}
}

// Append appends the Bytes of c.
func (c Candidate) Append(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(c.Key))
	return binary.LittleEndian.AppendUint64(dst, pack(c))
}

// Tags returns the tag of a key.
type Tags interface{ Tag(rowraft.Key) uint32 }

// Set holds the candidates of one slot: an exact open-addressing table off the Go
// heap, with two words per entry, probed from the low bits of the key's tag. An entry with
// count 0 is empty.
type Set struct {
	Words []uint64
	N     int
}

// minCandidates is the number of entries that a new table has: two cache lines.
const minCandidates = 8

func pack(c Candidate) uint64 { return uint64(c.Tick)<<32 | uint64(c.Count) }

// At returns entry i.
func (s *Set) At(i uint32) Candidate {
	return Candidate{rowraft.Key(s.Words[2*i]), uint32(s.Words[2*i+1]), uint32(s.Words[2*i+1] >> 32)}
}

// Set replaces entry i, with a candidate of the same key.
func (s *Set) Set(i uint32, c Candidate) {
	s.Words[2*i], s.Words[2*i+1] = uint64(c.Key), pack(c)
}

// Mask returns the number of entries - 1.
func (s *Set) Mask() uint32 { return uint32(len(s.Words)/2 - 1) }

// Find returns the entry of key, or the empty entry where its probe ends.
// REQUIRES: there are entries.
func (s *Set) Find(key rowraft.Key, tag uint32) (i uint32, ok bool) {
	for i = tag & s.Mask(); s.Words[2*i+1] != 0; i = (i + 1) & s.Mask() {
		if s.Words[2*i] == uint64(key) {
			return i, true
		}
	}
	return i, false
}

// Put adds c, which must not be in the table. tag is the tag of its key.
func (s *Set) Put(blocks *slab.Blocks, by Tags, c Candidate, tag uint32) error {
	if (s.N+1)*10 > len(s.Words)/2*8 {
		if err := s.grow(blocks, by); err != nil {
			return err
		}
	}
	i, _ := s.Find(c.Key, tag)
	s.Set(i, c)
	s.N++
	return nil
}

// grow doubles the table.
func (s *Set) grow(blocks *slab.Blocks, by Tags) error {
	words, err := blocks.Alloc(max(2*minCandidates, 2*len(s.Words)))
	if err != nil {
		return err
	}
	old := *s
	s.Words = words
	for i := range uint32(len(old.Words) / 2) {
		if c := old.At(i); c.Count != 0 {
			to, _ := s.Find(c.Key, by.Tag(c.Key))
			s.Set(to, c)
		}
	}
	if old.Words != nil {
		blocks.Free(old.Words)
	}
	return nil
}

// Remove empties entry i and moves later entries into the gap, so that no probe ends at it.
func (s *Set) Remove(i uint32, by Tags) {
	s.N--
	for j := i; ; {
		j = (j + 1) & s.Mask()
		if s.Words[2*j+1] == 0 {
			s.Words[2*i], s.Words[2*i+1] = 0, 0
			return
		}
		home := by.Tag(rowraft.Key(s.Words[2*j])) & s.Mask()
		if (j-home)&s.Mask() < (j-i)&s.Mask() {
			continue // its probe starts after the gap
		}
		s.Words[2*i], s.Words[2*i+1] = s.Words[2*j], s.Words[2*j+1]
		i = j
	}
}
