package packer

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

const (
	// maxSumBytes bounds the part of a sum. It is larger than TargetEntryBytes, as a part of one client may be.
	maxSumBytes = 1 << 20
	// A sum must save this share of the bytes of its pushes. Below it the log gains less than the search for equal keys
	// costs.
	minSavedShare = 0.125
	// A sample must show this share: a search that finds too little is lost.
	minSampledShare = 0.15
	// sampledKeys is about how many keys, of all tables together, decide whether a search for all equal keys is worth it.
	sampledKeys = 256
	// groupTries is how many groups with other learning rates a push tries to join, so that many small pushes cost no
	// more than their number.
	groupTries = 8

	hashFactor = 0x9E3779B97F4A7C15 // 2^64 / the golden ratio: the upper bits of a product depend on all bits of a key
)

// SumTables reports whether a table sums pushes, and whether its rows then need counts (docs/formats/entry.md).
type SumTables func(rowraft.TableID) (sums, counts bool)

// summer replaces pushes by their sums. The goroutine pack owns it. Its scratch grows to the rows of one group.
type summer struct {
	tables SumTables // nil: no table sums
	recent overlap

	sample []uint64
	lanes  []lane
	tree   []contender
	to     []uint32 // for each row of the lanes of a table, its row in the sum
	keys   []uint64 // of all tables of the sum
	counts []byte   // of one table
	row    []float32
}

// segment is a segment of a push whose table sums pushes.
type segment struct {
	wire.Segment
	body   wire.Body
	counts bool
}

// segments notes w and returns its segments if it may be summed, else nil.
func (s *summer) segments(w *queuedPart) (list []segment) {
	if s.tables == nil {
		return nil
	}
	list = s.parse(w)
	s.recent.note(&w.part, list)
	return list
}

// parse returns the segments of w if it may be summed, else nil.
func (s *summer) parse(w *queuedPart) (list []segment) {
	if w.part.Op != wire.OpPush {
		return nil
	}
	for payload := w.part.Payload; len(payload) > 0; {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return nil
		}
		sums, counts := s.tables(seg.Table)
		if !sums {
			return nil
		}
		list = append(list, segment{seg, body, counts})
		payload = rest
	}
	return list
}

// group is pushes of different clients that may be summed.
type group struct {
	parts []*queuedPart
	byID  map[rowraft.TableID]rate
}

// rate is the learning rate of a segment.
type rate struct {
	flags uint8
	lr    float32
}

// take adds w to g unless g has another learning rate for one of its tables.
// REQUIRES: g is not full and has no push of w's client.
func (g *group) take(w *queuedPart) bool {
	for i := range w.segments {
		seg := &w.segments[i]
		if r, ok := g.byID[seg.Table]; ok && r != (rate{seg.Flags, seg.LR}) {
			return false
		}
	}
	for i := range w.segments {
		g.byID[w.segments[i].Table] = rate{w.segments[i].Flags, w.segments[i].LR}
	}
	g.parts = append(g.parts, w)
	return true
}

// join adds w to one of groups from number from on, or to a new one, and returns the number of its group.
func join(groups []*group, from int, w *queuedPart) (all []*group, at int) {
	for tries := 0; from < len(groups) && tries < groupTries; from++ {
		if len(groups[from].parts) == wire.MaxContributors { // few groups are
			continue
		}
		if groups[from].take(w) {
			return groups, from
		}
		tries++
	}
	g := &group{byID: make(map[rowraft.TableID]rate)}
	g.take(w)
	return append(groups, g), len(groups)
}

// items returns what the log gets for parts: sums where they are worth it, and else the parts as they are.
func (s *summer) items(parts []*queuedPart) (list []item) {
	var groups []*group
	after := make(map[rowraft.ClientID]int) // number of the first group after all those with a push of the client
	for _, w := range parts {
		if w.segments == nil || len(parts) == 1 {
			list = append(list, item{part: &w.part, pushes: []*queuedPart{w}})
			continue
		}
		var at int
		groups, at = join(groups, after[w.part.Client], w)
		after[w.part.Client] = at + 1
	}
	for _, g := range groups {
		slices.SortFunc(g.parts, func(a, b *queuedPart) int { return bytes.Compare(a.part.Client[:], b.part.Client[:]) })
		list = s.sum(list, g.parts)
	}
	return list
}

// sum appends the sum of parts to list, or the sums of their halves if it would be too large, or the parts.
// REQUIRES: parts are of one group, ascending by client.
func (s *summer) sum(list []item, parts []*queuedPart) []item {
	size := 0
	for _, w := range parts {
		size += w.part.Size()
	}
	if len(parts) > 1 {
		switch estimate := s.estimate(parts); {
		case float64(estimate) > (1-minSampledShare)*float64(size):
		case estimate > maxSumBytes && len(parts) > 3:
			return s.sum(s.sum(list, parts[:len(parts)/2]), parts[len(parts)/2:])
		default:
			if p := s.add(parts, size); p != nil {
				return append(list, item{part: p, pushes: parts, saved: size - p.Size()})
			}
		}
	}
	for _, w := range parts {
		list = append(list, item{part: &w.part, pushes: []*queuedPart{w}})
	}
	return list
}

