package snapstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

func testStore(t testing.TB) (*Store, *[]string) {
	t.Helper()
	bad := &[]string{}
	s, err := Open(vfs.OS, filepath.Join(t.TempDir(), "snapshots"), testOwner, slog.New(slog.DiscardHandler),
		func(id string, _ error) { *bad = append(*bad, id) })
	if err != nil {
		t.Fatal(err)
	}
	return s, bad
}

func writeSnapshot(t testing.TB, s *Store, index, term uint64, payload []byte) string {
	t.Helper()
	k, err := s.Create(1, index, term, testConfiguration, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for b := payload; len(b) > 0; { // in writes of odd sizes
		n := min(len(b), 70001)
		if _, err := k.Write(b[:n]); err != nil {
			t.Fatal(err)
		}
		b = b[n:]
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	return k.ID()
}

func readSnapshot(s *Store, id string) (*raft.SnapshotMeta, []byte, error) {
	m, r, err := s.Open(id)
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return m, b, err
}

func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// removingDisk calls a function after each listing of a directory.
type removingDisk struct {
	vfs.FS
	after func()
}

func (d removingDisk) ReadDir(dir string) ([]fs.DirEntry, error) {
	entries, err := d.FS.ReadDir(dir)
	d.after()
	return entries, err
}

// A snapshot that is removed while the others are listed is not corrupt.
func TestSnapshotGoesWhileOthersAreListed(t *testing.T) {
	s, _ := testStore(t)
	old := writeSnapshot(t, s, 1, 1, []byte("x"))
	writeSnapshot(t, s, 2, 1, []byte("y"))
	gone := make(chan error, 1)
	s.disk = removingDisk{vfs.OS, func() {
		go func() { gone <- s.hide([]string{old}) }()
		select {
		case err := <-gone: // it must not run during the listing
			gone <- err
		case <-time.After(50 * time.Millisecond):
		}
	}}
	if _, err := s.List(); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if s.isBad(old) {
		t.Error("the snapshot that went away counts as corrupt")
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, chunkBytes - 1, chunkBytes, chunkBytes + 1, 3*chunkBytes + 77} {
		s, _ := testStore(t)
		want := randomBytes(uint64(size), size)
		id := writeSnapshot(t, s, 5, 2, want)
		m, got, err := readSnapshot(s, id)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: read %d bytes, %v", size, len(got), err)
			continue
		}
		if m.Index != 5 || m.Term != 2 || m.Size != int64(size) || m.ConfigurationIndex != 1 ||
			!reflect.DeepEqual(m.Configuration, testConfiguration) {
			t.Errorf("%d bytes: meta %+v", size, m)
		}
	}
}

// goldenSnapshot was built from docs/formats/snapshot-store.md by another program (testdata/snapshot.py).
const goldenSnapshot = "00000000000000000007-0000000003-0001"

func TestSnapshotGoldenBytes(t *testing.T) {
	s, _ := testStore(t)
	if err := os.CopyFS(filepath.Join(s.dir, goldenSnapshot),
		os.DirFS(filepath.Join("testdata", goldenSnapshot))); err != nil {
		t.Fatal(err)
	}
	m, b, err := readSnapshot(s, goldenSnapshot)
	if err != nil || string(b) != "hello" || m.Index != 7 || m.Term != 3 ||
		!reflect.DeepEqual(m.Configuration, testConfiguration) {
		t.Fatalf("read %+v, %q, %v", m, b, err)
	}
	s, _ = testStore(t)
	dir := filepath.Join(s.dir, writeSnapshot(t, s, 7, 3, []byte("hello")))
	for _, file := range []string{"data", "meta"} {
		got, err1 := os.ReadFile(filepath.Join(dir, file))
		want, err2 := os.ReadFile(filepath.Join("testdata", goldenSnapshot, file))
		if err := errors.Join(err1, err2); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s\n got %x\nwant %x, %v", file, got, want, err)
		}
	}
}

func TestSnapshotDetectsEveryChangedByte(t *testing.T) {
	files := map[string][]byte{}
	for _, file := range []string{"meta", "data"} {
		b, err := os.ReadFile(filepath.Join("testdata", goldenSnapshot, file))
		if err != nil {
			t.Fatal(err)
		}
		files[file] = b
	}
	for file, good := range files {
		check := func(what string, i int, b []byte) {
			changed := maps.Clone(files)
			changed[file] = b
			s, bad := snapshotOnMem(t, goldenSnapshot, changed)
			if _, _, err := readSnapshot(s, goldenSnapshot); err == nil {
				t.Errorf("%s: %s at byte %d is not detected", file, what, i)
			} else if len(*bad) != 1 {
				t.Errorf("%s: %s at byte %d: %v, reported %d times", file, what, i, err, len(*bad))
			}
		}
		for i := range good {
			for bit := range 8 {
				b := bytes.Clone(good)
				b[i] ^= 1 << bit
				check("bit flip", i, b)
			}
			check("cut", i, good[:i])
		}
		check("appended byte", len(good), append(bytes.Clone(good), 0))
	}
}

