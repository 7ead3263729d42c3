package rowstore

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/optim"
)

// model is a naive second implementation of the table: a Go map, one row at a time.
type model struct {
	schema   rowraft.Schema
	rows     map[rowraft.Key]modelRow
	versions map[rowraft.Slot]uint64
	removed  map[rowraft.Slot]uint64
}

type modelRow struct {
	version uint64
	numbers []float32
}

func (r modelRow) clone() modelRow {
	return modelRow{r.version, append([]float32(nil), r.numbers...)}
}

func newModel(s rowraft.Schema) *model {
	return &model{schema: s, rows: map[rowraft.Key]modelRow{}, versions: map[rowraft.Slot]uint64{},
		removed: map[rowraft.Slot]uint64{}}
}

func (m *model) clone() *model {
	c := newModel(m.schema)
	for k, r := range m.rows {
		c.rows[k] = r.clone()
	}
	maps.Copy(c.versions, m.versions)
	maps.Copy(c.removed, m.removed)
	return c
}

func (m *model) slot(key rowraft.Key) rowraft.Slot {
	return clustermap.SlotOf(m.schema.ID, m.schema.Kind, key, rowraft.DefaultSlots)
}

func (m *model) initial(key rowraft.Key) []float32 {
	w := make([]float32, m.schema.Dim)
	optim.Init(m.schema.Initializer, key, w)
	m.round(w)
	return w
}

// round rounds each number of w to the nearer of the two bfloat16 values around it, by their distances.
func (m *model) round(w []float32) {
	if m.schema.Storage != rowraft.BFloat16 {
		return
	}
	for i, v := range w {
		down := math.Float32bits(v) &^ 0xFFFF
		below, above := math.Float32frombits(down), math.Float32frombits(down+1<<16)
		toBelow, toAbove := math.Abs(float64(v)-float64(below)), math.Abs(float64(above)-float64(v))
		if w[i] = below; toAbove < toBelow || toAbove == toBelow && down>>16%2 == 1 {
			w[i] = above
		}
	}
}

func (m *model) weights(key rowraft.Key) []float32 {
	if r, ok := m.rows[key]; ok {
		return r.numbers[:m.schema.Dim]
	}
	return m.initial(key)
}

// change runs f on the row of key and gives it the next version.
func (m *model) change(key rowraft.Key, pushed bool, f func(w, state []float32)) {
	dim := m.schema.Dim
	r, ok := m.rows[key]
	if !ok {
		r.numbers = m.initial(key)
		switch m.schema.Optimizer.Kind {
		case rowraft.Adagrad:
			for range dim {
				r.numbers = append(r.numbers, m.schema.Optimizer.InitialAccumulator)
			}
		case rowraft.Adam:
			r.numbers = append(r.numbers, make([]float32, 2*dim)...)
			r.numbers = append(r.numbers, 1, 1)
		}
	}
	f(r.numbers[:dim], r.numbers[dim:])
	if pushed && m.schema.Storage == rowraft.BFloat16 {
		rule, _ := optim.New(m.schema.Optimizer)
		rule.RoundPush(key, r.numbers[:dim]) // its own tests are in optim
	}
	m.round(r.numbers[:dim])
	slot := m.slot(key)
	m.versions[slot]++
	r.version = m.versions[slot]
	m.rows[key] = r
}

func (m *model) update(key rowraft.Key, g []float32, lr float32) {
	o := m.schema.Optimizer
	m.change(key, true, func(w, st []float32) {
		n := len(w)
		if o.Kind == rowraft.Adam {
			st[2*n] = float32(st[2*n] * o.Beta1)
			st[2*n+1] = float32(st[2*n+1] * o.Beta2)
		}
		for i := range w {
			switch o.Kind {
			case rowraft.SGD:
				w[i] -= float32(lr * g[i])
			case rowraft.Adagrad:
				st[i] += float32(g[i] * g[i])
				w[i] -= float32(lr*g[i]) / (float32(math.Sqrt(float64(st[i]))) + o.Epsilon)
			case rowraft.Adam:
				st[i] = float32(o.Beta1*st[i]) + float32((1-o.Beta1)*g[i])
				st[n+i] = float32(o.Beta2*st[n+i]) + float32((1-o.Beta2)*float32(g[i]*g[i]))
				mHat, vHat := st[i]/(1-st[2*n]), st[n+i]/(1-st[2*n+1])
				w[i] -= float32(lr*mHat) / (float32(math.Sqrt(float64(vHat))) + o.Epsilon)
			}
		}
	})
}

