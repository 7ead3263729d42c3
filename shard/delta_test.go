package shard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// deltaCluster is two shards that are saved while they are trained.
type deltaCluster struct {
	rt      *rapid.T
	count   rowraft.SlotCount
	shards  []*replica
	slots   [][]rowraft.Slot
	tables  []rowraft.Schema
	seq     rowraft.Seq
	removed bool // a row was deleted
	saved   map[string]savedFiles
	counter map[string]map[slotOf]uint64 // at each checkpoint
}

type savedFiles map[string][]byte

func (f savedFiles) Open(_ context.Context, name string) (io.ReadCloser, error) {
	b, ok := f[name]
	if !ok {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "no %s", name)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

type slotOf struct {
	table rowraft.TableID
	slot  rowraft.Slot
}

func newDeltaCluster(t *testing.T, rt *rapid.T) *deltaCluster {
	c := &deltaCluster{
		rt: rt, count: drawSlotCount(rt, "slots"), saved: map[string]savedFiles{}, counter: map[string]map[slotOf]uint64{},
		tables: []rowraft.Schema{testTable(1, "a", 2, adagrad), testTable(2, "b", 1, sgd)},
	}
	c.tables[1].Kind = rowraft.Dense // many rows share a slot
	c.tables[0].Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}
	c.addShards(t, 2)
	for _, r := range c.shards {
		r.create(c.tables...)
		r.mustOpen(1, 1)
	}
	return c
}

// addShards adds n empty shards. Each owns one of n blocks of 64 slots: the list of its slots in a manifest is short.
func (c *deltaCluster) addShards(t *testing.T, n int) {
	for shard := range n {
		var slots []rowraft.Slot
		for s := range c.count {
			if int(s/64)%n == shard {
				slots = append(slots, rowraft.Slot(s))
			}
		}
		m, err := New(Config{Shard: rowraft.ShardID(shard), SlotCount: c.count, Slots: slots})
		if err != nil {
			c.rt.Fatal(err)
		}
		c.rt.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		c.shards, c.slots = append(c.shards, &replica{Machine: m, tb: t, now: 1}), append(c.slots, slots)
	}
}

// change applies op to some keys of both tables.
func (c *deltaCluster) change(op wire.Op, keys []int) {
	c.seq++
	c.removed = c.removed || op == wire.OpDelete
	for i, r := range c.shards {
		var segments []rows
		for _, s := range c.tables {
			seg := rows{schema: s}
			if op == wire.OpDelete {
				seg.flags = wire.FlagNoValues
			}
			for _, k := range keys {
				key := rowraft.Key(k)
				if s.Kind == rowraft.Dense {
					key = rowraft.DenseKey(uint32(k%5), uint64(k))
				}
				if _, ok := slices.BinarySearch(c.slots[i], clustermap.SlotOf(s.ID, s.Kind, key, c.count)); ok {
					seg.keys = append(seg.keys, key)
				}
			}
			slices.Sort(seg.keys)
			if seg.keys = slices.Compact(seg.keys); len(seg.keys) > 0 {
				segments = append(segments, seg)
			}
		}
		if len(segments) == 0 {
			continue
		}
		part := push(1, c.seq, payloadOf(segments...))
		part.Op = op
		if res := r.parts(part); res[0].Err != nil {
			c.rt.Fatal(res[0].Err)
		}
	}
}

// during runs write and pushes at the same time.
type during struct {
	bytes.Buffer
	each func()
}

func (d *during) Write(b []byte) (int, error) {
	d.each()
	return d.Buffer.Write(b)
}

