package wire

import "github.com/rowraft/rowraft"

const (
	entryMagic = 0x0152 // 'R', 1

	// EntryHeaderSize and PartHeaderSize are the fixed parts in bytes, multiples of 8.
	EntryHeaderSize = 32
	PartHeaderSize  = 48
)

// EntryKind selects the change of the state machine.
type EntryKind uint8

const (
	EntryParts       EntryKind = 1 // pushes and assigns of clients
	EntryOpenSession EntryKind = 2
	EntryCreateTable EntryKind = 3
)

// EntryHeader is the fixed start of every log entry.
type EntryHeader struct {
	Kind    EntryKind
	Version rowraft.FormatVersion // the lowest that can express the entry; a replica that does not understand it stops
	LogTime uint64                // nanoseconds of logged time, never decreasing (clamped by apply)
	Epoch   rowraft.TableEpoch
	Parts   int // EntryParts only
}

// Op selects what a part does with its rows.
type Op uint8

const (
	OpPush   Op = 1 // values are gradients; the table's optimizer runs
	OpAssign Op = 2 // values are weights
	OpDelete Op = 3 // no values: the rows are removed
)

// Part is one client's numbered share of an entry.
type Part struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	Seq         rowraft.Seq // from 1, dense per (session, shard); of an OpSum, the number of its contributors
	Floor       rowraft.Seq // every number ≤ Floor has been acknowledged to the client
	Op          Op
	Payload     []byte // segments; length a multiple of 8
}

// Size returns the number of bytes of the part in an entry.
func (p *Part) Size() int { return PartHeaderSize + len(p.Payload) }

// PutEntryHeader writes h to dst[:EntryHeaderSize].
func PutEntryHeader(dst []byte, h EntryHeader) {
	le.PutUint16(dst, entryMagic)
	dst[2], dst[3] = byte(h.Kind), 0
	le.PutUint16(dst[4:], uint16(h.Version))
	le.PutUint16(dst[6:], 0)
	le.PutUint64(dst[8:], h.LogTime)
	le.PutUint64(dst[16:], uint64(h.Epoch))
	le.PutUint32(dst[24:], uint32(h.Parts))
	le.PutUint32(dst[28:], 0)
}

// ParseEntryHeader reads the header of an entry and returns the rest of the entry.
// Errors: CodeVersionTooNew, CodeCorrupt.
func ParseEntryHeader(entry []byte) (h EntryHeader, rest []byte, err error) {
	if len(entry) < EntryHeaderSize || le.Uint16(entry) != entryMagic {
		return h, nil, rowraft.Errorf(rowraft.CodeCorrupt, "log entry of %d bytes does not start with an entry header",
			len(entry))
	}
	h = EntryHeader{
		Kind:    EntryKind(entry[2]),
		Version: rowraft.FormatVersion(le.Uint16(entry[4:])),
		LogTime: le.Uint64(entry[8:]),
		Epoch:   rowraft.TableEpoch(le.Uint64(entry[16:])),
		Parts:   int(le.Uint32(entry[24:])),
	}
	if newest := NewestVersion(); h.Version > newest {
		return h, nil, rowraft.Errorf(rowraft.CodeVersionTooNew,
			"log entry has version %d, this binary understands up to %d: upgrade it", h.Version, newest)
	}
	partless := h.Kind > EntryParts && h.Kind <= lastEntryKind
	if h.Version < FirstVersion || entry[3] != 0 || le.Uint16(entry[6:]) != 0 || le.Uint32(entry[28:]) != 0 || partless &&
		h.Parts != 0 {
		return h, nil, rowraft.Errorf(rowraft.CodeCorrupt, "log entry header has impossible fields")
	}
	return h, entry[EntryHeaderSize:], nil
}

// AppendPart appends p to an entry under construction.
func AppendPart(dst []byte, p *Part) []byte {
	var h [PartHeaderSize]byte
	copy(h[:16], p.Client[:])
	le.PutUint64(h[16:], uint64(p.Incarnation))
	le.PutUint64(h[24:], uint64(p.Seq))
	le.PutUint64(h[32:], uint64(p.Floor))
	h[40] = byte(p.Op)
	le.PutUint32(h[44:], uint32(len(p.Payload)))
	return append(append(dst, h[:]...), p.Payload...)
}

// ParsePart reads the first part of b; p.Payload aliases b. Errors: CodeCorrupt.
func ParsePart(b []byte, p *Part) (rest []byte, err error) {
	if len(b) < PartHeaderSize {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "log entry ends inside a part header: %d bytes left, want %d",
			len(b), PartHeaderSize)
	}
	p.Client = rowraft.ClientID(b[:16])
	p.Incarnation = rowraft.Incarnation(le.Uint64(b[16:]))
	p.Seq = rowraft.Seq(le.Uint64(b[24:]))
	p.Floor = rowraft.Seq(le.Uint64(b[32:]))
	p.Op = Op(b[40])
	n := uint64(le.Uint32(b[44:]))
	if b[41]|b[42]|b[43] != 0 || n%8 != 0 || n > uint64(len(b)-PartHeaderSize) || p.Op < OpPush || p.Op > OpSum {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt,
			"log entry has an impossible part: op %d with a payload of %d bytes, %d bytes left",
			b[40], n, len(b)-PartHeaderSize)
	}
	end := PartHeaderSize + int(n)
	p.Payload = b[PartHeaderSize:end:end]
	if p.Op == OpSum {
		if err := checkSum(p); err != nil {
			return nil, err
		}
	}
	return b[end:], nil
}
