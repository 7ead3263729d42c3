package rowstore

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard/rowstore/order"
	"github.com/rowraft/rowraft/wire"
)

func someKeys(seed uint64, n int) []rowraft.Key {
	rng := rand.New(rand.NewPCG(seed, 0))
	keys := make([]rowraft.Key, n)
	for i := range keys {
		keys[i] = rowraft.Key(rng.Uint64())
	}
	return keys
}

func someFloats(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	return v
}

func mustUpdate(tb testing.TB, t *Table, keys []rowraft.Key, grads []float32) {
	tb.Helper()
	if err := t.Update(keys, appendFloats(nil, grads), rowraft.Float32, 0.1); err != nil {
		tb.Fatal(err)
	}
}

// TestGrowth fills one slot of a dense table far beyond its first segments, and a sparse table over all
// slots, and compares them with the model.
func TestGrowth(t *testing.T) {
	for _, kind := range []rowraft.TableKind{rowraft.Sparse, rowraft.Dense} {
		t.Run(kind.String(), func(t *testing.T) {
			const n = 60000
			schema := testSchema(kind, rowraft.Adagrad, 3)
			table := mustNew(t, schema)
			m := newModel(schema)
			keys := make([]rowraft.Key, n)
			for i := range keys {
				keys[i] = rowraft.Key(i)
			}
			g := someFloats(1, n*3)
			mustUpdate(t, table, keys, g)
			for i, k := range keys {
				m.update(k, g[i*3:i*3+3], 0.1)
			}
			checkAgainst(t, table, m)
			if kind == rowraft.Dense && table.SlotCounts(clustermap.SlotOf(schema.ID, kind, 0, rowraft.DefaultSlots)).Rows != n {
				t.Errorf("a tensor's rows are not all in one slot")
			}
		})
	}
}

// TestTagCollision: the key in the record distinguishes two keys of one slot with the same tag.
func TestTagCollision(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 2)
	table := mustNew(t, schema)
	keys := equalTags(table, 5, 40)
	m := newModel(schema)
	for range 2 {
		for i, k := range keys {
			g := []float32{float32(i), 1}
			mustUpdate(t, table, []rowraft.Key{k}, g)
			m.update(k, g, 0.1)
		}
		checkAgainst(t, table, m)
	}
	if err := table.Pull(keys, make([]byte, len(keys)*8), rowraft.Float32, nil); err != nil {
		t.Fatal(err)
	}
}

// unmix64 is the inverse of clustermap.Mix64.
func unmix64(z uint64) uint64 {
	inverse := func(a uint64) uint64 {
		x := a // Newton's method doubles the correct bits; 3 at first
		for range 6 {
			x *= 2 - a*x
		}
		return x
	}
	z ^= z>>31 ^ z>>62
	z *= inverse(0x94D049BB133111EB)
	z ^= z>>27 ^ z>>54
	z *= inverse(0xBF58476D1CE4E5B9)
	return z ^ z>>30 ^ z>>60
}

// TestBytesPerRow checks the memory targets while the number of rows doubles, so at every load of the
// segments. The worst case is just after all of them doubled.
func TestBytesPerRow(t *testing.T) {
	for _, tc := range []struct {
		dim   int
		rows  int
		limit float64
	}{{16, 1_000_000, 1.4}, {64, 300_000, 1.15}} {
		t.Run(fmt.Sprintf("dim %d with adagrad stays under %v times its numbers", tc.dim, tc.limit), func(t *testing.T) {
			table := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, tc.dim))
			const batch = 10000
			grads := make([]byte, batch*tc.dim*4)
			keys := make([]rowraft.Key, batch)
			worst, at := 0.0, 0
			for n := 0; n < tc.rows; n += batch {
				for i := range keys {
					keys[i] = rowraft.Key(n + i)
				}
				if err := table.Update(keys, grads, rowraft.Float32, 0.1); err != nil {
					t.Fatal(err)
				}
				// Below this number of rows, the last partly filled huge pages of rows and index add more
				// than a per cent each.
				if n+batch >= tc.rows/2 {
					if r := float64(table.Bytes()) / float64(table.Rows()) / float64(8*tc.dim); r > worst {
						worst, at = r, table.Rows()
					}
				}
			}
			t.Logf("worst %.3f at %d rows, %.3f at %d",
				worst, at, float64(table.Bytes())/float64(table.Rows())/float64(8*tc.dim), table.Rows())
			if worst > tc.limit {
				t.Errorf("%.3f times the numbers at %d rows, want at most %v", worst, at, tc.limit)
			}
		})
	}
}

