package raftlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The format of segments and batches; docs/formats/log.md is the authority.
const (
	segmentMagic    = "rowraftE"
	segmentVersion  = 1
	segmentHead     = 64   // fixed part; the owner follows
	segmentHeadCopy = 4096 // offset of the second copy
	segmentStart    = 8192 // offset of the first batch
	segmentExt      = ".seg"
	freeExt         = ".free"

	batchHeadBytes = 32
	batchEntries   = 1
	batchCut       = 2
	cutBytes       = 16
)

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
	number      uint64
	batch       uint64 // first batch of the segment
	salt        uint64
	first, last uint64 // of the log before it
	owner       Owner
}

func (h rowSegmentHeader) encode() []byte {
	b := append(make([]byte, segmentHead), h.owner.encode()...)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint16(b[8:], segmentVersion)
	for i, v := range []uint64{h.number, h.batch, h.salt, h.first, h.last} {
		binary.LittleEndian.PutUint64(b[16+8*i:], v)
	}
	binary.LittleEndian.PutUint32(b[56:], uint32(len(b)-segmentHead))
	binary.LittleEndian.PutUint32(b[60:], headerCRC(b))
	return b
}

// headerCRC returns the CRC of a header, without the field of the CRC.
func headerCRC(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:60], castagnoli), castagnoli, b[segmentHead:])
}

// parseSegmentHeader decodes one copy. Errors: CodeCorrupt; CodeVersionTooNew if the copy is complete and of a later
// format.
func parseSegmentHeader(b []byte) (h rowSegmentHeader, err error) {
	le := binary.LittleEndian
	if len(b) < segmentHead || string(b[:8]) != segmentMagic || uint64(le.Uint32(b[56:])) > uint64(len(b)-segmentHead) {
		return h, rowraft.Errorf(rowraft.CodeCorrupt, "no whole header of a log segment")
	}
	b = b[:segmentHead+le.Uint32(b[56:])]
	if le.Uint32(b[60:]) != headerCRC(b) {
		return h, rowraft.Errorf(rowraft.CodeCorrupt, "no whole header of a log segment")
	}
	if v := le.Uint16(b[8:]); v != segmentVersion {
		return h, rowraft.Errorf(rowraft.CodeVersionTooNew, "log segment of format %d; this binary knows %d: upgrade it", v,
			segmentVersion)
	}
	h = rowSegmentHeader{number: le.Uint64(b[16:]), batch: le.Uint64(b[24:]), salt: le.Uint64(b[32:]),
		first: le.Uint64(b[40:]), last: le.Uint64(b[48:])}
	owner, rest, ok := parseOwner(b[segmentHead:])
	h.owner = owner
	if !ok || len(rest) > 0 || h.batch == 0 || h.first > h.last || (h.first == 0) != (h.last == 0) {
		return h, rowraft.Errorf(rowraft.CodeCorrupt, "the header of a log segment has impossible fields")
	}
	return h, nil
}

// batchHead is the fixed-size start of a batch.
type batchHead struct {
	crc    uint32
	kind   uint16
	number uint64
	count  uint32
	length uint32 // of the body
	tag    uint64 // of the owner
}

// parseBatchHead decodes a possible head; ok is false if it cannot be one.
func parseBatchHead(b []byte) (h batchHead, ok bool) {
	le := binary.LittleEndian
	h = batchHead{crc: le.Uint32(b), kind: le.Uint16(b[4:]), number: le.Uint64(b[8:]), count: le.Uint32(b[16:]),
		length: le.Uint32(b[20:]), tag: le.Uint64(b[24:])}
	if le.Uint16(b[6:]) != 0 || h.length%8 != 0 {
		return h, false
	}
	switch h.kind {
	case batchEntries:
		return h, h.count > 0 && uint64(h.length) >= uint64(h.count)*entry.HeadBytes
	case batchCut:
		return h, h.count == 0 && h.length == cutBytes
	}
	return h, false
}

