package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// maxNotes is how many marks a replica remembers its digest at.
const maxNotes = 64

// notes are the digests of this replica at the last marks. They are of the rows
// that it had then, so Restore forgets them.
type notes struct {
	ring [maxNotes]Digest
	next int
}

func (n *notes) add(d Digest) {
	n.ring[n.next] = d
	n.next = (n.next + 1) % maxNotes
}

func (n *notes) at(mark rowraft.Index) (Digest, bool) {
	for _, d := range n.ring {
		if d.Index == mark && mark != 0 {
			return d, true
		}
	}
	return Digest{}, false
}

// FencedError reports that this replica had other rows at a mark than the
// majority, or has found damage by itself. It applies nothing more and serves
// nothing.
type FencedError struct {
	Shard     rowraft.ShardID
	Reason    string // what it has found; "": the digests below differ
	Own       Digest // at the mark
	Majority  Digest // likewise
	AppliedTo rowraft.Index
}

func (e *FencedError) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("shard %d: this replica is fenced: %s: move it to another server", e.Shard, e.Reason)
	}
	return fmt.Sprintf("shard %d: this replica is fenced: at index %d it had %d rows with digest %x, most replicas %d with %x; what it holds from then on is wrong: move it to another server",
		e.Shard, e.Own.Index, e.Own.Rows, e.Own.Sum, e.Majority.Rows, e.Majority.Sum)
}

// Code is CodeFenced: what this replica was asked to log may yet be applied by the others.
func (e *FencedError) Code() rowraft.Code { return rowraft.CodeFenced }

// Fenced returns why this replica is fenced, nil if it is not.
func (m *Machine) Fenced() *FencedError {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.fenced
}

// Divided returns the mark at which no majority of the replicas had the same rows,
// 0 if they agree as far as known. Nothing may be served then, since nobody can
// tell which of them is right.
func (m *Machine) Divided() rowraft.Index { return rowraft.Index(m.divided.Load()) }

// Noted returns the digest of this replica at a mark, if it has applied that entry
// since it was started or last restored, and not too many marks since.
func (m *Machine) Noted(mark rowraft.Index) (d Digest, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.notes.at(mark)
}

// Proved returns the newest mark at which this replica is known to have had the rows
// of the majority, 0 if none since it was started or last restored.
func (m *Machine) Proved() rowraft.Index { return rowraft.Index(m.proved.Load()) }

// KnowsProofs reports whether a proof entry was applied since the start: then all
// members know them, or have stopped.
func (m *Machine) KnowsProofs() bool { return m.provers.Load() }

// applyProof applies a proof entry at index.
func (m *Machine) applyProof(h wire.EntryHeader, index rowraft.Index, body []byte, a *Applied) error {
	p, err := wire.ParseProof(body)
	if err != nil {
		return err
	}
	m.provers.Store(true)
	return m.change(h, a, func(*state, uint64) (error, error) {
		switch p.Step {
		case wire.ProofMark:
			m.noteLocked(index)
		case wire.ProofDivided:
			m.divided.Store(uint64(p.Mark))
		case wire.ProofAgreed:
			return m.judgeLocked(&p, index), nil
		}
		return nil, nil
	})
}

// noteLocked notes the digest at index, that of a mark which is being applied.
// REQUIRES: m.mu is held for writing.
func (m *Machine) noteLocked(index rowraft.Index) {
	sum, rows := m.mu.digest()
	m.mu.notes.add(Digest{Index: index, Sum: sum.Bytes(), Rows: rows})
}

// judgeLocked compares what this replica noted with what the majority did.
// REQUIRES: m.mu is held for writing.
func (m *Machine) judgeLocked(p *wire.Proof, index rowraft.Index) error {
	own, noted := m.mu.notes.at(p.Mark)
	if !noted {
		return nil
	}
	majority := Digest{Index: p.Mark, Sum: p.Digest, Rows: p.Rows}
	if own != majority {
		m.mu.fenced = &FencedError{Shard: m.shard, Own: own, Majority: majority, AppliedTo: index}
		return rowraft.Errorf(rowraft.CodeCorrupt, "%w", m.mu.fenced)
	}
	m.proved.Store(uint64(p.Mark))
	m.divided.Store(0)
	return nil
}

// forgetProofsLocked is for rows that a snapshot has brought.
// REQUIRES: m.mu is held for writing.
func (m *Machine) forgetProofsLocked() {
	m.mu.notes = notes{}
	m.proved.Store(0)
	m.divided.Store(0)
}