// TestPullsDuringSnapshot runs concurrently what may run concurrently, for the race detector: statistics
// under the owner's lock, a snapshot and pulls without a lock.
func TestPullsDuringSnapshot(t *testing.T) {
	const n = 2000
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, 5))
	keys := someKeys(3, n)
	mustUpdate(t, table, keys, someFloats(4, n*5))
	before := table.Digest()
	snap, err := table.BeginSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.RWMutex
	var wg sync.WaitGroup
	for r := range 2 {
		wg.Go(func() {
			dst := make([]byte, n*5*4)
			present := make([]byte, (n+7)/8)
			for range 20 {
				mu.RLock()
				if err := table.Pull(keys, dst, rowraft.Float32, present); err != nil {
					t.Error(err)
				}
				if table.Rows() < n || table.Bytes() == 0 || table.Digest() == (Digest{}) || !table.Contains(keys[r]) {
					t.Error("statistics of a table with rows are zero")
				}
				mu.RUnlock()
			}
		})
	}
	wg.Go(func() {
		more, grads := someKeys(5, n), appendFloats(nil, someFloats(6, n*5))
		for i := 0; i < n; i += 50 {
			mu.Lock()
			err := table.Update(append(more[i:i+50:i+50], keys[i:i+50]...),
				append(grads[i*20:(i+50)*20:(i+50)*20], grads[i*20:(i+50)*20]...), rowraft.Float32, 0.1)
			mu.Unlock()
			if err != nil {
				t.Error(err)
			}
		}
	})
	var records []byte
	for slot := range rowraft.Slot(rowraft.DefaultSlots) {
		for done := false; !done; {
			records, done = snap.AppendSlot(records, slot, 4)
		}
	}
	wg.Wait()
	if err := snap.End(); err != nil {
		t.Fatal(err)
	}
	into := mustNew(t, table.Schema())
	for ; len(records) > 0; records = records[into.RecordBytes():] {
		if err := into.RestoreRow(records[:into.RecordBytes()]); err != nil {
			t.Fatal(err)
		}
	}
	if into.Digest() != before {
		t.Errorf("restored digest %v, want %v as at the begin", into.Digest(), before)
	}
}

// TestASlotThatIsChangedAllTheTimeIsSaved: updates and deletes in a slot never stop; the snapshot of the
// slot ends and is its state at the begin.
func TestASlotThatIsChangedAllTheTimeIsSaved(t *testing.T) {
	const n = 3000
	schema := testSchema(rowraft.Dense, rowraft.Adagrad, 4) // all rows are in one slot
	table := mustNew(t, schema)
	var keys []rowraft.Key
	for k := range rowraft.Key(n) {
		keys = append(keys, k)
	}
	mustUpdate(t, table, keys, someFloats(4, n*4))
	slot, _ := table.index.locate(0)
	for round := range 5 {
		before, rows := table.Digest(), table.Rows()
		snap, err := table.BeginSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(9, uint64(round)))
			grads := appendFloats(nil, someFloats(6, 50*4))
			for {
				select {
				case <-stop:
					return
				default:
				}
				some := make([]rowraft.Key, 50)
				for i := range some {
					some[i] = rowraft.Key(rng.IntN(2 * n))
				}
				if err := table.Update(some, grads, rowraft.Float32, 0.1); err != nil {
					t.Error(err)
				}
				if err := table.Delete(some[:3]); err != nil {
					t.Error(err)
				}
			}
		})
		var records []byte
		for done := false; !done; {
			records, done = snap.AppendSlot(records, slot, 64)
		}
		close(stop)
		wg.Wait()
		if snap.Digest() != before || snap.Rows() != rows || snap.Slot(slot).Rows != rows {
			t.Errorf("the snapshot reports %d rows with digest %v, want %d with %v as at its begin",
				snap.Rows(), snap.Digest(), rows, before)
		}
		if err := snap.End(); err != nil {
			t.Fatal(err)
		}
		into := mustNew(t, schema)
		for ; len(records) > 0; records = records[into.RecordBytes():] {
			if err := into.RestoreRow(records[:into.RecordBytes()]); err != nil {
				t.Fatal(err)
			}
		}
		if into.Digest() != before || into.Rows() != rows {
			t.Errorf("restored %d rows with digest %v, want %d with %v", into.Rows(), into.Digest(), rows, before)
		}
	}
}

