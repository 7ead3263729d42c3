package wire

import (
	"bytes"
	"slices"

	"github.com/rowraft/rowraft"
)

// OpSum is a push of several clients: its rows are the sums of their gradients (docs/formats/entry.md). Only leaders
// make such parts; no client can send one.
const OpSum Op = 5

const (
	contributorSize = 40

	// MaxContributors is the largest number of pushes in one sum. It fits a byte of the counts of a segment.
	MaxContributors = 255
)

// SumPart returns the part of a sum of the pushes in contributors, which ascend strictly by client. It appends
// its payload to payload: the list of contributors and room for segments of size bytes. rows is this room.
func SumPart(payload []byte, contributors []*Part, size int) (p Part, rows []byte) {
	for _, c := range contributors {
		payload = append(payload, c.Client[:]...)
		payload = le.AppendUint64(payload, uint64(c.Incarnation))
		payload = le.AppendUint64(payload, uint64(c.Seq))
		payload = le.AppendUint64(payload, uint64(c.Floor))
	}
	at := len(payload)
	payload = slices.Grow(payload, size)[:at+size]
	return Part{Seq: rowraft.Seq(len(contributors)), Op: OpSum, Payload: payload}, payload[at:]
}

// SumOverhead returns the number of bytes by which a sum of n pushes is larger than its segments.
func SumOverhead(n int) int { return PartHeaderSize + n*contributorSize }

// ParseSum splits the payload of a part that ParsePart has accepted as an OpSum: contributors for NextContributor, and
// the segments.
func ParseSum(p *Part) (contributors, segments []byte) {
	at := int(p.Seq) * contributorSize
	return p.Payload[:at:at], p.Payload[at:]
}

// NextContributor reads the first contributor of b into p, without Op and Payload, and returns the others.
func NextContributor(b []byte, p *Part) (rest []byte) {
	p.Client = rowraft.ClientID(b[:16])
	p.Incarnation = rowraft.Incarnation(le.Uint64(b[16:]))
	p.Seq = rowraft.Seq(le.Uint64(b[24:]))
	p.Floor = rowraft.Seq(le.Uint64(b[32:]))
	return b[contributorSize:]
}

// checkSum returns CodeCorrupt unless the header and the contributors of an OpSum are possible.
func checkSum(p *Part) error {
	n := uint64(p.Seq)
	if p.Client != (rowraft.ClientID{}) || p.Incarnation != 0 || p.Floor != 0 || n < 2 || n > MaxContributors ||
		n*contributorSize > uint64(len(p.Payload)) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "log entry has an impossible sum of %d pushes in %d bytes",
			n, len(p.Payload))
	}
	list, _ := ParseSum(p)
	for at := contributorSize; at < len(list); at += contributorSize {
		if bytes.Compare(list[at-contributorSize:][:16], list[at:][:16]) >= 0 {
			return rowraft.Errorf(rowraft.CodeCorrupt, "the contributors of a sum do not ascend by client")
		}
	}
	return nil
}
