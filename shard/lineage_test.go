package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// streamTables are tables in which rows are created and removed for every possible reason.
var streamTables = func() []rowraft.Schema {
	drawn := testTable(61, "drawn", 3, sgd)
	drawn.Admission = rowraft.Admission{Kind: rowraft.AdmitProbability, Probability: 0.4}
	drawn.Capacity, drawn.Storage = rowraft.Capacity{Rows: 9 * rowraft.DefaultSlots, Evict: rowraft.EvictLRU},
		rowraft.BFloat16
	frequent := testTable(62, "frequent", 3, adagrad)
	frequent.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	frequent.Capacity = rowraft.Capacity{Rows: 3 * rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
	frequent.Expire, frequent.Storage = 40, rowraft.BFloat16
	passing := testTable(63, "passing", 2, adam)
	passing.Admission, passing.Expire = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}, 20
	return []rowraft.Schema{drawn, frequent, passing}
}()

// crowds are keys of each table that share three slots, so that these become full.
var crowds = func() map[rowraft.TableID][]rowraft.Key {
	out := make(map[rowraft.TableID][]rowraft.Key)
	for _, s := range streamTables {
		for k := rowraft.Key(0); len(out[s.ID]) < 70; k++ {
			if slot := clustermap.SlotOf(s.ID, s.Kind, k, rowraft.DefaultSlots); slot >= 9 && slot < 12 {
				out[s.ID] = append(out[s.ID], k)
			}
		}
	}
	return out
}()

// act is a change in every shard of a cluster, some seconds after the previous one.
type act struct {
	seconds uint64
	op      wire.Op // 0: sweep
	from, n int     // range of the keys of each crowd
	salt    int     // varies the values
	sweep   wire.Sweep
}

func drawAct(rt *rapid.T) act {
	a := act{
		seconds: uint64(rapid.SampledFrom([]int{0, 0, 1, 3, 15}).Draw(rt, "seconds")),
		op: rapid.SampledFrom([]wire.Op{wire.OpPush, wire.OpPush, wire.OpPush, wire.OpPush, wire.OpAssign,
			wire.OpDelete, 0}).Draw(rt, "op"),
		from: rapid.IntRange(0, 69).Draw(rt, "from"), n: rapid.IntRange(1, 30).Draw(rt, "keys"),
		salt: rapid.IntRange(0, 8).Draw(rt, "salt"),
	}
	if a.op == 0 {
		s := rapid.SampledFrom(streamTables).Draw(rt, "table")
		a.sweep = wire.Sweep{Table: s.ID, Slots: rowraft.DefaultSlots, Conditions: wire.SweepUnseen,
			Unseen: rapid.Uint32Range(0, 30).Draw(rt, "unseen")}
		if s.Expire > 0 {
			a.sweep.Conditions, a.sweep.Unseen = wire.SweepExpire, 0
		}
		if rapid.Bool().Draw(rt, "rare ones") {
			a.sweep.Conditions, a.sweep.Unseen, a.sweep.Count = wire.SweepCount, 0, 3
		}
	}
	return a
}

// do applies a.
func (c *deltaCluster) do(a act) {
	c.seq++
	for i, r := range c.shards {
		r.now += a.seconds * 1_000_000_000
		if a.op == 0 {
			if res := r.apply(wire.SweepEntry(r.header(), &a.sweep)).Parts[0]; res.Err != nil {
				c.rt.Fatal(res.Err)
			}
			continue
		}
		var segments []rows
		for _, s := range c.tables {
			seg := rows{schema: s}
			if a.op == wire.OpDelete {
				seg.flags = wire.FlagNoValues
			}
			crowd := crowds[s.ID]
			for _, k := range crowd[a.from:min(len(crowd), a.from+a.n)] {
				if _, ok := slices.BinarySearch(c.slots[i], clustermap.SlotOf(s.ID, s.Kind, k, rowraft.DefaultSlots)); ok {
					seg.keys = append(seg.keys, k)
					for d := range s.Dim {
						seg.values = append(seg.values, float32((int(k)+d+a.salt)%9-4)/4)
					}
				}
			}
			if len(seg.keys) > 0 {
				segments = append(segments, seg)
			}
		}
		part := push(1, c.seq, payloadOf(segments...))
		part.Op = a.op
		if res := r.parts(part)[0]; res.Err != nil || res.Duplicate {
			c.rt.Fatalf("%+v", res)
		}
	}
}

