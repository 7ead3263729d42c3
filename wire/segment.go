package wire

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unsafe"

	"github.com/rowraft/rowraft"
)

var le = binary.LittleEndian

// SegmentHeaderSize is the length of a segment's fixed part in bytes.
const SegmentHeaderSize = 24

// Flags of a segment.
const (
	FlagLR       uint8 = 1 << 0 // the header's learning rate replaces the table's
	FlagNoValues uint8 = 1 << 1 // a pull request: keys only
	FlagNoKeys   uint8 = 1 << 2 // a pull reply: values in the order of the request's keys
	FlagPresence uint8 = 1 << 3 // a bitmap marks the keys that have a row
	FlagVersions uint8 = 1 << 4 // a pull request: wants the versions of rows; a reply: has them
	FlagKnown    uint8 = 1 << 5 // a pull request: has the versions that the client knows
	FlagCounts   uint8 = 1 << 7 // of an OpSum: each row states how many pushes it sums

	knownFlags = FlagLR | FlagNoValues | FlagNoKeys | FlagPresence | FlagVersions | FlagKnown | FlagCounts
)

// NoVersion stands for a version that is not known, or does not fit into 32 bits. It is equal to no version.
const NoVersion uint32 = math.MaxUint32

// Segment is the fixed part of a segment.
type Segment struct {
	Table rowraft.TableID
	N     int // rows
	Dim   int // numbers per row
	DType rowraft.DType
	Flags uint8
	LR    float32 // with FlagLR; 0 otherwise

	// Unchanged is the number of rows without values, because the client knows their version: in a reply with
	// FlagVersions; 0 otherwise.
	Unchanged int
}

// Body is the arrays of a segment; an absent array is empty. All slices
// alias the bytes from which the segment was parsed, or to which it is written.
type Body struct {
	Keys     []byte // N × uint64, strictly ascending in pushes
	Presence []byte // ⌈N/64⌉ × uint64; bit i belongs to row i
	Known    []byte // with FlagKnown: N × uint32
	// Unchanged, in a reply with FlagVersions, is ⌈N/64⌉ × uint64: bit i is set if row i has no values.
	Unchanged []byte
	// Values is Dim numbers of DType for each row that has values. In a reply with FlagVersions a uint32, the version,
	// precedes the numbers of each row.
	Values []byte
	Counts []byte // N × uint8
}

// Key returns key i.
func (b *Body) Key(i int) rowraft.Key { return rowraft.Key(le.Uint64(b.Keys[8*i:])) }

// sizes are the lengths of the arrays of a segment, in their order.
type sizes struct{ keys, presence, known, unchanged, values, counts int }

func (s *Segment) sizes() (n sizes) {
	bitmap := (s.N + 63) / 64 * 8
	if s.Flags&FlagNoKeys == 0 {
		n.keys = 8 * s.N
	}
	if s.Flags&FlagPresence != 0 {
		n.presence = bitmap
	}
	if s.Flags&FlagKnown != 0 {
		n.known = 4 * s.N
	}
	if s.Flags&FlagNoValues == 0 {
		if s.Flags&FlagVersions != 0 {
			n.unchanged = bitmap
		}
		n.values = (s.N - s.Unchanged) * s.RowBytes()
	}
	if s.Flags&FlagCounts != 0 {
		n.counts = s.N
	}
	return n
}

// RowBytes returns the length of a row in [Body.Values].
func (s Segment) RowBytes() int {
	n := s.Dim * s.DType.Size()
	if s.Flags&(FlagVersions|FlagNoValues) == FlagVersions {
		n += VersionBytes
	}
	return n
}

// VersionBytes is the length of a version.
const VersionBytes = 4

// Size returns the length of the whole segment in bytes, a multiple of 8.
func (s Segment) Size() int {
	n := s.sizes()
	return align8(n.end())
}

// end returns the length of a segment without its padding.
func (n *sizes) end() int {
	return SegmentHeaderSize + n.keys + n.presence + n.known + n.unchanged + n.values + n.counts
}

func align8(n int) int { return (n + 7) &^ 7 }

