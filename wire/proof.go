package wire

import "github.com/rowraft/rowraft"

// EntryProof is an entry of a digest round, which compares the replicas of a shard
// (docs/formats/entry.md). It changes only the log time.
const EntryProof EntryKind = 11

// ProofStep is the step of a digest round.
type ProofStep uint8

const (
	ProofMark    ProofStep = 1 // every replica records its digest at this index
	ProofAgreed  ProofStep = 2 // the digest that a majority of the voters recorded
	ProofDivided ProofStep = 3 // no majority recorded the same digest
)

// Proof is the body of an EntryProof. Mark is 0 in a ProofMark; only a ProofAgreed has Rows and
// Digest.
type Proof struct {
	Step   ProofStep
	Mark   rowraft.Index // index of the mark of the round
	Rows   uint64
	Digest [16]byte
}

const (
	proofMarkSize    = 8
	proofDividedSize = 16
	proofAgreedSize  = 40
)

// ProofEntry returns the entry of p.
func ProofEntry(h EntryHeader, p *Proof) []byte {
	h.Kind, h.Parts = EntryProof, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+proofAgreedSize)
	PutEntryHeader(b, h)
	b = append(b, byte(p.Step), 0, 0, 0, 0, 0, 0, 0)
	if p.Step == ProofMark {
		return b
	}
	b = le.AppendUint64(b, uint64(p.Mark))
	if p.Step == ProofDivided {
		return b
	}
	b = le.AppendUint64(b, p.Rows)
	return append(b, p.Digest[:]...)
}

// size returns the length of the body, 0 for a step that does not exist.
func (s ProofStep) size() int {
	switch s {
	case ProofMark:
		return proofMarkSize
	case ProofAgreed:
		return proofAgreedSize
	case ProofDivided:
		return proofDividedSize
	}
	return 0
}

// ParseProof reads the body of a proof entry. Errors: CodeCorrupt.
func ParseProof(body []byte) (p Proof, err error) {
	if len(body) < proofMarkSize || len(body) != ProofStep(body[0]).size() || le.Uint64(body)>>8 != 0 {
		return p, rowraft.Errorf(rowraft.CodeCorrupt, "impossible proof entry of %d bytes", len(body))
	}
	p.Step = ProofStep(body[0])
	if p.Step != ProofMark {
		p.Mark = rowraft.Index(le.Uint64(body[8:]))
	}
	if p.Step == ProofAgreed {
		p.Rows, p.Digest = le.Uint64(body[16:]), [16]byte(body[24:])
	}
	return p, nil
}
