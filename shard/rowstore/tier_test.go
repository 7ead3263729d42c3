package rowstore

import (
	"errors"
	"io"
	"slices"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// memFile is a coldfile.Disk in memory. It fails on demand.
type memFile struct {
	mu              sync.Mutex
	b               []byte
	failReads, full bool
	reads, writes   int
	closed          bool
}

func (f *memFile) ReadAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.failReads {
		return 0, syscall.EIO
	}
	if at >= int64(len(f.b)) {
		return 0, io.EOF
	}
	n := copy(p, f.b[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, at int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	if f.full {
		return 0, syscall.ENOSPC
	}
	if need := int(at) + len(p); need > len(f.b) {
		f.b = append(f.b, make([]byte, need-len(f.b))...)
	}
	return copy(f.b[at:], p), nil
}

func (f *memFile) Sync() error { return nil }

func (f *memFile) Close() error {
	f.closed = true
	return nil
}

// stored returns the record of key, wherever it is.
func stored(t *Table, slot rowraft.Slot, tag uint32, key rowraft.Key) (rec string, ok bool) {
	if r, ok := t.index.find(slot, tag, key); ok {
		return string(t.index.appendRecord(nil, r)), true
	}
	if t.Tier() == nil {
		return "", false
	}
	_, _, cold := t.Tier().lookup(t.index.segment(slot, tag), slot, tag, key, 0, nil)
	_ = t.Tier().each(cold, func(_ *coldEntry, r record) {
		if r.key() == uint64(key) {
			rec, ok = string(t.index.appendRecord(nil, r)), true
		}
	})
	return rec, ok
}

// moveRows moves the rows of keys into memory, and then some others out of it.
func moveRows(tb rapid.TB, r *Tier, in []rowraft.Key, out int) {
	if err := r.Prefetch(in); err != nil {
		tb.Fatal(err)
	}
	if err := r.Settle(); err != nil {
		tb.Fatal(err)
	}
	r.table.beginChange()
	defer r.table.endChange()
	for range out {
		r.writeExtent()
	}
}

// withTier gives table, which is empty, room for few of its rows in memory.
func withTier(table *Table, memory uint64) *memFile {
	o := Options{Schema: table.schema, Tier: &memFile{}}
	o.Schema.Memory = memory
	table.index.tier, _ = newTier(table, &o)
	return o.Tier.(*memFile)
}

// tiered returns a table with a tier.
func tiered(tb testing.TB, s rowraft.Schema, memory uint64) (*Table, *memFile) {
	f := &memFile{}
	s.Memory = memory
	table, err := New(Options{Schema: s, Tier: f})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := table.Close(); err != nil || !f.closed {
			tb.Errorf("close: %v, the file is closed: %t", err, f.closed)
		}
	})
	return table, f
}

func push(tb testing.TB, t *Table, keys ...rowraft.Key) error {
	tb.Helper()
	g := make([]float32, len(keys)*t.schema.Dim)
	for i := range g {
		g[i] = float32(i%7) - 3
	}
	return t.Update(keys, appendFloats(nil, g), rowraft.Float32, 0.1)
}

func keysUpTo(from, to int) (keys []rowraft.Key) {
	for k := from; k < to; k++ {
		keys = append(keys, rowraft.Key(k))
	}
	return keys
}