// save writes a checkpoint. Pushes during the write are not in it.
func (c *deltaCluster) save(name, parent string, meanwhile func()) {
	m := &checkpoint.Manifest{ID: "id-" + name, Cluster: "c", Epoch: 1, HashVers: 1, Slots: c.count}
	var base func(rowraft.TableID, rowraft.Slot) uint64
	if parent != "" {
		m.Parent = &checkpoint.Parent{Name: parent, ID: "id-" + parent}
		base = func(t rowraft.TableID, s rowraft.Slot) uint64 { return c.counter[parent][slotOf{t, s}] }
	}
	files := savedFiles{}
	counters := map[slotOf]uint64{}
	file := func(name string, b []byte) checkpoint.File {
		files[name] = b
		return checkpoint.File{Name: name, Bytes: int64(len(b)), SHA256: sha256.Sum256(b)}
	}
	var snaps []*Snapshot
	for _, r := range c.shards {
		snap, err := r.Snapshot()
		if err != nil {
			c.rt.Fatal(err)
		}
		defer snap.Release()
		snaps = append(snaps, snap)
	}
	for i, snap := range snaps {
		out := &during{each: meanwhile}
		var err error
		if base == nil {
			_, err = snap.WriteRows(out)
		} else {
			_, err = snap.WriteDelta(out, base)
		}
		if err != nil {
			c.rt.Fatal(err)
		}
		digest, err1 := snap.Digest()
		sums, err2 := snap.Sums()
		tables, err3 := snap.Tables()
		if err := errors.Join(err1, err2, err3); err != nil {
			c.rt.Fatal(err)
		}
		p := checkpoint.ShardFile{Shard: rowraft.ShardID(i), Applied: snap.Index(), Slots: c.slots[i], Digest: digest,
			Stream: file(fmt.Sprintf("%d.rows", i), out.Bytes())}
		for _, s := range sums {
			counters[slotOf{s.Table, s.Slot}] = s.Counter
		}
		p.Sums = file(fmt.Sprintf("%d.sums", i), checkpoint.EncodeSums(p.Shard, p.Applied, sums))
		for k, t := range tables {
			p.Rows, p.Written = p.Rows+t.Rows, p.Written+t.Written
			if len(m.Tables) == k {
				m.Tables = append(m.Tables, checkpoint.TableSum{Schema: t.Schema})
			}
			sum := &m.Tables[k]
			sum.Rows, sum.Written, sum.Digest = sum.Rows+t.Rows, sum.Written+t.Written, sum.Digest.Add(t.Digest)
		}
		m.Shards = append(m.Shards, p)
	}
	raw, err := m.Encode()
	if err != nil {
		c.rt.Fatal(err)
	}
	files[checkpoint.ManifestFile] = raw
	c.saved[name], c.counter[name] = files, counters
}

// read returns every record and candidate of a chain by table and key, and the number of rows written for it.
func (c *deltaCluster) read(name string) (map[string]string, uint64) {
	chain, err := checkpoint.OpenChain(context.Background(), func(n string) checkpoint.Files { return c.saved[n] }, name)
	if err != nil {
		c.rt.Fatal(err)
	}
	if _, err := chain.Verify(context.Background(), nil); err != nil {
		c.rt.Fatalf("%s: %v", name, err)
	}
	out := map[string]string{}
	for i := range chain.Manifest().Shards {
		_, err := chain.ReadShard(context.Background(), i, nil, func(b *checkpoint.Block) error {
			for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
				out[fmt.Sprintf("%d/%x", b.Table, rec[8:16])] = string(rec[:b.RecordBytes])
			}
			for w := b.Candidates; len(w) > 0; w = w[checkpoint.CandidateBytes:] {
				out[fmt.Sprintf("candidate %d/%x", b.Table, w[:8])] = string(w[:checkpoint.CandidateBytes])
			}
			return nil
		})
		if err != nil {
			c.rt.Fatal(err)
		}
	}
	return out, chain.Manifest().Written()
}

