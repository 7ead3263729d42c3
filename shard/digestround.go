package shard

import (
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// maxDigests is how many marks digestHistory covers.
const maxDigests = 64

// digestHistory is the digests of this replica at the last marks. They describe the rows
// at that time, so Restore clears them.
type digestHistory struct {
	ring [maxDigests]Digest
	next int
}

func (n *digestHistory) add(d Digest) {
	n.ring[n.next] = d
	n.next = (n.next + 1) % maxDigests
}

func (n *digestHistory) at(mark rowraft.Index) (Digest, bool) {
	for _, d := range n.ring {
		if d.Index == mark && mark != 0 {
			return d, true
		}
	}
	return Digest{}, false
}

// FencedError reports that this replica had other rows at a mark than the
// majority, or has detected damage itself. It applies nothing more and serves
// nothing.
type FencedError struct {
	Shard     rowraft.ShardID
	Reason    string // the damage; empty: the digests below differ
	Own       Digest // digest of this replica at the mark
	Majority  Digest // digest of the majority at the mark
	AppliedTo rowraft.Index
}

func (e *FencedError) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("shard %d: this replica is fenced: %s: move it to another server", e.Shard, e.Reason)
	}
	return fmt.Sprintf("shard %d: this replica is fenced: at index %d it had %d rows with digest %x, but most "+
		"replicas had %d with %x; its rows are wrong since then: move it to another server",
		e.Shard, e.Own.Index, e.Own.Rows, e.Own.Sum, e.Majority.Rows, e.Majority.Sum)
}

// Code is CodeFenced: the other replicas may still apply a request that this replica proposed.
func (e *FencedError) Code() rowraft.Code { return rowraft.CodeFenced }

// Fenced returns the reason why this replica is fenced, or nil.
func (m *Machine) Fenced() *FencedError {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.fenced
}

// NoMajority returns the mark at which no majority of the replicas had the same rows,
// 0 if there is none. If it is not 0, nothing may be served: it is unknown which replica
// is right.
func (m *Machine) NoMajority() rowraft.Index { return rowraft.Index(m.noMajority.Load()) }

// Noted returns the digest of this replica at a mark. ok is false if the replica has not applied
// that mark since its start or its last restore, or has applied maxDigests marks since.
func (m *Machine) Noted(mark rowraft.Index) (d Digest, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.digests.at(mark)
}

// AgreedAt returns the newest mark at which this replica had the rows
// of the majority, 0 if there is none since its start or its last restore.
func (m *Machine) AgreedAt() rowraft.Index { return rowraft.Index(m.agreedAt.Load()) }

// applyProof applies an entry of a digest round at index.
func (m *Machine) applyProof(h wire.EntryHeader, index rowraft.Index, body []byte, a *Applied) error {
	p, err := wire.ParseProof(body)
	if err != nil {
		return err
	}
	return m.change(h, a, func(*state, uint64) (error, error) {
		switch p.Step {
		case wire.ProofMark:
			m.recordDigestLocked(index)
		case wire.ProofDivided:
			m.noMajority.Store(uint64(p.Mark))
		case wire.ProofAgreed:
			return m.compareLocked(&p, index), nil
		}
		return nil, nil
	})
}

// recordDigestLocked records the digest at index, the mark that is being applied.
// REQUIRES: m.mu is held for writing.
func (m *Machine) recordDigestLocked(index rowraft.Index) {
	sum, rows := m.mu.digest()
	m.mu.digests.add(Digest{Index: index, Sum: sum.Bytes(), Rows: rows})
}

// compareLocked compares the digest of this replica at the mark with that of the majority. It
// fences the replica if they differ.
// REQUIRES: m.mu is held for writing.
func (m *Machine) compareLocked(p *wire.Proof, index rowraft.Index) error {
	own, noted := m.mu.digests.at(p.Mark)
	if !noted {
		return nil
	}
	majority := Digest{Index: p.Mark, Sum: p.Digest, Rows: p.Rows}
	if own != majority {
		m.mu.fenced = &FencedError{Shard: m.shard, Own: own, Majority: majority, AppliedTo: index}
		return rowraft.Errorf(rowraft.CodeCorrupt, "%w", m.mu.fenced)
	}
	m.agreedAt.Store(uint64(p.Mark))
	m.noMajority.Store(0)
	return nil
}

// resetDigestsLocked clears the results of digest rounds after a snapshot replaced the rows.
// REQUIRES: m.mu is held for writing.
func (m *Machine) resetDigestsLocked() {
	m.mu.digests = digestHistory{}
	m.agreedAt.Store(0)
	m.noMajority.Store(0)
}
