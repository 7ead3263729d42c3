package wire

import "github.com/rowraft/rowraft"

// EntryProof compares the replicas of a shard (docs/formats/entry.md). It changes
// nothing but the log time.
const EntryProof EntryKind = 11

// ProofStep is what one proof entry says.
type ProofStep uint8

const (
	ProofMark    ProofStep = 1 // every replica notes its digest here
	ProofAgreed  ProofStep = 2 // what a majority of the voters noted
	ProofDivided ProofStep = 3 // no majority noted the same
)

// Proof is the body of a proof entry. Mark is 0 in a ProofMark; Rows and Digest
// count in a ProofAgreed only.
type Proof struct {
	Step   ProofStep
	Mark   rowraft.Index // of the mark it is about
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