// batchCRC returns the CRC of a batch up to its first entry head.
func batchCRC(salt uint64, head []byte) uint32 {
	var s [8]byte
	binary.LittleEndian.PutUint64(s[:], salt)
	return crc32.Update(crc32.Checksum(s[:], castagnoli), castagnoli, head[4:batchHeadBytes])
}

// batchBytes returns the size of an entry in a batch, with padding.
func batchBytes(h entry.Head) uint64 { return (entry.HeadBytes + uint64(h.Length) + 7) &^ 7 }

// batch is a batch to be written: a sequence of pieces. Small data are in buf; a large entry is a piece of its own, not
// copied.
type batch struct {
	buf    []byte
	pieces []piece
	heads  []headPlace // positions of the entry heads, or of the body of a cut
	size   int64
}

// piece is buf[from:to], or data.
type piece struct {
	from, to int
	data     []byte
}

// headPlace is the position of an entry's head in buf, and its offset from the start of the batch.
type headPlace struct {
	at, length int
	start      uint32
}

// smallEntry is the size up to which data are copied into buf. Larger data are written separately.
const smallEntry = 16 << 10

// entries builds a batch of logs, without its number and CRC.
func (b *batch) entries(logs []*raft.Log) {
	b.reset(batchEntries, len(logs))
	from := 0
	for _, l := range logs {
		b.heads = append(b.heads, headPlace{at: len(b.buf), length: entry.HeadBytes, start: uint32(b.size)})
		b.buf = entry.AppendHead(b.buf, l)
		if len(l.Data) <= smallEntry {
			b.buf = append(b.buf, l.Data...)
		} else {
			b.pieces = append(b.pieces, piece{from: from, to: len(b.buf)}, piece{data: l.Data})
			from = len(b.buf)
		}
		b.size += entry.HeadBytes + int64(len(l.Data))
		if pad := int(-b.size & 7); pad > 0 {
			b.buf = append(b.buf, make([]byte, pad)...)
			b.size += int64(pad)
		}
	}
	b.close(from)
}

// cut builds a batch that reduces the log to the entries first … last.
func (b *batch) cut(first, last uint64) {
	b.reset(batchCut, 0)
	b.heads = append(b.heads, headPlace{at: len(b.buf), length: cutBytes})
	b.buf = binary.LittleEndian.AppendUint64(b.buf, first)
	b.buf = binary.LittleEndian.AppendUint64(b.buf, last)
	b.size += cutBytes
	b.close(0)
}

func (b *batch) reset(kind uint16, count int) {
	clear(b.pieces) // release the entries for the garbage collector
	*b = batch{buf: append(b.buf[:0], make([]byte, batchHeadBytes)...), pieces: b.pieces[:0], heads: b.heads[:0],
		size: batchHeadBytes}
	binary.LittleEndian.PutUint16(b.buf[4:], kind)
	binary.LittleEndian.PutUint32(b.buf[16:], uint32(count))
}

func (b *batch) close(from int) {
	if from < len(b.buf) {
		b.pieces = append(b.pieces, piece{from: from, to: len(b.buf)})
	}
	binary.LittleEndian.PutUint32(b.buf[20:], uint32(b.size-batchHeadBytes))
}

// stamp sets the number and the tag, and computes the CRC for a segment with salt.
func (b *batch) stamp(number, tag, salt uint64) {
	binary.LittleEndian.PutUint64(b.buf[8:], number)
	binary.LittleEndian.PutUint64(b.buf[24:], tag)
	sum := batchCRC(salt, b.buf)
	for _, h := range b.heads {
		sum = crc32.Update(sum, castagnoli, b.buf[h.at:h.at+h.length])
	}
	binary.LittleEndian.PutUint32(b.buf, sum)
}

// writeTo writes the batch at offset.
func (b *batch) writeTo(w io.WriterAt, offset int64) error {
	for _, p := range b.pieces {
		data := p.data
		if data == nil {
			data = b.buf[p.from:p.to]
		}
		if _, err := w.WriteAt(data, offset); err != nil {
			return err
		}
		offset += int64(len(data))
	}
	return nil
}
