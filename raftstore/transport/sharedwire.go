package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// Bounds of the messages on a shared connection; docs/formats/peer.md is the specification.
const (
	sharedHeadBytes = 16
	// maxSharedEntries and maxSharedBytes bound the entries of a request. Larger ones gain nothing from a connection that
	// they share, and would delay others.
	maxSharedEntries = 64
	maxSharedBytes   = 64 << 10
	maxSharedRequest = 1 + 255 + appendHeadBytes + maxAppendNames + maxSharedEntries*entry.HeadBytes + maxSharedBytes
	maxSharedAnswer  = 1 + 2 + maxAppendNames + appendReplyBytes + maxAppendText
)

// sharedMessage is a request or an answer on a shared connection.
type sharedMessage struct {
	id   uint64 // pairs an answer with its request
	body []byte
}

// appendShared appends a message to b, whose body write appends. ok is false, and b is unchanged, if write fails.
func appendShared(b []byte, id uint64, write func([]byte) ([]byte, bool)) (out []byte, ok bool) {
	le := binary.LittleEndian
	begin := len(b)
	out = append(b, make([]byte, sharedHeadBytes)...)
	if out, ok = write(out); !ok {
		return b, false
	}
	head := out[begin:]
	le.PutUint32(head[4:], uint32(len(head)-sharedHeadBytes))
	le.PutUint64(head[8:], id)
	le.PutUint32(head, crc32.Checksum(head[4:], castagnoli))
	return out, true
}

// readShared reads a message with a body of at most maxBody bytes. io.EOF: the connection ended between two messages.
// REQUIRES: the buffer of r holds such a message.
func readShared(r *bufio.Reader, maxBody int) (sharedMessage, error) {
	le := binary.LittleEndian
	head, err := r.Peek(sharedHeadBytes)
	if err != nil {
		if len(head) > 0 {
			err = noEOF(err)
		}
		return sharedMessage{}, err
	}
	n := int(le.Uint32(head[4:]))
	if n > maxBody {
		return sharedMessage{}, rowraft.Errorf(rowraft.CodeCorrupt, "a shared message has %d bytes, at most %d", n, maxBody)
	}
	b, err := r.Peek(sharedHeadBytes + n)
	if err != nil {
		return sharedMessage{}, noEOF(err)
	}
	if got, want := crc32.Checksum(b[4:], castagnoli), le.Uint32(b); got != want {
		return sharedMessage{}, rowraft.Errorf(rowraft.CodeCorrupt, "a shared message has checksum %08x, want %08x", got,
			want)
	}
	m := sharedMessage{id: le.Uint64(b[8:]), body: bytes.Clone(b[sharedHeadBytes:])}
	_, err = r.Discard(len(b))
	return m, err
}

// hasShared reports whether readShared would not wait for the connection.
func hasShared(r *bufio.Reader) bool {
	if r.Buffered() < sharedHeadBytes {
		return false
	}
	head, _ := r.Peek(sharedHeadBytes)
	return int64(r.Buffered()-sharedHeadBytes) >= int64(binary.LittleEndian.Uint32(head[4:]))
}

// mayShare reports whether a shared connection may carry a.
func mayShare(a *raft.AppendEntriesRequest) bool {
	size := 0
	for _, l := range a.Entries {
		size += len(l.Data)
	}
	return len(a.Entries) <= maxSharedEntries && size <= maxSharedBytes
}

// appendSharedRequest appends the body of a request. It fails for a request that this encoding cannot carry.
// REQUIRES: mayShare(a).
func appendSharedRequest(b []byte, k kind, group string, a *raft.AppendEntriesRequest) ([]byte, bool) {
	if len(group) > 255 {
		return b, false
	}
	b = append(append(b, byte(len(group))), group...)
	b, ok := appendRequestHead(b, k, a)
	if !ok {
		return b, false
	}
	for _, l := range a.Entries {
		b = append(b, l.Data...)
	}
	return b, true
}