// Put writes the header of s and the padding to dst, whose length must be
// s.Size(), and returns the places to which the caller writes the arrays. Put clears the bitmaps.
func (s Segment) Put(dst []byte) Body {
	le.PutUint64(dst[0:], uint64(s.Table))
	le.PutUint32(dst[8:], uint32(s.N))
	le.PutUint16(dst[12:], uint16(s.Dim))
	dst[14] = byte(s.DType)
	dst[15] = s.Flags
	le.PutUint32(dst[16:], math.Float32bits(s.LR))
	le.PutUint32(dst[20:], uint32(s.Unchanged))
	n := s.sizes()
	b := n.body(dst)
	clear(b.Presence)
	clear(b.Unchanged)
	clear(dst[n.end():align8(n.end())])
	return b
}

// LeaveOut changes a reply that Put has written to dst with room for all rows: the last rows of its values are not
// used, because unchanged rows have none. It returns the new size of the segment.
func (s Segment) LeaveOut(dst []byte, unchanged int) int {
	s.Unchanged = unchanged
	le.PutUint32(dst[20:], uint32(unchanged))
	n := s.sizes()
	size := align8(n.end())
	clear(dst[n.end():size])
	return size
}

// body returns the arrays of the segment at the start of b.
func (n *sizes) body(b []byte) (body Body) {
	at := SegmentHeaderSize
	take := func(size int) []byte {
		at += size
		return b[at-size : at : at]
	}
	body.Keys = take(n.keys)
	body.Presence = take(n.presence)
	body.Known = take(n.known)
	body.Unchanged = take(n.unchanged)
	body.Values = take(n.values)
	body.Counts = take(n.counts)
	return body
}

// ParseSegment reads the first segment of payload. It checks that the header is valid, that
// the arrays are inside payload, that the padding is zero, and that the bitmap of unchanged rows has as many as the
// header says. CheckKeys and CheckFinite check keys and values. Errors are CodeInvalidArgument.
func ParseSegment(payload []byte) (s Segment, body Body, rest []byte, err error) {
	if len(payload) < SegmentHeaderSize {
		return s, body, nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"payload ends inside a segment header: %d bytes left, want %d",
			len(payload), SegmentHeaderSize)
	}
	s = Segment{
		Table: rowraft.TableID(le.Uint64(payload)),
		N:     int(le.Uint32(payload[8:])),
		Dim:   int(le.Uint16(payload[12:])),
		DType: rowraft.DType(payload[14]),
		Flags: payload[15],
		LR:    math.Float32frombits(le.Uint32(payload[16:])),

		Unchanged: int(le.Uint32(payload[20:])),
	}
	if err := s.check(); err != nil {
		return s, body, nil, err
	}
	n := s.sizes()
	size := align8(n.end())
	if size > len(payload) {
		return s, body, nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %#x: a segment of %d rows × %d %s has %d bytes, but only %d bytes of the payload are left",
			uint64(s.Table), s.N, s.Dim, s.DType, size, len(payload))
	}
	body = n.body(payload)
	for _, pad := range payload[n.end():size] {
		if pad != 0 {
			return s, body, nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x: padding of a segment is not 0",
				uint64(s.Table))
		}
	}
	if err := s.checkUnchanged(body.Unchanged); err != nil {
		return s, body, nil, err
	}
	return s, body, payload[size:], nil
}

// checkUnchanged checks the bitmap of unchanged rows.
func (s *Segment) checkUnchanged(bitmap []byte) error {
	n := 0
	for at := 0; at < len(bitmap); at += 8 {
		n += bits.OnesCount64(le.Uint64(bitmap[at:]))
	}
	beyond := s.N % 64 // bits of the last word
	if beyond > 0 && len(bitmap) > 0 && le.Uint64(bitmap[len(bitmap)-8:])>>beyond != 0 || n != s.Unchanged {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x: the bitmap of %d rows marks %d as unchanged, or rows "+
			"that are not there: the header says %d", uint64(s.Table), s.N, n, s.Unchanged)
	}
	return nil
}

