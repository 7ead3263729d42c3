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
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

const (
	// walkBytes limits what is read while m.readers is held once. walkEntries limits what is read
	// while the writer of the row store may not change the slot.
	walkBytes   = 256 << 10
	walkEntries = 512
)

// purpose is the use of a snapshot. At most one is for the log. It does not wait for those of
// checkpoints, which are as slow as their destinations.
type purpose uint8

const (
	forLog purpose = iota
	forCheckpoint
)

// MaxParts limits the checkpoints for which a shard writes its part, or waits for the mark, at a
// time. Several are allowed, so that a checkpoint does not wait for another one whose destination is
// slow or hangs. Each keeps the old images of the rows that change.
const MaxParts = rowstore.MaxSnapshots - 1

// Snapshot is the state at one applied index. One goroutine calls WriteTo, WriteRows or WriteDelta,
// at most once. The owner must call Release, from any goroutine; it ends a running
// write. Until then the Machine keeps the old image of each row that changes.
type Snapshot struct {
	m        *Machine
	of       *tableSet // the tables that it reads
	purpose  purpose
	header   checkpoint.Header
	sessions []*session      // immutable: changes copy them
	ended    ended           // immutable
	jobs     []*Job          // immutable: changes copy them
	tables   []tableSnapshot // ascending by ID
	written  bool
	files    coldfile.Refs // that it refers to, held until Release
	full     int64         // bytes of the full form, after WriteLocal
	released bool          // guarded by m.mu and m.walks
}

type tableSnapshot struct {
	schema  rowraft.Schema
	rows    *rowstore.Table
	snap    *rowstore.Snapshot
	written uint64 // rows written so far
}

// Snapshot fixes the present state for WriteTo. It takes microseconds; Apply
// continues while the rows are written.
//
// Errors: CodeOverloaded if the previous snapshot for the log is not released, or a restore is
// running; *FatalError; CodeClosing.
func (m *Machine) Snapshot() (*Snapshot, error) {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.snapshotLocked(forLog)
}

// cuts are the snapshots under way: those that are not yet released, and those that wait for their mark. Machine.mu
// guards it. Invariant: at most one of running is for the log, and at most MaxParts are for checkpoints.
type cuts struct {
	running  []*Snapshot
	expected []*ExpectedMark // the marks at which Apply takes a snapshot
}

// busy returns the reason why no snapshot for p can begin, or nil. stage is the running restore, or nil.
func (c *cuts) busy(p purpose, shard rowraft.ShardID, stage *stage) error {
	switch {
	case p == forLog && c.count(forLog) > 0:
		return rowraft.Errorf(rowraft.CodeOverloaded, "shard %d: another snapshot is being written", shard)
	case p == forCheckpoint && c.count(forCheckpoint) >= MaxParts:
		return rowraft.Errorf(rowraft.CodeOverloaded,
			"shard %d: %d checkpoints are being written, the limit: try again later", shard, MaxParts)
	case stage != nil:
		return rowraft.Errorf(rowraft.CodeOverloaded,
			"shard %d: a restore is running: no snapshot can be taken before it ends", shard)
	}
	return nil
}

// count counts the running snapshots for p.
func (c *cuts) count(p purpose) (n int) {
	for _, s := range c.running {
		if s.purpose == p {
			n++
		}
	}
	return n
}

// snapshotLocked implements Snapshot.
// REQUIRES: m.applyMu is held, and m.mu for writing.
func (m *Machine) snapshotLocked(p purpose) (*Snapshot, error) {
	if err := m.mu.usable(); err != nil {
		return nil, err
	}
	if err := m.mu.cuts.busy(p, m.shard, m.mu.stage); err != nil {
		return nil, err
	}
	s := &Snapshot{
		m: m, of: m.mu.tables, purpose: p,
		header: checkpoint.Header{Shard: m.shard, Applied: m.AppliedIndex(), LogTime: m.LogTime(), Epoch: m.Epoch()},
		files:  coldfile.Refs{}, sessions: m.Sessions.table.share(), ended: m.Sessions.table.ended.share(),
		jobs: m.Jobs.table.share(),
	}
	for _, t := range m.mu.tables.list {
		snap, err := t.rows.BeginSnapshot()
		if err != nil {
			return nil, errors.Join(err, s.endLocked())
		}
		if p == forLog {
			if cut := snap.PinTier(); !cut.Empty() {
				s.files[t.schema.ID] = cut.ID()
			}
		}
		s.tables = append(s.tables, tableSnapshot{schema: t.schema, rows: t.rows, snap: snap})
	}
	if canary.Is(canary.ForgetSessions) {
		s.sessions, s.ended = nil, ended{}
	}
	m.mu.cuts.running = append(m.mu.cuts.running, s)
	if m.maker.tier != nil {
		m.maker.tier.Hold(s.files)
	}
	return s, nil
}