// TestUpdatesWithinASlotBeingSaved: rows before and after the cursor change, new rows are created, and the
// slot outgrows the segment that is walked. The saved rows are those of the slot at the begin.
func TestUpdatesWithinASlotBeingSaved(t *testing.T) {
	const n, seed = 600, 8
	schema := testSchema(rowraft.Dense, rowraft.Adagrad, 2)
	for entries := 1; entries <= 256; entries *= 4 {
		t.Run(fmt.Sprintf("%d entries a step", entries), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, uint64(entries)))
			table, m := mustNew(t, schema), newModel(schema)
			if entries > 1 {
				table.index.longest = minSegment * entries / 4 // the slot has a directory
			}
			next := rowraft.Key(0)
			update := func(keys ...rowraft.Key) {
				g := someFloats(rng.Uint64(), 2*len(keys))
				mustUpdate(t, table, keys, g)
				for i, k := range keys {
					m.update(k, g[2*i:2*i+2], 0.1)
				}
			}
			for ; next < n; next++ {
				update(next)
			}
			snap, err := table.BeginSnapshot()
			if err != nil {
				t.Fatal(err)
			}
			begin := m.clone()
			slot, _ := table.index.locate(0)
			var records []byte
			for done := false; !done; {
				update(rowraft.Key(rng.IntN(n)), next, rowraft.Key(rng.IntN(n)))
				next++
				records, done = snap.AppendSlot(records, slot, entries)
			}
			if got, want := len(records), n*table.RecordBytes(); got != want {
				t.Fatalf("saved %d bytes, want %d: %d records", got, want, n)
			}
			checkSnapshot(t, snap, records, begin)
			update(1, 2, 3)
			if more, done := snap.AppendSlot(nil, slot, 1); len(more) != 0 || !done {
				t.Errorf("a saved slot appended %d bytes more, done %v", len(more), done)
			}
			if err := snap.End(); err != nil {
				t.Fatal(err)
			}
			checkAgainst(t, table, m)
		})
	}
}

