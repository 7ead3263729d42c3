package raftstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/segment"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// tailOf returns a log of n batches of one entry, closed, and the bytes of its only
// segment.
func tailOf(t testing.TB, disk vfs.FS, n uint64) (name string, data []byte) {
	t.Helper()
	b, err := openCrashLog(disk, BackendWAL)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= n; i++ {
		if err := b.StoreLogs([]*raft.Log{crashEntry(i, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := disk.ReadDir("/log")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".wal") {
			name = "/log/" + e.Name()
		}
	}
	if data, err = vfs.ReadFile(disk, name); err != nil {
		t.Fatal(err)
	}
	return name, data
}

// endOf returns where the frames of a segment end.
func endOf(data []byte) int {
	at := int64(segmentHeader)
	for {
		next, ok := nextFrame(data[at:], at)
		if !ok {
			return int(at)
		}
		at = next
	}
}

func overwrite(t testing.TB, disk vfs.FS, name string, at int, b []byte) {
	t.Helper()
	f, err := disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, int64(at)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func frame(kind uint8, number uint32, payload []byte) []byte {
	b := make([]byte, frameHeader, frameHeader+len(payload)+8)
	b[0] = kind
	binary.LittleEndian.PutUint32(b[4:], number)
	b = append(b, payload...)
	return append(b, make([]byte, (8-len(payload)%8)%8)...)
}

// A batch that was cut short, whatever is left of it, does not keep the log from
// being opened and written on, twice.
func TestABatchCutShortIsCutOff(t *testing.T) {
	entry := frame(segment.FrameEntry, 40, make([]byte, 40))
	index := frame(segment.FrameIndex, 16, make([]byte, 16))
	commit := frame(segment.FrameCommit, 0x12345678, nil)
	for _, tc := range []struct {
		name string
		left []byte
	}{
		{"an entry", entry},
		{"entry and index, the commit is missing", append(append([]byte{}, entry...), index...)},
		{"entry, index and a commit over other bytes", append(append(append([]byte{}, entry...), index...), commit...)},
		{"an index behind a hole", append(make([]byte, 64), index...)},
		{"entries far behind", append(make([]byte, 4096), append(entry, commit...)...)},
		{"an entry that goes beyond the file", frame(segment.FrameEntry, 1<<30, nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			disk := vfs.NewMem()
			name, data := tailOf(t, disk, 3)
			overwrite(t, disk, name, endOf(data), tc.left)
			for last := uint64(3); last < 5; last++ {
				b, err := openCrashLog(disk, BackendWAL)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := b.LastIndex(); err != nil || got != last {
					t.Errorf("last index %d (%v), want %d", got, err, last)
				}
				for i := uint64(1); i <= last; i++ {
					var l raft.Log
					if err := b.GetLog(i, &l); err != nil {
						t.Errorf("entry %d of %d: %v", i, last, err)
					}
				}
				if err := b.StoreLogs([]*raft.Log{crashEntry(last+1, 1)}); err != nil {
					t.Fatal(err)
				}
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			}
			after, err := vfs.ReadFile(disk, name)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range after[endOf(after):] {
				if c != 0 {
					t.Fatalf("byte %d behind the log is %#x", i, c)
				}
			}
		})
	}
}

// Damage before a whole batch is no batch cut short: what follows was answered for.
func TestDamageWithinTheTailIsFound(t *testing.T) {
	const n = 6
	clean := vfs.NewMem()
	_, data := tailOf(t, clean, n)
	end := endOf(data)
	var commits []int
	for at := int64(segmentHeader); at < int64(end); {
		if data[at] == segment.FrameCommit {
			commits = append(commits, int(at))
		}
		at, _ = nextFrame(data[at:], at)
	}
	// The header of each frame but those of the last two batches: of the last, damage
	// looks as if it was cut short; the one before has nothing whole behind it then.
	for at := segmentHeader; at < commits[n-3]; {
		disk := vfs.NewMem()
		name, _ := tailOf(t, disk, n)
		overwrite(t, disk, name, at, []byte{0xff})
		b, err := openCrashLog(disk, BackendWAL)
		if err == nil {
			last, _ := b.LastIndex()
			b.Close()
			t.Errorf("frame at byte %d damaged: the log opens with last index %d of %d", at, last, n)
		} else if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("frame at byte %d damaged: %v, want CodeCorrupt", at, err)
		}
		next, _ := nextFrame(data[at:], int64(at))
		at = int(next)
	}
}

func TestLaterBatch(t *testing.T) {
	entry := frame(segment.FrameEntry, 24, make([]byte, 24))
	whole := append(append(frame(segment.FrameCommit, 7, nil), entry...), frame(segment.FrameCommit, crc32.Checksum(entry, castagnoli), nil)...)
	for at := range 5 {
		b := append(make([]byte, 8*at), whole...)
		if got, want := laterBatch(b), 8*at+frameHeader; got != want {
			t.Errorf("behind %d bytes: %d, want %d", 8*at, got, want)
		}
		for cut := range len(whole) {
			if got := laterBatch(b[:8*at+cut]); got >= 0 {
				t.Errorf("%s: a batch at %d", fmt.Sprintf("cut after %d bytes", cut), got)
			}
		}
	}
}

// FuzzLogTail: whatever follows three entries, the log opens with all three or says
// that it is damaged, and what opens can be written on and opened again.
func FuzzLogTail(f *testing.F) {
	entry := frame(segment.FrameEntry, 40, make([]byte, 40))
	index := frame(segment.FrameIndex, 16, make([]byte, 16))
	sum := crc32.Checksum(entry, castagnoli)
	f.Add([]byte{})
	f.Add(entry)
	f.Add(append(append([]byte{}, entry...), index...))
	f.Add(append(append([]byte{}, entry...), frame(segment.FrameCommit, sum, nil)...))
	f.Add(append(make([]byte, 8), append(frame(segment.FrameCommit, 0, nil), append(entry, frame(segment.FrameCommit, sum, nil)...)...)...))
	f.Add(frame(segment.FrameEntry, 1<<31, nil))
	disk := vfs.NewMem()
	name, data := tailOf(f, disk, 3)
	end := endOf(data)
	f.Fuzz(func(t *testing.T, left []byte) {
		if len(left) > 8<<10 {
			return
		}
		disk := disk.Crash(1) // a copy
		overwrite(t, disk, name, end, left)
		b, err := openCrashLog(disk, BackendWAL)
		if err != nil {
			if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
				t.Errorf("%v, want CodeCorrupt", err)
			}
			return
		}
		last, err := b.LastIndex()
		// A whole batch may follow; its entries are looked at when they are read.
		if err != nil || last < 3 {
			t.Errorf("last index %d (%v), want at least 3", last, err)
		}
		for i := uint64(1); i <= 3; i++ {
			var l raft.Log
			if err := b.GetLog(i, &l); err != nil {
				t.Errorf("entry %d: %v", i, err)
			}
		}
		if err := b.StoreLogs([]*raft.Log{crashEntry(last+1, 1)}); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if b, err = openCrashLog(disk, BackendWAL); err != nil {
			t.Fatal(err)
		}
		var l raft.Log
		if err := b.GetLog(last+1, &l); err != nil {
			t.Errorf("the entry written on: %v", err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}