// TestTierReusesItsFile: rows that move in and out all the time leave a file of at most twice their size, and some
// extents more.
func TestTierReusesItsFile(t *testing.T) {
	table, f := tiered(t, testSchema(rowraft.Sparse, rowraft.Adagrad, 16), 1<<20)
	same := mustNew(t, testSchema(rowraft.Sparse, rowraft.Adagrad, 16))
	const rows = 8000
	for round := range 30 {
		for from := 0; from < rows; from += 500 {
			// The rows of a round are not those of one extent of the round before.
			var keys []rowraft.Key
			for k := range 500 {
				keys = append(keys, rowraft.Key(((from+k)*(2*round+1))%rows))
			}
			for _, tb := range []*Table{table, same} {
				if err := push(t, tb, keys...); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	s := table.Tier().Stats()
	warm := table.Tier().inMemory.Load()
	if s.Records == 0 || int(warm+s.Records) != table.Rows() || warm > table.Tier().limit() {
		t.Fatalf("%d rows in memory and %d on disk, of %d: want at most %d in memory", warm, s.Records, table.Rows(),
			table.Tier().limit())
	}
	size, perExtent := s.WriteBytes/s.Written, int64(table.Tier().file.PerExtent())
	if most := size * (2*s.Records + 20*perExtent); int64(len(f.b)) > most || s.FileBytes < int64(len(f.b)) {
		t.Fatalf("the file of %d rows of %d bytes has %d bytes, and reports %d: want at most %d", s.Records, size,
			len(f.b), s.FileBytes, most)
	}
	if table.Digest() != same.Digest() {
		t.Fatalf("digest %v, want %v as in memory", table.Digest(), same.Digest())
	}
}

func TestTierRefusesForeignKeys(t *testing.T) {
	const own = rowraft.Slot(5)
	table, err := New(Options{Schema: testSchema(rowraft.Sparse, rowraft.SGD, 4),
		Owned: func(s rowraft.Slot) bool { return s == own }})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	withTier(table, 1<<20)
	var keys []rowraft.Key
	for k := rowraft.Key(0); len(keys) < 3*lookupKeys; k++ {
		if table.index.slotOf(k) == own {
			keys = append(keys, k)
		}
	}
	for foreign := rowraft.Key(0); ; foreign++ {
		if table.index.slotOf(foreign) != own {
			keys = append(keys, foreign)
			break
		}
	}
	err = table.Pull(keys, make([]byte, 16*len(keys)), rowraft.Float32, nil)
	if rowraft.CodeOf(err) != rowraft.CodeWrongShard {
		t.Errorf("got %v, want code %v", err, rowraft.CodeWrongShard)
	}
}

// TestTierPullsMoveRowsIntoMemory: rows that are pulled again and again are in memory after some time, without a push.
func TestTierPullsMoveRowsIntoMemory(t *testing.T) {
	table, f := tiered(t, testSchema(rowraft.Sparse, rowraft.SGD, 16), 1<<20)
	if err := push(t, table, keysUpTo(0, 20_000)...); err != nil {
		t.Fatal(err)
	}
	keys, dst := keysUpTo(0, 500), make([]byte, 500*16*4)
	for range 100 {
		if err := table.Pull(keys, dst, rowraft.Float32, nil); err != nil {
			t.Fatal(err)
		}
		if table.Tier().NeedsSettle() {
			if err := table.Tier().Settle(); err != nil {
				t.Fatal(err)
			}
		}
	}
	before := f.reads
	if err := table.Pull(keys, dst, rowraft.Float32, nil); err != nil {
		t.Fatal(err)
	}
	if n := f.reads - before; n > 100 {
		t.Fatalf("the 101st pull of 500 rows read %d of them from the file", n)
	}
}

// TestASweepLeavesUsedRowsInMemory: a sweep reads all rows of the file, but those that are pulled all the time stay in
// memory.
func TestASweepLeavesUsedRowsInMemory(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 16)
	schema.Expire = 1 << 20
	table, f := tiered(t, schema, 1<<20)
	for from := 0; from < 20_000; from += 500 {
		if err := push(t, table, keysUpTo(from, from+500)...); err != nil {
			t.Fatal(err)
		}
	}
	keys, dst := keysUpTo(0, 300), make([]byte, 300*16*4)
	pull := func() {
		if err := table.Pull(keys, dst, rowraft.Float32, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		pull()
		if err := table.Tier().Settle(); err != nil {
			t.Fatal(err)
		}
	}
	reads := 0
	for slot := range rowraft.Slot(rowraft.DefaultSlots) {
		if _, _, err := table.Sweep(slot, &wire.Sweep{Conditions: wire.SweepExpire}, 1); err != nil {
			t.Fatal(err)
		}
		if slot%8 == 0 {
			before := f.reads
			pull()
			reads += f.reads - before
		}
	}
	if most := 300 * int(rowraft.DefaultSlots) / 8; reads > most/50 {
		t.Errorf("during the sweep %d of %d pulled rows were read from the file", reads, most)
	}
}

// TestTierOnAFullDisk: rows stay in memory while the disk is full, until they are far too many; then a push is refused
// before it changes anything. When the disk has space again, they move out.
func TestTierOnAFullDisk(t *testing.T) {
	table, f := tiered(t, testSchema(rowraft.Sparse, rowraft.SGD, 16), 1<<20)
	f.full = true
	var err error
	for from := 0; err == nil && from < 50_000; from += 100 {
		before := table.Digest()
		if err = push(t, table, keysUpTo(from, from+100)...); err != nil && table.Digest() != before {
			t.Fatal("the refused push changed rows")
		}
	}
	if rowraft.CodeOf(err) != rowraft.CodeOverloaded || !errors.Is(err, syscall.ENOSPC) || table.Tier().Full() == nil {
		t.Fatalf("error %v, want CodeOverloaded because of a full disk", err)
	}
	if n := table.Rows() * table.index.slabRecordBytes(); n > 2<<20 {
		t.Fatalf("the rows in memory have %d bytes: want at most about 1 MiB", n)
	}
	f.full = false
	if err := table.Tier().Settle(); err != nil || table.Tier().Full() != nil {
		t.Fatal(err, table.Tier().Full())
	}
	if err := push(t, table, keysUpTo(0, 1000)...); err != nil {
		t.Fatal(err)
	}
}

// TestTierThatCannotMoveRows: new rows need no read of the file, but the rows of a sparse extent do before they move.
// If they cannot be read, a later push and a restored row are refused. The rows would stay in memory, whatever their
// number, and no pull reads those of a follower.
func TestTierThatCannotMoveRows(t *testing.T) {
	table, f := tiered(t, testSchema(rowraft.Sparse, rowraft.SGD, 16), 1<<20)
	if err := push(t, table, keysUpTo(0, 50_000)...); err != nil {
		t.Fatal(err)
	}
	gone := slices.DeleteFunc(keysUpTo(0, 50_000), func(k rowraft.Key) bool { return k%4 == 0 })
	for part := range slices.Chunk(gone, 500) {
		if err := table.Delete(part); err != nil {
			t.Fatal(err)
		}
	}
	f.failReads = true
	var err error
	for from := 50_000; err == nil && from < 100_000; from += 100 {
		err = push(t, table, keysUpTo(from, from+100)...)
	}
	if rowraft.CodeOf(err) != rowraft.CodeFenced || table.Tier().Broken() == nil {
		t.Errorf("a push: error %v, want CodeFenced; %d rows in memory, the limit is %d", err,
			table.Tier().inMemory.Load(), table.Tier().limit())
	}
	rec := make([]byte, table.RecordBytes())
	rec[keyOffset+4], rec[versionOffset] = 1, 1
	if err := table.RestoreRow(rec); rowraft.CodeOf(err) != rowraft.CodeFenced {
		t.Errorf("a restored row: error %v, want CodeFenced", err)
	}
}

// TestTierThatCannotBeRead: a failed read and a damaged record fail pulls, pushes, and the check of the slot.
func TestTierThatCannotBeRead(t *testing.T) {
	for _, tc := range []struct {
		name   string
		break_ func(f *memFile)
	}{
		{"error", func(f *memFile) { f.failReads = true }},
		{"damage", func(f *memFile) {
			for i := range f.b {
				f.b[i] ^= 1
			}
		}},
		{"lost end", func(f *memFile) { f.b = f.b[:10] }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for name, use := range map[string]func(table *Table, keys []rowraft.Key) error{
				"pull": func(table *Table, keys []rowraft.Key) error {
					return table.Pull(keys, make([]byte, len(keys)*16*4), rowraft.Float32, nil)
				},
				"push":   func(table *Table, keys []rowraft.Key) error { return push(t, table, keys...) },
				"delete": func(table *Table, keys []rowraft.Key) error { return table.Delete(keys) },
				"check": func(table *Table, keys []rowraft.Key) error {
					for s := range rowraft.Slot(rowraft.DefaultSlots) {
						if _, _, ok := table.CheckSlot(s, 1<<30); !ok {
							return table.Tier().Broken()
						}
					}
					return nil
				},
			} {
				table, f := tiered(t, testSchema(rowraft.Sparse, rowraft.SGD, 16), 1<<20)
				keys := keysUpTo(0, 20_000)
				if err := push(t, table, keys...); err != nil {
					t.Fatal(err)
				}
				tc.break_(f)
				before := table.Digest()
				if err := use(table, keys); rowraft.CodeOf(err) != rowraft.CodeFenced || table.Tier().Broken() == nil {
					t.Errorf("%s: error %v, want CodeFenced", name, err)
				}
				if table.Digest() != before {
					t.Errorf("%s: the rows have changed", name)
				}
			}
		})
	}
}

// TestChecksLeaveTheDiskToOthers: a check in small steps reads few rows of the file in each, and goes through all of
// them.
func TestChecksLeaveTheDiskToOthers(t *testing.T) {
	table, f := tiered(t, testSchema(rowraft.Sparse, rowraft.SGD, 16), 1<<20)
	if err := push(t, table, keysUpTo(0, 20_000)...); err != nil {
		t.Fatal(err)
	}
	cold := table.Tier().Stats().Records
	begin := f.reads
	for s := range rowraft.Slot(rowraft.DefaultSlots) {
		for done := false; !done; {
			before := f.reads
			var ok bool
			if _, done, ok = table.CheckSlot(s, 64<<10); !ok {
				t.Fatalf("slot %d is damaged", s)
			}
			if n := f.reads - before; n > 4 {
				t.Fatalf("a step of 64 KiB read %d rows of the file", n)
			}
		}
	}
	if n := int64(f.reads - begin); n != cold || cold == 0 {
		t.Errorf("%d reads for %d rows in the file", n, cold)
	}
}