func TestRefusals(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 4)
	key := rowraft.Key(1)
	foreign := key
	for clustermap.SlotOf(schema.ID, schema.Kind, foreign, rowraft.DefaultSlots) == clustermap.SlotOf(schema.ID,
		schema.Kind, key, rowraft.DefaultSlots) {
		foreign++
	}
	table, err := New(Options{Schema: schema,
		Owned: func(s rowraft.Slot) bool {
			return s == clustermap.SlotOf(schema.ID, schema.Kind, key, rowraft.DefaultSlots)
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	mustUpdate(t, table, []rowraft.Key{key}, make([]float32, 4))
	digest := table.Digest()
	good := make([]byte, table.RecordBytes())
	slot, tag := table.index.locate(key)
	r, _ := table.index.find(slot, tag, key)
	good = table.index.appendRecord(good[:0], r)
	edit := func(f func(rec []byte)) []byte {
		rec := append([]byte(nil), good...)
		f(rec)
		return rec
	}
	row, half := make([]byte, 16), make([]byte, 8)
	many := slices.Repeat([]rowraft.Key{key}, 4*lookupKeys-1)
	for _, tc := range []struct {
		name string
		do   func() error
		want rowraft.Code
	}{
		{"pull into a short buffer",
			func() error { return table.Pull([]rowraft.Key{key}, row[:15], rowraft.Float32, nil) }, rowraft.CodeInvalidArgument},
		{"pull as bfloat16 into a float32 buffer",
			func() error { return table.Pull([]rowraft.Key{key}, row, rowraft.BFloat16, nil) }, rowraft.CodeInvalidArgument},
		{"pull of an unknown dtype",
			func() error { return table.Pull([]rowraft.Key{key}, row, 9, nil) }, rowraft.CodeInvalidArgument},
		{"pull with a long presence bitmap",
			func() error { return table.Pull([]rowraft.Key{key}, row, rowraft.Float32, make([]byte, 2)) },
			rowraft.CodeInvalidArgument},
		{"pull of a foreign key", func() error { return table.Pull([]rowraft.Key{foreign}, row, rowraft.Float32, nil) },
			rowraft.CodeWrongShard},
		{"pull of a foreign key after many others", func() error {
			return table.Pull(append(many, foreign), make([]byte, (len(many)+1)*len(row)), rowraft.Float32, nil)
		}, rowraft.CodeWrongShard},
		{"pull of versions of a foreign key after many others", func() error {
			_, err := PullVersions(table, append(many, foreign),
				make([]byte, (len(many)+1)*(wire.VersionBytes+len(row))), rowraft.Float32, nil, nil, make([]byte, len(many)/8+1))
			return err
		}, rowraft.CodeWrongShard},
		{"update with too few numbers",
			func() error { return table.Update([]rowraft.Key{key}, half, rowraft.Float32, 1) }, rowraft.CodeInvalidArgument},
		{"update whose last key is foreign", func() error {
			return table.Update([]rowraft.Key{key, foreign}, make([]byte, 32), rowraft.Float32, 1)
		}, rowraft.CodeWrongShard},
		{"assign of a foreign key", func() error { return table.Assign([]rowraft.Key{foreign}, half, rowraft.BFloat16) },
			rowraft.CodeWrongShard},
		{"restore of a short record", func() error { return table.RestoreRow(good[:len(good)-4]) }, rowraft.CodeCorrupt},
		{"restore of a row that is there", func() error { return table.RestoreRow(good) }, rowraft.CodeCorrupt},
		{"restore of version 0", func() error {
			return table.RestoreRow(edit(func(rec []byte) { clear(rec[versionOffset : versionOffset+8]) }))
		}, rowraft.CodeCorrupt},
		{"restore of a foreign key",
			func() error { return table.RestoreRow(edit(func(rec []byte) { rec[keyOffset] = byte(foreign) })) },
			rowraft.CodeWrongShard},
		{"slot version below a row's", func() error { return table.RestoreSlotVersion(slot, 0, 0) }, rowraft.CodeCorrupt},
		{"slot version that no slot can reach",
			func() error { return table.RestoreSlotVersion(slot, 1<<63, 0) }, rowraft.CodeCorrupt},
		{"slot version of a foreign slot",
			func() error { return table.RestoreSlotVersion((slot+1)%rowraft.DefaultSlots, 9, 0) }, rowraft.CodeWrongShard},
		{"a table of dim 0", func() error {
			_, err := New(Options{Schema: testSchema(rowraft.Sparse, rowraft.SGD, 0)})
			return err
		}, rowraft.CodeInvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.do(); rowraft.CodeOf(err) != tc.want || err == nil {
				t.Errorf("got %v, want code %v", err, tc.want)
			}
			if table.Digest() != digest || table.Rows() != 1 || table.SlotCounts(slot).Version != 1 {
				t.Errorf("a refused call changed the table")
			}
		})
	}
	// Here the first groups have changed, and the replica must stop.
	if err := table.Update(append(many, foreign), make([]byte, (len(many)+1)*len(row)), rowraft.Float32,
		0); rowraft.CodeOf(err) != rowraft.CodeWrongShard {
		t.Errorf("update of a foreign key after many others: %v", err)
	}
	if err := table.RestoreSlotVersion(slot, 900, 0); err != nil || table.SlotCounts(slot).Version != 900 {
		t.Errorf("RestoreSlotVersion(900): %v, counter %d", err, table.SlotCounts(slot).Version)
	}
}

// TestInitialRowsOfAnyDim: rows without a push are computed 64 weights at a time.
func TestInitialRowsOfAnyDim(t *testing.T) {
	for _, dim := range []int{1, 63, 64, 65, 1000, rowraft.MaxDim} {
		schema := testSchema(rowraft.Sparse, rowraft.SGD, dim)
		table := mustNew(t, schema)
		dst := make([]byte, dim*4)
		if err := table.Pull([]rowraft.Key{3}, dst, rowraft.Float32, nil); err != nil {
			t.Fatal(err)
		}
		if want := appendFloats(nil, newModel(schema).initial(3)); string(dst) != string(want) {
			t.Errorf("dim %d: a row without a push differs from the initializer", dim)
		}
		if table.Rows() != 0 {
			t.Errorf("dim %d: a pull created a row", dim)
		}
	}
}

// TestRecordGolden compares a record and its digest with testdata/record.hex,
// whose bytes testdata/record.py builds from the layout in the package comment
// and whose hash is that of the reference library (python-xxhash).
func TestRecordGolden(t *testing.T) {
	text, err := os.ReadFile("testdata/record.hex")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	record, err := hex.DecodeString(fields[0])
	if err != nil {
		t.Fatal(err)
	}
	table := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, 3))
	if err := table.RestoreRow(record); err != nil {
		t.Fatal(err)
	}
	if got := table.Digest().String(); got != fields[1] {
		t.Errorf("digest %s of record %x, want %s", got, record, fields[1])
	}
	slot, tag := table.index.locate(0x0123456789ABCDEF)
	r, ok := table.index.find(slot, tag, 0x0123456789ABCDEF)
	if !ok {
		t.Fatal("the golden record's key is not in the table")
	}
	if got := fmt.Sprint(wire.Floats(make([]float32, 3), rowraft.Float32, table.index.weights(r)),
		table.index.state(r)); *r.version() != 5 || got != "[1 -2 0.5] [4 9 16]" {
		t.Errorf("golden record reads as version %d, numbers %s", *r.version(), got)
	}
	if b := table.Digest().Bytes(); DigestOf(b) != table.Digest() {
		t.Errorf("DigestOf(Bytes()) differs")
	}
}

