package checkpoint

import (
	"hash/crc32"
	"math/bits"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// The sums file of a shard has the counts and the digest of each slot, which the shard kept up to date while it applied
// entries. A reader of the rows compares them with the rows.
const (
	sumsMagic   = "ROWRSUMS"
	sumsVersion = 1
	sumsHeader  = 32
	sumsEntry   = 40
)

// SlotSum is what one slot of one table holds.
type SlotSum struct {
	Table   rowraft.TableID
	Slot    rowraft.Slot
	Rows    uint32
	Counter uint64 // the last row version drawn in this slot
	Digest  Digest
}

func (s SlotSum) before(o SlotSum) bool {
	return s.Table < o.Table || s.Table == o.Table && s.Slot < o.Slot
}

// EncodeSums returns the bytes of a sums file. sums must be ascending by (table, slot).
func EncodeSums(shard rowraft.ShardID, applied rowraft.Index, sums []SlotSum) []byte {
	b := make([]byte, 0, sumsHeader+sumsEntry*len(sums)+4)
	b = append(b, sumsMagic...)
	b = le.AppendUint16(b, sumsVersion)
	b = le.AppendUint16(b, clustermap.HashVersion)
	b = le.AppendUint32(b, uint32(shard))
	b = le.AppendUint64(b, uint64(applied))
	b = le.AppendUint32(b, uint32(len(sums)))
	b = le.AppendUint32(b, 0)
	for _, s := range sums {
		b = le.AppendUint64(b, uint64(s.Table))
		b = le.AppendUint16(b, uint16(s.Slot))
		b = le.AppendUint16(b, 0)
		b = le.AppendUint32(b, s.Rows)
		b = le.AppendUint64(b, s.Counter)
		b = append(b, s.Digest[:]...)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ParseSums reads a sums file.
//
// Errors: CodeVersionTooNew; CodeCorrupt.
func ParseSums(b []byte) (shard rowraft.ShardID, applied rowraft.Index, sums []SlotSum, err error) {
	bad := func(what string) error { return rowraft.Errorf(rowraft.CodeCorrupt, "slot sums: %s", what) }
	if len(b) < sumsHeader+4 || string(b[:8]) != sumsMagic {
		return 0, 0, nil, bad("they do not start with their magic")
	}
	if version, hash := le.Uint16(b[8:]), le.Uint16(b[10:]); version > sumsVersion || hash > clustermap.HashVersion {
		return 0, 0, nil, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"slot sums have format %d, hash version %d; this binary knows up to %d and %d: upgrade it", version, hash,
			sumsVersion, clustermap.HashVersion)
	} else if version == 0 || hash == 0 {
		return 0, 0, nil, bad("they have version 0")
	}
	body, n := b[:len(b)-4], uint64(le.Uint32(b[24:]))
	if crc32.Checksum(body, castagnoli) != le.Uint32(b[len(b)-4:]) {
		return 0, 0, nil, bad("their checksum does not match")
	}
	if n*sumsEntry != uint64(len(body)-sumsHeader) || le.Uint32(b[28:]) != 0 {
		return 0, 0, nil, bad("their length does not match")
	}
	sums = make([]SlotSum, 0, n)
	for e := body[sumsHeader:]; len(e) > 0; e = e[sumsEntry:] {
		s := SlotSum{
			Table: rowraft.TableID(le.Uint64(e)), Slot: rowraft.Slot(le.Uint16(e[8:])), Rows: le.Uint32(e[12:]),
			Counter: le.Uint64(e[16:]), Digest: Digest(e[24:40]),
		}
		if le.Uint16(e[10:]) != 0 || s.Counter == 0 {
			return 0, 0, nil, bad("a slot has impossible numbers")
		}
		if len(sums) > 0 && !sums[len(sums)-1].before(s) {
			return 0, 0, nil, bad("slots are not in ascending order")
		}
		sums = append(sums, s)
	}
	return rowraft.ShardID(le.Uint32(b[12:])), rowraft.Index(le.Uint64(b[16:])), sums, nil
}

// Add returns d + o mod 2^128.
func (d Digest) Add(o Digest) (sum Digest) {
	lo, carry := bits.Add64(le.Uint64(d[:8]), le.Uint64(o[:8]), 0)
	hi, _ := bits.Add64(le.Uint64(d[8:]), le.Uint64(o[8:]), carry)
	le.PutUint64(sum[:8], lo)
	le.PutUint64(sum[8:], hi)
	return sum
}

// Offsets within a record that a reader without its table can use
// (docs/formats/snapshot.md).
const (
	recordKey     = 8
	recordVersion = 16
	recordNumbers = 24
)

// CandidateDigest is the share of one candidate in a digest: of key and count.
func CandidateDigest(c []byte) (d Digest) {
	var b [candidateSize]byte
	copy(b[:12], c)
	h := xxh3.Hash128(b[:])
	le.PutUint64(d[:8], h.Lo)
	le.PutUint64(d[8:], h.Hi)
	return d
}

// RecordDigest is the share of one record in a digest.
func RecordDigest(record []byte) (d Digest) {
	h := xxh3.Hash128(record[recordKey:])
	le.PutUint64(d[:8], h.Lo)
	le.PutUint64(d[8:], h.Hi)
	return d
}
