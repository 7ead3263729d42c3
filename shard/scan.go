package shard

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

const (
	// A slot of at most wholeSlotBytes and wholeSlotRows is read while no entry is applied,
	// which takes less than a millisecond. The keys of a larger one, and then its rows, are
	// read in pieces beside the entries that are applied.
	wholeSlotBytes = 1 << 20
	wholeSlotRows  = 4096
	slotPieceBytes = 1 << 20
)

// Scan reads the rows of one table slot by slot, in ascending order of the keys. A
// slot is read at one moment, between two entries, unless its rows take more than
// wholeSlotBytes, or are more than wholeSlotRows; then each of its rows is whole, and they
// are those that were there when the first was read, less those deleted since, and perhaps
// some that were created since. One goroutine uses a Scan.
type Scan struct {
	m      *Machine
	st     *state // of the epoch in which the scan began
	table  rowraft.TableID
	dtype  rowraft.DType
	schema rowraft.Schema

	// keys are those of slot that are not yet read, ascending, if slot is one that is
	// read in pieces.
	keys []rowraft.Key
	slot rowraft.Slot

	// Of the slot that was taken up last.
	room   []rowraft.Key
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
	return &Scan{m: m, st: v.state, table: table, dtype: dtype, schema: t.schema}, nil
}

// Append appends to dst a segment with the rows of slot whose keys are from or
// above, or with a first piece of them, or nothing if there are none. done says
// that it was all; else next is what to go on from. The values and keys are those
// of package wire. dst has a length that is a multiple of 8.
//
// Errors: CodeWrongShard if the slot is not held here, CodeTableNotFound,
// CodeClosing; CodeStarting if the shard restored a snapshot meanwhile: another
// scan may go on from the same key.
func (s *Scan) Append(dst []byte, slot rowraft.Slot, from rowraft.Key) (out []byte, next rowraft.Key, done bool, err error) {
	if slot >= rowraft.NumSlots || !s.m.owned.has(slot) {
		return dst, from, false, rowraft.Errorf(rowraft.CodeWrongShard, "shard %d does not hold slot %d", s.m.shard, slot)
	}
	if len(s.keys) == 0 || s.slot != slot || s.keys[0] != from {
		if dst, done, err = s.open(dst, slot, from); err != nil || done {
			return dst, from, done, err
		}
	}
	n := min(len(s.keys), max(slotPieceBytes/s.rowBytes(), 1))
	if dst, err = s.piece(dst, s.keys[:n]); err != nil {
		s.keys = nil
		return dst, from, false, err
	}
	if s.keys = s.keys[n:]; len(s.keys) == 0 {
		return dst, from, true, nil
	}
	return dst, s.keys[0], false, nil
}

func (s *Scan) rowBytes() int { return 8 + s.schema.Dim*s.dtype.Size() }

// open takes up slot. If its rows from key from on are few it appends them all,
// and done is true; else their keys are in s.keys.
func (s *Scan) open(dst []byte, slot rowraft.Slot, from rowraft.Key) (out []byte, done bool, err error) {
	whole, err := s.take(slot, from)
	if err != nil {
		return dst, false, err
	}
	s.keys, s.slot = nil, slot
	switch {
	case len(s.room) == 0:
		return dst, true, nil
	case whole:
		return s.inOrder(dst), true, nil
	}
	s.keys = s.room
	return dst, false, nil
}

// take fills s.room with the keys of slot and, if they are few (whole), s.values
// with their rows, both at one moment and as they come: sorting can wait until
// entries are applied again.
func (s *Scan) take(slot rowraft.Slot, from rowraft.Key) (whole bool, err error) {
	var l slotListing
	defer l.end()
	if whole, err = s.takeWhole(&l, slot, from); whole || err != nil {
		return whole, err
	}
	s.room = s.room[:0]
	for done := false; !done && err == nil; {
		done, err = s.takeSome(&l)
	}
	s.arrange(from)
	return false, err
}

// arrange sorts the keys that were listed. One that was deleted and came again meanwhile may
// have been listed twice.
func (s *Scan) arrange(from rowraft.Key) {
	s.dropBelow(from)
	slices.Sort(s.room)
	s.room = slices.Compact(s.room)
}