func FuzzRestoreRow(f *testing.F) {
	schema := testSchema(rowraft.Sparse, rowraft.Adagrad, 2)
	f.Add([]byte{})
	f.Add(make([]byte, headerBytes+16))
	rec := make([]byte, headerBytes+16)
	rec[versionOffset] = 1
	f.Add(rec)
	f.Fuzz(func(t *testing.T, rec []byte) {
		table, err := New(Options{Schema: schema, Owned: func(s rowraft.Slot) bool { return s < 3000 }})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		if err := table.RestoreRow(rec); err != nil {
			if code := rowraft.CodeOf(err); code != rowraft.CodeCorrupt && code != rowraft.CodeWrongShard {
				t.Fatalf("%v: code %v", err, code)
			}
			if table.Rows() != 0 || table.Digest() != (Digest{}) {
				t.Fatal("a refused record changed the table")
			}
			return
		}
		snap, err := table.BeginSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		var out []byte
		for slot := range rowraft.Slot(rowraft.DefaultSlots) {
			for done := false; !done; {
				out, done = snap.AppendSlot(out, slot, 64)
			}
		}
		clear(rec[:keyOffset]) // the table keeps neither recency nor count
		if string(out) != string(rec) {
			t.Fatalf("restored %x, saved %x", rec, out)
		}
	})
}

// TestAnUpdateReadsOneLineOfItsSlot checks where the slots of large and small tables lie.
func TestAnUpdateReadsOneLineOfItsSlot(t *testing.T) {
	for _, n := range []rowraft.Slot{1, 64, 100, 1000, rowraft.DefaultSlots} {
		table, err := New(Options{Schema: testSchema(rowraft.Sparse, rowraft.SGD, 2),
			Owned: func(s rowraft.Slot) bool { return s < n }})
		if err != nil {
			t.Fatal(err)
		}
		within := uintptr(unsafe.Pointer(&table.index.slots[0])) % order.LineBytes
		size, used := unsafe.Sizeof(slotState{}), unsafe.Offsetof(slotState{}.directory)
		if size != order.LineBytes || within+used > order.LineBytes {
			t.Errorf("of %d slots the first is %d bytes after a line, a slot has %d bytes, an update uses %d: want one line",
				n, within, size, used)
		}
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	}
}