func (m *model) assign(key rowraft.Key, v []float32) {
	m.change(key, false, func(w, _ []float32) { copy(w, v) })
}

func (m *model) delete(key rowraft.Key) {
	if _, ok := m.rows[key]; ok {
		delete(m.rows, key)
		slot := m.slot(key)
		m.versions[slot]++
		m.removed[slot] = m.versions[slot]
	}
}

// record returns the row in the bytes of the package comment.
func (m *model) record(key rowraft.Key) []byte {
	r := m.rows[key]
	b := make([]byte, 8)
	b = binary.LittleEndian.AppendUint64(b, uint64(key))
	b = binary.LittleEndian.AppendUint64(b, r.version)
	if m.schema.Storage != rowraft.BFloat16 {
		return appendFloats(b, r.numbers)
	}
	for _, v := range r.numbers[:m.schema.Dim] {
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(v)>>16))
	}
	return appendFloats(append(b, make([]byte, len(b)%4)...), r.numbers[m.schema.Dim:])
}

// digests hashes every row from scratch.
func (m *model) digests() map[rowraft.Slot]Digest {
	d := map[rowraft.Slot]Digest{}
	for key := range m.rows {
		h := xxh3.Hash128(m.record(key)[8:])
		s := m.slot(key)
		d[s] = d[s].Add(Digest{Hi: h.Hi, Lo: h.Lo})
	}
	return d
}

func appendFloats(b []byte, v []float32) []byte {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func testSchema(kind rowraft.TableKind, opt rowraft.OptimizerKind, dim int) rowraft.Schema {
	s := rowraft.Schema{
		ID: 0x5EED5EED5EED, Name: "test", Kind: kind, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitNormal, Seed: 7, NameHash: 0x9d3ab1f0c2e45768, B: 0.1},
		Optimizer:   rowraft.Optimizer{Kind: opt, LR: 0.1},
	}
	switch opt {
	case rowraft.Adagrad, rowraft.RowWiseAdagrad:
		s.Optimizer.InitialAccumulator, s.Optimizer.Epsilon = 0.1, 1e-8
	case rowraft.Adam:
		s.Optimizer.Beta1, s.Optimizer.Beta2, s.Optimizer.Epsilon = 0.9, 0.999, 1e-8
	case rowraft.FTRL:
		s.Optimizer.Beta = 1
	}
	return s
}

func mustNew(tb testing.TB, s rowraft.Schema) *Table {
	tb.Helper()
	table, err := New(Options{Schema: s})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := table.Close(); err != nil {
			tb.Error(err)
		}
	})
	return table
}

// checkAgainst compares every key, version, state and digest of the table with the model's.
func checkAgainst(tb rapid.TB, table *Table, m *model) {
	tb.Helper()
	if table.Rows() != len(m.rows) {
		tb.Fatalf("table has %d rows, want %d", table.Rows(), len(m.rows))
	}
	for key := range m.rows {
		slot, tag := table.index.locate(key)
		r, ok := stored(table, slot, tag, key)
		if !ok {
			tb.Fatalf("key %d is not in the table", key)
		}
		if got, want := r, string(m.record(key)); got != want {
			tb.Fatalf("key %d: record %x, want %x", key, got, want)
		}
	}
	var sum Digest
	digests := m.digests()
	for slot := range m.versions {
		digests[slot] = digests[slot].Add(Digest{}) // include slots without rows
	}
	for slot, want := range digests {
		if got := table.SlotCounts(slot).Digest; got != want {
			tb.Fatalf("slot %d: digest %v, want %v recomputed from its rows", slot, got, want)
		}
		sum = sum.Add(want)
	}
	if got := table.Digest(); got != sum {
		tb.Fatalf("digest %v, want %v", got, sum)
	}
}

