package wire

import "github.com/rowraft/rowraft"

// EntryMark fixes an index of the shard for a checkpoint. It changes only the log time.
const EntryMark EntryKind = 4

// MarkSize is the length of a mark entry's body.
const MarkSize = 16

// MarkID names the checkpoint that is cut at a mark.
type MarkID [MarkSize]byte

// MarkEntry returns the entry that marks an index.
func MarkEntry(h EntryHeader, id MarkID) []byte {
	h.Kind, h.Parts = EntryMark, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+MarkSize)
	PutEntryHeader(b, h)
	return append(b, id[:]...)
}

// ParseMark reads the body of a mark entry.
func ParseMark(body []byte) (MarkID, error) {
	if len(body) != MarkSize {
		return MarkID{}, rowraft.Errorf(rowraft.CodeCorrupt, "mark entry has %d bytes, want %d", len(body), MarkSize)
	}
	return MarkID(body), nil
}