// TestDeltasMergeToTheState saves shards during training, first full and then as deltas, each together with
// a full checkpoint of the same index.
func TestDeltasMergeToTheState(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newDeltaCluster(t, rt)
		keys := rapid.SliceOfN(rapid.IntRange(0, 300), 1, 40)
		parent := ""
		for n := range rapid.IntRange(2, 4).Draw(rt, "checkpoints") {
			for range rapid.IntRange(0, 3).Draw(rt, "pushes") {
				c.change(rapid.SampledFrom([]wire.Op{wire.OpPush, wire.OpPush, wire.OpDelete}).Draw(rt, "op"),
					keys.Draw(rt, "keys"))
			}
			if len(c.tables) == 2 && rapid.IntRange(0, 5).Draw(rt, "drop") == 0 {
				for _, r := range c.shards {
					r.apply(wire.DropTableEntry(r.header(), c.tables[1].ID))
				}
				c.tables = c.tables[:1]
			}
			whole, name := fmt.Sprintf("whole%d", n), fmt.Sprintf("c%d", n)
			c.save(whole, "", func() {})
			want, all := c.read(whole)
			some, left := keys.Draw(rt, "meanwhile"), 20
			removed := c.removed
			c.removed = false
			c.save(name, parent, func() {
				if left--; left > 0 {
					c.change(wire.OpPush+wire.Op(left%2*2), some)
				}
			})
			got, written := c.read(name)
			if !maps.Equal(got, want) {
				rt.Fatalf("checkpoint %d: the chain has %d rows, the full checkpoint %d, and they differ", n, len(got), len(want))
			}
			if parent != "" {
				was, _ := c.read(parent)
				// A slot from which a row was removed is written whole.
				if changed := changes(was, want); written < changed || written > changed && !removed || written > all {
					rt.Fatalf("checkpoint %d: %d rows were written, %d had changed", n, written, changed)
				}
			}
			parent = name
		}
	})
}

// changes counts the rows that are new or have changed.
func changes(was, is map[string]string) (n uint64) {
	for k, rec := range is {
		if was[k] != rec && !strings.HasPrefix(k, "candidate") {
			n++
		}
	}
	return n
}

func TestADeltaToTheFutureIsRefused(t *testing.T) {
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	pushOnes(r, 1, 1, 2, 3)
	snap, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	_, err = snap.WriteDelta(io.Discard, func(rowraft.TableID, rowraft.Slot) uint64 { return 9 })
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument)
}

func TestADeltaIsNoSnapshotOfAShard(t *testing.T) {
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	pushOnes(r, 1, 1, 2, 3)
	snap, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	var b bytes.Buffer
	if _, err := snap.WriteDelta(&b, func(rowraft.TableID, rowraft.Slot) uint64 { return 0 }); err != nil {
		t.Fatal(err)
	}
	testutil.WantCode(t, newReplica(t, Config{}).Restore(&b), rowraft.CodeCorrupt)
}

// TestASlotThatChangesOnlyAfterTheCut: a delta contains nothing of a slot whose rows all change after the
// cut and before the walk reads it.
func TestASlotThatChangesOnlyAfterTheCut(t *testing.T) {
	r := newReplica(t, Config{})
	s := testTable(2, "t", 1, sgd)
	s.Kind = rowraft.Dense // its rows share a slot
	r.create(s)
	r.mustOpen(1, 1)
	keys := make([]rowraft.Key, 3*walkEntries)
	for i := range keys {
		keys[i] = rowraft.DenseKey(1, uint64(i))
	}
	later := false
	for tensor := range uint32(8) {
		keys = append(keys, rowraft.DenseKey(2+tensor, 0))
		later = later || clustermap.SlotOf(s.ID, s.Kind, keys[len(keys)-1], rowraft.DefaultSlots) > clustermap.SlotOf(s.ID,
			s.Kind, keys[0], rowraft.DefaultSlots)
	}
	if !later {
		t.Fatal("the walk goes to no slot after that")
	}
	seq := rowraft.Seq(0)
	all := func() {
		seq++
		if res := r.parts(push(1, seq, payloadOf(rows{schema: s, keys: keys}))); res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
	}
	all()
	snap, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	all()
	n, err := snap.WriteDelta(io.Discard, func(_ rowraft.TableID, slot rowraft.Slot) uint64 {
		if slot == clustermap.SlotOf(s.ID, s.Kind, keys[0], rowraft.DefaultSlots) {
			return 3 * walkEntries
		}
		return 1
	})
	tables, err2 := snap.Tables()
	if err := errors.Join(err, err2); err != nil || tables[0].Written != 0 {
		t.Errorf("%d bytes with %d rows, %v; want none", n, tables[0].Written, err)
	}
}
