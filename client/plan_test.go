package client

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

func testTable(id rowraft.TableID, dim int) *Table {
	return &Table{schema: rowraft.Schema{ID: id, Name: fmt.Sprintf("t%d", id), Kind: rowraft.Sparse, Dim: dim},
		seed: clustermap.TableSeed(id), slots: rowraft.DefaultSlots}
}

// TestPlanPutsEveryRowOnce checks that a plan sends each row once, to its shard, in the caller's order, and
// that a request over the limit has one row only.
func TestPlanPutsEveryRowOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.SampledFrom([]rowraft.SlotCount{rowraft.DefaultSlots, 16384, rowraft.MaxSlots}).Draw(t, "slots")
		shards := min(rapid.SampledFrom([]int{1, 2, 4, 16, 1024, clustermap.MaxShards}).Draw(t, "shards"),
			clustermap.ShardLimit(slots))
		m := clustermap.Map{Version: 1}
		for i := range shards {
			m.Shards = append(m.Shards, clustermap.Shard{ID: rowraft.ShardID(i)})
		}
		cm, err := clustermap.New(m, clustermap.EvenSlots(shards, slots))
		if err != nil {
			t.Fatal(err)
		}
		var segs []Segment
		for i := range rapid.IntRange(1, 3).Draw(t, "segments") {
			keys := rapid.SliceOfN(rapid.Uint64(), 0, 200).Draw(t, "keys")
			s := Segment{Table: testTable(rowraft.TableID(i+1), 1+i*3)}
			s.Table.slots = slots
			for _, k := range keys {
				s.Keys = append(s.Keys, rowraft.Key(k))
			}
			segs = append(segs, s)
		}
		per := func(s *Segment) load { return load{8, 4 * s.Table.Dim()} }
		limit := load{rapid.IntRange(50, 5000).Draw(t, "limit"), rapid.IntRange(50, 5000).Draw(t, "reply limit")}
		seen := make(map[*Segment][]int32)
		last := make(map[string]int32)
		for _, r := range plan(cm, segs, per, limit) {
			rows, used := 0, load{}
			for _, p := range r.segments {
				for _, row := range p.rows {
					if got := cm.ShardOf(p.seg.Table.Slot(p.seg.Keys[row])); got != r.shard {
						t.Fatalf("row %d of shard %d went to shard %d", row, got, r.shard)
					}
					at := fmt.Sprintf("%p %d", p.seg, r.shard)
					if prev, ok := last[at]; ok && prev >= row {
						t.Fatalf("row %d comes after row %d", row, prev)
					}
					last[at] = row
				}
				seen[p.seg] = append(seen[p.seg], p.rows...)
				rows += len(p.rows)
				used.sent += wire.SegmentHeaderSize + len(p.rows)*per(p.seg).sent
				used.received += wire.SegmentHeaderSize + len(p.rows)*per(p.seg).received
			}
			if rows > 1 && (used.sent > limit.sent || used.received > limit.received) {
				t.Fatalf("a request of %d rows has %+v bytes, limit %+v", rows, used, limit)
			}
		}
		for i := range segs {
			got := seen[&segs[i]]
			slices.Sort(got)
			if len(got) != len(segs[i].Keys) {
				t.Fatalf("segment %d: %d of %d rows are in the plan", i, len(got), len(segs[i].Keys))
			}
			for j, row := range got {
				if row != int32(j) {
					t.Fatalf("segment %d: row %d is missing or doubled", i, j)
				}
			}
		}
	})
}

// A server accepts each request of any pull.
func TestPullsAreWithinAServersLimits(t *testing.T) {
	cm, err := clustermap.New(clustermap.Map{Version: 1, Shards: []clustermap.Shard{{ID: 0}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name          string
		segments, dim int
		keys          int // of each segment
	}{
		{"a narrow table", 1, 1, 600_000},
		{"two narrow tables", 2, 1, 200_000},
		{"a wide table", 1, rowraft.MaxDim, 4000},
		{"many segments of one row", 200_000, 1, 1},
	} {
		keys := make([]rowraft.Key, tc.keys)
		segs := make([]Segment, tc.segments)
		for i := range segs {
			segs[i] = Segment{Table: testTable(rowraft.TableID(i+1), tc.dim), Keys: keys}
		}
		rows := 0
		for _, r := range planPull(cm, segs, rowraft.Float32) {
			n, asked, given := 0, 0, 0
			for i := range r.segments {
				s := r.segments[i].header(0, rowraft.Float32)
				n += s.N
				asked += s.Size()
				s.Flags = wire.FlagNoKeys | wire.FlagPresence
				given += s.Size()
			}
			if n > rowraft.MaxKeysPerPart || asked > rowraft.MaxEntryBytes || given > rpc.MaxReplyBytes {
				t.Errorf("%s: a request of %d keys has %d bytes and a reply of %d", tc.name, n, asked, given)
			}
			rows += n
		}
		if rows != tc.segments*tc.keys {
			t.Errorf("%s: %d of %d rows are asked for", tc.name, rows, tc.segments*tc.keys)
		}
	}
}

func TestBadSegmentsAreRefusedHere(t *testing.T) {
	cm, err := clustermap.New(clustermap.Map{Version: 1, Shards: []clustermap.Shard{{ID: 0}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	table := testTable(1, 2)
	largest := math.Float32frombits(0x7f7f8000 - 1) // largest number that rounds to a finite bfloat16
	for _, tc := range []struct {
		name  string
		dtype rowraft.DType
		seg   Segment
		ok    bool
	}{
		{"no table", rowraft.Float32, Segment{Keys: []rowraft.Key{1}, Values: []float32{1, 2}}, false},
		{"too few values", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1}}, false},
		{"NaN", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, float32(math.NaN())}},
			false},
		{"infinity", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1},
			Values: []float32{float32(math.Inf(1)), 0}}, false},
		{"minus infinity as bfloat16", rowraft.BFloat16,
			Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{0, float32(math.Inf(-1))}}, false},
		{"the largest number", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1},
			Values: []float32{-math.MaxFloat32, math.MaxFloat32}}, true},
		{"a number that bfloat16 rounds to infinity", rowraft.BFloat16,
			Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{0, -math.MaxFloat32}}, false},
		{"the smallest such number", rowraft.BFloat16, Segment{Table: table, Keys: []rowraft.Key{1},
			Values: []float32{0, math.Nextafter32(largest, math.MaxFloat32)}}, false},
		{"the largest number for bfloat16", rowraft.BFloat16,
			Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{-largest, largest}}, true},
		{"a sum that is infinite", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1, 1},
			Values: []float32{3e38, 0, 3e38, 0}}, false},
		{"negative learning rate", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, 2},
			LR: -1}, false},
		{"NaN learning rate", rowraft.Float32, Segment{Table: table, Keys: []rowraft.Key{1}, Values: []float32{1, 2},
			LR: float32(math.NaN())}, false},
	} {
		_, err := planPush(cm, wire.OpPush, []Segment{tc.seg}, tc.dtype)
		if tc.ok && err != nil || !tc.ok && rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v", tc.name, err)
		}
		if math.IsInf(float64(math.Float32frombits(uint32(wire.BFloat16(largest))<<16)), 0) {
			t.Fatalf("%v rounds to infinity", largest)
		}
	}
	if _, err := planPush(cm, wire.OpPush, []Segment{{Table: table}, {Table: testTable(2, 2)}, {Table: table}},
		rowraft.Float32); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a table in two segments: %v, want CodeInvalidArgument", err)
	}
}
