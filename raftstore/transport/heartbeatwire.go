package transport

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
)

// Bounds of the messages on a heartbeat connection; docs/formats/peer.md is the specification.
const (
	heartbeatHeadBytes   = 16
	maxHeartbeatBytes    = 1 + 255 + appendHeadBytes + maxAppendNames
	maxHeartbeatAckBytes = 1 + 2 + maxAppendNames + appendReplyBytes + maxAppendText
)

// heartbeat is a request or an answer on a heartbeat connection.
type heartbeat struct {
	id   uint64 // pairs an answer with its request
	body []byte
}

// appendHeartbeat appends a message to b, whose body write appends. ok is false, and b is unchanged, if write fails.
func appendHeartbeat(b []byte, id uint64, write func([]byte) ([]byte, bool)) (out []byte, ok bool) {
	le := binary.LittleEndian
	begin := len(b)
	out = append(b, make([]byte, heartbeatHeadBytes)...)
	if out, ok = write(out); !ok {
		return b, false
	}
	head := out[begin:]
	le.PutUint32(head[4:], uint32(len(head)-heartbeatHeadBytes))
	le.PutUint64(head[8:], id)
	le.PutUint32(head, crc32.Checksum(head[4:], castagnoli))
	return out, true
}

// readHeartbeat reads a message with a body of at most maxBody bytes. io.EOF: the connection ended between two
// messages.
func readHeartbeat(r *bufio.Reader, maxBody int) (heartbeat, error) {
	le := binary.LittleEndian
	head, err := r.Peek(heartbeatHeadBytes)
	if err != nil {
		if len(head) > 0 {
			err = noEOF(err)
		}
		return heartbeat{}, err
	}
	n := int(le.Uint32(head[4:]))
	if n > maxBody {
		return heartbeat{}, rowraft.Errorf(rowraft.CodeCorrupt, "a heartbeat message has %d bytes, at most %d", n, maxBody)
	}
	b := make([]byte, heartbeatHeadBytes+n)
	if _, err := io.ReadFull(r, b); err != nil {
		return heartbeat{}, noEOF(err)
	}
	if got, want := crc32.Checksum(b[4:], castagnoli), le.Uint32(b); got != want {
		return heartbeat{}, rowraft.Errorf(rowraft.CodeCorrupt, "a heartbeat message has checksum %08x, want %08x", got, want)
	}
	return heartbeat{le.Uint64(b[8:]), b[heartbeatHeadBytes:]}, nil
}

// hasHeartbeat reports whether readHeartbeat would not wait for the connection.
func hasHeartbeat(r *bufio.Reader) bool {
	if r.Buffered() < heartbeatHeadBytes {
		return false
	}
	head, _ := r.Peek(heartbeatHeadBytes)
	return int64(r.Buffered()-heartbeatHeadBytes) >= int64(binary.LittleEndian.Uint32(head[4:]))
}

// appendHeartbeatRequest appends the body of a request. It fails for a request that this encoding cannot carry.
func appendHeartbeatRequest(b []byte, k kind, group string, a *raft.AppendEntriesRequest) ([]byte, bool) {
	if len(group) > 255 || len(a.Entries) > 0 {
		return b, false
	}
	b = append(append(b, byte(len(group))), group...)
	return appendRequestHead(b, k, a)
}

// parseHeartbeatRequest is the inverse of appendHeartbeatRequest.
func parseHeartbeatRequest(b []byte) (k kind, group string, a *raft.AppendEntriesRequest, err error) {
	if len(b) < 1 || len(b) < 1+int(b[0])+appendHeadBytes {
		return 0, "", nil, rowraft.Errorf(rowraft.CodeCorrupt, "a heartbeat of %d bytes is too short", len(b))
	}
	n := 1 + int(b[0])
	group, b = string(b[1:n]), b[n:]
	entries, names, err := parseAppendSizes(b)
	if err != nil {
		return 0, "", nil, err
	}
	if entries != 0 || len(b) != appendHeadBytes+names {
		return 0, "", nil, rowraft.Errorf(rowraft.CodeCorrupt, "a heartbeat has %d entries, and %d bytes for %d of names",
			entries, len(b)-appendHeadBytes, names)
	}
	k, a, err = parseAppend(b, names)
	return k, group, a, err
}

// The first byte of an answer.
const (
	heartbeatAnswered = 0
	heartbeatRefused  = 1 // the group takes no request on this connection
)

// appendHeartbeatAnswer appends the body of an answer.
func appendHeartbeatAnswer(b []byte, a *raft.AppendEntriesResponse, failure error) ([]byte, bool) {
	var sender []byte
	if failure == nil {
		sender = a.Addr
	}
	if len(sender) > maxAppendNames {
		return b, false
	}
	b = append(b, heartbeatAnswered)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(sender)))
	b = append(b, sender...)
	return append(b, marshalAppendReply(a, failure)...), true
}

// parseHeartbeatAnswer is the inverse of appendHeartbeatAnswer. answered is false if the group takes no requests on
// this connection. corrupt is an error of the encoding, err is that of the follower.
func parseHeartbeatAnswer(b []byte, a *raft.AppendEntriesResponse) (answered bool, err, corrupt error) {
	if len(b) == 1 && b[0] == heartbeatRefused {
		return false, nil, nil
	}
	if len(b) < 3 || b[0] != heartbeatAnswered || len(b)-3 < int(binary.LittleEndian.Uint16(b[1:])) {
		return false, nil, rowraft.Errorf(rowraft.CodeCorrupt, "the answer to a heartbeat has %d bytes or an unknown status",
			len(b))
	}
	n := 3 + int(binary.LittleEndian.Uint16(b[1:]))
	sender, reply := b[3:n:n], b[n:]
	rest := byteReader(reply)
	whole, err := readAppendReply(&rest, a)
	if !whole || len(rest) > 0 {
		return false, nil, rowraft.Errorf(rowraft.CodeCorrupt, "the answer to a heartbeat: %w", err)
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
