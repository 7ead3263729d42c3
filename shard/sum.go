package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// CodeSumRefused is the code of a refused sum: it had no effect on rows or sessions, so that each of its pushes can be
// proposed alone.
const CodeSumRefused = rowraft.CodePrecondition

// applyIfNew applies the sum of the pushes of several clients if each of them is new and validate returns nil. Else it
// changes nothing and records nothing, and the leader proposes the pushes one by one. The error of apply is fatal.
func (t *Sessions) applyIfNew(contributors []byte, now uint64, validate, apply func() error) (PartResult, error) {
	refusal := t.checkNew(contributors, now)
	if refusal == nil {
		refusal = validate()
	}
	if refusal != nil {
		return PartResult{Err: rowraft.Errorf(CodeSumRefused, "a sum of pushes is refused: %v", refusal)}, nil
	}
	if err := apply(); err != nil {
		return PartResult{}, err
	}
	t.recordNew(contributors, now)
	return PartResult{}, nil
}

// checkNew returns why begin would not find the numbers of a sum's contributors new, or nil. It changes nothing.
func (t *Sessions) checkNew(contributors []byte, now uint64) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var p wire.Part
	for len(contributors) > 0 {
		contributors = wire.NextContributor(contributors, &p)
		s, err := t.table.check(p.Client, p.Incarnation, now)
		if err != nil {
			return err
		}
		known, err := lookup(s, &p)
		if err != nil {
			return err
		}
		if known {
			return rowraft.Errorf(rowraft.CodePrecondition, "number %d of client %x was applied before", p.Seq, p.Client[:4])
		}
	}
	return nil
}

// recordNew records that the numbers of a sum's contributors are applied, with everything that begin changes.
// REQUIRES: checkNew has returned nil for them, and the same goroutine has changed no session since.
func (t *Sessions) recordNew(contributors []byte, now uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var p wire.Part
	for len(contributors) > 0 {
		contributors = wire.NextContributor(contributors, &p)
		_, s := t.table.list.find(p.Client)
		s = t.table.writable(s)
		s.LastUsed = now
		raiseFloor(s, p.Floor)
		record(s, p.Seq, nil)
	}
}
