package wire

import "github.com/rowraft/rowraft"

// EntryDropTable removes a table and its rows from a shard.
const EntryDropTable EntryKind = 10

// DropSize is the length of a drop entry's body.
const DropSize = 8

// DropTableEntry returns the entry that drops the table id.
func DropTableEntry(h EntryHeader, id rowraft.TableID) []byte {
	h.Kind, h.Parts = EntryDropTable, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+DropSize)
	PutEntryHeader(b, h)
	return le.AppendUint64(b, uint64(id))
}

// ParseDropTable reads the body of a drop entry. Errors: CodeCorrupt.
func ParseDropTable(body []byte) (rowraft.TableID, error) {
	if len(body) != DropSize || le.Uint64(body) == 0 {
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "drop table entry has %d bytes: want %d with an id above 0",
			len(body), DropSize)
	}
	return rowraft.TableID(le.Uint64(body)), nil
}