// Index returns the applied index of the snapshot.
func (s *Snapshot) Index() rowraft.Index { return s.header.Applied }

// Epoch returns the table epoch of the snapshot.
func (s *Snapshot) Epoch() rowraft.TableEpoch { return s.header.Epoch }

// Bytes estimates what WriteRows will write.
func (s *Snapshot) Bytes() int64 {
	n := int64(0)
	for _, t := range s.tables {
		n += int64(t.snap.Rows())*int64(t.rows.RecordBytes()) + int64(t.snap.Candidates())*rowstore.CandidateBytes
	}
	return n
}

// ImageBytes returns the most memory that images of changed rows and kept candidates have used so far.
func (s *Snapshot) ImageBytes() (n int64) {
	s.rlock()
	defer s.runlock()
	if s.usable() != nil {
		return 0
	}
	for _, t := range s.tables {
		n += t.snap.ImageBytes()
	}
	return n
}

// rlock must be held while the snapshot is read: until runlock, neither a restore nor Release frees what it reads.
func (s *Snapshot) rlock() {
	s.m.readers.RLock()
	s.m.walks.RLock()
}

func (s *Snapshot) runlock() {
	s.m.walks.RUnlock()
	s.m.readers.RUnlock()
}

// usable returns the reason why the snapshot cannot be read any more, or nil.
// REQUIRES: rlock.
func (s *Snapshot) usable() error {
	v := s.m.view.Load()
	if v.err == nil && (s.released || v.of != s.of) {
		return rowraft.Errorf(rowraft.CodeStarting, "shard %d: the snapshot was released, or another state was restored",
			s.m.shard)
	}
	return v.err
}

// TableSnapshot describes one table in a snapshot.
type TableSnapshot struct {
	Schema  rowraft.Schema
	Rows    uint64
	Digest  checkpoint.Digest
	Written uint64 // rows written so far
}

// Tables describes the tables, ascending by ID. It must not be called while the rows are written.
//
// Errors: CodeStarting and CodeClosing as in WriteTo. The same is true for Digest and Sums.
func (s *Snapshot) Tables() ([]TableSnapshot, error) {
	s.rlock()
	defer s.runlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	out := make([]TableSnapshot, len(s.tables))
	for i, t := range s.tables {
		out[i] = TableSnapshot{
			Schema: t.schema, Rows: uint64(t.snap.Rows()), Digest: t.snap.Digest().Bytes(), Written: t.written,
		}
	}
	return out, nil
}

// Digest returns the sum over all rows.
func (s *Snapshot) Digest() (checkpoint.Digest, error) {
	s.rlock()
	defer s.runlock()
	if err := s.usable(); err != nil {
		return checkpoint.Digest{}, err
	}
	var sum rowstore.Digest
	for _, t := range s.tables {
		sum = sum.Add(t.snap.Digest())
	}
	return sum.Bytes(), nil
}

// Sums describes each slot by the counts that Apply keeps up to date,
// ascending by (table, slot).
func (s *Snapshot) Sums() ([]checkpoint.SlotSum, error) {
	s.rlock()
	defer s.runlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	var out []checkpoint.SlotSum
	for _, t := range s.tables {
		for slot := s.m.owned.first; slot < s.m.owned.past; slot++ {
			if c := t.snap.Slot(slot); c.Version > 0 {
				out = append(out, checkpoint.SlotSum{
					Table: t.schema.ID, Slot: slot, Rows: uint32(c.Rows), Counter: c.Version, Digest: c.Digest.Bytes(),
				})
			}
		}
	}
	return out, nil
}