// content is everything that the shards hold, independent of the number of shards and of the time: rows and
// candidates with their ages, and counters of slots.
func (c *deltaCluster) content() map[string]string {
	out := make(map[string]string)
	for _, r := range c.shards {
		rd, err := checkpoint.NewReader(bytes.NewReader(r.snapshot()))
		if err != nil {
			c.rt.Fatal(err)
		}
		tick := rowraft.TickOf(r.LogTime())
		for {
			b, err := rd.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				c.rt.Fatal(err)
			}
			s, _ := r.Table(b.Table)
			out[fmt.Sprintf("%s slot %d", s.Name, b.Slot.Slot)] = fmt.Sprint(b.Counter)
			for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
				age := uint32(0)
				if s.Tracked() {
					age = tick - le.Uint32(rec)
				}
				out[fmt.Sprintf("%s key %d", s.Name, le.Uint64(rec[8:]))] = fmt.Sprintf("age %d, %x", age, rec[4:b.RecordBytes])
			}
			for w := b.Candidates; len(w) > 0; w = w[checkpoint.CandidateBytes:] {
				out[fmt.Sprintf("%s key %d waits", s.Name, le.Uint64(w))] = fmt.Sprintf("age %d, count %d",
					tick-le.Uint32(w[12:]), le.Uint32(w[8:]))
			}
		}
	}
	return out
}

// same compares two clusters.
func (c *deltaCluster) same(o *deltaCluster, when string) {
	c.rt.Helper()
	got, want := o.content(), c.content()
	if maps.Equal(got, want) {
		return
	}
	for k, v := range want {
		if got[k] != v {
			c.rt.Errorf("%s: %s: %q, want %q", when, k, got[k], v)
		}
	}
	c.rt.Fatalf("%s: %d entries, want %d", when, len(got), len(want))
}

// restored returns a cluster of count slots and n shards into which a checkpoint of c was restored when the log time of
// the cluster was now.
func (c *deltaCluster) restored(t *testing.T, name string, count rowraft.SlotCount, n int, now uint64) *deltaCluster {
	to := &deltaCluster{rt: c.rt, count: count, saved: map[string]savedFiles{}, counter: map[string]map[slotOf]uint64{},
		tables: c.tables}
	to.addShards(t, n)
	ctx := context.Background()
	chain, err := checkpoint.OpenChain(ctx, func(n string) checkpoint.Files { return c.saved[n] }, name)
	if err != nil {
		c.rt.Fatal(err)
	}
	var ticks []uint32
	for i := range chain.Manifest().Shards {
		at, err := chain.LogTime(ctx, i)
		if err != nil {
			c.rt.Fatal(err)
		}
		ticks = append(ticks, rowraft.TickOf(at))
	}
	id := wire.RestoreID{1}
	closes := make([]wire.RestoreClose, n)
	step := func(shard int, entry []byte) {
		if err := to.shards[shard].apply(entry).Parts[0].Err; err != nil {
			c.rt.Fatal(err)
		}
	}
	for shard, r := range to.shards {
		r.now = now
		closes[shard] = wire.RestoreClose{ID: id, Epoch: 2}
		step(shard, wire.RestoreBeginEntry(r.header(),
			&wire.RestoreBegin{ID: id, Epoch: 2, Tables: c.tables, Base: slices.Max(ticks)}))
	}
	piece := rapid.IntRange(1, 9).Draw(c.rt, "rows of a chunk")
	for i := range chain.Manifest().Shards {
		route := func(b *checkpoint.Block) error {
			shard := int(b.Slot.Slot/64) % n // as addShards divides them
			block := wire.RestoreBlock{Table: b.Table, Slot: b.Slot.Slot, Counter: b.Counter, RecordBytes: b.RecordBytes}
			if at := slices.IndexFunc(c.tables, func(s rowraft.Schema) bool { return s.ID == b.Table }); c.tables[at].Tracked() {
				block.Tick = ticks[i]
			}
			records, size := b.Records, piece*b.RecordBytes
			if b.Candidates != nil {
				block.Candidates, block.RecordBytes, records, size = true, checkpoint.CandidateBytes, b.Candidates,
					len(b.Candidates)
			}
			w := &closes[shard]
			w.Rows += uint64(b.Rows)
			for rec := records; len(rec) > 0; rec = rec[block.RecordBytes:] {
				digest := checkpoint.RecordDigest
				if block.Candidates {
					digest = checkpoint.CandidateDigest
				}
				w.Digest = checkpoint.Digest(w.Digest).Add(digest(rec[:block.RecordBytes]))
			}
			for first := true; first || len(records) > 0; first = false {
				block.Records = records[:min(size, len(records))]
				records = records[len(block.Records):]
				block.Rows = len(block.Records) / block.RecordBytes
				closes[shard].Chunks++
				step(shard, wire.RestoreRowsEntry(to.shards[shard].header(), id, closes[shard].Chunks,
					wire.AppendRestoreBlock(nil, &block)))
			}
			return nil
		}
		_, err := chain.ReadShard(ctx, i, nil, func(b *checkpoint.Block) error {
			at := slices.IndexFunc(c.tables, func(s rowraft.Schema) bool { return s.ID == b.Table })
			return checkpoint.Regroup(b, &c.tables[at], c.count, count, route)
		})
		if err != nil {
			c.rt.Fatal(err)
		}
	}
	for shard, r := range to.shards {
		step(shard, wire.RestoreCloseEntry(r.header(), &closes[shard]))
		r.now = r.LogTime()
		r.mustOpen(1, 1)
	}
	return to
}

