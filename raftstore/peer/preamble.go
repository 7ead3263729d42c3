package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/marks"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// Bounds of the preamble and its answer; docs/formats/peer.md is the specification.
const (
	magic          = "RWPR"
	version        = 1
	fixedBytes     = 8
	maxNameBytes   = raftlog.MaxNameBytes
	statementBytes = 2*16 + 1 + 1 + 16 // and the name in it
	maxBodyBytes   = 1 + 5*(1+maxNameBytes) + statementBytes
	maxReplyText   = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// preamble names the ends of a connection and its group. It is the first message of the node that dials.
type preamble struct {
	cluster   rowraft.ClusterID
	from, to  rowraft.NodeID
	group     string
	channel   channel
	statement marks.Statement
}

// channel is the protocol after a preamble.
type channel uint8

const (
	raftChannel  channel = 0 // that of raft's network transport
	entryChannel channel = 1 // the requests of a group, but snapshots
	// small requests of all groups; only of ServerGroup
	sharedChannel channel = 2
)

// statusCode is the answer to a preamble.
type statusCode uint8

const (
	statusOK            statusCode = 0
	statusWrongCluster  statusCode = 1
	statusWrongNode     statusCode = 2
	statusUnknownGroup  statusCode = 3
	statusVersionTooNew statusCode = 4
	statusMalformed     statusCode = 5
	statusDenied        statusCode = 6
	statusBusy          statusCode = 7
	statusStale         statusCode = 8 // the process that dials is not the newest of its node; a statement follows
	statusRolledBack    statusCode = 9 // the replica that is dialled is stopped: its disk was rolled back
)

func (s statusCode) code() rowraft.Code {
	switch s {
	case statusWrongCluster, statusWrongNode, statusDenied:
		return rowraft.CodeIdentity
	case statusUnknownGroup:
		return rowraft.CodeStarting
	case statusVersionTooNew:
		return rowraft.CodeVersionTooNew
	case statusBusy:
		return rowraft.CodeOverloaded
	case statusStale:
		return rowraft.CodeIdentity
	case statusRolledBack:
		return rowraft.CodeFenced
	}
	return rowraft.CodeInternal
}

func (p *preamble) marshal() []byte {
	b := append(make([]byte, 0, 128), magic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = append(b, 0, 0, byte(p.channel))
	for _, s := range []string{string(p.cluster), string(p.from), string(p.to), p.group} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	b = p.statement.Append(b)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)-fixedBytes))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readPreamble reads a preamble. With an error it returns the status of the answer.
func readPreamble(r io.Reader) (p preamble, status statusCode, err error) {
	b := make([]byte, fixedBytes, fixedBytes+maxBodyBytes+4)
	if _, err := io.ReadFull(r, b); err != nil {
		return p, statusMalformed, err
	}
	if string(b[:4]) != magic {
		return p, statusMalformed, fmt.Errorf("bad magic %q", b[:4])
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != version {
		return p, statusVersionTooNew, fmt.Errorf("peer protocol version %d, this server speaks %d", v, version)
	}
	n := int(binary.LittleEndian.Uint16(b[6:]))
	if n > maxBodyBytes {
		return p, statusMalformed, fmt.Errorf("preamble body of %d bytes, at most %d", n, maxBodyBytes)
	}
	b = b[:fixedBytes+n+4]
	if _, err := io.ReadFull(r, b[fixedBytes:]); err != nil {
		return p, statusMalformed, err
	}
	sum := b[fixedBytes+n:]
	if got, want := crc32.Checksum(b[:fixedBytes+n], castagnoli), binary.LittleEndian.Uint32(sum); got != want {
		return p, statusMalformed, fmt.Errorf("preamble checksum is %08x, want %08x", got, want)
	}
	var (
		names     [4]string
		statement marks.Statement
	)
	body := b[fixedBytes : fixedBytes+n]
	if n == 0 || body[0] > byte(sharedChannel) {
		return p, statusMalformed, errors.New("preamble names an unknown channel")
	}
	p.channel = channel(body[0])
	body = body[1:]
	for i := range names {
		if len(body) == 0 || int(body[0]) > len(body)-1 || body[0] == 0 || body[0] > maxNameBytes {
			return p, statusMalformed, fmt.Errorf("preamble name is empty, longer than %d bytes, or longer than the preamble",
				maxNameBytes)
		}
		names[i] = string(body[1 : 1+body[0]])
		body = body[1+body[0]:]
	}
	if statement, err = marks.ParseStatement(body); err != nil {
		return p, statusMalformed, err
	}
	return preamble{rowraft.ClusterID(names[0]), rowraft.NodeID(names[1]), rowraft.NodeID(names[2]), names[3], p.channel,
		statement}, statusOK, nil
}

// marshalStatement returns a reply of status OK or stale, which has a statement with a checksum in the place of the
// text.
func marshalStatement(status statusCode, s *marks.Statement) []byte {
	b := s.Append(make([]byte, 4, 4+statementBytes+maxNameBytes))
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return marshalReply(status, string(b))
}

func marshalReply(s statusCode, text string) []byte {
	if len(text) > maxReplyText {
		text = text[:maxReplyText]
	}
	b := binary.LittleEndian.AppendUint16([]byte{byte(s)}, uint16(len(text)))
	return append(b, text...)
}

// readReply reads the answer to a preamble. Without an error the status is OK, and messages of the channel may follow,
// or stale.
func readReply(r io.Reader) (statement marks.Statement, status statusCode, err error) {
	var h [3]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return statement, statusMalformed, fmt.Errorf("read the answer to the preamble: %w", err)
	}
	status = statusCode(h[0])
	n := binary.LittleEndian.Uint16(h[1:])
	if n > maxReplyText {
		return statement, status, rowraft.Errorf(rowraft.CodeInternal,
			"answer to the preamble has %d bytes of text, at most %d", n, maxReplyText)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return statement, status, fmt.Errorf("read the answer to the preamble: %w", err)
	}
	if status != statusOK && status != statusStale {
		return statement, status, rowraft.Errorf(status.code(), "peer refused the connection: %q", text)
	}
	if len(text) < 4 || crc32.Checksum(text[4:], castagnoli) != binary.LittleEndian.Uint32(text) {
		return statement, status, rowraft.Errorf(rowraft.CodeInternal, "the statement of the peer is damaged: %x", text)
	}
	statement, err = marks.ParseStatement(text[4:])
	if err != nil {
		err = rowraft.Errorf(rowraft.CodeInternal, "the statement of the peer: %w", err)
	}
	return statement, status, err
}