// TestTableAgainstModel runs random pushes, assigns, pulls and snapshots on a table and on a Go map. The
// test reads a snapshot in several calls with updates between them; the result must equal the model at the
// begin, bit for bit.
func TestTableAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		kind := rapid.SampledFrom([]rowraft.TableKind{rowraft.Sparse, rowraft.Dense}).Draw(rt, "kind")
		opt := rapid.SampledFrom([]rowraft.OptimizerKind{rowraft.SGD, rowraft.Adagrad, rowraft.Adam}).Draw(rt, "optimizer")
		dim := rapid.SampledFrom([]int{1, 3, 8, 16, 70}).Draw(rt, "dim")
		schema := testSchema(kind, opt, dim)
		schema.Storage = rapid.SampledFrom([]rowraft.DType{0, rowraft.Float32, rowraft.BFloat16}).Draw(rt, "storage")
		table, err := New(Options{Schema: schema})
		if err != nil {
			rt.Fatal(err)
		}
		if rapid.Bool().Draw(rt, "tiered") {
			withTier(table, uint64(rapid.IntRange(1, 40_000).Draw(rt, "memory")))
		}
		defer table.Close()
		table.index.longest = rapid.SampledFrom([]int{minSegment, 4 * minSegment, maxSegment}).Draw(rt, "longest segment")
		m := newModel(schema)
		// The dense keys of two tensors fall into two slots, so segments grow there.
		keyGen := rapid.Custom(func(rt *rapid.T) rowraft.Key {
			if kind == rowraft.Dense {
				return rowraft.DenseKey(uint32(rapid.IntRange(0, 1).Draw(rt, "tensor")),
					uint64(rapid.IntRange(0, 150).Draw(rt, "row")))
			}
			return rowraft.Key(rapid.IntRange(0, 300).Draw(rt, "key"))
		})
		numbers := func(n int) []float32 {
			seed := rapid.Uint64().Draw(rt, "numbers")
			v := make([]float32, n)
			for i := range v {
				seed = clustermap.Mix64(seed + 1)
				v[i] = float32(int64(seed)>>40) / 1e6
			}
			return v
		}

		type running struct {
			*Snapshot
			begin *model
			base  map[rowraft.Slot]uint64 // counters of an earlier begin; empty for a full snapshot
			slot  rowraft.Slot
			bytes []byte
		}
		var snaps [MaxSnapshots]*running
		last := map[rowraft.Slot]uint64{}
		rt.Repeat(map[string]func(*rapid.T){
			"update": func(rt *rapid.T) {
				keys := rapid.SliceOfN(keyGen, 0, 150).Draw(rt, "keys")
				g := numbers(len(keys) * dim)
				if err := table.Update(keys, appendFloats(nil, g), rowraft.Float32, 0.1); err != nil {
					rt.Fatal(err)
				}
				for i, k := range keys {
					m.update(k, g[i*dim:(i+1)*dim], 0.1)
				}
			},
			"assign": func(rt *rapid.T) {
				keys := rapid.SliceOfN(keyGen, 0, 10).Draw(rt, "keys")
				v := numbers(len(keys) * dim)
				if err := table.Assign(keys, appendFloats(nil, v), rowraft.Float32); err != nil {
					rt.Fatal(err)
				}
				for i, k := range keys {
					m.assign(k, v[i*dim:(i+1)*dim])
				}
			},
			"delete": func(rt *rapid.T) {
				keys := rapid.SliceOfN(keyGen, 0, rapid.SampledFrom([]int{3, 150}).Draw(rt, "most")).Draw(rt, "keys")
				if err := table.Delete(keys); err != nil {
					rt.Fatal(err)
				}
				for _, k := range keys {
					m.delete(k)
				}
			},
			"pull": func(rt *rapid.T) {
				keys := rapid.SliceOfN(keyGen, 0, 150).Draw(rt, "keys")
				got := make([]byte, len(keys)*dim*4)
				present := make([]byte, (len(keys)+7)/8)
				if err := table.Pull(keys, got, rowraft.Float32, present); err != nil {
					rt.Fatal(err)
				}
				for i, k := range keys {
					if want := appendFloats(nil, m.weights(k)); string(got[i*dim*4:(i+1)*dim*4]) != string(want) {
						rt.Fatalf("pull of key %d: %x, want %x", k, got[i*dim*4:(i+1)*dim*4], want)
					}
					if _, want := m.rows[k]; present[i/8]>>(i%8)&1 != 0 != want {
						rt.Fatalf("key %d: presence %v, want %v", k, !want, want)
					}
				}
			},
			"snapshot": func(rt *rapid.T) {
				which := rapid.IntRange(0, MaxSnapshots-1).Draw(rt, "which")
				s := snaps[which]
				if s == nil {
					snap, err := table.BeginSnapshot()
					if err != nil {
						rt.Fatal(err)
					}
					snaps[which] = &running{Snapshot: snap, begin: m.clone()}
					if !rapid.Bool().Draw(rt, "whole") {
						snaps[which].base = last
					}
					return
				}
				for range rapid.IntRange(1, 3000).Draw(rt, "pieces") {
					var done bool
					s.bytes, done = s.AppendSlotSince(s.bytes, s.slot, s.base[s.slot],
						rapid.SampledFrom([]int{1, 7, 40, 1000}).Draw(rt, "entries"))
					if done {
						s.slot++
					}
					if s.slot == rowraft.DefaultSlots {
						if len(s.base) == 0 {
							checkSnapshot(rt, s.Snapshot, s.bytes, s.begin)
						} else {
							checkDelta(rt, table.RecordBytes(), s.base, s.bytes, s.begin)
						}
						last = s.begin.versions
						if err := s.End(); err != nil {
							rt.Fatal(err)
						}
						snaps[which] = nil
						return
					}
				}
			},
			"move": func(rt *rapid.T) {
				if table.Tier() == nil {
					rt.Skip("no tier")
				}
				moveRows(rt, table.Tier(), rapid.SliceOfN(keyGen, 0, 40).Draw(rt, "in"), rapid.IntRange(0, 3).Draw(rt, "out"))
			},
			"check": func(rt *rapid.T) {
				slot := m.slot(keyGen.Draw(rt, "key"))
				most := rapid.SampledFrom([]int{64, 4096}).Draw(rt, "most")
				for range rapid.IntRange(1, 9).Draw(rt, "steps") {
					if _, _, ok := table.CheckSlot(slot, most); !ok {
						rt.Fatalf("the check of slot %d found damage", slot)
					}
				}
			},
			"list": func(rt *rapid.T) {
				slot := m.slot(keyGen.Draw(rt, "key"))
				l := table.List(slot)
				defer l.End()
				keys, done := l.AppendKeys(nil, 1<<30)
				want := 0
				for k := range m.rows {
					if m.slot(k) == slot {
						want++
					}
				}
				slices.Sort(keys)
				if keys = slices.Compact(keys); !done || len(keys) != want {
					rt.Fatalf("slot %d lists %d keys, want %d", slot, len(keys), want)
				}
			},
			"": func(rt *rapid.T) { checkAgainst(rt, table, m) },
		})
	})
}

