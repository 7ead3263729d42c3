package shard

import (
	"fmt"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/shard/expand"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// A snapshot of the log has two forms. The local form stays on the disk of the replica and refers to the rows in the
// files of its tables. The full form has all rows; followers get it.

// WriteLocal writes the local form and makes the rows durable that it refers to. Without a row in a file, it is
// WriteTo. The caller calls Keep when what it wrote is durable.
//
// Errors: as WriteTo; CodeFenced if rows cannot be made durable.
func (s *Snapshot) WriteLocal(w io.Writer) (int64, error) {
	s.header.Local = len(s.files) > 0
	n, err := s.WriteTo(w)
	for i := range s.tables {
		if err == nil && s.header.Local {
			err = s.syncTier(&s.tables[i])
		}
	}
	return n, err
}

func (s *Snapshot) syncTier(t *tableSnapshot) error {
	s.rlock() // the file stays open; pulls go on
	defer s.runlock()
	if err := s.usable(); err != nil {
		return err
	}
	if err := t.snap.Cold().Sync(); err != nil {
		return t.rows.Tier().Break(fmt.Errorf("a sync failed, so they may be lost: %w", err))
	}
	return nil
}

// FullBytes returns how long the full form is of what WriteLocal has written; 0 if that was the full form.
func (s *Snapshot) FullBytes() int64 {
	if !s.header.Local {
		return 0
	}
	return s.full
}

// LocalBytes estimates what WriteLocal will write.
func (s *Snapshot) LocalBytes() int64 {
	n := s.Bytes()
	for _, t := range s.tables {
		n -= t.rows.Tier().Stats().Records * int64(t.rows.RecordBytes()-8)
	}
	return max(n, 1)
}

// coldFiles returns what the local form refers to, ascending by table.
func (s *Snapshot) coldFiles() (out []checkpoint.ColdFile) {
	for _, t := range s.tables {
		if !t.snap.Cold().Empty() {
			ref := t.snap.ReferToTier()
			out = append(out, storedColdFile(t.schema.ID, &ref))
		}
	}
	return out
}

// putCold ends the rows of a slot with the references. digest is that of the slot, with its candidates.
func (wk *walk) putCold(out *checkpoint.Writer, digest rowstore.Digest, candidates []byte) error {
	if len(wk.coldSlot) == 0 {
		return nil
	}
	for ; len(candidates) > 0; candidates = candidates[rowstore.CandidateBytes:] {
		digest = digest.Sub(rowstore.DigestOf(checkpoint.CandidateDigest(candidates[:rowstore.CandidateBytes])))
	}
	return out.Cold(wk.coldSlot, digest.Bytes())
}

// Keep notes that the snapshot of WriteLocal is durable: the rows that it refers to stay until a later one is. Without
// sure, it may not survive a crash, and what earlier ones refer to stays too. The caller calls Release after it.
func (s *Snapshot) Keep(sure bool) {
	if s.m.maker.tier == nil {
		return
	}
	for _, t := range s.tables { // also of a table that was dropped or replaced meanwhile
		t.snap.Cold().Keep(sure)
	}
	_ = s.m.maker.tier.Keep(s.files, sure) // a file that is not removed takes space until the next start
}

// ColdFiles are the files with the cold rows of a Machine's tables. Its methods may be called at any time.
type ColdFiles struct {
	reads *Reads
	dir   *coldfile.Dir // nil: all rows are in memory
}

// WantsSnapshot reports whether a file needs a snapshot soon, however short the log is: pulls alone move rows.
func (c *ColdFiles) WantsSnapshot() bool {
	for _, t := range c.reads.view.Load().list {
		if t.rows.Tier().File().WantsSnapshot() {
			return true
		}
	}
	return false
}

// Expand returns the full form of the local form in r, which a replica of this directory has written. The caller closes
// the result.
//
// Errors, also of reads: as expand.New. A row that cannot be read fences the replica at its next use.
func (c *ColdFiles) Expand(r io.Reader) (io.ReadCloser, error) {
	x, err := expand.New(r, expand.Files{Dir: c.dir, Hold: c.hold})
	if err != nil {
		return nil, fmt.Errorf("shard %d: expand a snapshot: %w", c.reads.shard, err)
	}
	return x, nil
}

// hold implements expand.Files.
func (c *ColdFiles) hold(table rowraft.TableID, id coldfile.ID, cut uint64) (func(), func(error), error) {
	t := findTable(c.reads.view.Load().list, table)
	if t == nil {
		return nil, nil, nil
	}
	release, err := t.rows.Tier().File().Hold(id, cut)
	if release == nil {
		return nil, nil, err
	}
	return release, func(err error) { _ = t.rows.Tier().Break(err) }, nil
}
