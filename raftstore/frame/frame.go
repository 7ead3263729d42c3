package frame

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/rowraft/rowraft"
)

// Bytes of a frame around its body.
const (
	HeadBytes = 16
	SumBytes  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Seal returns the frame of body. magic has 8 bytes.
func Seal(magic string, version uint16, body []byte) []byte {
	b := append(make([]byte, 0, HeadBytes+len(body)+SumBytes), magic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// Open returns the body of the frame b, which it does not copy. version is the newest that the caller reads.
//
// Errors: CodeCorrupt; CodeVersionTooNew.
func Open(b []byte, magic string, version uint16) ([]byte, error) {
	if len(b) < HeadBytes+SumBytes || string(b[:8]) != magic {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "not a file of kind %q", magic)
	}
	body, sum := b[HeadBytes:len(b)-SumBytes], b[len(b)-SumBytes:]
	if n := binary.LittleEndian.Uint32(b[12:]); uint64(n) != uint64(len(body)) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "length field is %d bytes, the body has %d", n, len(body))
	}
	if got, want := crc32.Checksum(b[:len(b)-SumBytes], castagnoli), binary.LittleEndian.Uint32(sum); got != want {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "checksum is %08x, want %08x", got, want)
	}
	switch v := binary.LittleEndian.Uint16(b[8:]); {
	case v > version:
		return nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "format version %d is newer than this program's %d: upgrade it",
			v, version)
	case v == 0:
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "format version 0")
	}
	return body, nil
}

// Reader reads numbers from the front of Rest. After a read beyond the end, OK is false and all numbers are 0.
type Reader struct {
	Rest []byte
	OK   bool
}

// NewReader returns a Reader of body.
func NewReader(body []byte) Reader { return Reader{Rest: body, OK: true} }

// Bytes returns the next n bytes, which it does not copy.
func (r *Reader) Bytes(n int) []byte {
	if n < 0 || n > len(r.Rest) || n > math.MaxInt32 {
		r.OK, r.Rest = false, nil
		return make([]byte, min(max(n, 0), 8))
	}
	out := r.Rest[:n]
	r.Rest = r.Rest[n:]
	return out
}

// Uint8 returns the next byte.
func (r *Reader) Uint8() uint8 { return r.Bytes(1)[0] }

// Uint16 returns the next two bytes.
func (r *Reader) Uint16() uint16 { return binary.LittleEndian.Uint16(r.Bytes(2)) }

// Uint32 returns the next four bytes.
func (r *Reader) Uint32() uint32 { return binary.LittleEndian.Uint32(r.Bytes(4)) }

// Uint64 returns the next eight bytes.
func (r *Reader) Uint64() uint64 { return binary.LittleEndian.Uint64(r.Bytes(8)) }

// End reports whether all reads succeeded and nothing is left.
func (r *Reader) End() bool { return r.OK && len(r.Rest) == 0 }
