package checkpoint

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// Version is the format of a stream that this binary writes, and the newest that it reads.
const Version = 1

// CandidateBytes is the size of a candidate: key, count, tick.
const CandidateBytes = 16

const (
	magic      = "ROWRSNAP"
	headerSize = 64

	chunkHeaderSize = 16
	rowsHeaderSize  = 32 // and 8 bytes more if rows were removed from the slot
	sessionFixed    = 176
	refusalSize     = 16
	trailerSize     = 48

	candidatesHeaderSize = 16
	candidateSize        = CandidateBytes

	// targetChunk is where the writer ends a chunk; maxChunk is what a reader
	// accepts, so that a damaged length cannot ask for memory.
	targetChunk = 512 << 10
	maxChunk    = 8 << 20

	maxTables   = 1 << 16
	maxSessions = 1 << 16
)

type chunkKind uint8

const (
	chunkSchemas  chunkKind = 1
	chunkSessions chunkKind = 2
	chunkRows     chunkKind = 3
	chunkTrailer  chunkKind = 4
	// chunkCandidates follows the rows of its slot.
	chunkCandidates chunkKind = 5
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// WindowBits is how many sequence numbers above the floor a session remembers.
const WindowBits = 1024

// Header says what a stream holds.
type Header struct {
	Shard   rowraft.ShardID
	Applied rowraft.Index // the rows are those after this entry
	LogTime uint64        // nanoseconds of logged time
	Epoch   rowraft.TableEpoch
	Delta   bool // it lacks rows that another stream has
	Local   bool // it refers to rows in files of the replica that wrote it; not with Delta
}

// Flags in the header.
const (
	flagDelta = 1
	flagLocal = 2
)

// Session is the record of one pushing client.
type Session struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	Floor       rowraft.Seq             // every number ≤ Floor is answered
	LastUsed    uint64                  // log time, nanoseconds
	Window      [WindowBits / 64]uint64 // number n > Floor is answered if bit n mod WindowBits is set
	Refused     []Refusal               // those of the answered numbers without effect, ascending
}

// Refusal is the record of a number that was answered with an error.
type Refusal struct {
	Seq  rowraft.Seq
	Code rowraft.Code
}

// Digest is the sum mod 2^128 of the hashes of rows, little-endian.
type Digest [16]byte

// Slot names the rows of one table in one slot.
type Slot struct {
	Table       rowraft.TableID
	Slot        rowraft.Slot
	Counter     uint64 // the last row version drawn in this slot
	RecordBytes int    // length of one record
	Removed     uint64 // the counter when a row was last removed here, 0 if none was
	Whole       bool   // in a delta: these are all rows of the slot
}

// Flags in the header of rows.
const (
	flagWhole   = 1
	flagRemoved = 2 // Removed follows the header; it is not 0
)

// Trailer is what the whole stream adds up to.
type Trailer struct {
	Rows       uint64
	Chunks     uint64 // of rows
	Candidates uint64
	Digest     Digest
}

// counts is how many of what stands before the rows there are.
type counts struct{ tables, sessions, ended, jobs int }

