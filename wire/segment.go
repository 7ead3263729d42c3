package wire

import (
	"encoding/binary"
	"math"
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
	FlagCounts   uint8 = 1 << 7 // of an OpSum: each row states how many pushes it sums

	knownFlags = FlagLR | FlagNoValues | FlagNoKeys | FlagPresence | FlagCounts
)

// Segment is the fixed part of a segment.
type Segment struct {
	Table rowraft.TableID
	N     int // rows
	Dim   int // numbers per row
	DType rowraft.DType
	Flags uint8
	LR    float32 // with FlagLR; 0 otherwise
}

// Body is the arrays of a segment; an absent array is empty. All slices
// alias the bytes from which the segment was parsed, or to which it is written.
type Body struct {
	Keys     []byte // N × uint64, strictly ascending in pushes
	Presence []byte // ⌈N/64⌉ × uint64; bit i belongs to row i
	Values   []byte // N × Dim numbers of DType, row-major
	Counts   []byte // N × uint8
}

// Key returns key i.
func (b Body) Key(i int) rowraft.Key { return rowraft.Key(le.Uint64(b.Keys[8*i:])) }

func (s Segment) sizes() (keys, presence, values, counts int) {
	if s.Flags&FlagNoKeys == 0 {
		keys = 8 * s.N
	}
	if s.Flags&FlagPresence != 0 {
		presence = (s.N + 63) / 64 * 8
	}
	if s.Flags&FlagNoValues == 0 {
		values = s.N * s.Dim * s.DType.Size()
	}
	if s.Flags&FlagCounts != 0 {
		counts = s.N
	}
	return keys, presence, values, counts
}

// Size returns the length of the whole segment in bytes, a multiple of 8.
func (s Segment) Size() int {
	k, p, v, c := s.sizes()
	return align8(SegmentHeaderSize + k + p + v + c)
}

func align8(n int) int { return (n + 7) &^ 7 }

// Put writes the header of s and the padding to dst, whose length must be
// s.Size(), and returns the places to which the caller writes the arrays. Put clears the presence
// bitmap.
func (s Segment) Put(dst []byte) Body {
	le.PutUint64(dst[0:], uint64(s.Table))
	le.PutUint32(dst[8:], uint32(s.N))
	le.PutUint16(dst[12:], uint16(s.Dim))
	dst[14] = byte(s.DType)
	dst[15] = s.Flags
	le.PutUint32(dst[16:], math.Float32bits(s.LR))
	le.PutUint32(dst[20:], 0)
	b, end := s.body(dst)
	clear(b.Presence)
	clear(dst[end:s.Size()])
	return b
}

func (s Segment) body(b []byte) (body Body, end int) {
	k, p, v, c := s.sizes()
	at := SegmentHeaderSize
	body.Keys = b[at : at+k : at+k]
	at += k
	body.Presence = b[at : at+p : at+p]
	at += p
	body.Values = b[at : at+v : at+v]
	at += v
	body.Counts = b[at : at+c : at+c]
	return body, at + c
}

// ParseSegment reads the first segment of payload. It checks that the header is valid, that
// the arrays are inside payload, and that the padding is zero. CheckKeys and CheckFinite check
// keys and values. Errors are CodeInvalidArgument.
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
	}
	if err := s.check(); err != nil {
		return s, body, nil, err
	}
	if le.Uint32(payload[20:]) != 0 {
		return s, body, nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x: reserved bytes of a segment are not 0",
			uint64(s.Table))
	}
	size := s.Size()
	if size > len(payload) {
		return s, body, nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %#x: a segment of %d rows × %d %s has %d bytes, but only %d bytes of the payload are left",
			uint64(s.Table), s.N, s.Dim, s.DType, size, len(payload))
	}
	body, end := s.body(payload)
	for _, pad := range payload[end:size] {
		if pad != 0 {
			return s, body, nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %#x: padding of a segment is not 0",
				uint64(s.Table))
		}
	}
	return s, body, payload[size:], nil
}

func (s Segment) check() error {
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
	if s.DType == rowraft.Float32 {
		// Two numbers at a time: adding one unit of the exponent carries into the
		// sign bit exactly when all exponent bits are set.
		const mask, unit, carry = 0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000
		i, bad := 0, uint64(0)
		for ; i+8 <= len(values); i += 8 {
			bad |= (le.Uint64(values[i:]) & mask) + unit
		}
		for ; i+4 <= len(values); i += 4 {
			bad |= uint64(le.Uint32(values[i:])&exp32) + 0x00800000
		}
		if bad&carry == 0 {
			return nil
		}
		for i := 0; i+4 <= len(values); i += 4 {
			if b := le.Uint32(values[i:]); b&exp32 == exp32 {
				return notFinite(s, i/4, math.Float32frombits(b))
			}
		}
		return nil
	}
	// Four numbers at a time, in the same way.
	const mask, unit, carry = 0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000
	i, bad := 0, uint64(0)
	for ; i+8 <= len(values); i += 8 {
		bad |= (le.Uint64(values[i:]) & mask) + unit
	}
	for ; i+2 <= len(values); i += 2 {
		bad |= uint64(le.Uint16(values[i:])&exp16) + 0x80
	}
	if bad&carry == 0 {
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