// Release ends the snapshot, written or not. A second call does nothing.
func (s *Snapshot) Release() {
	s.m.mu.Lock()
	held := !s.released && s.m.maker.tier != nil
	// An error only means that the system did not take back memory. The rows are unaffected.
	_ = s.endLocked()
	s.m.mu.Unlock()
	if held {
		_ = s.m.maker.tier.Release(s.files) // a file that is not removed takes space until the next start
	}
}

// endLocked frees the images that rowstore keeps for s.
// REQUIRES: m.mu is held for writing.
func (s *Snapshot) endLocked() error {
	if s.released {
		return nil
	}
	s.m.walks.Lock() // not readers: pulls read no images, and may wait for the disk of cold rows
	defer s.m.walks.Unlock()
	s.released = true
	if s.m.mu.tables != s.of || s.m.mu.closed {
		return nil // the rows were freed, together with the images
	}
	s.m.mu.cuts.running = slices.DeleteFunc(s.m.mu.cuts.running, func(o *Snapshot) bool { return o == s })
	var errs []error
	for _, t := range s.tables {
		errs = append(errs, t.snap.End())
	}
	s.m.freeDroppedLocked()
	return errors.Join(errs...)
}

// WriteTo writes the snapshot in the format of docs/formats/snapshot.md.
//
// Errors: errors of w; CodeClosing; CodeStarting if the snapshot was released or another
// state was restored during the write. In these cases the output is not a snapshot.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	return s.write(w, convert(s.sessions, storedSession), storedEnded(&s.ended), convert(s.jobs, storedJob), nil)
}

// WriteRows is WriteTo without sessions and jobs. It writes a part of a checkpoint: sessions and jobs
// do not survive a restore of a checkpoint.
func (s *Snapshot) WriteRows(w io.Writer) (int64, error) {
	return s.write(w, nil, checkpoint.Ended{}, nil, nil)
}

// WriteDelta is WriteRows of the rows that are newer than base (docs/formats/checkpoint.md).
//
// Errors: CodeInvalidArgument if a slot has a higher counter in base.
func (s *Snapshot) WriteDelta(w io.Writer, base checkpoint.Counters) (int64, error) {
	s.header.Delta = true
	return s.write(w, nil, checkpoint.Ended{}, nil, base)
}