func (h Header) append(dst []byte, n counts) []byte {
	at := len(dst)
	flags := uint32(0)
	if h.Delta {
		flags = flagDelta
	}
	if h.Local {
		flags = flagLocal
	}
	dst = append(dst, magic...)
	dst = le.AppendUint16(dst, Version)
	dst = le.AppendUint16(dst, clustermap.HashVersion)
	dst = le.AppendUint32(dst, uint32(h.Shard))
	dst = le.AppendUint64(dst, uint64(h.Applied))
	dst = le.AppendUint64(dst, h.LogTime)
	dst = le.AppendUint64(dst, uint64(h.Epoch))
	dst = le.AppendUint32(dst, uint32(n.tables))
	dst = le.AppendUint32(dst, uint32(n.sessions))
	dst = le.AppendUint32(dst, flags)
	dst = le.AppendUint32(dst, uint32(n.jobs))
	dst = le.AppendUint32(dst, uint32(n.ended))
	return le.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

// parseHeader checks magic and version before anything else.
func parseHeader(b []byte) (h Header, n counts, err error) {
	if string(b[:8]) != magic {
		return h, n, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot: it starts with %q, want %q", b[:8], magic)
	}
	version, hash := le.Uint16(b[8:]), le.Uint16(b[10:])
	if crc32.Checksum(b[:headerSize-4], castagnoli) != le.Uint32(b[headerSize-4:]) {
		// A later version may have a longer header, so its checksum is elsewhere.
		if version > Version {
			return h, n, tooNew(version, hash)
		}
		return h, n, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot: checksum of the header does not match")
	}
	if version > Version || hash > clustermap.HashVersion {
		return h, n, tooNew(version, hash)
	}
	h = Header{
		Shard:   rowraft.ShardID(le.Uint32(b[12:])),
		Applied: rowraft.Index(le.Uint64(b[16:])),
		LogTime: le.Uint64(b[24:]),
		Epoch:   rowraft.TableEpoch(le.Uint64(b[32:])),
		Delta:   le.Uint32(b[48:]) == flagDelta,
		Local:   le.Uint32(b[48:]) == flagLocal,
	}
	n = counts{tables: int(le.Uint32(b[40:])), sessions: int(le.Uint32(b[44:])), jobs: int(le.Uint32(b[52:])),
		ended: int(le.Uint32(b[56:]))}
	if version == 0 || hash == 0 || n.tables > maxTables || n.sessions > maxSessions || n.jobs > MaxJobs ||
		n.ended > MaxEnded || le.Uint32(b[48:]) != 0 && !h.Delta && !h.Local {
		return h, n, rowraft.Errorf(rowraft.CodeCorrupt, "snapshot: the header has impossible fields")
	}
	return h, n, nil
}

func tooNew(version, hash uint16) error {
	return rowraft.Errorf(rowraft.CodeVersionTooNew,
		"snapshot has format %d, hash version %d; this binary knows up to %d and %d: upgrade it", version, hash, Version,
		clustermap.HashVersion)
}

func appendSession(dst []byte, s *Session) []byte {
	dst = append(dst, s.Client[:]...)
	dst = le.AppendUint64(dst, uint64(s.Incarnation))
	dst = le.AppendUint64(dst, uint64(s.Floor))
	dst = le.AppendUint64(dst, s.LastUsed)
	dst = le.AppendUint32(dst, uint32(len(s.Refused)))
	dst = le.AppendUint32(dst, 0)
	for _, w := range s.Window {
		dst = le.AppendUint64(dst, w)
	}
	for _, r := range s.Refused {
		dst = le.AppendUint64(dst, uint64(r.Seq))
		dst = le.AppendUint64(dst, uint64(r.Code))
	}
	return dst
}

// parseSession reads the first session of b.
func parseSession(b []byte) (s Session, rest []byte, err error) {
	bad := func(what string) error {
		return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot: a session %s", what)
	}
	if len(b) < sessionFixed {
		return s, nil, bad("ends early")
	}
	s = Session{
		Client:      rowraft.ClientID(b[:16]),
		Incarnation: rowraft.Incarnation(le.Uint64(b[16:])),
		Floor:       rowraft.Seq(le.Uint64(b[24:])),
		LastUsed:    le.Uint64(b[32:]),
	}
	n, zero := le.Uint32(b[40:]), le.Uint32(b[44:])
	for i := range s.Window {
		s.Window[i] = le.Uint64(b[48+8*i:])
	}
	b = b[sessionFixed:]
	if zero != 0 || n > WindowBits || len(b) < int(n)*refusalSize {
		return s, nil, bad("has an impossible list of refused numbers")
	}
	for i := range int(n) {
		r := Refusal{Seq: rowraft.Seq(le.Uint64(b)), Code: rowraft.Code(b[8])}
		inWindow := r.Seq > s.Floor && r.Seq-s.Floor <= WindowBits && s.Window[r.Seq%WindowBits/64]>>(r.Seq%64)&1 == 1
		if !inWindow || le.Uint64(b[8:]) > 0xff || i > 0 && r.Seq <= s.Refused[i-1].Seq {
			return s, nil, bad("refused a number it never answered")
		}
		s.Refused = append(s.Refused, r)
		b = b[refusalSize:]
	}
	return s, b, nil
}