// checkSnapshot restores the records into a fresh table and compares it with
// the model of the begin.
func checkSnapshot(rt rapid.TB, snap *Snapshot, records []byte, want *model) {
	rt.Helper()
	into, err := New(Options{Schema: want.schema})
	if err != nil {
		rt.Fatal(err)
	}
	defer into.Close()
	n := into.RecordBytes()
	for ; len(records) > 0; records = records[n:] {
		if err := into.RestoreRow(records[:n]); err != nil {
			rt.Fatal(err)
		}
	}
	checkAgainst(rt, into, want)
	if snap.Digest() != into.Digest() || snap.Rows() != into.Rows() {
		rt.Fatalf("snapshot reports %d rows and digest %v, but has %d rows with %v",
			snap.Rows(), snap.Digest(), into.Rows(), into.Digest())
	}
	for slot, v := range want.versions {
		if err := into.RestoreSlotVersion(slot, snap.Slot(slot).Version, snap.Slot(slot).Removed); err != nil {
			rt.Fatal(err)
		}
		if into.SlotCounts(slot).Version != v || into.SlotCounts(slot).Removed != want.removed[slot] {
			rt.Fatalf("slot %d: version counter %d, removal %d restored, want %d and %d",
				slot, into.SlotCounts(slot).Version, into.SlotCounts(slot).Removed, v, want.removed[slot])
		}
	}
}

// checkDelta compares records with the rows at the begin that are newer than base.
func checkDelta(rt rapid.TB, recordBytes int, base map[rowraft.Slot]uint64, records []byte, want *model) {
	rt.Helper()
	rows := map[rowraft.Key]string{}
	for key, r := range want.rows {
		if r.version > base[want.slot(key)] {
			rows[key] = string(want.record(key))
		}
	}
	for n := recordBytes; len(records) > 0; records = records[n:] {
		key := rowraft.Key(binary.LittleEndian.Uint64(records[keyOffset:]))
		if got := string(records[:n]); rows[key] != got {
			rt.Fatalf("key %d: the delta has %x, want %x (once, if it is newer than %d)",
				key, got, rows[key], base[want.slot(key)])
		}
		delete(rows, key)
	}
	if len(rows) > 0 {
		rt.Fatalf("the delta lacks %d rows", len(rows))
	}
}
