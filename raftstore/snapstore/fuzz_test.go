package snapstore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

func FuzzSnapshotMeta(f *testing.F) {
	golden, err := os.ReadFile("testdata/00000000000000000007-0000000003-0001/meta")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden)
	f.Add(golden[frame.HeadBytes : len(golden)-4])
	f.Add([]byte(`{"raft":{"ID":"x","Index":1,"Configuration":{"Servers":[{"Suffrage":7}]}},"chunks":-1}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		if !bytes.HasPrefix(b, []byte(metaMagic)) { // a body: put it into a frame
			b = frame.Seal(metaMagic, version, b)
		}
		if err := os.WriteFile(filepath.Join(dir, "meta"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		allocs.Frugal(t, b, func() {
			m, err := readTestSnapMeta(dir)
			if err != nil {
				if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeVersionTooNew {
					t.Errorf("%v has code %v", err, c)
				}
				return
			}
			body, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			var again meta
			if err := json.Unmarshal(body, &again); err != nil || !reflect.DeepEqual(again, *m) {
				t.Errorf("%+v is written and read as %+v, %v", *m, again, err)
			}
		})
	})
}

// FuzzSnapshotData reads a data file with any number of chunks and bytes in its meta file, and with correct checksums.
func FuzzSnapshotData(f *testing.F) {
	golden, err := os.ReadFile("testdata/00000000000000000007-0000000003-0001/data")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden, int64(1), int64(5), true)
	f.Add(golden, int64(1), int64(5), false)
	f.Add(golden, int64(0), int64(0), true)
	f.Add(golden[:frame.HeadBytes], int64(0), int64(0), true)
	f.Add(golden[:20], int64(1), int64(5), true)
	two := append(bytes.Clone(golden), golden[frame.HeadBytes:]...)
	f.Add(two, int64(2), int64(10), true)
	f.Add(append(bytes.Clone(golden[:frame.HeadBytes]), 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0), int64(1), int64(1<<32-1),
		true)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte, chunks, size int64, sums bool) {
		const id = "00000000000000000007-0000000003-0001"
		b = bytes.Clone(b)
		var payload []byte
		for at, n := frame.HeadBytes, int64(0); sums && at+chunkHead <= len(b); n++ {
			size := int(binary.LittleEndian.Uint32(b[at:]))
			if size > len(b)-at-chunkHead {
				break
			}
			data := b[at+chunkHead : at+chunkHead+size]
			binary.LittleEndian.PutUint32(b[at+4:], chunkCRC(7, 3, n, data))
			payload = append(payload, data...)
			at += chunkHead + size
		}
		body, err := json.Marshal(&meta{Raft: raft.SnapshotMeta{Version: 1, ID: id, Index: 7, Term: 3, Size: size},
			Chunks: chunks})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, id), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{"data": b, "meta": frame.Seal(metaMagic, version, body)} {
			if err := os.WriteFile(filepath.Join(dir, id, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		allocs.Frugal(t, b, func() {
			s, bad := fuzzSnapshotStore(t, dir)
			_, got, err := readSnapshot(s, id)
			if err != nil {
				if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeVersionTooNew || *bad != 1 {
					t.Errorf("%v has code %v and was reported %d times", err, c, *bad)
				}
				return
			}
			if int64(len(got)) != size || sums && !bytes.Equal(got, payload) {
				t.Errorf("read %x, want %d bytes: %x", got, size, payload)
			}
		})
	})
}

func fuzzSnapshotStore(t testing.TB, dir string) (*Store, *int) {
	t.Helper()
	bad := new(int)
	s, err := openTestSnapshotStore(dir, func(string, error) { *bad++ })
	if err != nil {
		t.Fatal(err)
	}
	return s, bad
}

func readTestSnapMeta(dir string) (*meta, error) { return readMeta(vfs.OS, dir) }

func openTestSnapshotStore(dir string, corrupt func(string, error)) (*Store, error) {
	return Open(vfs.OS, dir, testOwner, slog.New(slog.DiscardHandler), corrupt)
}
