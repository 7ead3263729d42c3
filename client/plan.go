package client

import (
	"encoding/binary"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

// Segment is the part of a call for one table: Keys, and Values with len(Keys) × dim float32, row-major.
// The caller owns both.
type Segment struct {
	Table  *Table
	Keys   []rowraft.Key
	Values []float32

	// LR replaces the table's learning rate for this push; 0: the table's rate.
	LR float32

	Reuse Reuse // lets Pull take rows from copies of earlier pulls

	// Present, if not nil, has len(Keys) places. Pull sets those of the keys that have been pushed or
	// assigned. A segment with Present or Applied uses no copies.
	Present []bool

	// Applied, if not nil, receives a lower bound of the applied index that the rows of each shard reflect.
	// Pull clears it first.
	Applied map[rowraft.ShardID]rowraft.Index

	part *part // of a pull: its rows; nil: all
}

// part is those rows of a segment that are pulled.
type part struct {
	rows []int32 // indices into the segment, ascending

	// versions, if not nil, receives the version of each row of the segment. If known is set, it has those of the rows
	// that are in Values, of epoch: a row with that version is not sent again.
	versions  []uint32
	known     bool
	epoch     rowraft.TableEpoch // equal for all segments of a pull
	unchanged int                // rows that were not sent
}

// check reports why s cannot be used for op; 0 is a pull.
func (s *Segment) check(op wire.Op) error {
	switch {
	case s.Table == nil:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "segment without a table")
	case op == wire.OpDelete && (len(s.Values) > 0 || s.LR != 0):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: a delete takes keys only, no values and no learning rate", s.Table.schema.Name)
	case op == wire.OpDelete:
		return nil
	}
	if len(s.Values) != len(s.Keys)*s.Table.schema.Dim {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: %d keys × dim %d need %d values, got %d",
			s.Table.schema.Name, len(s.Keys), s.Table.schema.Dim, len(s.Keys)*s.Table.schema.Dim, len(s.Values))
	}
	if s.Present != nil && len(s.Present) != len(s.Keys) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: %d keys, Present has %d places", s.Table.schema.Name,
			len(s.Keys), len(s.Present))
	}
	return nil
}

func (s *Segment) row(i int32) []float32 {
	d := s.Table.schema.Dim
	return s.Values[int(i)*d : (int(i)+1)*d]
}

// segmentRows are the rows of one segment that go into one request, as ascending indices into the segment.
type segmentRows struct {
	seg       *Segment
	rows      []int32
	unchanged int // of the reply to a pull
}

// request is one message to one shard, with rows of one segment or more.
type request struct {
	shard    rowraft.ShardID
	segments []segmentRows

	applied rowraft.Index // of the reply to a pull
	met     Freshness     // likewise
	epoch   rowraft.TableEpoch
}

// byShard groups the rows of a segment by shard, in the caller's order:
// rows[start[s]:start[s+1]] belong to shard s.
func byShard(m *clustermap.Map, s *Segment) (rows []int32, start []int32) {
	some := s.part != nil
	n := len(s.Keys)
	if some {
		n = len(s.part.rows)
	}
	shards := make([]uint16, n)
	start = make([]int32, len(m.Shards)+1)
	for i := range shards {
		k := i
		if some {
			k = int(s.part.rows[i])
		}
		sh := uint16(m.ShardOfHash(s.Table.hash(s.Keys[k])))
		shards[i] = sh
		start[int(sh)+1]++
	}
	for i := range m.Shards {
		start[i+1] += start[i]
	}
	rows = make([]int32, n)
	next := slices.Clone(start)
	for i, sh := range shards {
		row := int32(i)
		if some {
			row = s.part.rows[i]
		}
		rows[next[sh]] = row
		next[sh]++
	}
	return rows, start
}

// load is the size of a row, or of a request, in bytes in each direction.
type load struct{ sent, received int }

// rowsLeft returns how many rows of load per fit into limit after used.
func (limit load) rowsLeft(used, per load) int {
	n := (limit.sent - used.sent) / max(per.sent, 1)
	if per.received > 0 {
		n = min(n, (limit.received-used.received)/per.received)
	}
	return n
}

