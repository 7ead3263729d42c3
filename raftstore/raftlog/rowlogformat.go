package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The format of segments and batches; docs/formats/log.md is the authority.
const (
	segmentMagic    = "rowraftE"
	segmentVersion  = 1
	segmentHead     = 48   // fixed part; the owner follows
	segmentHeadCopy = 4096 // offset of the second copy
	segmentStart    = 8192 // offset of the first batch
	segmentExt      = ".seg"
	freeExt         = ".free"

	batchHeadBytes   = 24
	sectionHeadBytes = 32
	cutBytes         = 16
)

// Kinds of sections.
const (
	sectionEntries = 1 // appended
	sectionCut     = 2 // the group keeps the entries first to last
	sectionCopies  = 3 // of entries in older segments
	sectionBegin   = 4 // the group is new and empty
	sectionEnd     = 5 // the group is removed
	sectionState   = 6 // all groups, at the begin of a segment
)

// stateDamaged is the flag of a group that must not start.
const stateDamaged = 1

func segmentName(number uint64, ext string) string { return fmt.Sprintf("%016x%s", number, ext) }

// parseSegmentName returns the number in a file name; false if the name is not a segment's.
func parseSegmentName(name, ext string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, ext)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 16, 64)
	return n, err == nil && segmentName(n, ext) == name
}

// rowSegmentHeader is the header of a segment.
type rowSegmentHeader struct {
	number uint64
	batch  uint64 // first batch of the segment
	salt   uint64
	owner  Owner // without group and replica
}

func (h rowSegmentHeader) encode() []byte {
	b := append(make([]byte, segmentHead), h.owner.encode()...)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint16(b[8:], segmentVersion)
	for i, v := range []uint64{h.number, h.batch, h.salt} {
		binary.LittleEndian.PutUint64(b[16+8*i:], v)
	}
	binary.LittleEndian.PutUint32(b[40:], uint32(len(b)-segmentHead))
	binary.LittleEndian.PutUint32(b[44:], headerCRC(b))
	return b
}

// start returns the bytes of the segment before its first batch.
func (h rowSegmentHeader) start() []byte {
	b := make([]byte, segmentStart)
	copy(b, h.encode())
	copy(b[segmentHeadCopy:], b[:segmentHeadCopy])
	return b
}

// headerCRC returns the CRC of a header, without the field of the CRC.
func headerCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:44], castagnoli), castagnoli, b[segmentHead:])
}

// parseSegmentHeader decodes one copy. Errors: CodeCorrupt; CodeVersionTooNew if the copy is complete and of a later
// format.
func parseSegmentHeader(b []byte) (h rowSegmentHeader, err error) {
	le := binary.LittleEndian
	if len(b) < segmentHead || string(b[:8]) != segmentMagic || uint64(le.Uint32(b[40:])) > uint64(len(b)-segmentHead) {
		return h, rowraft.Errorf(rowraft.CodeCorrupt, "no whole header of a log segment")
	}
	b = b[:segmentHead+le.Uint32(b[40:])]
	if le.Uint32(b[44:]) != headerCRC(b) {
		return h, rowraft.Errorf(rowraft.CodeCorrupt, "no whole header of a log segment")
	}
	if v := le.Uint16(b[8:]); v != segmentVersion {
		return h, rowraft.Errorf(rowraft.CodeVersionTooNew, "log segment of format %d; this binary knows %d: upgrade it", v,
			segmentVersion)
	}
	h = rowSegmentHeader{number: le.Uint64(b[16:]), batch: le.Uint64(b[24:]), salt: le.Uint64(b[32:])}
	owner, rest, ok := parseOwner(b[segmentHead:])
	h.owner = owner
	if !ok || len(rest) > 0 || h.batch == 0 {
		return h, rowraft.Errorf(rowraft.CodeCorrupt, "the header of a log segment has impossible fields")
	}
	return h, nil
}

// batchHead is the fixed-size start of a batch.
type batchHead struct {
	crc      uint32
	sections uint32
	number   uint64
	length   uint32 // of the sections
}

// parseBatchHead decodes a possible head; ok is false if it cannot be one.
func parseBatchHead(b []byte) (h batchHead, ok bool) {
	le := binary.LittleEndian
	h = batchHead{crc: le.Uint32(b), sections: le.Uint32(b[4:]), number: le.Uint64(b[8:]), length: le.Uint32(b[16:])}
	return h, le.Uint32(b[20:]) == 0 && h.length%8 == 0 && h.sections > 0 &&
		uint64(h.length) >= uint64(h.sections)*sectionHeadBytes
}

// putBatchHead writes a head without its CRC.
func putBatchHead(b []byte, h batchHead) {
	le := binary.LittleEndian
	le.PutUint32(b[4:], h.sections)
	le.PutUint64(b[8:], h.number)
	le.PutUint32(b[16:], h.length)
	le.PutUint32(b[20:], 0)
}