// TestARestoredClusterGoesOnAsItsSource: rows are admitted, evicted, expired, swept and deleted in a
// cluster that is saved as a chain of deltas. The last state is restored into a different number of shards
// at a different time. Both clusters then get the same changes and stay equal, including ages, counts and
// candidates.
func TestARestoredClusterGoesOnAsItsSource(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := &deltaCluster{rt: rt, count: rowraft.DefaultSlots, saved: map[string]savedFiles{},
			counter: map[string]map[slotOf]uint64{},
			tables:  streamTables}
		c.addShards(t, 2)
		for i, r := range c.shards { // each shard has a different time
			r.now = uint64(rapid.IntRange(1, 50).Draw(rt, "time")+100*i) * 1_000_000_000
			r.create(c.tables...)
			r.mustOpen(1, 1)
		}
		name, parent := "", ""
		for n := range rapid.IntRange(1, 4).Draw(rt, "checkpoints") {
			for range rapid.IntRange(1, 6).Draw(rt, "acts") {
				c.do(drawAct(rt))
			}
			parent, name = name, fmt.Sprintf("c%d", n)
			c.save(name, parent, func() {})
		}
		shards := rapid.SampledFrom([]int{1, 2, 3}).Draw(rt, "shards")
		to := c.restored(t, name, c.count, shards, uint64(rapid.SampledFrom([]int{1, 60, 1000}).Draw(rt,
			"restored at"))*1_000_000_000)
		c.same(to, "restored")
		var later []act
		for range rapid.IntRange(1, 8).Draw(rt, "later acts") {
			a := drawAct(rt)
			later = append(later, a)
			c.do(a)
			if rapid.IntRange(0, 3).Draw(rt, "install") == 0 { // a snapshot transfers the state
				r := to.shards[0]
				if err := r.Restore(bytes.NewReader(r.snapshot())); err != nil {
					rt.Fatal(err)
				}
			}
			to.do(a)
		}
		c.same(to, fmt.Sprintf("after %+v", later))
		if rapid.IntRange(0, 3).Draw(rt, "saved again") > 0 {
			return
		}
		to.save("full", "", func() {})
		to.do(drawAct(rt))
		to.save("delta", "full", func() {})
		to.save("again", "", func() {})
		got, _ := to.read("delta")
		if want, _ := to.read("again"); !maps.Equal(got, want) {
			rt.Errorf("a delta in the restored cluster has %d rows and candidates, want the same %d", len(got), len(want))
		}
	})
}
