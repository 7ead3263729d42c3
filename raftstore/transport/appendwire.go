package transport

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/uncleared"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// Bounds of the messages of one group; docs/formats/peer.md is the specification.
const (
	appendHeadBytes  = 64
	appendReplyBytes = 32
	maxAppendNames   = 1 << 10
	maxAppendEntries = 1 << 10
	maxAppendText    = 1 << 10
	// readStep bounds the memory that is allocated before its bytes have arrived. A push of 1 MiB, the most that a client
	// sends at once, fits with the heads of its entry.
	readStep = 2 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// marshalAppend returns a request without the data of its entries. ok is false for a request that this encoding cannot
// carry.
func marshalAppend(buf []byte, k kind, a *raft.AppendEntriesRequest) (b []byte, ok bool) {
	return appendRequestHead(buf[:0], k, a)
}

// appendRequestHead is marshalAppend that appends to b. If ok is false, the bytes after b are of no use.
func appendRequestHead(b []byte, k kind, a *raft.AppendEntriesRequest) (out []byte, ok bool) {
	le := binary.LittleEndian
	begin := len(b)
	b = append(b, make([]byte, appendHeadBytes)...)
	for _, name := range [][]byte{a.ID, a.Addr} {
		b = le.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
	}
	names := len(b) - begin - appendHeadBytes
	if names > maxAppendNames || len(a.Entries) > maxAppendEntries {
		return b, false
	}
	for _, l := range a.Entries {
		if len(l.Extensions) != entry.SealBytes {
			return b, false
		}
		b = entry.AppendHead(b, l)
	}
	head := b[begin:]
	head[4] = byte(k)
	for i, v := range []uint64{a.Term, a.PrevLogEntry, a.PrevLogTerm, a.LeaderCommitIndex} {
		le.PutUint64(head[8+8*i:], v)
	}
	le.PutUint32(head[40:], uint32(len(a.Entries)))
	le.PutUint32(head[44:], uint32(names))
	le.PutUint32(head[48:], uint32(a.ProtocolVersion))
	le.PutUint32(head, crc32.Checksum(head[4:], castagnoli))
	return b, true
}

// readAppend reads a request. It refuses an entry of more than maxEntry bytes, and an entry after maxBytes of entries.
// io.EOF: the connection ended between two requests.
func readAppend(r *bufio.Reader, maxEntry, maxBytes int64) (kind, *raft.AppendEntriesRequest, error) {
	b := make([]byte, appendHeadBytes, appendHeadBytes+4*entry.HeadBytes+128)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, err
	}
	entries, names, err := parseAppendSizes(b)
	if err != nil {
		return 0, nil, err
	}
	b = append(b, make([]byte, names+entries*entry.HeadBytes)...)
	if _, err := io.ReadFull(r, b[appendHeadBytes:]); err != nil {
		return 0, nil, noEOF(err)
	}
	k, a, err := parseAppend(b, names)
	if err != nil {
		return 0, nil, err
	}
	heads := b[appendHeadBytes+names:]
	if err := checkAppendSizes(heads, maxEntry, maxBytes); err != nil {
		return 0, nil, err
	}
	return k, a, readEntries(a, heads, func(n int) ([]byte, error) { return readData(r, n) })
}

// parseAppendSizes returns the numbers of entries and of bytes of names in the head of a request.
// REQUIRES: len(b) ≥ appendHeadBytes.
func parseAppendSizes(b []byte) (entries, names int, err error) {
	le := binary.LittleEndian
	entries, names = int(le.Uint32(b[40:])), int(le.Uint32(b[44:]))
	if entries > maxAppendEntries || names < 4 || names > maxAppendNames || b[5]|b[6]|b[7] != 0 ||
		le.Uint32(b[52:]) != 0 || le.Uint64(b[56:]) != 0 {
		return 0, 0,
			rowraft.Errorf(rowraft.CodeCorrupt,
				"the head of a message has %d entries and %d bytes of names, at most %d and %d, or a byte that must be zero",
				entries, names, maxAppendEntries, maxAppendNames)
	}
	if k := kind(b[4]); k >= kinds || k != appendKind && entries > 0 {
		return 0, 0, rowraft.Errorf(rowraft.CodeCorrupt, "a message of kind %d has %d entries", k, entries)
	}
	return entries, names, nil
}