// snapshotOnMem is a store with one snapshot of these files.
func snapshotOnMem(t testing.TB, id string, files map[string][]byte) (*Store, *[]string) {
	t.Helper()
	disk, bad := vfs.NewMem(), &[]string{}
	if err := vfs.MkdirAll(disk, "/s/"+id); err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := vfs.WriteFile(disk, "/s/"+id+"/"+name, b); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(disk, "/s", testOwner, slog.New(slog.DiscardHandler), func(id string, _ error) {
		*bad = append(*bad, id)
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, bad
}

// A meta file of a later version is an error, because an older snapshot would bring back older state. A meta file whose
// version is damaged is skipped.
func TestSnapshotMetaOfALaterVersion(t *testing.T) {
	for _, tc := range []struct {
		name   string
		sealed bool
		want   rowraft.Code // of List; 0: the older snapshot is left
	}{
		{"a flipped bit", false, 0},
		{"an upgrade", true, rowraft.CodeVersionTooNew},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, bad := testStore(t)
			old := writeSnapshot(t, s, 1, 1, []byte("x"))
			id := writeSnapshot(t, s, 2, 1, []byte("y"))
			path := filepath.Join(s.dir, id, "meta")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[8] ^= 2 // version 3
			if tc.sealed {
				binary.LittleEndian.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := s.List()
			switch {
			case tc.want != 0:
				if rowraft.CodeOf(err) != tc.want {
					t.Errorf("listed %v, %v, want %v", list, err, tc.want)
				}
			case err != nil || len(list) != 1 || list[0].ID != old || !slices.Equal(*bad, []string{id}):
				t.Errorf("listed %v, %v, corrupt %v, want snapshot %s alone", list, err, *bad, old)
			}
		})
	}
}

func TestSnapshotChunksCannotBeSwapped(t *testing.T) {
	s, _ := testStore(t)
	id := writeSnapshot(t, s, 9, 1, randomBytes(3, 3*chunkBytes))
	path := filepath.Join(s.dir, id, "data")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const step = chunkHead + chunkBytes
	swapped := bytes.Clone(b)
	copy(swapped[frame.HeadBytes:], b[frame.HeadBytes+step:frame.HeadBytes+2*step])
	copy(swapped[frame.HeadBytes+step:], b[frame.HeadBytes:frame.HeadBytes+step])
	if err := os.WriteFile(path, swapped, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readSnapshot(s, id); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("swapped chunks: %v, want CodeCorrupt", err)
	}
}

func TestSnapshotsAreReaped(t *testing.T) {
	s, _ := testStore(t)
	var ids []string
	for i := range 4 {
		ids = append(ids, writeSnapshot(t, s, uint64(10+i), 1, []byte{1}))
	}
	list, err := s.List()
	if err != nil || len(list) != 2 || list[0].ID != ids[3] || list[1].ID != ids[2] {
		t.Errorf("List = %v, %v; want the newest two of %v", list, err, ids)
	}
	// Unfinished snapshots are not listed, and the next start removes them.
	k, err := s.Create(1, 99, 1, testConfiguration, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	k.Write([]byte("half"))
	if list, _ := s.List(); len(list) != 2 {
		t.Errorf("an unfinished snapshot is listed: %v", list)
	}
	if _, err := Open(vfs.OS, s.dir, s.owner, s.log, s.corrupt); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*.tmp")); len(left) != 0 {
		t.Errorf("files remain: %v", left)
	}
	if err := k.Close(); err == nil {
		t.Error("a sink whose directory vanished closed without error")
	}
}

const testOwner = "replica r-shard-0 of group shard-0 on server n1 of cluster c-test"

var testConfiguration = raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: "r1", Address: "n1"}}}

// Open does not read the whole snapshot: the reader checks each chunk when it reads it, so a leader does not read 10 GB
// twice.
func TestSnapshotIsCheckedAsItIsSent(t *testing.T) {
	s, _ := testStore(t)
	payload := randomBytes(1, 3*chunkBytes)
	id := writeSnapshot(t, s, 5, 2, payload)
	path := filepath.Join(s.dir, id, "data")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	_, r, err := s.Open(id)
	if err != nil {
		t.Fatalf("Open read the whole snapshot: %v", err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if rowraft.CodeOf(err) != rowraft.CodeCorrupt || string(got) != string(payload[:2*chunkBytes]) {
		t.Errorf("read %d bytes, %v; want the two good chunks, then CodeCorrupt", len(got), err)
	}
}

// A reader of a snapshot delays no new snapshot, and continues when newer ones replace its snapshot.
func TestSnapshotIsSentWhileNewerOnesAreWritten(t *testing.T) {
	s, _ := testStore(t)
	payload := randomBytes(2, 3*chunkBytes)
	_, r, err := s.Open(writeSnapshot(t, s, 5, 2, payload))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	half := make([]byte, len(payload)/2)
	if _, err := io.ReadFull(r, half); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		writeSnapshot(t, s, 6+i, 2, []byte{1})
	}
	if list, err := s.List(); err != nil || len(list) != keep || list[len(list)-1].Index < 7 {
		t.Fatalf("List = %v, %v", list, err)
	}
	rest, err := io.ReadAll(r)
	if err != nil || string(half)+string(rest) != string(payload) {
		t.Errorf("read %d of %d bytes, %v", len(half)+len(rest), len(payload), err)
	}
}

// A disk error during the search for a free name is an error, not a name in use: the search would not end.
func TestSnapshotOnADiskThatCannotBeRead(t *testing.T) {
	disk := vfs.NewFaulty(vfs.NewMem())
	s, err := Open(disk, "/snapshots", testOwner, slog.New(slog.DiscardHandler), func(string, error) {})
	if err != nil {
		t.Fatal(err)
	}
	// Once only: otherwise the test would not end either.
	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpList}, Times: 1, Err: "EIO"}); err != nil {
		t.Fatal(err)
	}
	if k, err := s.Create(1, 5, 1, testConfiguration, 1, nil); !errors.Is(err, syscall.EIO) {
		t.Errorf("Create = %v, %v; want EIO", k, err)
	}
}
