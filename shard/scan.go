package shard

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

const (
	// A slot of at most wholeSlotBytes and wholeSlotRows is read while applyMu is held, which takes
	// less than a millisecond. The keys of a larger slot, or of one with rows on disk, and then its rows, are
	// read in several steps, and entries are applied in between.
	wholeSlotBytes = 1 << 20
	wholeSlotRows  = 4096
	scanStepBytes  = 1 << 20
)

// Scan reads the rows of one table slot by slot, in ascending order of the keys. It reads a
// slot of at most wholeSlotBytes and wholeSlotRows at one applied index, unless its table has rows on disk. Of another
// slot, each row is whole, but rows may be of different indexes: the rows are those that existed when the scan of
// the slot began, without rows that were deleted since, and perhaps with rows
// that were created since. One goroutine uses a Scan.
type Scan struct {
	m      *Machine
	of     *tableSet // tables at the begin of the scan
	table  rowraft.TableID
	dtype  rowraft.DType
	schema rowraft.Schema

	// keys are the keys of slot that are not yet read, ascending, if slot is a large one.
	keys []rowraft.Key
	slot rowraft.Slot

	// Scratch, for the slot that beginSlot read last.
	listed []rowraft.Key
	values []byte
	order  []int32
}

// NewScan begins a scan that returns weights as dtype.
//
// Errors: CodeInvalidArgument, CodeTableNotFound, CodeClosing.
func (m *Machine) NewScan(table rowraft.TableID, dtype rowraft.DType) (*Scan, error) {
	if dtype.Size() == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "scan as %s: want float32 or bfloat16", dtype)
	}
	v := m.view.Load()
	if v.err != nil {
		return nil, v.err
	}
	t := v.table(table)
	if t == nil {
		return nil, m.notFound(table)
	}
	return &Scan{m: m, of: v.of, table: table, dtype: dtype, schema: t.schema}, nil
}

// Append appends to dst a segment with rows of slot whose keys are at least from. done means
// that it was the last segment of the slot; otherwise the caller passes next as from in the next
// call. Append appends nothing if there are no such rows. Package wire specifies values and
// keys. len(dst) must be a multiple of 8.
//
// Errors: CodeWrongShard if the slot is not held here, CodeTableNotFound,
// CodeClosing; CodeStarting if the shard restored a snapshot during the scan. In that case the
// caller can continue from the same key with a new Scan.
func (s *Scan) Append(
	dst []byte, slot rowraft.Slot, from rowraft.Key,
) (out []byte, next rowraft.Key, done bool, err error) {
	if !s.m.owned.has(slot) {
		return dst, from, false, rowraft.Errorf(rowraft.CodeWrongShard, "shard %d does not hold slot %d", s.m.shard, slot)
	}
	if len(s.keys) == 0 || s.slot != slot || s.keys[0] != from {
		if dst, done, err = s.beginSlot(dst, slot, from); err != nil || done {
			return dst, from, done, err
		}
	}
	n := min(len(s.keys), max(scanStepBytes/s.rowBytes(), 1))
	if dst, err = s.appendRows(dst, s.keys[:n]); err != nil {
		s.keys = nil
		return dst, from, false, err
	}
	if s.keys = s.keys[n:]; len(s.keys) == 0 {
		return dst, from, true, nil
	}
	return dst, s.keys[0], false, nil
}

func (s *Scan) rowBytes() int { return 8 + s.schema.Dim*s.dtype.Size() }

// beginSlot starts slot. If the rows with keys of at least from are few, it appends all of them
// and returns done. Otherwise it stores their keys in s.keys.
func (s *Scan) beginSlot(dst []byte, slot rowraft.Slot, from rowraft.Key) (out []byte, done bool, err error) {
	whole, err := s.list(slot, from)
	if err != nil {
		return dst, false, err
	}
	s.keys, s.slot = nil, slot
	switch {
	case len(s.listed) == 0:
		return dst, true, nil
	case whole:
		return s.appendSorted(dst), true, nil
	}
	s.keys = s.listed
	return dst, false, nil
}

// list fills s.listed with the keys of slot. If they are few (whole), it also fills s.values
// with their rows, at one applied index and unsorted: sorting can wait until the lock is
// released.
func (s *Scan) list(slot rowraft.Slot, from rowraft.Key) (whole bool, err error) {
	var l slotListing
	defer l.end()
	if whole, err = s.readWhole(&l, slot, from); whole || err != nil {
		return whole, err
	}
	s.listed = s.listed[:0]
	for done := false; !done && err == nil; {
		done, err = s.listMore(&l)
	}
	s.sortListed(from)
	return false, err
}

// sortListed sorts the listed keys and removes duplicates: a key whose row was deleted and created
// again during the listing may be listed twice.
func (s *Scan) sortListed(from rowraft.Key) {
	s.dropBelow(from)
	slices.Sort(s.listed)
	s.listed = slices.Compact(s.listed)
}