// parseAppend parses the head of a request with its names and the heads of its entries. The entries are missing.
func parseAppend(b []byte, names int) (kind, *raft.AppendEntriesRequest, error) {
	le := binary.LittleEndian
	if got, want := crc32.Checksum(b[4:], castagnoli), le.Uint32(b); got != want {
		return 0, nil, rowraft.Errorf(rowraft.CodeCorrupt, "the head of a message has checksum %08x, want %08x", got, want)
	}
	a := &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersion(le.Uint32(b[48:]))},
		Term:      le.Uint64(b[8:]), PrevLogEntry: le.Uint64(b[16:]), PrevLogTerm: le.Uint64(b[24:]),
		LeaderCommitIndex: le.Uint64(b[32:]),
	}
	rest := b[appendHeadBytes : appendHeadBytes+names]
	for _, to := range []*[]byte{&a.ID, &a.Addr} {
		if len(rest) < 2 || int(le.Uint16(rest)) > len(rest)-2 {
			return 0, nil, rowraft.Errorf(rowraft.CodeCorrupt, "the names of a message are longer than its head says")
		}
		n := 2 + int(le.Uint16(rest))
		*to, rest = rest[2:n:n], rest[n:]
	}
	if len(rest) != 0 {
		return 0, nil, rowraft.Errorf(rowraft.CodeCorrupt, "%d bytes follow the names of a message", len(rest))
	}
	k := kind(b[4])
	return k, a, k.check(a)
}

func checkAppendSizes(heads []byte, maxEntry, maxBytes int64) error {
	sum := int64(0)
	for ; len(heads) > 0; heads = heads[entry.HeadBytes:] {
		n := int64(entry.ParseHead(heads).Length)
		if heads[25]|heads[26]|heads[27] != 0 {
			return rowraft.Errorf(rowraft.CodeCorrupt, "the head of an entry has a byte that must be zero")
		}
		if n > maxEntry || sum > maxBytes {
			return rowraft.Errorf(rowraft.CodeCorrupt, "an entry of %d bytes after %d bytes of entries: at most %d and %d", n,
				sum, maxEntry, maxBytes)
		}
		sum += n
	}
	return nil
}

// readEntries gives a the entries whose heads are heads. data returns the data of the next one, of n bytes.
func readEntries(a *raft.AppendEntriesRequest, heads []byte, data func(n int) ([]byte, error)) error {
	if len(heads) == 0 {
		return nil
	}
	logs := make([]raft.Log, len(heads)/entry.HeadBytes)
	a.Entries = make([]*raft.Log, len(logs))
	for i := range logs {
		head := heads[i*entry.HeadBytes:][:entry.HeadBytes:entry.HeadBytes]
		h := entry.ParseHead(head)
		b, err := data(int(h.Length))
		if err != nil {
			return noEOF(err)
		}
		h.Put(&logs[i], head)
		logs[i].Data = b
		a.Entries[i] = &logs[i]
	}
	return nil
}

func readData(r io.Reader, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	data := uncleared.Bytes(min(n, readStep))
	for done := 0; ; {
		if _, err := io.ReadFull(r, data[done:]); err != nil {
			return nil, err
		}
		if done = len(data); done == n {
			return data, nil
		}
		data = append(data, make([]byte, min(n-done, done))...)
	}
}

// noEOF converts the end of the stream within a message to io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// marshalAppendReply returns the answer to a request. If failure is set, the answer has only its text.
func marshalAppendReply(a *raft.AppendEntriesResponse, failure error) []byte {
	le := binary.LittleEndian
	b := make([]byte, appendReplyBytes)
	if failure != nil {
		b[4] = 1
		text := failure.Error()
		b = append(b, text[:min(len(text), maxAppendText)]...)
	} else {
		b[5], b[6] = bit(a.Success), bit(a.NoRetryBackoff)
		le.PutUint64(b[8:], a.Term)
		le.PutUint64(b[16:], a.LastLog)
		le.PutUint32(b[24:], uint32(a.ProtocolVersion))
	}
	le.PutUint32(b[28:], uint32(len(b)-appendReplyBytes))
	le.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

func bit(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// readAppendReply reads an answer. whole is false if the connection cannot be used again.
func readAppendReply(r io.Reader, a *raft.AppendEntriesResponse) (whole bool, err error) {
	le := binary.LittleEndian
	b := make([]byte, appendReplyBytes)
	if _, err := io.ReadFull(r, b); err != nil {
		return false, noEOF(err)
	}
	n := le.Uint32(b[28:])
	if n > maxAppendText || b[4] > 1 || b[5] > 1 || b[6] > 1 || b[7] != 0 || b[4] == 0 && n > 0 {
		return false, rowraft.Errorf(rowraft.CodeCorrupt, "the head of an answer has a field out of its range")
	}
	b = append(b, make([]byte, n)...)
	if _, err := io.ReadFull(r, b[appendReplyBytes:]); err != nil {
		return false, noEOF(err)
	}
	if got, want := crc32.Checksum(b[4:], castagnoli), le.Uint32(b); got != want {
		return false, rowraft.Errorf(rowraft.CodeCorrupt, "the answer to a message has checksum %08x, want %08x", got, want)
	}
	if b[4] == 1 {
		return true, rowraft.Errorf(rowraft.CodeInternal, "%s", b[appendReplyBytes:])
	}
	*a = raft.AppendEntriesResponse{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersion(le.Uint32(b[24:]))},
		Term:      le.Uint64(b[8:]), LastLog: le.Uint64(b[16:]), Success: b[5] == 1, NoRetryBackoff: b[6] == 1,
	}
	return true, nil
}