func (s *Snapshot) write(
	w io.Writer, sessions []checkpoint.Session, ended checkpoint.Ended, jobs []checkpoint.Job, base checkpoint.Counters,
) (int64, error) {
	if s.written {
		return 0, rowraft.Errorf(rowraft.CodeInternal, "shard %d: a snapshot can be written only once", s.m.shard)
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
	if s.header.Local {
		if err := out.ColdFiles(s.coldFiles()); err != nil {
			return out.Bytes(), err
		}
	}
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
	s.full = out.FullBytes()
	return out.Bytes(), err
}

// walk is what was read of a table while m.readers was held once.
type walk struct {
	chunks     []slotChunk
	buf        []byte
	candidates []byte   // of the slots that are done
	cold       []uint64 // entries of the rows in the file, like chunks
	coldSlot   []uint64 // of the slot that is being written

	base   checkpoint.Counters // nil: write all rows
	digest checkpoint.Digest   // only with a base: digest of the output so far
}

// slotChunk is some records of one slot: those in walk.buf from the end of the previous chunk to end.
type slotChunk struct {
	slot  checkpoint.Slot
	first bool
	rows  int // rows of the whole slot
	end   int
	done  bool

	candidatesEnd int
	coldEnd       int
	digest        rowstore.Digest // of the whole slot
}

func (s *Snapshot) writeTable(out *checkpoint.Writer, t *tableSnapshot, wk *walk) error {
	next, inside, missing := s.m.owned.first, false, 0
	for next < s.m.owned.past {
		var err error
		if next, inside, err = s.walk(t, wk, next, inside); err != nil {
			return err
		}
		from, candidates, cold := 0, 0, 0
		for _, p := range wk.chunks {
			if p.first {
				wk.coldSlot = wk.coldSlot[:0]
				missing = p.rows
				if err := out.BeginSlot(p.slot); err != nil {
					return err
				}
			}
			wk.coldSlot = append(wk.coldSlot, wk.cold[cold:p.coldEnd]...)
			n := (p.end-from)/p.slot.RecordBytes + p.coldEnd - cold
			missing -= n
			t.written += uint64(n)
			for rec := wk.buf[from:p.end]; wk.base != nil && len(rec) > 0; rec = rec[p.slot.RecordBytes:] {
				wk.digest = wk.digest.Add(checkpoint.RecordDigest(rec[:p.slot.RecordBytes]))
			}
			if err := out.Append(wk.buf[from:p.end]); err != nil {
				return err
			}
			if p.done && (missing < 0 || missing > 0 && (wk.base == nil || p.slot.Whole)) {
				return rowraft.Errorf(rowraft.CodeInternal, "slot %d: the snapshot lacks %d rows", p.slot.Slot, missing)
			}
			if p.done {
				waiting := wk.candidates[candidates:p.candidatesEnd]
				if err := wk.putCold(out, p.digest, waiting); err != nil {
					return err
				}
				if err := wk.putCandidates(out, waiting); err != nil {
					return err
				}
			}
			from, candidates, cold = p.end, p.candidatesEnd, p.coldEnd
		}
	}
	return nil
}

// walk continues at slot next, in its middle if inside is set, and
// returns where it stopped.
func (s *Snapshot) walk(t *tableSnapshot, wk *walk, next rowraft.Slot, inside bool) (rowraft.Slot, bool, error) {
	wk.chunks, wk.buf, wk.candidates, wk.cold = wk.chunks[:0], wk.buf[:0], wk.candidates[:0], wk.cold[:0]
	recordBytes := t.rows.RecordBytes()
	entries := min(walkEntries, max(1, walkBytes/recordBytes))
	s.rlock()
	defer s.runlock()
	if err := s.usable(); err != nil {
		return next, inside, err
	}
	for ; next < s.m.owned.past && len(wk.buf)+len(wk.candidates)+8*len(wk.cold) < walkBytes; next++ {
		c := t.snap.Slot(next)
		p := slotChunk{
			slot: checkpoint.Slot{Table: t.schema.ID, Slot: next, Counter: c.Version, RecordBytes: recordBytes,
				Removed: c.Removed},
			first: !inside, rows: c.Rows, digest: c.Digest,
		}
		if p.rows == 0 && p.slot.Counter == 0 {
			continue
		}
		since, err := wk.since(t, &p.slot)
		if err != nil {
			return next, inside, err
		}
		t.snap.ClearRefs()
		wk.buf, p.done = t.snap.AppendSlotSince(wk.buf, next, since, entries)
		wk.cold = append(wk.cold, t.snap.Refs()...)
		p.coldEnd = len(wk.cold)
		if err := t.rows.Tier().Broken(); err != nil {
			return next, inside, err
		}
		if p.end = len(wk.buf); since != p.slot.Counter { // otherwise the slot has not changed since the base
			if p.done {
				wk.candidates = t.snap.AppendCandidates(wk.candidates, next)
			}
			p.candidatesEnd = len(wk.candidates)
			wk.chunks = append(wk.chunks, p)
		}
		if inside = !p.done; inside {
			break
		}
	}
	return next, inside, nil
}

// putCandidates ends a slot with its candidates. A delta has all of them, too.
func (wk *walk) putCandidates(out *checkpoint.Writer, b []byte) error {
	for w := b; wk.base != nil && len(w) > 0; w = w[rowstore.CandidateBytes:] {
		wk.digest = wk.digest.Add(checkpoint.CandidateDigest(w[:rowstore.CandidateBytes]))
	}
	return out.Candidates(b)
}

// since returns the version above which rows of a slot are written. It sets slot.Whole if
// all rows are written.
func (wk *walk) since(t *tableSnapshot, slot *checkpoint.Slot) (uint64, error) {
	if wk.base == nil || !t.rows.Owns(slot.Slot) {
		return 0, nil
	}
	base := wk.base(slot.Table, slot.Slot)
	if base > slot.Counter {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"slot %d is at version %d, but the base has version %d: the base is not from the past of this shard",
			slot.Slot, slot.Counter, base)
	}
	// A slot from which a row was removed since the base is written whole: a delta does not list removed rows.
	if slot.Whole = base == 0 || slot.Removed > base; slot.Whole {
		return 0, nil
	}
	return base, nil
}
