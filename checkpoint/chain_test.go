package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
)

// depotOf keeps checkpoints in memory.
type depotOf map[string]memFiles

func (d depotOf) at(name string) Files { return d[name] }

func (d depotOf) open(name string) (Chain, error) { return OpenChain(context.Background(), d.at, name) }

// world is a cluster as a checkpoint sees it: rows with versions, counters, and
// when something was removed last.
type world struct {
	schemas []rowraft.Schema
	rows    map[slotKey]map[rowraft.Key][]byte // records
	counter map[slotKey]uint64
	removed map[slotKey]uint64
	made    map[string]map[slotKey]uint64 // counters at each checkpoint
	depot   depotOf
	pushes  uint32
}

func newWorld() *world {
	zeros, sgd := rowraft.Initializer{Kind: rowraft.InitZeros}, rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}
	return &world{
		schemas: []rowraft.Schema{
			{ID: 10, Name: "s", Kind: rowraft.Sparse, Dim: 2, Initializer: zeros, Optimizer: sgd},
			{ID: 11, Name: "d", Kind: rowraft.Dense, Dim: 3, Initializer: zeros, Optimizer: sgd},
		},
		rows: map[slotKey]map[rowraft.Key][]byte{}, counter: map[slotKey]uint64{}, removed: map[slotKey]uint64{},
		made: map[string]map[slotKey]uint64{}, depot: depotOf{},
	}
}

func (w *world) key(s rowraft.Schema, i int) (slotKey, rowraft.Key) {
	key := rowraft.Key(i)
	if s.Kind == rowraft.Dense {
		key = rowraft.DenseKey(uint32(i%3), uint64(i))
	}
	return slotKey{s.ID, clustermap.SlotOf(s.ID, s.Kind, key, rowraft.DefaultSlots)}, key
}

func (w *world) push(i int) {
	w.pushes++
	for _, s := range w.schemas {
		at, key := w.key(s, i)
		w.counter[at]++
		rec := make([]byte, 24+4*s.Dim)
		le.PutUint64(rec[8:], uint64(key))
		le.PutUint64(rec[16:], w.counter[at])
		le.PutUint32(rec[24:], w.pushes)
		if w.rows[at] == nil {
			w.rows[at] = map[rowraft.Key][]byte{}
		}
		w.rows[at][key] = rec
	}
}

func (w *world) remove(i int) {
	for _, s := range w.schemas {
		at, key := w.key(s, i)
		if w.rows[at][key] != nil {
			delete(w.rows[at], key)
			w.counter[at]++
			w.removed[at] = w.counter[at]
		}
	}
}

// drop drops the second table.
func (w *world) drop() {
	id := w.schemas[1].ID
	w.schemas = w.schemas[:1]
	maps.DeleteFunc(w.rows, func(at slotKey, _ map[rowraft.Key][]byte) bool { return at.table == id })
	maps.DeleteFunc(w.counter, func(at slotKey, _ uint64) bool { return at.table == id })
}

// save makes a checkpoint of as many shards; parent is "" for a full one.
func (w *world) save(tb rapid.TB, name, parent string, shards int) *Manifest {
	tb.Helper()
	m := &Manifest{ID: "id-" + name, Cluster: "c", Epoch: 1, HashVers: 1, Slots: rowraft.DefaultSlots}
	if parent != "" {
		m.Parent = &Parent{Name: parent, ID: "id-" + parent}
	}
	for _, s := range w.schemas {
		m.Tables = append(m.Tables, TableSum{Schema: s})
	}
	files := memFiles{}
	w.depot[name], w.made[name] = files, maps.Clone(w.counter)
	for shard := range shards {
		from, to := shard*rowraft.DefaultSlots/shards, (shard+1)*rowraft.DefaultSlots/shards
		w.savePart(tb, m, files, rowraft.ShardID(shard), slotRange(from, to-1))
	}
	b, err := m.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	files[ManifestFile] = b
	return m
}

