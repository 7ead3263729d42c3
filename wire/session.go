package wire

import "github.com/rowraft/rowraft"

// EntryCloseSession ends a session that its client no longer needs (docs/formats/entry.md).
const EntryCloseSession EntryKind = 14

// Lengths of the bodies of OpenSession and CloseSession entries.
const (
	OpenSessionSize  = 32
	CloseSessionSize = 24
)

// Opening is the body of an OpenSession entry.
type Opening struct {
	Client      rowraft.ClientID
	Incarnation rowraft.Incarnation
	// Ticket is an index that the shard had applied when the client began to open the
	// session. It identifies a copy of the request that was delayed for a long time.
	Ticket rowraft.Index
}

// OpenSessionEntry returns the entry that opens a session.
func OpenSessionEntry(h EntryHeader, o Opening) []byte {
	h.Kind, h.Parts = EntryOpenSession, 0
	b := make([]byte, EntryHeaderSize+OpenSessionSize)
	PutEntryHeader(b, h)
	copy(b[EntryHeaderSize:], o.Client[:])
	le.PutUint64(b[EntryHeaderSize+16:], uint64(o.Incarnation))
	le.PutUint64(b[EntryHeaderSize+24:], uint64(o.Ticket))
	return b
}

// ParseOpenSession reads the body of an OpenSession entry.
func ParseOpenSession(body []byte) (o Opening, err error) {
	if len(body) != OpenSessionSize {
		return o, rowraft.Errorf(rowraft.CodeCorrupt, "OpenSession entry has %d bytes, want %d", len(body), OpenSessionSize)
	}
	return Opening{rowraft.ClientID(body[:16]), rowraft.Incarnation(le.Uint64(body[16:])),
		rowraft.Index(le.Uint64(body[24:]))}, nil
}

// CloseSessionEntry returns the entry that closes a session.
func CloseSessionEntry(h EntryHeader, client rowraft.ClientID, inc rowraft.Incarnation) []byte {
	h.Kind, h.Parts = EntryCloseSession, 0
	b := make([]byte, EntryHeaderSize+CloseSessionSize)
	PutEntryHeader(b, h)
	copy(b[EntryHeaderSize:], client[:])
	le.PutUint64(b[EntryHeaderSize+16:], uint64(inc))
	return b
}

// ParseCloseSession reads the body of a CloseSession entry.
func ParseCloseSession(body []byte) (client rowraft.ClientID, inc rowraft.Incarnation, err error) {
	if len(body) != CloseSessionSize {
		return client, 0, rowraft.Errorf(rowraft.CodeCorrupt, "CloseSession entry has %d bytes, want %d",
			len(body), CloseSessionSize)
	}
	return rowraft.ClientID(body[:16]), rowraft.Incarnation(le.Uint64(body[16:])), nil
}