// plan cuts segments into requests: every row goes to its shard, and no request
// has more than rowraft.MaxKeysPerPart rows or is above limit, unless it is a single row.
// perRow returns the load of one row of a segment.
func plan(m *clustermap.Map, segs []Segment, perRow func(*Segment) load, limit load) []request {
	type lastRequest struct {
		in   int // index+1 in out of the shard's last request, which may not be full; 0: none
		used load
		rows int
	}
	var out []request
	open := make([]lastRequest, len(m.Shards))
	header := load{wire.SegmentHeaderSize, wire.SegmentHeaderSize}
	for si := range segs {
		s := &segs[si]
		rows, start := byShard(m, s)
		per := perRow(s)
		for sh := range m.Shards {
			o := &open[sh]
			for mine := rows[start[sh]:start[sh+1]]; len(mine) > 0; {
				used := load{o.used.sent + header.sent, o.used.received + header.received}
				n := min(limit.rowsLeft(used, per), rowraft.MaxKeysPerPart-o.rows)
				if o.in == 0 || n <= 0 {
					out = append(out, request{shard: rowraft.ShardID(sh)})
					*o, used = lastRequest{in: len(out)}, header
					n = max(min(limit.rowsLeft(used, per), rowraft.MaxKeysPerPart), 1)
				}
				n = min(n, len(mine))
				r := &out[o.in-1]
				r.segments = append(r.segments, segmentRows{seg: s, rows: mine[:n:n]})
				o.used = load{used.sent + n*per.sent, used.received + n*per.received}
				o.rows += n
				mine = mine[n:]
			}
		}
	}
	return out
}

// encode returns the payload of the request (docs/formats/payload.md). A pull, for which op is 0, and a delete have
// keys and no values.
func (r *request) encode(op wire.Op, dtype rowraft.DType) []byte {
	size := 0
	for i := range r.segments {
		size += r.segments[i].header(op, dtype).Size()
	}
	payload := rpc.Pool.Bytes(size)
	at := 0
	for i := range r.segments {
		p := &r.segments[i]
		s := p.header(op, dtype)
		body := s.Put(payload[at : at+s.Size()])
		keys := p.seg.Keys
		for j, row := range p.rows {
			binary.LittleEndian.PutUint64(body.Keys[8*j:], uint64(keys[row]))
		}
		if s.Flags&wire.FlagKnown != 0 {
			for j, row := range p.rows {
				binary.LittleEndian.PutUint32(body.Known[wire.VersionBytes*j:], p.seg.part.versions[row])
			}
		}
		if s.Flags&wire.FlagNoValues == 0 {
			p.putValues(body.Values, dtype)
		}
		at += s.Size()
	}
	return payload
}

// header returns the header of the rows in a request of op; 0 is a pull.
func (p *segmentRows) header(op wire.Op, dtype rowraft.DType) wire.Segment {
	s := wire.Segment{Table: p.seg.Table.schema.ID, N: len(p.rows), Dim: p.seg.Table.schema.Dim, DType: dtype}
	switch {
	case op == 0 || op == wire.OpDelete:
		s.Flags = wire.FlagNoValues | p.seg.versionFlags()
	case p.seg.LR != 0:
		s.Flags, s.LR = wire.FlagLR, p.seg.LR
	}
	return s
}

// versionFlags returns the flags of a pull of s that ask for versions.
func (s *Segment) versionFlags() uint8 {
	switch {
	case s.part == nil || s.part.versions == nil:
		return 0
	case s.part.known:
		return wire.FlagVersions | wire.FlagKnown
	}
	return wire.FlagVersions
}

// contiguous returns the values of the rows, if the rows are neighbours in the segment: one copy suffices then. A loop
// over runs of neighbours would serve both cases, and takes a third more time for rows that are not neighbours.
func (p *segmentRows) contiguous() (values []float32, ok bool) {
	first, last := int(p.rows[0]), int(p.rows[len(p.rows)-1])
	if last-first != len(p.rows)-1 { // rows ascend
		return nil, false
	}
	d := p.seg.Table.schema.Dim
	return p.seg.Values[first*d : (last+1)*d], true
}

func (p *segmentRows) putValues(dst []byte, dtype rowraft.DType) {
	if values, ok := p.contiguous(); ok {
		wire.PutFloats(dst, dtype, values)
		return
	}
	rowBytes := p.seg.Table.schema.Dim * dtype.Size()
	for j, i := range p.rows {
		wire.PutFloats(dst[j*rowBytes:(j+1)*rowBytes], dtype, p.seg.row(i))
	}
}

func (p *segmentRows) getValues(src []byte, dtype rowraft.DType) {
	if values, ok := p.contiguous(); ok {
		wire.GetFloats(values, dtype, src)
		return
	}
	rowBytes := p.seg.Table.schema.Dim * dtype.Size()
	for j, i := range p.rows {
		wire.GetFloats(p.seg.row(i), dtype, src[j*rowBytes:(j+1)*rowBytes])
	}
}

// getVersions copies the rows of a reply with versions, and their versions. Rows that are unchanged stay.
func (p *segmentRows) getVersions(got wire.Segment, body wire.Body) {
	src, rowBytes := body.Values, got.RowBytes()
	for j, i := range p.rows {
		if body.Unchanged[j/8]>>(j%8)&1 != 0 {
			continue
		}
		p.seg.part.versions[i] = binary.LittleEndian.Uint32(src)
		wire.GetFloats(p.seg.row(i), got.DType, src[wire.VersionBytes:rowBytes])
		src = src[rowBytes:]
	}
	p.unchanged = got.Unchanged
}