// eachTable calls f with the segments of each table that has rows, in the order of parts.
func (s *summer) eachTable(parts []*queuedPart, f func(lanes []lane)) {
	s.lanes = s.lanes[:0]
	for _, w := range parts {
		for i := range w.segments {
			if seg := &w.segments[i]; seg.N > 0 {
				s.lanes = append(s.lanes, lane{segment: seg})
			}
		}
	}
	slices.SortStableFunc(s.lanes, func(a, b lane) int {
		switch {
		case a.Table < b.Table:
			return -1
		case a.Table > b.Table:
			return 1
		}
		return 0
	})
	for from := 0; from < len(s.lanes); {
		to := from + 1
		for to < len(s.lanes) && s.lanes[to].Table == s.lanes[from].Table {
			to++
		}
		f(s.lanes[from:to])
		from = to
	}
}

// estimate returns about how many bytes the sum of parts takes, from a sample of the keys: those whose hash begins
// with zeros. A key is in the sample of all pushes or of none, so the sample shows how many pushes have it.
func (s *summer) estimate(parts []*queuedPart) int {
	rows := 0
	for _, w := range parts {
		for i := range w.segments {
			rows += w.segments[i].N
		}
	}
	shift := 64 - bits.Len(uint(rows/sampledKeys))
	heads, all, sampled, different := 0, 0, 0, 0 // bytes of segment headers, of rows, and of rows in the sample
	s.eachTable(parts, func(lanes []lane) {
		seg := sumSegment(lanes)
		heads += seg.Size()
		s.sample = s.sample[:0]
		for i := range lanes {
			seg.N += lanes[i].N
			for at := range lanes[i].N {
				if key := uint64(lanes[i].body.Key(at)); key*hashFactor>>shift == 0 {
					s.sample = append(s.sample, key)
				}
			}
		}
		perRow := 8 + seg.RowBytes()
		all += seg.N * perRow
		sampled += len(s.sample) * perRow
		slices.Sort(s.sample)
		different += len(slices.Compact(s.sample)) * perRow
	})
	if sampled == 0 {
		return math.MaxInt
	}
	return wire.SumOverhead(len(parts)) + heads + int(float64(all)*float64(different)/float64(sampled))
}

// sumSegment returns the segment of the sum of lanes, without the number of rows.
func sumSegment(lanes []lane) wire.Segment {
	seg := wire.Segment{Table: lanes[0].Table, Dim: lanes[0].Dim, DType: rowraft.Float32, Flags: lanes[0].Flags,
		LR: lanes[0].LR}
	if lanes[0].counts {
		seg.Flags |= wire.FlagCounts
	}
	return seg
}

// add returns the sum of parts, or nil if it does not save enough of their size, or is not finite.
func (s *summer) add(parts []*queuedPart, size int) *wire.Part {
	s.keys, s.to = s.keys[:0], s.to[:0]
	var segs []wire.Segment
	sumSize, rows := 0, 0
	s.eachTable(parts, func(lanes []lane) {
		first := len(s.keys)
		s.merge(lanes)
		seg := sumSegment(lanes)
		seg.N = len(s.keys) - first
		segs = append(segs, seg)
		sumSize += seg.Size()
		rows += seg.N
	})
	if float64(sumSize+wire.SumOverhead(len(parts))) > (1-minSavedShare)*float64(size) || rows > rowraft.MaxKeysPerPart {
		return nil
	}
	list := make([]*wire.Part, len(parts))
	for i, w := range parts {
		list[i] = &w.part
	}
	buf := rpc.Pool.Bytes(wire.SumOverhead(len(parts)) + sumSize)
	p, room := wire.SumPart(buf[:0], list, sumSize)
	finite, keys, to := true, s.keys, s.to
	s.eachTable(parts, func(lanes []lane) {
		seg := segs[0]
		segs = segs[1:]
		n := seg.Size()
		body := seg.Put(room[:n:n])
		room = room[n:]
		for i, key := range keys[:seg.N] {
			binary.LittleEndian.PutUint64(body.Keys[8*i:], key)
		}
		keys = keys[seg.N:]
		to = s.addRows(lanes, to, body.Values, seg.N)
		copy(body.Counts, s.counts)
		finite = finite && wire.CheckFinite(seg, body.Values) == nil
	})
	if !finite {
		rpc.Pool.Release(p.Payload)
		return nil
	}
	return &p
}

// addRows writes the sums of the rows of lanes to values, and how many rows each sums to s.counts. The start of to has
// the place of each row, as merge found it; addRows returns the rest.
func (s *summer) addRows(lanes []lane, to []uint32, values []byte, n int) (rest []uint32) {
	s.counts = slices.Grow(s.counts[:0], n)[:n]
	clear(s.counts)
	dim := lanes[0].Dim
	s.row = slices.Grow(s.row[:0], 2*dim)[:2*dim]
	for l := range lanes {
		from, dt := lanes[l].body.Values, lanes[l].DType
		rowBytes := dim * dt.Size()
		for _, at := range to[:lanes[l].N] {
			out := values[4*dim*int(at):][:4*dim]
			switch {
			case s.counts[at] == 0 && dt == rowraft.Float32:
				copy(out, from)
			case s.counts[at] == 0:
				wire.Widen(out, from[:rowBytes])
			default:
				sum, row := wire.Floats(s.row[:dim], rowraft.Float32, out), wire.Floats(s.row[dim:], dt, from)
				for i, v := range row {
					sum[i] += v
				}
				if &sum[0] == &s.row[0] {
					wire.PutFloats(out, rowraft.Float32, sum)
				}
			}
			s.counts[at]++
			from = from[rowBytes:]
		}
		to = to[lanes[l].N:]
	}
	return to
}