func (s *Segment) check() error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x: "+format, append([]any{uint64(s.Table)}, args...)...)
	}
	switch {
	case s.DType.Size() == 0:
		return bad("dtype %d: want 1 (float32) or 2 (bfloat16)", uint8(s.DType))
	case s.Flags&^knownFlags != 0:
		return bad("unknown segment flags %#x", s.Flags&^knownFlags)
	case s.Dim < 1 || s.Dim > rowraft.MaxDim:
		return bad("dim %d: want 1 to %d", s.Dim, rowraft.MaxDim)
	case s.N > rowraft.MaxKeysPerPart:
		return bad("%d keys: want at most %d in one request", s.N, rowraft.MaxKeysPerPart)
	case s.Flags&FlagKnown != 0 && s.Flags&(FlagVersions|FlagNoValues) != FlagVersions|FlagNoValues:
		return bad("segment flags %#x: known versions are for a pull that wants versions", s.Flags)
	case s.Unchanged > 0 && s.Flags&(FlagVersions|FlagNoValues) != FlagVersions || s.Unchanged > s.N:
		return bad("%d rows unchanged of %d with flags %#x: only a reply with versions leaves rows out", s.Unchanged, s.N,
			s.Flags)
	case s.Flags&FlagLR == 0 && s.LR != 0:
		return bad("a learning rate %v without FlagLR", s.LR)
	case s.Flags&FlagLR != 0 && !(s.LR >= 0 && s.LR <= math.MaxFloat32):
		return bad("learning rate %v: want a finite number ≥ 0", s.LR)
	}
	return nil
}

// CheckKeys returns CodeInvalidArgument if keys are not strictly ascending.
func CheckKeys(table rowraft.TableID, keys []byte) error {
	if len(keys) < 16 {
		return nil
	}
	prev := le.Uint64(keys)
	for i := 8; i+8 <= len(keys); i += 8 {
		k := le.Uint64(keys[i:])
		if k <= prev {
			if k == prev {
				return rowraft.Errorf(rowraft.CodeInvalidArgument,
					"table %#x: key %d occurs twice (position %d): sum its gradients first",
					uint64(table), k, i/8)
			}
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"table %#x: key %d at position %d follows %d: keys must be strictly ascending",
				uint64(table), k, i/8, prev)
		}
		prev = k
	}
	return nil
}

// CheckFinite returns CodeInvalidArgument for the first NaN or infinite number.
func CheckFinite(s Segment, values []byte) error {
	const exp32, exp16 = 0x7f800000, 0x7f80
	// Adding one unit of the exponent carries into the sign bit exactly when all exponent bits are set.
	if s.DType == rowraft.Float32 {
		const unit = 0x00800000
		bad, i := scanExponents(values, exp32, unit)
		for ; i+8 <= len(values); i += 8 { // two numbers at a time
			bad |= (le.Uint64(values[i:]) & (exp32<<32 | exp32)) + (unit<<32 | unit)
		}
		for ; i+4 <= len(values); i += 4 {
			bad |= uint64(le.Uint32(values[i:])&exp32) + unit
		}
		if bad&0x8000000080000000 == 0 {
			return nil
		}
		for i := 0; i+4 <= len(values); i += 4 {
			if b := le.Uint32(values[i:]); b&exp32 == exp32 {
				return notFinite(s, i/4, math.Float32frombits(b))
			}
		}
		return nil
	}
	const unit = 0x0080
	const mask32, unit32 = exp16<<16 | exp16, unit<<16 | unit
	bad, i := scanExponents(values, mask32, unit32)
	for ; i+8 <= len(values); i += 8 { // four numbers at a time
		bad |= (le.Uint64(values[i:]) & (mask32<<32 | mask32)) + (unit32<<32 | unit32)
	}
	for ; i+2 <= len(values); i += 2 {
		bad |= uint64(le.Uint16(values[i:])&exp16) + unit
	}
	if bad&0x8000800080008000 == 0 {
		return nil
	}
	for i := 0; i+2 <= len(values); i += 2 {
		if b := le.Uint16(values[i:]); b&exp16 == exp16 {
			return notFinite(s, i/2, math.Float32frombits(uint32(b)<<16))
		}
	}
	return nil
}

func notFinite(s Segment, i int, v float32) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument,
		"table %#x: row %d, dimension %d is %v: gradients and weights must be finite",
		uint64(s.Table), i/s.Dim, i%s.Dim, v)
}

// Keys returns the keys whose bytes are src: src itself if its alignment and the machine's byte
// order allow that, otherwise a copy in scratch, which must have room for them.
func Keys(scratch []rowraft.Key, src []byte) []rowraft.Key {
	n := len(src) / 8
	if n == 0 {
		return nil
	}
	if p := unsafe.Pointer(&src[0]); littleEndian && uintptr(p)%8 == 0 {
		return unsafe.Slice((*rowraft.Key)(p), n)
	}
	scratch = scratch[:n]
	for i := range scratch {
		scratch[i] = rowraft.Key(le.Uint64(src[8*i:]))
	}
	return scratch
}