// readWhole reads a slot of few rows. For a larger slot it begins the listing l instead.
func (s *Scan) readWhole(l *slotListing, slot rowraft.Slot, from rowraft.Key) (whole bool, err error) {
	s.m.applyMu.Lock()
	defer s.m.applyMu.Unlock()
	v, err := s.view()
	if err != nil {
		return false, err
	}
	t := v.table(s.table)
	s.m.readers.RLock()
	rows := t.rows.SlotCounts(slot).Rows
	l.begin(t, slot)
	s.m.readers.RUnlock()
	if t.rows.Tier() != nil || rows*s.rowBytes() > wholeSlotBytes || rows > wholeSlotRows ||
		l.rows.Entries() > 4*wholeSlotRows {
		return false, nil
	}
	s.listed = s.listed[:0]
	for done := false; !done && err == nil; {
		done, err = s.listMore(l)
	}
	if err != nil {
		return false, err
	}
	s.dropBelow(from)
	n := len(s.listed) * s.schema.Dim * s.dtype.Size()
	s.values = slices.Grow(s.values[:0], n)[:n]
	return true, s.pull(s.listed, s.values, nil)
}

// listMore appends the next keys of l to s.listed. Entries may be applied at the same time.
func (s *Scan) listMore(l *slotListing) (done bool, err error) {
	s.m.readers.RLock()
	defer s.m.readers.RUnlock()
	v, err := s.view()
	if err == nil && v.table(s.table) != l.table {
		err = s.m.notFound(s.table)
	}
	if err != nil {
		return false, err
	}
	s.listed, done = l.rows.AppendKeys(s.listed, l.table.listEntries())
	return done, l.table.rows.Tier().Broken()
}

func (s *Scan) dropBelow(from rowraft.Key) {
	if from > 0 {
		s.listed = slices.DeleteFunc(s.listed, func(k rowraft.Key) bool { return k < from })
	}
}

// appendSorted appends a segment with the rows that list has read, in the order of their keys.
func (s *Scan) appendSorted(dst []byte) []byte {
	s.order = s.order[:0]
	for i := range s.listed {
		s.order = append(s.order, int32(i))
	}
	slices.SortFunc(s.order, func(a, b int32) int { return cmp.Compare(s.listed[a], s.listed[b]) })
	dst, _, body := s.segment(dst, len(s.listed))
	rowBytes := s.schema.Dim * s.dtype.Size()
	for to, from := range s.order {
		binary.LittleEndian.PutUint64(body.Keys[8*to:], uint64(s.listed[from]))
		copy(body.Values[to*rowBytes:(to+1)*rowBytes], s.values[int(from)*rowBytes:])
	}
	return dst
}

// segment appends a segment of n rows, which the caller fills.
func (s *Scan) segment(dst []byte, n int) ([]byte, wire.Segment, wire.Body) {
	seg := wire.Segment{Table: s.table, N: n, Dim: s.schema.Dim, DType: s.dtype}
	at := len(dst)
	dst = slices.Grow(dst, seg.Size())[:at+seg.Size()]
	return dst, seg, seg.Put(dst[at:])
}

// view returns the present view, or an error if the state was replaced since the scan began.
func (s *Scan) view() (*view, error) {
	v := s.m.view.Load()
	switch {
	case v.err != nil:
		return nil, v.err
	case v.of != s.of:
		return nil, rowraft.Errorf(rowraft.CodeStarting, "shard %d restored a snapshot during the scan: start a new scan",
			s.m.shard)
	case v.table(s.table) == nil:
		return nil, s.m.notFound(s.table)
	}
	return v, nil
}

// pull reads the rows of keys into values. If present is not nil, it sets the bits of the keys that
// have a row.
func (s *Scan) pull(keys []rowraft.Key, values, present []byte) error {
	seg := wire.Segment{Table: s.table, DType: s.dtype}
	rowBytes := s.schema.Dim * s.dtype.Size()
	for from := 0; from < len(keys); from += chunkRows { // chunkRows is a multiple of 8
		to := min(from+chunkRows, len(keys))
		out := wire.Body{Values: values[from*rowBytes : to*rowBytes]}
		if present != nil {
			out.Presence = present[from/8 : (to+7)/8]
		}
		if _, err := s.m.pullChunk(s.of, seg, keys[from:to], out); err != nil {
			return err
		}
	}
	return nil
}

// appendRows appends a segment with the rows of keys, without keys that have no row.
func (s *Scan) appendRows(dst []byte, keys []rowraft.Key) ([]byte, error) {
	at := len(dst)
	dst, seg, body := s.segment(dst, len(keys))
	present := make([]byte, (len(keys)+7)/8)
	if err := s.pull(keys, body.Values, present); err != nil {
		return dst[:at], err
	}
	rowBytes := seg.Dim * seg.DType.Size()
	n := 0
	for i, k := range keys {
		if present[i/8]>>(i%8)&1 == 0 {
			continue // deleted since its key was listed
		}
		binary.LittleEndian.PutUint64(body.Keys[8*n:], uint64(k))
		if n < i {
			copy(body.Values[n*rowBytes:], body.Values[i*rowBytes:(i+1)*rowBytes])
		}
		n++
	}
	switch n {
	case len(keys):
		return dst, nil
	case 0:
		return dst[:at], nil
	}
	// With fewer keys, the values start earlier in the segment.
	seg.N = n
	copy(dst[at+wire.SegmentHeaderSize+8*n:], body.Values[:n*rowBytes])
	seg.Put(dst[at : at+seg.Size()])
	return dst[:at+seg.Size()], nil
}
