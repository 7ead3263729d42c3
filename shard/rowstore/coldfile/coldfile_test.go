package coldfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestFileAgainstModel: records that are added, freed and moved out of sparse extents read as they were written, and
// the file stays at most about twice as large as its records.
func TestFileAgainstModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	rapid.Check(t, func(rt *rapid.T) {
		disk, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
		if err != nil {
			rt.Fatal(err)
		}
		size := 8 * rapid.IntRange(1, 9).Draw(rt, "words")
		f := New(disk, NewID(), size, rapid.SampledFrom([]int{1, 3, 100, 1 << 30}).Draw(rt, "per extent"))
		defer f.Close()
		have := map[int]uint64{}
		next := uint64(0)
		free := func(places []int) {
			for _, p := range places {
				delete(have, p)
				if at, emptied := f.Free(p); emptied {
					f.Reuse([]int{at})
				}
			}
		}
		some := func(rt *rapid.T) (places []int) {
			for p, v := range have {
				if v%uint64(1+rapid.IntRange(0, 5).Draw(rt, "share")) == 0 {
					places = append(places, p)
				}
			}
			slices.Sort(places)
			return places
		}
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				moved := f.Sparse(nil)
				if _, ok := f.Begin(); !ok {
					rt.Fatal("the file is full")
				}
				var values []uint64
				for _, p := range moved {
					values = append(values, have[p])
				}
				for range rapid.IntRange(1, 50).Draw(rt, "records") {
					next++
					values = append(values, next)
				}
				values = values[:min(len(values), f.Room())]
				if len(values) < len(moved) || rapid.IntRange(0, 9).Draw(rt, "cancel") == 0 {
					f.Cancel()
					return
				}
				for _, v := range values {
					record := make([]byte, size-3) // the rest is zero
					binary.LittleEndian.PutUint32(record, uint32(v))
					f.Add(record)
				}
				first, err := f.Write()
				if err != nil {
					rt.Fatal(err)
				}
				for i, v := range values {
					if _, twice := have[first+i]; twice {
						rt.Fatalf("place %d was written twice", first+i)
					}
					have[first+i] = v
				}
				free(moved)
			},
			"free": func(rt *rapid.T) { free(some(rt)) },
			"read": func(rt *rapid.T) {
				places := some(rt)
				n := 0
				err := f.Read(len(places), func(i int) int { return places[i] }, func(i int, record []byte) {
					if got := binary.LittleEndian.Uint64(append(record[:4:4], 0, 0, 0, 0)); got != have[places[i]] || i != n {
						rt.Fatalf("record %d at place %d is %d, want %d", i, places[i], got, have[places[i]])
					}
					n++
				})
				if err != nil || n != len(places) {
					rt.Fatalf("read %d of %d records: %v", n, len(places), err)
				}
			},
			"": func(rt *rapid.T) {
				if s := f.Stats(); int(s.Records) != len(have) {
					rt.Fatalf("%d records, want %d", s.Records, len(have))
				}
			},
		})
	})
}

// TestDamagedRecord: a record that was changed, lost, or is that of another place, is an error.
func TestDamagedRecord(t *testing.T) {
	disk, err := os.Create(filepath.Join(t.TempDir(), "rows"))
	if err != nil {
		t.Fatal(err)
	}
	f := New(disk, NewID(), 16, 4)
	defer f.Close()
	f.Begin()
	for i := range 4 {
		f.Add([]byte{byte(i), 15: 1})
	}
	if _, err := f.Write(); err != nil {
		t.Fatal(err)
	}
	read := func(place int) error {
		return f.Read(1, func(int) int { return place }, func(int, []byte) {})
	}
	b := make([]byte, 24)
	if _, err := disk.ReadAt(b, pageBytes); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error { _, err := disk.WriteAt(b, pageBytes+24); return err }, // the record of place 0 at place 1
		func() error { _, err := disk.WriteAt([]byte{9}, pageBytes+24+7); return err },
		func() error { return disk.Truncate(pageBytes + 30) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if err := read(1); err == nil {
			t.Errorf("error %v, want one", err)
		}
		if err := read(0); err != nil {
			t.Error(err)
		}
	}
	if err := read(3); !errors.Is(err, io.EOF) {
		t.Errorf("error %v, want the end of the file", err)
	}
}

// lossy is a file that reports success for writes that it loses.
type lossy struct {
	*os.File
	loses bool
}

func (f *lossy) WriteAt(b []byte, at int64) (int, error) {
	if f.loses {
		return len(b), nil
	}
	return f.File.WriteAt(b, at)
}

