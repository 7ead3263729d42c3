package coldfile

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
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
		f := New(disk, size, rapid.SampledFrom([]int{1, 3, 100, 1 << 30}).Draw(rt, "per extent"))
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
	f := New(disk, 16, 4)
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
	if _, err := disk.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	for _, damage := range []func() error{
		func() error { _, err := disk.WriteAt(b, 24); return err }, // the record of place 0 at place 1
		func() error { _, err := disk.WriteAt([]byte{9}, 24+7); return err },
		func() error { return disk.Truncate(30) },
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
	f := New(disk, 16, 4)
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
	f := New(disk, size, 1<<30)
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
