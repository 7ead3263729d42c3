package shard

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/canary"
	"github.com/rowraft/rowraft/shard/rowstore"
)

const (
	// walkBytes bounds what is read under one hold of the lock, walkEntries that while
	// whoever applies must not change the slot.
	walkBytes   = 256 << 10
	walkEntries = 512
)

// purpose is what a snapshot is for. The log has one at most, and it does not wait for those of checkpoints: they are
// as slow as their destinations.
type purpose uint8

const (
	forLog purpose = iota
	forPart
)

// MaxParts bounds the parts of checkpoints that a shard writes, or waits to cut, at a time: a checkpoint does not wait
// for another whose destination is slow or hangs. Each keeps the old images of the rows that change.
const MaxParts = rowstore.MaxSnapshots - 1

// Snapshot is the state at one applied index. One goroutine calls WriteTo, at
// most once; Release must be called, from any goroutine, and ends a WriteTo that
// goes on. Until then the Machine keeps the old image of each row that changes.
type Snapshot struct {
	m        *Machine
	st       *state // what it is a snapshot of
	purpose  purpose
	header   checkpoint.Header
	sessions []*checkpoint.Session // nobody changes them any more
	ended    checkpoint.Ended      // likewise
	jobs     []*checkpoint.Job     // likewise
	tables   []tableSnapshot       // ascending by ID
	written  bool
	released bool // guarded by m.mu and m.life
}

type tableSnapshot struct {
	schema  rowraft.Schema
	rows    *rowstore.Table
	snap    *rowstore.Snapshot
	written uint64 // rows
}

// Snapshot fixes the present state for WriteTo. It takes microseconds; Apply
// goes on while the rows are written.
//
// Errors: CodeOverloaded if the one before was not released, or a restore is
// under way; *FatalError; CodeClosing.
func (m *Machine) Snapshot() (*Snapshot, error) {
	m.entry.Lock()
	defer m.entry.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshotLocked(forLog)
}

// snapshotBusyLocked reports why no snapshot can begin.
// REQUIRES: m.mu is held.
func (m *Machine) snapshotBusyLocked(p purpose) error {
	switch {
	case p == forLog && m.snapshotsLocked(forLog) > 0:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a snapshot is being written", m.shard)
	case p == forPart && m.snapshotsLocked(forPart) >= MaxParts:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: parts of %d checkpoints are being written, the limit", m.shard, MaxParts)
	case m.mu.stage != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: a restore is under way, and no snapshot holds half of one", m.shard)
	}
	return nil
}

// snapshotsLocked counts the snapshots for p.
// REQUIRES: m.mu is held.
func (m *Machine) snapshotsLocked(p purpose) (n int) {
	for _, s := range m.mu.snapshots {
		if s.purpose == p {
			n++
		}
	}
	return n
}

// snapshotLocked is Snapshot.
// REQUIRES: m.entry is held, and m.mu for writing.
func (m *Machine) snapshotLocked(p purpose) (*Snapshot, error) {
	if err := m.usableLocked(); err != nil {
		return nil, err
	}
	if err := m.snapshotBusyLocked(p); err != nil {
		return nil, err
	}
	s := &Snapshot{m: m, st: m.mu.state, purpose: p, header: m.header(), sessions: m.mu.shareSessions(), ended: m.mu.ended.share(), jobs: m.mu.shareJobs()}
	for _, t := range m.mu.tables {
		snap, err := t.rows.BeginSnapshot()
		if err != nil {
			return nil, errors.Join(err, s.endLocked())
		}
		if snap.Removals() {
			s.header.Format = 2
		}
		s.tables = append(s.tables, tableSnapshot{schema: t.schema, rows: t.rows, snap: snap})
	}
	if canary.Is(canary.ForgetSessions) {
		s.sessions, s.ended = nil, checkpoint.Ended{}
	}
	m.mu.snapshots = append(m.mu.snapshots, s)
	return s, nil
}

// Index returns the applied index of the snapshot.
func (s *Snapshot) Index() rowraft.Index { return s.header.Applied }

// Epoch returns its table epoch.
func (s *Snapshot) Epoch() rowraft.TableEpoch { return s.header.Epoch }

// Bytes is about what WriteRows will write.
func (s *Snapshot) Bytes() int64 {
	n := int64(0)
	for _, t := range s.tables {
		n += int64(t.snap.Rows())*int64(t.rows.RecordBytes()) + int64(t.snap.Candidates())*rowstore.CandidateBytes
	}
	return n
}

// ImageBytes is the most memory that images of changed rows and candidates took so far.
func (s *Snapshot) ImageBytes() (n int64) {
	s.m.life.RLock()
	defer s.m.life.RUnlock()
	if s.usable() != nil {
		return 0
	}
	for _, t := range s.tables {
		n += t.snap.ImageBytes()
	}
	return n
}

// usable reports why the snapshot cannot be read any more.
// REQUIRES: m.life is held.
func (s *Snapshot) usable() error {
	v := s.m.view.Load()
	if v.err == nil && (s.released || v.state != s.st) {
		return rowraft.Errorf(rowraft.CodeStarting, "shard %d: the snapshot was released, or a newer state restored", s.m.shard)
	}
	return v.err
}

