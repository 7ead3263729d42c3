package node

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// mean averages the parts of a step (docs/formats/steps.md): per key the gradients
// in the order of the parts, divided by the number of contributors. It gives out
// pieces of limit bytes as they are full, and allocates nothing per row.
type mean struct {
	divisor float32 // contributors
	limit   int     // bytes of a piece
	// afterTable, afterKey are the last row that is in an earlier piece; table 0: none.
	afterTable rowraft.TableID
	afterKey   rowraft.Key

	segments []meanSegment
	heap     []meanSegment // of one table, those with rows left; the lowest row first

	payload []byte          // whole segments of the piece under construction
	open    wire.Segment    // the one behind them: keys and values
	keys    []rowraft.Key   // of open
	values  []float32       // likewise
	row     []float32       // scratch for a gradient that is added
	lastTab rowraft.TableID // of the last row put into a piece
	lastKey rowraft.Key
}

// meanSegment is a segment of a part, and how far it was read.
type meanSegment struct {
	wire.Segment
	body  wire.Body
	order int // of the part: by rank, then fragment
	at    int // next row
	key   rowraft.Key
}

// meanPiece is what goes into one entry. The payload is valid until the next one.
type meanPiece struct {
	payload    []byte
	last       bool
	afterTable rowraft.TableID
	afterKey   rowraft.Key
}

// add takes in the next part in the order of addition. It keeps payload, whose
// segments are those of a push.
func (m *mean) add(payload []byte, order int) error {
	for len(payload) > 0 {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		if seg.N > 0 {
			m.segments = append(m.segments, meanSegment{Segment: seg, body: body, order: order, key: body.Key(0)})
		}
	}
	return nil
}

// pieces calls emit with each piece, the last one included, which may be empty.
func (m *mean) pieces(emit func(meanPiece) error) error {
	slices.SortFunc(m.segments, func(a, b meanSegment) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.order, b.order))
	})
	m.lastTab, m.lastKey = m.afterTable, m.afterKey
	for from := 0; from < len(m.segments); {
		to := from + 1
		for to < len(m.segments) && m.segments[to].Table == m.segments[from].Table {
			to++
		}
		if err := m.table(m.segments[from:to], emit); err != nil {
			return err
		}
		from = to
	}
	return m.flush(true, emit)
}

// table merges the segments of one table.
func (m *mean) table(segments []meanSegment, emit func(meanPiece) error) error {
	m.open = wire.Segment{Table: segments[0].Table, Dim: segments[0].Dim, DType: rowraft.Float32, Flags: segments[0].Flags, LR: segments[0].LR}
	m.heap = m.heap[:0]
	for i := range segments {
		if m.skip(&segments[i]) {
			m.heap = append(m.heap, segments[i])
		}
	}
	for i := len(m.heap)/2 - 1; i >= 0; i-- {
		m.sift(i)
	}
	m.row = slices.Grow(m.row[:0], m.open.Dim)[:m.open.Dim]
	for len(m.heap) > 0 {
		if size := len(m.payload) + m.openSize(1); size > m.limit && (len(m.keys) > 0 || len(m.payload) > 0) || len(m.keys) >= rowraft.MaxKeysPerPart {
			if err := m.flush(false, emit); err != nil {
				return err
			}
		}
		m.putRow()
	}
	m.endSegment()
	return nil
}

// skip passes over the rows of earlier pieces and reports whether some are left.
func (m *mean) skip(s *meanSegment) bool {
	switch {
	case s.Table > m.afterTable:
		return true
	case s.Table < m.afterTable:
		return false
	}
	for s.at < s.N && s.body.Key(s.at) <= m.afterKey {
		s.at++
	}
	if s.at == s.N {
		return false
	}
	s.key = s.body.Key(s.at)
	return true
}

// putRow moves the lowest key of the heap into the open segment.
func (m *mean) putRow() {
	key, first := m.heap[0].key, true
	at := len(m.values)
	m.values = slices.Grow(m.values, m.open.Dim)[:at+m.open.Dim]
	sum := m.values[at:]
	for len(m.heap) > 0 && m.heap[0].key == key {
		s := &m.heap[0]
		rowBytes := s.Dim * s.DType.Size()
		src := s.body.Values[s.at*rowBytes : (s.at+1)*rowBytes]
		if first {
			wire.GetFloats(sum, s.DType, src)
			first = false
		} else {
			wire.GetFloats(m.row, s.DType, src)
			for i, v := range m.row {
				sum[i] += v
			}
		}
		m.advance()
	}
	for i, v := range sum {
		switch {
		case v > math.MaxFloat32:
			sum[i] = math.MaxFloat32
		case v < -math.MaxFloat32:
			sum[i] = -math.MaxFloat32
		default:
			sum[i] = v / m.divisor
		}
	}
	m.keys = append(m.keys, key)
	m.lastTab, m.lastKey = m.open.Table, key
}

// advance moves the first segment of the heap to its next row.
func (m *mean) advance() {
	s := &m.heap[0]
	if s.at++; s.at < s.N {
		s.key = s.body.Key(s.at)
	} else {
		last := len(m.heap) - 1
		m.heap[0] = m.heap[last]
		m.heap = m.heap[:last]
	}
	m.sift(0)
}

// sift moves the segment at i down to its place in the heap.
func (m *mean) sift(i int) {
	less := func(a, b *meanSegment) bool { return a.key < b.key || a.key == b.key && a.order < b.order }
	for {
		low := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(m.heap); child++ {
			if less(&m.heap[child], &m.heap[low]) {
				low = child
			}
		}
		if low == i {
			return
		}
		m.heap[i], m.heap[low] = m.heap[low], m.heap[i]
		i = low
	}
}

// openSize is what the open segment takes with so many rows more.
func (m *mean) openSize(more int) int {
	s := m.open
	s.N = len(m.keys) + more
	return s.Size()
}

// endSegment puts the open segment behind the others of the piece.
func (m *mean) endSegment() {
	if len(m.keys) == 0 {
		return
	}
	m.open.N = len(m.keys)
	at, size := len(m.payload), m.open.Size()
	m.payload = slices.Grow(m.payload, size)[:at+size]
	body := m.open.Put(m.payload[at:])
	for i, k := range m.keys {
		binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(k))
	}
	wire.PutFloats(body.Values, rowraft.Float32, m.values)
	m.keys, m.values = m.keys[:0], m.values[:0]
}

// flush gives out the piece under construction.
func (m *mean) flush(last bool, emit func(meanPiece) error) error {
	m.endSegment()
	p := meanPiece{payload: m.payload, last: last, afterTable: m.afterTable, afterKey: m.afterKey}
	m.payload = m.payload[:0]
	m.afterTable, m.afterKey = m.lastTab, m.lastKey
	return emit(p)
}
