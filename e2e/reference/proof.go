package reference

import (
	"slices"

	"github.com/rowraft/rowraft"
)

// kindProof compares replicas, from docs/formats/entry.md.
const kindProof = 11

const (
	stepMark    = 1
	stepAgreed  = 2
	stepDivided = 3

	maxNotes = 64
)

// note is the digest of a replica at a mark.
type note struct {
	index  rowraft.Index
	rows   uint64
	digest [16]byte
}

// proof is the body of an entry of kind 11.
type proof struct {
	step byte
	note note // the digest of the majority
}

func decodeProof(b []byte) (*proof, error) {
	if len(b) < 8 || !zero(b[1:8]) {
		return nil, corrupt("proof without a step")
	}
	p, b := &proof{step: b[0]}, b[8:]
	switch {
	case p.step == stepMark && len(b) == 0:
	case p.step == stepDivided && len(b) == 8:
		p.note.index = rowraft.Index(le.Uint64(b))
	case p.step == stepAgreed && len(b) == 32:
		p.note = note{rowraft.Index(le.Uint64(b)), le.Uint64(b[8:]), [16]byte(b[16:])}
	default:
		return nil, corrupt("impossible proof")
	}
	return p, nil
}

// takeNote records the present digest.
func (m *Machine) takeNote() {
	sum, rows := m.Digest()
	m.notes = append(m.notes, note{m.Applied, rows, sum})
	m.notes = m.notes[max(0, len(m.notes)-maxNotes):]
}

// applyProof fences the machine if the digest of the majority differs from its own.
func (m *Machine) applyProof(p *proof) Answer {
	switch p.step {
	case stepMark:
		m.takeNote()
	case stepAgreed:
		i := slices.IndexFunc(m.notes, func(n note) bool { return n.index == p.note.index })
		if i >= 0 && m.notes[i] != p.note {
			m.stopped = rowraft.Errorf(rowraft.CodeFenced, "at index %d the majority had other rows", p.note.index)
			return Answer{Code: rowraft.CodeCorrupt}
		}
	}
	return Answer{}
}