// TableSnapshot is what a snapshot holds of one table.
type TableSnapshot struct {
	Schema  rowraft.Schema
	Rows    uint64
	Digest  checkpoint.Digest
	Written uint64 // rows that were written so far
}

// Tables lists them ascending by ID. It is not called while the rows are written.
//
// Errors: as WriteTo, as for Digest and Sums.
func (s *Snapshot) Tables() ([]TableSnapshot, error) {
	s.m.life.RLock()
	defer s.m.life.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	out := make([]TableSnapshot, len(s.tables))
	for i, t := range s.tables {
		out[i] = TableSnapshot{Schema: t.schema, Rows: uint64(t.snap.Rows()), Digest: t.snap.Digest().Bytes(), Written: t.written}
	}
	return out, nil
}

// Digest is the sum over all rows.
func (s *Snapshot) Digest() (checkpoint.Digest, error) {
	s.m.life.RLock()
	defer s.m.life.RUnlock()
	if err := s.usable(); err != nil {
		return checkpoint.Digest{}, err
	}
	var sum rowstore.Digest
	for _, t := range s.tables {
		sum = sum.Add(t.snap.Digest())
	}
	return sum.Bytes(), nil
}

// Sums is what each slot holds, as it was counted while entries were applied;
// ascending by (table, slot).
func (s *Snapshot) Sums() ([]checkpoint.SlotSum, error) {
	s.m.life.RLock()
	defer s.m.life.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	var out []checkpoint.SlotSum
	for _, t := range s.tables {
		for slot := range rowraft.Slot(rowraft.NumSlots) {
			if c := t.snap.Slot(slot); c.Version > 0 {
				out = append(out, checkpoint.SlotSum{Table: t.schema.ID, Slot: slot, Rows: uint32(c.Rows), Counter: c.Version, Digest: c.Digest.Bytes()})
			}
		}
	}
	return out, nil
}

// Release ends the snapshot, written or not. Calling it again does nothing.
func (s *Snapshot) Release() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	// An error can only mean that memory was not given back; the rows are whole.
	_ = s.endLocked()
}

// endLocked drops the images that rowstore keeps for s.
// REQUIRES: m.mu is held for writing.
func (s *Snapshot) endLocked() error {
	if s.released {
		return nil
	}
	s.m.life.Lock()
	defer s.m.life.Unlock()
	s.released = true
	if s.m.mu.state != s.st || s.m.mu.closed {
		return nil // the rows are gone, and the images with them
	}
	s.m.mu.snapshots = slices.DeleteFunc(s.m.mu.snapshots, func(o *Snapshot) bool { return o == s })
	var errs []error
	for _, t := range s.tables {
		errs = append(errs, t.snap.End())
	}
	s.m.freeDroppedLocked()
	return errors.Join(errs...)
}

// WriteTo writes the snapshot in the format of docs/formats/snapshot.md.
//
// Errors: that of w; CodeClosing; CodeStarting if it was released or a newer
// snapshot was restored meanwhile. What was written is then no snapshot.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	sessions := make([]checkpoint.Session, len(s.sessions))
	for i, p := range s.sessions {
		sessions[i] = *p
	}
	jobs := make([]checkpoint.Job, len(s.jobs))
	for i, j := range s.jobs {
		jobs[i] = *j
	}
	return s.write(w, sessions, s.ended, jobs, nil)
}

// WriteRows is WriteTo without sessions and jobs: the part of a checkpoint, which they
// do not outlive.
func (s *Snapshot) WriteRows(w io.Writer) (int64, error) {
	return s.write(w, nil, checkpoint.Ended{}, nil, nil)
}

// WriteDelta is WriteRows of what is newer than base (docs/formats/checkpoint.md).
//
// Errors: CodeInvalidArgument if a slot had a higher counter there.
func (s *Snapshot) WriteDelta(w io.Writer, base checkpoint.Counters) (int64, error) {
	s.header.Delta = true
	return s.write(w, nil, checkpoint.Ended{}, nil, base)
}

func (s *Snapshot) write(w io.Writer, sessions []checkpoint.Session, ended checkpoint.Ended, jobs []checkpoint.Job, base checkpoint.Counters) (int64, error) {
	if s.written {
		return 0, rowraft.Errorf(rowraft.CodeInternal, "shard %d: a snapshot was written twice", s.m.shard)
	}
	s.written = true
	schemas := make([]rowraft.Schema, len(s.tables))
	for i := range s.tables {
		schemas[i] = s.tables[i].schema
	}
	out, err := checkpoint.NewWriter(w, s.header, schemas, sessions, ended, jobs)
	if err != nil {
		return 0, err
	}
	wk := walk{base: base}
	for i := range s.tables {
		if err := s.writeTable(out, &s.tables[i], &wk); err != nil {
			return out.Bytes(), fmt.Errorf("snapshot table %s: %w", schemas[i].Name, err)
		}
	}
	digest := wk.digest
	if base == nil {
		digest, err = s.Digest()
	}
	if err == nil {
		err = out.Finish(digest)
	}
	return out.Bytes(), err
}

