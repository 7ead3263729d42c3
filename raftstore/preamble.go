package raftstore

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

// The first bytes on a peer connection and their answer; docs/formats/peer.md is
// the authority.
const (
	preambleMagic   = "RWPR"
	preambleVersion = 1
	preambleFixed   = 8
	maxNameBytes    = raftlog.MaxNameBytes
	statementBytes  = 2*16 + 1 + 1 + 16 // and the name in it
	maxPreambleBody = 1 + 5*(1+maxNameBytes) + statementBytes
	maxReplyText    = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// preamble says who dials whom, for which group.
type preamble struct {
	cluster  rowraft.ClusterID
	from, to rowraft.NodeID
	group    string
	channel  channel
	says     marks.Statement
}

// channel is what is spoken behind a preamble.
type channel uint8

const (
	raftChannel  channel = 0 // raft's own protocol
	entryChannel channel = 1 // requests of readAppend
)

// peerStatus answers a preamble.
type peerStatus uint8

const (
	peerOK            peerStatus = 0
	peerWrongCluster  peerStatus = 1
	peerWrongNode     peerStatus = 2
	peerUnknownGroup  peerStatus = 3
	peerVersionTooNew peerStatus = 4
	peerMalformed     peerStatus = 5
	peerDenied        peerStatus = 6
	peerBusy          peerStatus = 7
	peerStale         peerStatus = 8 // the process that dials is not the last one; its statement follows
	peerRolledBack    peerStatus = 9 // the replica that is dialled is stopped: its disk was rolled back
)

func (s peerStatus) code() rowraft.Code {
	switch s {
	case peerWrongCluster, peerWrongNode, peerDenied:
		return rowraft.CodeIdentity
	case peerUnknownGroup:
		return rowraft.CodeStarting
	case peerVersionTooNew:
		return rowraft.CodeVersionTooNew
	case peerBusy:
		return rowraft.CodeOverloaded
	case peerStale:
		return rowraft.CodeIdentity
	case peerRolledBack:
		return rowraft.CodeFenced
	}
	return rowraft.CodeInternal
}

func (p *preamble) marshal() []byte {
	b := append(make([]byte, 0, 128), preambleMagic...)
	b = binary.LittleEndian.AppendUint16(b, preambleVersion)
	b = append(b, 0, 0, byte(p.channel))
	for _, s := range []string{string(p.cluster), string(p.from), string(p.to), p.group} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	b = p.says.Append(b)
	binary.LittleEndian.PutUint16(b[6:], uint16(len(b)-preambleFixed))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// readPreamble reads a preamble. The status says how to answer an error.
func readPreamble(r io.Reader) (p preamble, status peerStatus, err error) {
	b := make([]byte, preambleFixed, preambleFixed+maxPreambleBody+4)
	if _, err := io.ReadFull(r, b); err != nil {
		return p, peerMalformed, err
	}
	if string(b[:4]) != preambleMagic {
		return p, peerMalformed, fmt.Errorf("bad magic %q", b[:4])
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != preambleVersion {
		return p, peerVersionTooNew, fmt.Errorf("peer protocol version %d, this node speaks %d", v, preambleVersion)
	}
	n := int(binary.LittleEndian.Uint16(b[6:]))
	if n > maxPreambleBody {
		return p, peerMalformed, fmt.Errorf("preamble body of %d bytes, at most %d", n, maxPreambleBody)
	}
	b = b[:preambleFixed+n+4]
	if _, err := io.ReadFull(r, b[preambleFixed:]); err != nil {
		return p, peerMalformed, err
	}
	sum := b[preambleFixed+n:]
	if got, want := crc32.Checksum(b[:preambleFixed+n], castagnoli), binary.LittleEndian.Uint32(sum); got != want {
		return p, peerMalformed, fmt.Errorf("preamble checksum is %08x, want %08x", got, want)
	}
	var (
		names [4]string
		says  marks.Statement
	)
	body := b[preambleFixed : preambleFixed+n]
	if n == 0 || body[0] > byte(entryChannel) {
		return p, peerMalformed, errors.New("preamble names no channel that is known")
	}
	p.channel = channel(body[0])
	body = body[1:]
	for i := range names {
		if len(body) == 0 || int(body[0]) > len(body)-1 || body[0] == 0 || body[0] > maxNameBytes {
			return p, peerMalformed, errors.New("preamble name does not fit")
		}
		names[i] = string(body[1 : 1+body[0]])
		body = body[1+body[0]:]
	}
	if says, err = marks.ParseStatement(body); err != nil {
		return p, peerMalformed, err
	}
	return preamble{rowraft.ClusterID(names[0]), rowraft.NodeID(names[1]), rowraft.NodeID(names[2]), names[3], p.channel, says}, peerOK, nil
}

// marshalStatement is a reply of status OK or stale: a statement under a checksum in the place of the text.
func marshalStatement(status peerStatus, s *marks.Statement) []byte {
	b := s.Append(make([]byte, 4, 4+statementBytes+maxNameBytes))
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return marshalReply(status, string(b))
}

func marshalReply(s peerStatus, text string) []byte {
	if len(text) > maxReplyText {
		text = text[:maxReplyText]
	}
	b := binary.LittleEndian.AppendUint16([]byte{byte(s)}, uint16(len(text)))
	return append(b, text...)
}

// readReply reads the answer to a preamble. Raft may speak if status is OK and err is nil; with
// status stale, err is nil too.
func readReply(r io.Reader) (says marks.Statement, status peerStatus, err error) {
	var h [3]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return says, peerMalformed, fmt.Errorf("read the answer to the preamble: %w", err)
	}
	status = peerStatus(h[0])
	n := binary.LittleEndian.Uint16(h[1:])
	if n > maxReplyText {
		return says, status, rowraft.Errorf(rowraft.CodeInternal, "answer to the preamble has %d bytes of text, at most %d", n, maxReplyText)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return says, status, fmt.Errorf("read the answer to the preamble: %w", err)
	}
	if status != peerOK && status != peerStale {
		return says, status, rowraft.Errorf(status.code(), "peer refused the connection: %q", text)
	}
	if len(text) < 4 || crc32.Checksum(text[4:], castagnoli) != binary.LittleEndian.Uint32(text) {
		return says, status, rowraft.Errorf(rowraft.CodeInternal, "the statement of the peer is damaged: %x", text)
	}
	says, err = marks.ParseStatement(text[4:])
	if err != nil {
		err = rowraft.Errorf(rowraft.CodeInternal, "the statement of the peer: %w", err)
	}
	return says, status, err
}
