package replay

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/reference"
	"github.com/rowraft/rowraft/raftstore/offline"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/shard/expand"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
	"github.com/rowraft/rowraft/wire"
)

// machines are the two implementations, at one position of the log.
type machines struct {
	at  rowraft.Index // index in the log, which includes raft's own entries
	ref *reference.Machine
	own *shard.Machine
}

// kept is a retained snapshot.
type kept struct {
	*replica
	offline.Snapshot
}

// replay replays all snapshots and the log between them, up to the last committed entry, and returns the
// state there; nil if it found a problem.
func (c *shardCheck) replay() *reference.Machine {
	var snaps []kept
	for _, r := range c.replicas {
		for _, s := range r.Snapshots {
			snaps = append(snaps, kept{r, s})
		}
	}
	slices.SortStableFunc(snaps, func(a, b kept) int { return cmp.Compare(a.Index, b.Index) })
	m, err := c.fresh(nil)
	if err != nil {
		c.wrong("%v", err)
		return nil
	}
	defer func() {
		if m != nil {
			m.own.Close()
		}
	}()
	for _, s := range snaps {
		_, state, err := s.State(s.ID)
		if err == nil {
			state, err = c.full(s, state)
		}
		if err != nil && s.ID != s.Snapshots[0].ID && rowraft.CodeOf(err) == rowraft.CodeCorrupt {
			continue // the newest snapshot alone keeps the rows in files that it refers to
		}
		if err != nil {
			c.wrong("server %s: %v", s.server.Name, err)
			return nil
		}
		there, err := c.forward(m, s.Index)
		if err == nil && there {
			err = c.sameAs(m, state)
			c.report.Snapshots++
		} else if err == nil {
			// The log before this snapshot was dropped: start from the snapshot.
			m.own.Close()
			if m, err = c.fresh(state); err == nil {
				m.at = s.Index
			}
		}
		if err != nil {
			c.wrong("snapshot %s of server %s: %v", s.ID, s.server.Name, err)
			return nil
		}
	}
	there, err := c.forward(m, c.committed)
	if err == nil && !there {
		err = fmt.Errorf("entry %d is committed (%s), but the logs end at %d or have a hole there", c.committed, c.why, m.at)
	}
	if err == nil {
		err = c.same(m)
	}
	if err != nil {
		c.wrong("%v", err)
		return nil
	}
	_, rows := m.ref.Digest()
	c.report.Rows += rows
	c.report.Sessions += len(m.ref.Sessions)
	return m.ref
}

// fresh returns new machines with the state of a snapshot, or empty ones.
func (c *shardCheck) fresh(state []byte) (*machines, error) {
	own, err := shard.New(shard.Config{Shard: c.shard, SlotCount: c.slotCount, Slots: c.slots})
	if err != nil {
		return nil, err
	}
	m := &machines{ref: reference.New(c.shard, c.slotCount, c.slots), own: own}
	if state == nil {
		return m, nil
	}
	if m.ref, err = reference.Load(c.slotCount, c.slots, state); err == nil {
		err = own.Restore(bytes.NewReader(state))
	}
	if err != nil {
		own.Close()
		return nil, err
	}
	return m, nil
}

// full returns the full form of a snapshot, which may refer to rows in files of its server.
func (c *shardCheck) full(s kept, state []byte) ([]byte, error) {
	dir, err := coldfile.OpenDir(s.server.Disk, filepath.Join(s.server.Dir, "cold",
		fmt.Sprintf("%s.%s", s.Group.ID, s.Replica)))
	if err != nil {
		return nil, err
	}
	x, err := expand.New(bytes.NewReader(state), expand.Files{Dir: dir})
	if err != nil {
		return nil, err
	}
	state, err = io.ReadAll(x)
	return state, errors.Join(err, x.Close())
}

// forward applies the log up to index. It returns false, and has done nothing, if a part of the log is missing.
func (c *shardCheck) forward(m *machines, index rowraft.Index) (bool, error) {
	for i := m.at + 1; i <= index; i++ {
		if !slices.ContainsFunc(c.replicas, func(r *replica) bool { return r.has(i) }) {
			return false, nil
		}
	}
	for m.at < index {
		m.at++
		e, _ := c.merged(m.at)
		c.report.Entries++
		if e.Kind != offline.KindCommand {
			continue
		}
		summed, err := m.apply(e)
		if err != nil {
			return false, err
		}
		c.report.Summed += summed
		sum, _ := m.ref.Digest()
		for _, d := range c.digests[m.at] {
			c.report.Digests++
			if have := hex.EncodeToString(sum[:]); d.Digest != have {
				return false, fmt.Errorf("replica %s reported digest %s at entry %d, the log gives %s",
					d.Replica, d.Digest, m.at, have)
			}
		}
	}
	return true, nil
}

// apply applies one entry to both machines and compares their results. It returns how many pushes sums have applied.
func (m *machines) apply(e offline.Entry) (summed int, err error) {
	want, err := m.ref.Apply(e.Index, e.Data)
	if err != nil {
		return 0, fmt.Errorf("entry %d: the reference cannot apply it: %w", e.Index, err)
	}
	got, ok := m.own.Apply(e.Index, e.Data).(*shard.Applied)
	if !ok || len(got.Parts) != len(want) {
		return 0, fmt.Errorf("entry %d: the machine does not answer as the reference, %v", e.Index, want)
	}
	for i, p := range got.Parts {
		if have := (reference.Answer{Code: rowraft.CodeOf(p.Err), Duplicate: p.Duplicate}); have != want[i] {
			return 0, fmt.Errorf("entry %d, part %d: the machine answers %v, the reference %v", e.Index, i, have, want[i])
		}
	}
	d, err := m.own.Digest()
	if err != nil {
		return 0, err
	}
	if sum, rows := m.ref.Digest(); d.Sum != sum || d.Rows != rows {
		return 0, fmt.Errorf("after entry %d the machine has %d rows and digest %x, the reference %d and %x",
			e.Index, d.Rows, d.Sum, rows, sum)
	}
	return summedIn(e.Data, want), nil
}

// summedIn counts the pushes in the applied sums of an entry.
func summedIn(entry []byte, answers []reference.Answer) (n int) {
	h, body, err := wire.ParseEntryHeader(entry)
	if err != nil || h.Kind != wire.EntryParts {
		return 0
	}
	for _, a := range answers {
		var p wire.Part
		if body, err = wire.ParsePart(body, &p); err != nil {
			return n
		}
		if p.Op == wire.OpSum && a == (reference.Answer{}) {
			n += int(p.Seq)
		}
	}
	return n
}

// sameAs compares a retained snapshot with the state from the log.
func (c *shardCheck) sameAs(m *machines, state []byte) error {
	loaded, err := reference.Load(c.slotCount, c.slots, state)
	if err != nil {
		return err
	}
	if diff := loaded.Diff(m.ref); diff != "" {
		return fmt.Errorf("it holds another state than the log gives: %s", diff)
	}
	return nil
}

// same compares the complete state of both machines, using a snapshot of one.
func (c *shardCheck) same(m *machines) error {
	s, err := m.own.Snapshot()
	if err != nil {
		return err
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		return err
	}
	if err := c.sameAs(m, b.Bytes()); err != nil {
		return fmt.Errorf("the machine's state after entry %d: %w", m.at, err)
	}
	return nil
}