// walk is what was read of a table under one hold of the lock.
type walk struct {
	pieces     []piece
	buf        []byte
	candidates []byte // of the slots that are done

	base   checkpoint.Counters // nil: all rows
	digest checkpoint.Digest   // with a base: of what was written so far
}

// piece is records of one slot: those up to end of the buffer.
type piece struct {
	slot  checkpoint.Slot
	first bool
	rows  int // of the whole slot; of the first piece
	end   int
	done  bool

	candidatesEnd int
}

func (s *Snapshot) writeTable(out *checkpoint.Writer, t *tableSnapshot, wk *walk) error {
	next, inside, missing := rowraft.Slot(0), false, 0
	for next < rowraft.NumSlots {
		var err error
		if next, inside, err = s.walk(t, wk, next, inside); err != nil {
			return err
		}
		from, candidates := 0, 0
		for _, p := range wk.pieces {
			if p.first {
				missing = p.rows
				if err := out.BeginSlot(p.slot); err != nil {
					return err
				}
			}
			missing -= (p.end - from) / p.slot.RecordBytes
			t.written += uint64((p.end - from) / p.slot.RecordBytes)
			for rec := wk.buf[from:p.end]; wk.base != nil && len(rec) > 0; rec = rec[p.slot.RecordBytes:] {
				wk.digest = wk.digest.Add(checkpoint.RecordDigest(rec[:p.slot.RecordBytes]))
			}
			if err := out.Append(wk.buf[from:p.end]); err != nil {
				return err
			}
			if p.done && (missing < 0 || missing > 0 && (wk.base == nil || p.slot.Whole)) {
				return rowraft.Errorf(rowraft.CodeInternal, "slot %d: %d rows of the snapshot are missing", p.slot.Slot, missing)
			}
			if p.done {
				if err := wk.putCandidates(out, wk.candidates[candidates:p.candidatesEnd]); err != nil {
					return err
				}
			}
			from, candidates = p.end, p.candidatesEnd
		}
	}
	return nil
}

// walk reads on from slot next, within which it stopped before if inside, and
// returns where it stopped.
func (s *Snapshot) walk(t *tableSnapshot, wk *walk, next rowraft.Slot, inside bool) (rowraft.Slot, bool, error) {
	wk.pieces, wk.buf, wk.candidates = wk.pieces[:0], wk.buf[:0], wk.candidates[:0]
	recordBytes := t.rows.RecordBytes()
	entries := min(walkEntries, max(1, walkBytes/recordBytes))
	s.m.life.RLock()
	defer s.m.life.RUnlock()
	if err := s.usable(); err != nil {
		return next, inside, err
	}
	for ; next < rowraft.NumSlots && len(wk.buf)+len(wk.candidates) < walkBytes; next++ {
		c := t.snap.Slot(next)
		p := piece{
			slot:  checkpoint.Slot{Table: t.schema.ID, Slot: next, Counter: c.Version, RecordBytes: recordBytes, Removed: c.Removed},
			first: !inside, rows: c.Rows,
		}
		if p.rows == 0 && p.slot.Counter == 0 {
			continue
		}
		since, err := wk.since(t, &p.slot)
		if err != nil {
			return next, inside, err
		}
		wk.buf, p.done = t.snap.AppendSlotSince(wk.buf, next, since, entries)
		if p.end = len(wk.buf); since != p.slot.Counter { // else it is as it was
			if p.done {
				wk.candidates = t.snap.AppendCandidates(wk.candidates, next)
			}
			p.candidatesEnd = len(wk.candidates)
			wk.pieces = append(wk.pieces, p)
		}
		if inside = !p.done; inside {
			break
		}
	}
	return next, inside, nil
}

// putCandidates ends a slot with its keys that wait for a row: all of them, in a
// delta too.
func (wk *walk) putCandidates(out *checkpoint.Writer, b []byte) error {
	for w := b; wk.base != nil && len(w) > 0; w = w[rowstore.CandidateBytes:] {
		wk.digest = wk.digest.Add(checkpoint.CandidateDigest(w[:rowstore.CandidateBytes]))
	}
	return out.Candidates(b)
}

// since tells above which version rows of a slot are written, and marks the slot if
// that is all of them.
func (wk *walk) since(t *tableSnapshot, slot *checkpoint.Slot) (uint64, error) {
	if wk.base == nil || !t.rows.Owns(slot.Slot) {
		return 0, nil
	}
	base := wk.base(slot.Table, slot.Slot)
	if base > slot.Counter {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "slot %d is at version %d, and at %d in what this would be a delta to: that is not of its past", slot.Slot, slot.Counter, base)
	}
	if slot.Whole = base == 0 || slot.Removed > base; slot.Whole { // or nobody would miss what was removed
		return 0, nil
	}
	return base, nil
}
