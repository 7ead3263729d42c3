package digest

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Digest is the sum of row hashes mod 2^128. It does not depend on the order of
// rows or slots, so the digest of a union of disjoint sets of rows is the sum of their digests.
//
// The hash of a row is XXH3-128 with seed 0 of its key, version, weights and
// optimizer state, in the bytes of the record. The header's recency and count are not included.
type Digest struct{ Hi, Lo uint64 }

// Add returns d + o mod 2^128.
func (d Digest) Add(o Digest) Digest {
	lo, carry := bits.Add64(d.Lo, o.Lo, 0)
	hi, _ := bits.Add64(d.Hi, o.Hi, carry)
	return Digest{Hi: hi, Lo: lo}
}

// Sub returns d − o mod 2^128.
func (d Digest) Sub(o Digest) Digest {
	lo, borrow := bits.Sub64(d.Lo, o.Lo, 0)
	hi, _ := bits.Sub64(d.Hi, o.Hi, borrow)
	return Digest{Hi: hi, Lo: lo}
}

// Bytes returns d as 16 little-endian bytes.
func (d Digest) Bytes() (b [16]byte) {
	binary.LittleEndian.PutUint64(b[:8], d.Lo)
	binary.LittleEndian.PutUint64(b[8:], d.Hi)
	return b
}

// Of is the inverse of Bytes.
func Of(b [16]byte) Digest {
	return Digest{Lo: binary.LittleEndian.Uint64(b[:8]), Hi: binary.LittleEndian.Uint64(b[8:])}
}

// String returns 32 hexadecimal digits.
func (d Digest) String() string { return fmt.Sprintf("%016x%016x", d.Hi, d.Lo) }
