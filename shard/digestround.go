package shard

import (
	"fmt"
	"sync"
	"sync/atomic"

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

// DigestRounds are the results of digest rounds on this replica. They are not part of a snapshot, and Restore clears
// them.
type DigestRounds struct {
	agreedAt   atomic.Uint64 // newest mark at which this replica agreed with the majority
	noMajority atomic.Uint64 // mark at which no majority agreed; 0: none

	mu      *sync.RWMutex // of the Machine
	history digestHistory // guarded by mu
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
func (r *DigestRounds) NoMajority() rowraft.Index { return rowraft.Index(r.noMajority.Load()) }

// At returns the digest of this replica at a mark. ok is false if the replica has not applied
// that mark since its start or its last restore, or has applied maxDigests marks since.
func (r *DigestRounds) At(mark rowraft.Index) (d Digest, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.history.at(mark)
}

// AgreedAt returns the newest mark at which this replica had the rows
// of the majority, 0 if there is none since its start or its last restore.
func (r *DigestRounds) AgreedAt() rowraft.Index { return rowraft.Index(r.agreedAt.Load()) }

// applyProof applies an entry of a digest round at index.
func (m *Machine) applyProof(h wire.EntryHeader, index rowraft.Index, body []byte, a *Applied) error {
	p, err := wire.ParseProof(body)
	if err != nil {
		return err
	}
	return m.change(h, a, func(uint64) (error, error) {
		switch p.Step {
		case wire.ProofMark:
			m.Rounds.record(index, m.mu.tables)
		case wire.ProofDivided:
			m.Rounds.noMajority.Store(uint64(p.Mark))
		case wire.ProofAgreed:
			if own, majority, same := m.Rounds.compare(&p); !same {
				m.mu.fenced = &FencedError{Shard: m.shard, Own: own, Majority: majority, AppliedTo: index}
				return rowraft.Errorf(rowraft.CodeCorrupt, "%w", m.mu.fenced), nil
			}
		}
		return nil, nil
	})
}

// record records the digest of tables at index, the mark that is being applied.
// REQUIRES: mu is held for writing.
func (r *DigestRounds) record(index rowraft.Index, tables *tableSet) {
	sum, rows := tables.digest()
	r.history.add(Digest{Index: index, Sum: sum.Bytes(), Rows: rows})
}

// compare compares the digest of this replica at the mark with that of the majority. A mark that is not in the history
// counts as the same.
// REQUIRES: mu is held for writing.
func (r *DigestRounds) compare(p *wire.Proof) (own, majority Digest, same bool) {
	own, noted := r.history.at(p.Mark)
	if !noted {
		return own, own, true
	}
	majority = Digest{Index: p.Mark, Sum: p.Digest, Rows: p.Rows}
	if own != majority {
		return own, majority, false
	}
	r.agreedAt.Store(uint64(p.Mark))
	r.noMajority.Store(0)
	return own, majority, true
}

// reset clears the results after a snapshot replaced the rows.
// REQUIRES: mu is held for writing.
func (r *DigestRounds) reset() {
	r.history = digestHistory{}
	r.agreedAt.Store(0)
	r.noMajority.Store(0)
}