func (w *world) savePart(tb rapid.TB, m *Manifest, files memFiles, shard rowraft.ShardID, slots []rowraft.Slot) {
	base := map[slotKey]uint64{}
	if m.Parent != nil {
		base = w.made[m.Parent.Name]
	}
	p := ShardFile{Shard: shard, Applied: 7, Slots: slots}
	var out bytes.Buffer
	wr, err := NewWriter(&out, Header{Shard: shard, Applied: 7, Epoch: 1, Delta: m.Parent != nil}, w.schemas, nil, Ended{},
		nil)
	if err != nil {
		tb.Fatal(err)
	}
	var sums []SlotSum
	var written Digest
	for ti, schema := range w.schemas {
		table := &m.Tables[ti]
		for _, slot := range slots {
			at := slotKey{schema.ID, slot}
			sum := SlotSum{Table: at.table, Slot: slot, Counter: w.counter[at]}
			if sum.Counter == 0 {
				continue
			}
			whole := w.removed[at] > base[at] || base[at] == 0
			if sum.Counter > base[at] {
				if err := wr.BeginSlot(Slot{Table: at.table, Slot: slot, Counter: sum.Counter, RecordBytes: 24 + 4*schema.Dim,
					Whole: whole && m.Parent != nil, Removed: w.removed[at]}); err != nil {
					tb.Fatal(err)
				}
			}
			for _, key := range slices.Sorted(maps.Keys(w.rows[at])) {
				rec := w.rows[at][key]
				sum.Rows++
				sum.Digest = sum.Digest.Add(RecordDigest(rec))
				if sum.Counter > base[at] && (whole || le.Uint64(rec[16:]) > base[at]) {
					if err := wr.Append(rec); err != nil {
						tb.Fatal(err)
					}
					p.Written++
					table.Written++
					written = written.Add(RecordDigest(rec))
				}
			}
			sums = append(sums, sum)
			p.Rows += uint64(sum.Rows)
			p.Digest = p.Digest.Add(sum.Digest)
			table.Rows += uint64(sum.Rows)
			table.Digest = table.Digest.Add(sum.Digest)
		}
	}
	if err := wr.Finish(written); err != nil {
		tb.Fatal(err)
	}
	rows, sumsName := fmt.Sprintf("shard-%04d.rows", shard), fmt.Sprintf("shard-%04d.sums", shard)
	files[rows], files[sumsName] = out.Bytes(), EncodeSums(shard, 7, sums)
	p.Stream, p.Sums = fileOf(rows, files[rows]), fileOf(sumsName, files[sumsName])
	m.Shards = append(m.Shards, p)
}

// holds reads a chain and returns its records and counters.
func (c Chain) holds(read func(int)) (rows map[slotKey]map[rowraft.Key][]byte, counters map[slotKey]uint64, err error) {
	rows, counters = map[slotKey]map[rowraft.Key][]byte{}, map[slotKey]uint64{}
	for i := range c.Manifest().Shards {
		_, err := c.ReadShard(context.Background(), i, read, func(b *Block) error {
			at := slotKey{b.Table, b.Slot.Slot}
			if b.First != (counters[at] == 0) {
				return fmt.Errorf("table %d slot %d begins twice or not at all", b.Table, b.Slot.Slot)
			}
			counters[at] = b.Counter
			for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
				key := rowraft.Key(le.Uint64(rec[8:]))
				if rows[at] == nil {
					rows[at] = map[rowraft.Key][]byte{}
				}
				if rows[at][key] != nil {
					return fmt.Errorf("key %d twice", key)
				}
				rows[at][key] = bytes.Clone(rec[:b.RecordBytes])
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return rows, counters, nil
}

// checkHolds compares a chain with the world at its cut.
func (w *world) checkHolds(tb rapid.TB, name string) {
	tb.Helper()
	c, err := w.depot.open(name)
	if err != nil {
		tb.Fatal(err)
	}
	n := 0
	rows, counters, err := c.holds(func(k int) { n += k })
	if err != nil {
		tb.Fatal(err)
	}
	if int64(n) != c.Bytes()-int64(blobBytes(c.Manifest())) {
		tb.Fatalf("%d bytes were read, %d were announced", n, c.Bytes())
	}
	want := maps.Clone(w.rows)
	maps.DeleteFunc(want, func(_ slotKey, r map[rowraft.Key][]byte) bool { return len(r) == 0 })
	if !maps.EqualFunc(rows, want, func(a, b map[rowraft.Key][]byte) bool { return maps.EqualFunc(a, b, bytes.Equal) }) {
		tb.Fatalf("the chain of %d holds %v, want %v", len(c), rows, want)
	}
	if !maps.Equal(counters, w.counter) {
		tb.Fatalf("the chain of %d has counters %v, want %v", len(c), counters, w.counter)
	}
	if _, err := c.Verify(context.Background(), nil); err != nil {
		tb.Fatal(err)
	}
}

func blobBytes(m *Manifest) (n int64) {
	for _, b := range m.Blobs {
		n += b.File.Bytes
	}
	return n
}

// TestChainsHoldWhatThereWas pushes, removes and drops at random, with a full
// checkpoint and deltas between, each of another number of shards.
func TestChainsHoldWhatThereWas(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, parent := newWorld(), ""
		dropped := false
		for n := range rapid.IntRange(1, 5).Draw(rt, "checkpoints") {
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, 60), 0, 80).Draw(rt, "pushes") {
				w.push(i)
			}
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, 60), 0, 8).Draw(rt, "removed") {
				w.remove(i)
			}
			if n > 1 && !dropped && rapid.IntRange(0, 5).Draw(rt, "drop") == 0 {
				dropped = true
				w.drop()
			}
			name := fmt.Sprintf("c%d", n)
			w.save(rt, name, parent, rapid.SampledFrom([]int{1, 2, 3, 7}).Draw(rt, "shards"))
			w.checkHolds(rt, name)
			parent = name
		}
	})
}

// filledWorld has a full checkpoint a and deltas b and c, with rows removed.
func filledWorld(tb testing.TB) *world {
	tb.Helper()
	w := newWorld()
	for i := range 12 {
		w.push(i)
	}
	w.save(tb, "a", "", 2)
	for i := range 3 {
		w.push(i)
	}
	w.remove(7)
	w.save(tb, "b", "a", 2)
	w.push(3)
	w.push(20)
	w.save(tb, "c", "b", 2)
	w.checkHolds(tb, "c")
	return w
}