// TestLostWrite: if the system loses a write after it has reported success, the records that were at the same places
// before are not taken for the new ones.
func TestLostWrite(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "rows"))
	if err != nil {
		t.Fatal(err)
	}
	disk := &lossy{File: file}
	f := New(disk, NewID(), 16, 4)
	defer f.Close()
	write := func() (first int) {
		if _, ok := f.Begin(); !ok {
			t.Fatal("the file is full")
		}
		for i := range 4 {
			f.Add([]byte{byte(i)})
		}
		first, err := f.Write()
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	read := func(place int) error {
		return f.Read(1, func(int) int { return place }, func(int, []byte) {})
	}
	first := write()
	for i := range 4 {
		if at, emptied := f.Free(first + i); emptied {
			f.Reuse([]int{at})
		}
	}
	disk.loses = true
	if again := write(); again != first {
		t.Fatalf("the second write is at place %d, want %d", again, first)
	}
	if err := read(first); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a record from before the lost write is read: error %v, want CodeCorrupt", err)
	}
	disk.loses = false
	if second := write(); read(second) != nil {
		t.Error("a record that was written cannot be read")
	}
}

// BenchmarkFile writes and reads random records of a file of a million, 1,024 at a time.
func BenchmarkFile(b *testing.B) {
	const records, batch, size = 1_000_000, 1024, 152
	disk, err := os.Create(filepath.Join(b.TempDir(), "rows"))
	if err != nil {
		b.Fatal(err)
	}
	f := New(disk, NewID(), size, 1<<30)
	defer f.Close()
	place, at := make([]int, records), map[int]int{} // of each record; the record at each place
	record := make([]byte, size)
	var keys []int
	write := func() {
		for len(keys) > 0 {
			old := f.Sparse(nil)
			if _, ok := f.Begin(); !ok {
				b.Fatal("the file is full")
			}
			var moved []int
			if err := f.Read(len(old), func(i int) int { return old[i] }, func(i int, r []byte) {
				f.Add(r)
				moved = append(moved, at[old[i]])
			}); err != nil {
				b.Fatal(err)
			}
			n := min(len(keys), f.Room())
			for range n {
				f.Add(record)
			}
			moved, keys = append(moved, keys[:n]...), keys[n:]
			first, err := f.Write()
			if err != nil {
				b.Fatal(err)
			}
			for i, k := range moved {
				if p := place[k]; p > 0 && at[p-1] == k {
					delete(at, p-1)
					if ext, emptied := f.Free(p - 1); emptied {
						f.Reuse([]int{ext})
					}
				}
				place[k], at[first+i] = first+i+1, k
			}
		}
	}
	for k := range records {
		keys = append(keys, k)
	}
	write()
	r := rand.New(rand.NewPCG(1, 2))
	draw := func() {
		keys = keys[:0]
		for range batch {
			keys = append(keys, r.IntN(records))
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	rate := func(b *testing.B) { b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds()/1e6, "Mrecords/s") }
	b.Run("write", func(b *testing.B) {
		for range b.N {
			draw()
			write()
		}
		rate(b)
		b.ReportMetric(float64(f.Stats().FileBytes>>20), "MiB")
	})
	b.Run("read", func(b *testing.B) {
		for range b.N {
			draw()
			places := make([]int, len(keys))
			for i, k := range keys {
				places[i] = place[k] - 1
			}
			slices.Sort(places)
			if err := f.Read(len(places), func(i int) int { return places[i] }, func(int, []byte) {}); err != nil {
				b.Fatal(err)
			}
		}
		rate(b)
	})
}

// goldenRef is the file of testdata/header.hex.
var goldenRef = Ref{
	ID:          ID{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf},
	RecordBytes: 32, PerExtent: 3, Cut: 1, Seeds: []uint64{1},
}

func TestGoldenHeader(t *testing.T) {
	want := testutil.GoldenHex(t, "testdata/header.hex")
	f, err := Open(nil, goldenRef)
	if err != nil || !bytes.Equal(f.header(), want) {
		t.Fatalf("header %x, %v; want %x", f.header(), err, want)
	}
	path := filepath.Join(t.TempDir(), "rows")
	for at := range want {
		b := bytes.Clone(want)
		b[at] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		disk, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		f.disk = disk
		testutil.WantCode(t, f.Check(), rowraft.CodeCorrupt, "is damaged")
		disk.Close()
	}
}

// TestAPinnedCutIsNotOverwritten: while records are written, freed and moved, the records of each pinned cut read as
// they were, also by a file that was opened from the cut. Without pins the file does not grow.
func TestAPinnedCutIsNotOverwritten(t *testing.T) {
	disk, err := os.Create(filepath.Join(t.TempDir(), "rows"))
	if err != nil {
		t.Fatal(err)
	}
	f := New(disk, NewID(), 16, 4)
	defer f.Close()
	have := map[int]uint64{}
	next := uint64(0)
	write := func() {
		if _, ok := f.Begin(); !ok {
			t.Fatal("the file is full")
		}
		first := next + 1
		for range 4 {
			next++
			f.Add(binary.LittleEndian.AppendUint64(nil, next))
		}
		at, err := f.Write()
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 {
			have[at+i] = first + uint64(i)
		}
	}
	r := rand.New(rand.NewPCG(7, 8))
	churn := func(n int) {
		for range n {
			for len(have) > 20 {
				for place := range have {
					if r.IntN(2) == 0 {
						delete(have, place)
						if at, emptied := f.Free(place); emptied {
							f.Reuse([]int{at})
						}
					}
				}
			}
			write()
		}
	}
	check := func(ref Ref, want map[int]uint64) {
		t.Helper()
		old, err := Open(disk, ref)
		if err != nil {
			t.Fatal(err)
		}
		for place, v := range want {
			if !old.Restore(place) || old.Restore(place) {
				t.Fatalf("place %d is not in the file, or twice", place)
			}
			err := old.Read(1, func(int) int { return place }, func(_ int, b []byte) {
				if got := binary.LittleEndian.Uint64(b); got != v {
					t.Fatalf("place %d has record %d, want %d", place, got, v)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := old.Restored(); err != nil {
			t.Fatal(err)
		}
	}
	churn(10)
	type pinned struct {
		ref     Ref
		want    map[int]uint64
		release func()
	}
	var kept []pinned
	for round := range 30 {
		c := f.Cut()
		p := pinned{want: maps.Clone(have), release: c.Release}
		churn(r.IntN(20))
		if p.ref = c.Ref(); round%3 == 0 {
			c.Keep(true)
			c.Release() // Keep pins it until the next round that keeps
			release, err := f.Hold(f.ID(), c.number)
			if err != nil {
				t.Fatal(err)
			}
			p.release = release
		}
		for place := range p.want {
			if !c.Has(place) {
				t.Fatalf("place %d was written before the cut", place)
			}
		}
		kept = append(kept, p)
		if len(kept) > 3 {
			check(kept[0].ref, kept[0].want)
			kept[0].release()
			kept = kept[1:]
		}
	}
	for _, p := range kept {
		check(p.ref, p.want)
		p.release()
	}
	f.Cut().Keep(true)
	if _, err := f.Hold(f.ID(), 1); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a cut that is not pinned is held: %v", err)
	}
	if release, err := f.Hold(NewID(), 1); err != nil || release != nil {
		t.Errorf("a cut of another file is held: %v", err)
	}
	churn(100)
	before := f.Stats().FileBytes
	for range 20 {
		f.Cut().Release()
		churn(100)
	}
	if after := f.Stats().FileBytes; after > before*3/2 {
		t.Errorf("the file grew from %d to %d bytes without a pinned cut", before, after)
	}
}

// TestAFileWantsASnapshot when nothing durable refers to it, and when the last snapshot keeps more than the records
// take.
func TestAFileWantsASnapshot(t *testing.T) {
	disk, err := os.Create(filepath.Join(t.TempDir(), "rows"))
	if err != nil {
		t.Fatal(err)
	}
	f := New(disk, NewID(), 1016, 1<<30)
	defer f.Close()
	var places []int
	write := func(extents int) {
		for range extents {
			f.Begin()
			f.Add(nil)
			place, err := f.Write()
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, place)
		}
	}
	want := func(want bool, when string) {
		t.Helper()
		f.unpin() // as the next write does
		if got := f.WantsSnapshot(); got != want {
			t.Errorf("%s: %t, want %t; %+v", when, got, want, f.Stats())
		}
	}
	write(100)
	want(false, "a small file")
	write(200)
	want(true, "a file of 75 MiB that no snapshot refers to")
	c := f.Cut()
	c.Keep(true)
	c.Release()
	want(false, "after a snapshot")
	for _, place := range places[:200] {
		at, _ := f.Free(place)
		f.Reuse([]int{at})
	}
	want(true, "when the snapshot alone needs 200 extents of 300")
	c = f.Cut()
	c.Keep(true)
	c.Release()
	want(false, "after the next snapshot")
}

// TestAFileIsWrittenWhileItIsRestored: the rows of a snapshot that do not fit into memory are written before all
// records of the cut are known. No extent of the cut is written then or later, and none is written twice.
func TestAFileIsWrittenWhileItIsRestored(t *testing.T) {
	disk, err := os.Create(filepath.Join(t.TempDir(), "rows"))
	if err != nil {
		t.Fatal(err)
	}
	f := New(disk, NewID(), 16, 4)
	defer f.Close()
	write := func(f *File) (first int) {
		f.Begin()
		for range 4 {
			f.Add(nil)
		}
		first, err := f.Write()
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	var places []int
	for range 40 {
		places = append(places, write(f))
	}
	c := f.Cut()
	ref := c.Ref()
	again, err := Open(disk, ref)
	if err != nil {
		t.Fatal(err)
	}
	used := map[int]bool{}
	for _, first := range places {
		again.Restore(first)
		if got := again.Sparse(nil); got != nil {
			t.Fatalf("places %v are in a sparse extent, with most records not restored", got)
		}
		used[again.Extent(first)] = true
	}
	again.Begin()
	again.Cancel()
	used[again.Extent(write(again))] = true
	again.Begin()
	again.Cancel()
	for _, first := range places {
		for i := range 3 {
			again.Restore(first + 1 + i)
		}
	}
	if err := again.Restored(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		at := again.Extent(write(again))
		if used[at] {
			t.Fatalf("extent %d is written again", at)
		}
		used[at] = true
	}
}