// parseSharedRequest is the inverse of appendSharedRequest. The entries are in b.
func parseSharedRequest(b []byte) (k kind, group string, a *raft.AppendEntriesRequest, err error) {
	if len(b) < 1 || len(b) < 1+int(b[0])+appendHeadBytes {
		return 0, "", nil, rowraft.Errorf(rowraft.CodeCorrupt, "a shared request of %d bytes is too short", len(b))
	}
	n := 1 + int(b[0])
	group, b = string(b[1:n]), b[n:]
	entries, names, err := parseAppendSizes(b)
	if err != nil {
		return 0, "", nil, err
	}
	heads := appendHeadBytes + names
	data := heads + entries*entry.HeadBytes
	if len(b) < data || entries > maxSharedEntries || len(b)-data > maxSharedBytes {
		return 0, "", nil, rowraft.Errorf(rowraft.CodeCorrupt,
			"a shared request has %d bytes for %d bytes of names and %d entries, at most %d of %d bytes in all", len(b), names,
			entries, maxSharedEntries, maxSharedBytes)
	}
	if k, a, err = parseAppend(b[:data], names); err != nil {
		return 0, "", nil, err
	}
	if err := checkAppendSizes(b[heads:data], maxSharedBytes, maxSharedBytes); err != nil {
		return 0, "", nil, err
	}
	rest := byteReader(b[data:])
	err = readEntries(a, b[heads:data], rest.take)
	if err == nil && len(rest) > 0 {
		err = rowraft.Errorf(rowraft.CodeCorrupt, "%d bytes follow the entries of a shared request", len(rest))
	}
	return k, group, a, err
}

// The first byte of an answer.
const (
	sharedAnswered = 0
	sharedRefused  = 1 // the group takes no request on this connection
)

// appendSharedAnswer appends the body of an answer.
func appendSharedAnswer(b []byte, a *raft.AppendEntriesResponse, failure error) ([]byte, bool) {
	var sender []byte
	if failure == nil {
		sender = a.Addr
	}
	if len(sender) > maxAppendNames {
		return b, false
	}
	b = append(b, sharedAnswered)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(sender)))
	b = append(b, sender...)
	return append(b, marshalAppendReply(a, failure)...), true
}

// parseSharedAnswer is the inverse of appendSharedAnswer. answered is false if the group takes no requests on
// this connection. corrupt is an error of the encoding, err is that of the follower.
func parseSharedAnswer(b []byte, a *raft.AppendEntriesResponse) (answered bool, err, corrupt error) {
	if len(b) == 1 && b[0] == sharedRefused {
		return false, nil, nil
	}
	if len(b) < 3 || b[0] != sharedAnswered || len(b)-3 < int(binary.LittleEndian.Uint16(b[1:])) {
		return false, nil, rowraft.Errorf(rowraft.CodeCorrupt, "a shared answer has %d bytes or an unknown status",
			len(b))
	}
	n := 3 + int(binary.LittleEndian.Uint16(b[1:]))
	sender, reply := b[3:n:n], b[n:]
	rest := byteReader(reply)
	whole, err := readAppendReply(&rest, a)
	if !whole || len(rest) > 0 {
		return false, nil, rowraft.Errorf(rowraft.CodeCorrupt, "a shared answer: %w", err)
	}
	if err == nil {
		a.Addr = sender
	}
	return true, err, nil
}

// byteReader reads a slice.
type byteReader []byte

func (r *byteReader) Read(b []byte) (int, error) {
	if len(*r) == 0 {
		return 0, io.EOF
	}
	n := copy(b, *r)
	*r = (*r)[n:]
	return n, nil
}

// take returns the next n bytes of the slice.
func (r *byteReader) take(n int) ([]byte, error) {
	if n > len(*r) {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "an entry of %d bytes is longer than its message", n)
	}
	b := (*r)[:n:n]
	*r = (*r)[n:]
	return b, nil
}