func TestADeltaHasWhatIsNewer(t *testing.T) {
	w := filledWorld(t)
	c, err := w.depot.open("c")
	if err != nil || len(c) != 3 {
		t.Fatalf("a chain of %d, %v", len(c), err)
	}
	// Of the sparse table one row for each push; keys share slots in the dense one,
	// where a slot that lost a row is written as a whole.
	for _, l := range c {
		sparse := l.Manifest.Tables[0]
		if want := map[string]uint64{"a": 12, "b": 3, "c": 2}[l.Name]; sparse.Written != want {
			t.Errorf("checkpoint %s has %d rows of %d, want %d", l.Name, sparse.Written, sparse.Rows, want)
		}
	}
	if m := c.Manifest(); m.Rows() != 24 || m.Written() != 4 {
		t.Errorf("c holds %d rows and has %d, want 24 and 4", m.Rows(), m.Written())
	}
}

func TestEveryFlippedBitOfAChainIsFound(t *testing.T) {
	w := filledWorld(t)
	for name, files := range w.depot {
		for file, good := range files {
			for i := 0; i < len(good); i += 3 {
				bad := slices.Clone(good)
				bad[i] ^= 1 << (i % 8)
				files[file] = bad
				c, err := w.depot.open("c")
				if err == nil {
					_, err = c.Verify(t.Context(), nil)
				}
				if err == nil {
					t.Fatalf("byte %d of %s/%s was changed, and no check noticed", i, name, file)
				}
			}
			files[file] = good
		}
	}
}

func TestBrokenChains(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(w *world)
		code rowraft.Code
	}{
		{"a base that is missing", func(w *world) { delete(w.depot, "a") }, rowraft.CodeNotFound},
		{"a delta between that is missing", func(w *world) { delete(w.depot, "b") }, rowraft.CodeNotFound},
		{"another one of its name", func(w *world) {
			w.depot["other"] = w.depot["a"]
			w.depot["a"] = w.depot["b"]
		}, rowraft.CodeNotFound},
		{"a base of another epoch", func(w *world) {
			m, _ := ParseManifest(w.depot["a"][ManifestFile])
			m.Epoch = 2
			w.depot["a"][ManifestFile], _ = m.Encode()
		}, rowraft.CodeCorrupt},
		{"a file of the base that is missing", func(w *world) { delete(w.depot["a"], "shard-0001.rows") },
			rowraft.CodeNotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := filledWorld(t)
			tc.do(w)
			c, err := w.depot.open("c")
			if err == nil {
				_, err = c.Verify(t.Context(), nil)
			}
			testutil.WantCodeOf(t, tc.name, err, tc.code)
		})
	}
	w := newWorld()
	w.push(1)
	w.save(t, "c0", "", 1)
	for i := range MaxDeltas + 1 {
		w.save(t, fmt.Sprintf("c%d", i+1), fmt.Sprintf("c%d", i), 1)
	}
	if c, err := w.depot.open(fmt.Sprintf("c%d", MaxDeltas)); err != nil || len(c) != MaxDeltas+1 {
		t.Errorf("a chain of %d: %v", len(c), err)
	}
	_, err := w.depot.open(fmt.Sprintf("c%d", MaxDeltas+1))
	testutil.WantCodeOf(t, "a chain that is too long", err, rowraft.CodeCorrupt)
}

// TestChainsOfAFaultyWriter forges deltas whose checksums all fit.
func TestChainsOfAFaultyWriter(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(w *world)
	}{
		{"a row that the base has already", func(w *world) {
			at, _ := w.key(w.schemas[1], 1)
			w.made["a"][at] = 1
		}},
		{"a row that is missing", func(w *world) { // written by the counters of a later moment
			w.made["a"] = maps.Clone(w.counter)
			for at := range w.made["a"] {
				w.made["a"][at] = max(1, w.made["a"][at]-1)
			}
		}},
		{"a removal that is not noted", func(w *world) {
			w.remove(5)
			w.removed = map[slotKey]uint64{}
		}},
		{"a counter that went back", func(w *world) {
			for at := range w.counter {
				w.counter[at] = 1
			}
			w.rows = map[slotKey]map[rowraft.Key][]byte{}
		}},
		{"a slot that changed without its counter", func(w *world) {
			for at := range w.rows {
				for _, rec := range w.rows[at] {
					if w.counter[at] == w.made["a"][at] {
						rec[24]++
					}
				}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld()
			for i := range 12 {
				w.push(i)
				w.push(i)
			}
			w.save(t, "a", "", 2)
			w.push(1)
			w.push(2)
			tc.do(w)
			w.save(t, "b", "a", 2)
			c, err := w.depot.open("b")
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Verify(t.Context(), nil)
			testutil.WantCodeOf(t, tc.name, err, rowraft.CodeCorrupt)
		})
	}
}
