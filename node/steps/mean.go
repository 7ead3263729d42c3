package steps

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// pieceBytes is the size from which a piece ends. The rest of an entry is for its header and for the positions.
const pieceBytes = rowraft.TargetEntryBytes - 4096

// Mean averages the parts of a step. For each key it adds the gradients in the order of the parts and divides by the
// number of contributors. It emits pieces as they fill, and allocates nothing per row.
type Mean struct {
	Divisor float32 // number of contributors
	// AfterTable and AfterKey are the last row that an earlier piece contains; table 0: none.
	AfterTable rowraft.TableID
	AfterKey   rowraft.Key

	segments []cursor
	heap     []cursor // of one table, those with rows left; a heap by key

	payload []byte          // complete segments of the current piece
	open    wire.Segment    // the segment after them, with keys and values below
	keys    []rowraft.Key   // of open
	values  []float32       // of open
	row     []float32       // scratch for one gradient
	lastTab rowraft.TableID // table of the last row that was put into a piece
	lastKey rowraft.Key
}

// cursor is a position in a segment of a part: the next row to add.
type cursor struct {
	wire.Segment
	body  wire.Body
	order int // position of the part in the order of addition: by rank, then fragment
	at    int // next row
	key   rowraft.Key
}

// Piece is the content of one entry: the rows after (AfterTable, AfterKey). Payload is valid until the next piece.
type Piece struct {
	Payload    []byte
	Last       bool
	AfterTable rowraft.TableID
	AfterKey   rowraft.Key
}

// Add adds the next payload, in the order of addition. It keeps payload, whose segments have the form of a push.
func (m *Mean) Add(payload []byte, order int) error {
	for len(payload) > 0 {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		if seg.N > 0 {
			m.segments = append(m.segments, cursor{Segment: seg, body: body, order: order, key: body.Key(0)})
		}
	}
	return nil
}

// Pieces calls emit for each piece. The last piece may be empty.
func (m *Mean) Pieces(emit func(Piece) error) error {
	slices.SortFunc(m.segments, func(a, b cursor) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.order, b.order))
	})
	m.lastTab, m.lastKey = m.AfterTable, m.AfterKey
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
func (m *Mean) table(segments []cursor, emit func(Piece) error) error {
	m.open = wire.Segment{Table: segments[0].Table, Dim: segments[0].Dim, DType: rowraft.Float32, Flags: segments[0].Flags,
		LR: segments[0].LR}
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
		if size := len(m.payload) + m.openSize(1); size > pieceBytes && (len(m.keys) > 0 || len(m.payload) > 0) ||
			len(m.keys) >= rowraft.MaxKeysPerPart {
			if err := m.flush(false, emit); err != nil {
				return err
			}
		}
		m.putRow()
	}
	m.endSegment()
	return nil
}

// skip moves past the rows of earlier pieces and reports whether rows are left.
func (m *Mean) skip(s *cursor) bool {
	switch {
	case s.Table > m.AfterTable:
		return true
	case s.Table < m.AfterTable:
		return false
	}
	for s.at < s.N && s.body.Key(s.at) <= m.AfterKey {
		s.at++
	}
	if s.at == s.N {
		return false
	}
	s.key = s.body.Key(s.at)
	return true
}

// putRow moves the lowest key of the heap into the open segment.
func (m *Mean) putRow() {
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
			sum[i] = v / m.Divisor
		}
	}
	m.keys = append(m.keys, key)
	m.lastTab, m.lastKey = m.open.Table, key
}

// advance moves the first segment of the heap to its next row.
func (m *Mean) advance() {
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
func (m *Mean) sift(i int) {
	less := func(a, b *cursor) bool { return a.key < b.key || a.key == b.key && a.order < b.order }
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

// openSize returns the size of the open segment with the given number of additional rows.
func (m *Mean) openSize(more int) int {
	s := m.open
	s.N = len(m.keys) + more
	return s.Size()
}

// endSegment appends the open segment to the current piece.
func (m *Mean) endSegment() {
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

// flush emits the current piece.
func (m *Mean) flush(last bool, emit func(Piece) error) error {
	m.endSegment()
	p := Piece{Payload: m.payload, Last: last, AfterTable: m.AfterTable, AfterKey: m.AfterKey}
	m.payload = m.payload[:0]
	m.AfterTable, m.AfterKey = m.lastTab, m.lastKey
	return emit(p)
}