// takeWhole takes a slot of few rows, or begins to list another one.
func (s *Scan) takeWhole(l *slotListing, slot rowraft.Slot, from rowraft.Key) (whole bool, err error) {
	s.m.entry.Lock()
	defer s.m.entry.Unlock()
	v, err := s.view()
	if err != nil {
		return false, err
	}
	t := v.table(s.table)
	s.m.life.RLock()
	rows := t.rows.SlotRows(slot)
	l.begin(t, slot)
	s.m.life.RUnlock()
	if rows*s.rowBytes() > wholeSlotBytes || l.rows.Entries() > 4*wholeSlotRows || rows > wholeSlotRows {
		return false, nil
	}
	s.room = s.room[:0]
	for done := false; !done && err == nil; {
		done, err = s.takeSome(l)
	}
	if err != nil {
		return false, err
	}
	s.dropBelow(from)
	n := len(s.room) * s.schema.Dim * s.dtype.Size()
	s.values = slices.Grow(s.values[:0], n)[:n]
	return true, s.pull(s.room, s.values, nil)
}

// takeSome appends the next keys of l to s.room, beside entries that are applied.
func (s *Scan) takeSome(l *slotListing) (done bool, err error) {
	s.m.life.RLock()
	defer s.m.life.RUnlock()
	v, err := s.view()
	if err == nil && v.table(s.table) != l.table {
		err = s.m.notFound(s.table)
	}
	if err != nil {
		return false, err
	}
	s.room, done = l.rows.AppendKeys(s.room, listEntries)
	return done, nil
}

func (s *Scan) dropBelow(from rowraft.Key) {
	if from > 0 {
		s.room = slices.DeleteFunc(s.room, func(k rowraft.Key) bool { return k < from })
	}
}

// inOrder appends a segment with what take has read.
func (s *Scan) inOrder(dst []byte) []byte {
	s.order = s.order[:0]
	for i := range s.room {
		s.order = append(s.order, int32(i))
	}
	slices.SortFunc(s.order, func(a, b int32) int { return cmp.Compare(s.room[a], s.room[b]) })
	dst, _, body := s.segment(dst, len(s.room))
	rowBytes := s.schema.Dim * s.dtype.Size()
	for to, from := range s.order {
		binary.LittleEndian.PutUint64(body.Keys[8*to:], uint64(s.room[from]))
		copy(body.Values[to*rowBytes:(to+1)*rowBytes], s.values[int(from)*rowBytes:])
	}
	return dst
}

// segment appends a segment of n rows, which the caller fills in.
func (s *Scan) segment(dst []byte, n int) ([]byte, wire.Segment, wire.Body) {
	seg := wire.Segment{Table: s.table, N: n, Dim: s.schema.Dim, DType: s.dtype}
	at := len(dst)
	dst = slices.Grow(dst, seg.Size())[:at+seg.Size()]
	return dst, seg, seg.Put(dst[at:])
}

// view is that of the state which the scan began in.
func (s *Scan) view() (*view, error) {
	v := s.m.view.Load()
	switch {
	case v.err != nil:
		return nil, v.err
	case v.state != s.st:
		return nil, rowraft.Errorf(rowraft.CodeStarting, "shard %d restored a snapshot during the scan", s.m.shard)
	case v.table(s.table) == nil:
		return nil, s.m.notFound(s.table)
	}
	return v, nil
}

// pull reads the rows of keys into values and, unless present is nil, sets which of
// them are there.
func (s *Scan) pull(keys []rowraft.Key, values, present []byte) error {
	seg := wire.Segment{Table: s.table, DType: s.dtype}
	rowBytes := s.schema.Dim * s.dtype.Size()
	for from := 0; from < len(keys); from += chunkRows { // a multiple of 8
		to := min(from+chunkRows, len(keys))
		var some []byte
		if present != nil {
			some = present[from/8 : (to+7)/8]
		}
		if err := s.m.pullChunk(s.st, seg, keys[from:to], values[from*rowBytes:to*rowBytes], some); err != nil {
			return err
		}
	}
	return nil
}

// piece appends a segment with those of keys that are there.
func (s *Scan) piece(dst []byte, keys []rowraft.Key) ([]byte, error) {
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
			continue // deleted since its key was taken
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
	// The keys are fewer, so the values move down.
	seg.N = n
	copy(dst[at+wire.SegmentHeaderSize+8*n:], body.Values[:n*rowBytes])
	seg.Put(dst[at : at+seg.Size()])
	return dst[:at+seg.Size()], nil
}