// batchCRC returns the CRC of a batch up to its first section.
func batchCRC(salt uint64, head []byte) uint32 {
	var s [8]byte
	binary.LittleEndian.PutUint64(s[:], salt)
	return crc32.Update(crc32.Checksum(s[:], castagnoli), castagnoli, head[4:batchHeadBytes])
}

// section is the head of a section.
type section struct {
	kind   uint16
	count  uint32 // of entries or groups
	tag    uint64 // of the group's owner
	seq    uint64 // one more than in the group's section before; 1 in its first section
	length uint32 // of the body
}

// parseSection decodes a possible section head; ok is false if it cannot be one.
func parseSection(b []byte) (s section, ok bool) {
	le := binary.LittleEndian
	s = section{kind: le.Uint16(b), count: le.Uint32(b[4:]), tag: le.Uint64(b[8:]), seq: le.Uint64(b[16:]),
		length: le.Uint32(b[24:])}
	if le.Uint16(b[2:]) != 0 || le.Uint32(b[28:]) != 0 || s.length%8 != 0 {
		return s, false
	}
	switch s.kind {
	case sectionEntries, sectionCopies:
		return s, s.count > 0 && uint64(s.length) >= uint64(s.count)*entry.HeadBytes
	case sectionCut:
		return s, s.count == 0 && s.length == cutBytes
	case sectionBegin:
		return s, s.count == 0 && s.length > 0 && s.length <= maxOwnerBytes+8
	case sectionEnd:
		return s, s.count == 0 && s.length == 0
	case sectionState:
		return s, s.tag == 0 && s.seq == 0
	}
	return s, false
}

func appendSection(b []byte, s section) []byte {
	le := binary.LittleEndian
	b = append(le.AppendUint16(b, s.kind), 0, 0)
	b = le.AppendUint32(b, s.count)
	b = le.AppendUint64(b, s.tag)
	b = le.AppendUint64(b, s.seq)
	b = le.AppendUint32(b, s.length)
	return append(b, 0, 0, 0, 0)
}

// hasEntries reports whether the body of s has entries. The CRC of a batch covers the heads of entries, and all of any
// other body.
func (s section) hasEntries() bool { return s.kind == sectionEntries || s.kind == sectionCopies }

// entryBytes returns the size of an entry in a section, with padding.
func entryBytes(h entry.Head) uint64 { return (entry.HeadBytes + uint64(h.Length) + 7) &^ 7 }

func pad8(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }

// groupState is one group in the state at the begin of a segment.
type groupState struct {
	tag, seq    uint64
	first, last uint64 // 0, 0: empty
	damaged     bool
	owner       Owner // group and replica only
}

// appendState appends a section with the groups, in the order of their tags.
func appendState(b []byte, groups map[uint64]*rowGroup) []byte {
	at := len(b)
	b = appendSection(b, section{kind: sectionState, count: uint32(len(groups))})
	le := binary.LittleEndian
	for _, tag := range slices.Sorted(maps.Keys(groups)) {
		g := groups[tag]
		for _, v := range []uint64{tag, g.seq, g.first, g.last} {
			b = le.AppendUint64(b, v)
		}
		b = append(b, flag(g.err != nil))
		b = append(b, Owner{Group: g.owner.Group, Replica: g.owner.Replica}.encode()[2:]...)
	}
	b = append(b, make([]byte, -(len(b)-at)&7)...)
	le.PutUint32(b[at+24:], uint32(len(b)-at-sectionHeadBytes))
	return b
}

// parseState decodes the body of a section with count groups.
func parseState(b []byte, count uint32) (out []groupState, err error) {
	bad := rowraft.Errorf(rowraft.CodeCorrupt, "the state at the begin of a log segment does not add up")
	le := binary.LittleEndian
	for range count {
		if len(b) < 33 {
			return nil, bad
		}
		s := groupState{tag: le.Uint64(b), seq: le.Uint64(b[8:]), first: le.Uint64(b[16:]), last: le.Uint64(b[24:]),
			damaged: b[32]&stateDamaged != 0}
		owner, rest, ok := parseOwner(append([]byte{0, 0}, b[33:min(len(b), 33+maxOwnerBytes)]...))
		if !ok || b[32]&^stateDamaged != 0 || s.first > s.last || (s.first == 0) != (s.last == 0) ||
			len(out) > 0 && out[len(out)-1].tag >= s.tag {
			return nil, bad
		}
		s.owner = owner
		b = b[min(len(b), 33+maxOwnerBytes)-len(rest):]
		out = append(out, s)
	}
	if len(b) > 7 {
		return nil, bad
	}
	return out, nil
}
