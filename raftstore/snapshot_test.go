package raftstore

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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

var testConfiguration = raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: "r1", Address: "n1"}}}

func testSnapshotStore(t testing.TB) (*snapshotStore, *[]string) {
	t.Helper()
	bad := &[]string{}
	s, err := openSnapshotStore(vfs.OS, filepath.Join(t.TempDir(), "snapshots"), testOwner.String(), slog.New(slog.DiscardHandler), func(id string, _ error) { *bad = append(*bad, id) })
	if err != nil {
		t.Fatal(err)
	}
	return s, bad
}

func writeSnapshot(t testing.TB, s *snapshotStore, index, term uint64, payload []byte) string {
	t.Helper()
	k, err := s.Create(1, index, term, testConfiguration, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for b := payload; len(b) > 0; { // in odd pieces
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

func readSnapshot(s *snapshotStore, id string) (*raft.SnapshotMeta, []byte, error) {
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

// removingDisk lets something happen behind each listing of a directory.
type removingDisk struct {
	vfs.FS
	behind func()
}

func (d removingDisk) ReadDir(dir string) ([]fs.DirEntry, error) {
	entries, err := d.FS.ReadDir(dir)
	d.behind()
	return entries, err
}

// A snapshot that is removed while the others are listed is not corrupt.
func TestSnapshotGoesWhileOthersAreListed(t *testing.T) {
	s, _ := testSnapshotStore(t)
	old := writeSnapshot(t, s, 1, 1, []byte("x"))
	writeSnapshot(t, s, 2, 1, []byte("y"))
	gone := make(chan error, 1)
	s.disk = removingDisk{vfs.OS, func() {
		go func() { gone <- s.hide([]string{old}) }()
		select {
		case err := <-gone: // it must not get in between
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
		t.Error("the snapshot that went away is taken for corrupt")
	}
}

func TestSnapshotRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, snapChunkBytes - 1, snapChunkBytes, snapChunkBytes + 1, 3*snapChunkBytes + 77} {
		s, _ := testSnapshotStore(t)
		want := randomBytes(uint64(size), size)
		id := writeSnapshot(t, s, 5, 2, want)
		m, got, err := readSnapshot(s, id)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: read %d bytes, %v", size, len(got), err)
			continue
		}
		if m.Index != 5 || m.Term != 2 || m.Size != int64(size) || m.ConfigurationIndex != 1 || !reflect.DeepEqual(m.Configuration, testConfiguration) {
			t.Errorf("%d bytes: meta %+v", size, m)
		}
	}
}

// Snapshots of all formats, built from docs/formats/snapshot-store.md by another
// program: the last is the one that is written.
const goldenSnapshot = "00000000000000000007-0000000003-0001"

func TestSnapshotGoldenBytes(t *testing.T) {
	s, _ := testSnapshotStore(t)
	if err := os.CopyFS(filepath.Join(s.dir, goldenSnapshot), os.DirFS(filepath.Join("testdata", goldenSnapshot))); err != nil {
		t.Fatal(err)
	}
	m, b, err := readSnapshot(s, goldenSnapshot)
	if err != nil || string(b) != "hello" || m.Index != 7 || m.Term != 3 || !reflect.DeepEqual(m.Configuration, testConfiguration) {
		t.Fatalf("read %+v, %q, %v", m, b, err)
	}
	s, _ = testSnapshotStore(t)
	snapSeq.Store(0)
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
func snapshotOnMem(t testing.TB, id string, files map[string][]byte) (*snapshotStore, *[]string) {
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
	s, err := openSnapshotStore(disk, "/s", testOwner.String(), slog.New(slog.DiscardHandler), func(id string, _ error) { *bad = append(*bad, id) })
	if err != nil {
		t.Fatal(err)
	}
	return s, bad
}

// A meta file of a later version stops everything, for an older snapshot would bring
// back older state; one whose version is damaged is skipped.
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
			s, bad := testSnapshotStore(t)
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
	s, _ := testSnapshotStore(t)
	id := writeSnapshot(t, s, 9, 1, randomBytes(3, 3*snapChunkBytes))
	path := filepath.Join(s.dir, id, "data")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const step = snapChunkHead + snapChunkBytes
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
	s, _ := testSnapshotStore(t)
	var ids []string
	for i := range 4 {
		ids = append(ids, writeSnapshot(t, s, uint64(10+i), 1, []byte{1}))
	}
	list, err := s.List()
	if err != nil || len(list) != 2 || list[0].ID != ids[3] || list[1].ID != ids[2] {
		t.Errorf("List = %v, %v; want the newest two of %v", list, err, ids)
	}
	// Unfinished ones are not listed, and removed at the next start.
	k, err := s.Create(1, 99, 1, testConfiguration, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	k.Write([]byte("half"))
	if list, _ := s.List(); len(list) != 2 {
		t.Errorf("an unfinished snapshot is listed: %v", list)
	}
	if _, err := openSnapshotStore(vfs.OS, s.dir, s.owner, s.log, s.corrupt); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.dir, "*.tmp")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := k.Close(); err == nil {
		t.Error("a sink whose directory vanished closed without error")
	}
}

// A node starts from the older snapshot when the newest is damaged only if its
// log covers the difference; otherwise it would forget what it acknowledged.
func TestDamagedSnapshotAtStart(t *testing.T) {
	for _, tc := range []struct {
		name     string
		trailing int64
		want     rowraft.Code
	}{
		{"the log covers it", 1 << 30, rowraft.CodeUnknown},
		{"the log does not", 1, rowraft.CodeCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startedCluster(t, 1, func(o *Options) {
				o.TrailingLogBytes = tc.trailing
				o.SegmentSizeBytes = 64 << 10
				o.Backend = raftlog.Bolt
			})
			n := c.nodes[0]
			for i := range 3 {
				for range 3 {
					c.propose(strings.Repeat("x", 100+i))
				}
				if err := n.group.Snapshot(); err != nil {
					t.Fatal(err)
				}
			}
			list, err := n.group.snaps.List()
			if err != nil || len(list) != 2 {
				t.Fatalf("%v, %v", list, err)
			}
			c.stop(n)
			path := filepath.Join(n.dir, "raft", "groups", "shard-0", "snapshots", list[0].ID, "data")
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[len(b)-1] ^= 1
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := c.tryStart(n); rowraft.CodeOf(err) != tc.want {
				t.Fatalf("start: %v, want %v", err, tc.want)
			}
			if tc.want != rowraft.CodeUnknown {
				return
			}
			c.stop(n)
			c.start(n)
			c.propose("y")
			if k, _ := n.machine.state(); k != 10 {
				t.Errorf("the machine holds %d entries, want 10", k)
			}
		})
	}
}

// A leader that finds its snapshot damaged while it sends it takes a new one: its
// machine is whole.
func TestDamagedSnapshotIsReplaced(t *testing.T) {
	c := startedCluster(t, 1, func(o *Options) { o.hooks.tick = 5 * time.Millisecond })
	n := c.nodes[0]
	c.propose("x")
	if err := n.group.Snapshot(); err != nil {
		t.Fatal(err)
	}
	c.propose("y")
	list, _ := n.group.snaps.List()
	path := filepath.Join(n.group.snaps.dir, list[0].ID, "data")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := readSnapshot(n.group.snaps, list[0].ID); err == nil {
		t.Fatal("the damage was not noticed")
	}
	eventually(t, "a good snapshot of a later index", func() bool {
		now, err := n.group.snaps.List()
		return err == nil && len(now) == 1 && now[0].Index > list[0].Index
	})
}

// A leader that lost its snapshots takes a new one, and goes on however long that takes:
// of a large state it is longer than the follower that needs one is let wait otherwise.
func TestALostSnapshotIsReplacedHoweverLongThatTakes(t *testing.T) {
	c := newTestCluster(t, 1, func(o *Options) {
		o.WedgeTimeout = 400 * time.Millisecond
		o.hooks.tick = 5 * time.Millisecond
	})
	n := c.nodes[0]
	c.open(n)
	taken := make(chan struct{})
	done := sync.OnceFunc(func() { close(taken) })
	t.Cleanup(done)
	var slow atomic.Bool
	n.machine.beforeWrite = func() {
		if slow.Load() {
			<-taken
		}
	}
	c.startGroup(n)
	c.propose("x")
	if err := n.group.Snapshot(); err != nil {
		t.Fatal(err)
	}
	slow.Store(true)
	if err := errors.Join(os.RemoveAll(n.group.snaps.dir), os.Mkdir(n.group.snaps.dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	w := n.group.watch
	eventually(t, "there is no snapshot for longer than one may be unreadable", func() bool {
		if list, err := w.List(); err != nil || len(list) > 0 { // as raft does for a follower
			t.Fatalf("List = %v, %v", list, err)
		}
		return n.group.Err() != nil || w.check() != nil && n.group.snapBusy.Load()
	})
	for range 20 { // so often the supervisor looks
		time.Sleep(5 * time.Millisecond) //tidy:allow sleep nothing is to happen
	}
	if err := n.group.Err(); err != nil {
		t.Fatalf("the group stopped while it took a snapshot: %v", err)
	}
	done()
	eventually(t, "the new one", func() bool {
		list, err := w.List()
		return err == nil && len(list) > 0
	})
	c.propose("y")
}

// A leader that looks for a snapshot to send and finds none sends no entries meanwhile. It
// is not restarted in place for that: raft would not begin without the snapshot.
func TestLookingForASnapshotIsNoWedge(t *testing.T) {
	c := patientCluster(t, 3, nil)
	c.converged(c.propose("x"))
	g := c.nodes[0].group
	n := g.run.Load()
	stands := func() string {
		now := time.Now().Add(time.Minute) // raft's own sends are older
		for _, f := range c.nodes[1:] {
			n.trans.note(raft.ServerID(replicaOf(f.id)), n.raft.CurrentTerm(), func(p *peerProgress) { p.match, p.contact = 0, now })
		}
		return n.wedged(10*time.Second, now)
	}
	eventually(t, "a follower that gets nothing is seen", func() bool { return stands() != "" })
	g.watch.mu.Lock()
	g.watch.last = time.Now().Add(time.Minute)
	g.watch.mu.Unlock()
	if why := stands(); why != "" {
		t.Errorf("the leader looks for a snapshot, and is to be restarted: %s", why)
	}
}

// A crash after a snapshot from the leader was stored and before the log was
// cleared leaves a log that ends too early, or that disagrees: it is cleared.
func TestInterruptedInstallIsFinished(t *testing.T) {
	for _, backend := range raftlog.Backends {
		for name, place := range map[string]func(last, term uint64) (uint64, uint64){
			"the snapshot is beyond the log":  func(last, term uint64) (uint64, uint64) { return last + 100, term },
			"the log conflicts with its last": func(last, term uint64) (uint64, uint64) { return last - 1, term + 1 },
		} {
			t.Run(name+" with "+backend, func(t *testing.T) {
				t.Parallel()
				c := startedCluster(t, 1, func(o *Options) { o.Backend = backend })
				n := c.nodes[0]
				for range 5 {
					c.propose("old")
				}
				s := n.group.Status()
				conf := n.group.run.Load().raft.GetConfiguration().Configuration()
				index, term := place(uint64(s.LastIndex), uint64(s.Term))
				donor := &listMachine{index: rowraft.Index(index)}
				donor.addLocked([]byte("from the leader"))
				snap, err := (&fsm{machine: donor}).Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				sink, err := n.group.snaps.Create(1, index, term, conf, 1, nil)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(snap.Persist(sink), sink.Close()); err != nil {
					t.Fatal(err)
				}
				c.stop(n)
				c.start(n)
				if at := c.propose("new"); uint64(at) <= index {
					t.Errorf("the next entry got index %d, want more than %d", at, index)
				}
				if got := strings.Join(n.machine.list(), ","); got != "from the leader,new" {
					t.Errorf("the machine holds %q", got)
				}
			})
		}
	}
}

func TestSnapshotIsReleasedOnce(t *testing.T) {
	c := startedCluster(t, 1, nil)
	n := c.nodes[0]
	c.propose("x")
	for range 3 {
		if err := n.group.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	// One that cannot be written.
	if err := os.RemoveAll(n.group.snaps.dir); err != nil {
		t.Fatal(err)
	}
	c.propose("y")
	if err := n.group.Snapshot(); err == nil {
		t.Error("a snapshot into a missing directory succeeded")
	}
	eventually(t, "all snapshots are released", func() bool {
		n.machine.mu.Lock()
		defer n.machine.mu.Unlock()
		return n.machine.snapped == 4 && n.machine.released == 4
	})
}

// The worst case of a damaged snapshot: the log was cleared when it was installed,
// an older one is good, and nothing shows the hole but the directory's name.
func TestDamagedSnapshotWithEmptyLog(t *testing.T) {
	c := startedCluster(t, 1, nil)
	n := c.nodes[0]
	for range 2 {
		c.propose("x")
		if err := n.group.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := n.group.snaps.List()
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	path := filepath.Join(n.group.snaps.dir, list[0].ID, "data")
	c.stop(n)
	c.open(n)
	w, err := raftlog.Open(vfs.OS, raftlog.Row, filepath.Join(n.dir, "raft", "groups", "shard-0", "log"), raftlog.Owner{Cluster: testCluID, Node: n.id, Group: "shard-0", Replica: replicaOf(n.id)}, 1<<20, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := w.FirstIndex()
	last, _ := w.LastIndex()
	if err := errors.Join(w.DeleteRange(first, last), w.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c.stop(n)
	if err := c.tryStart(n); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("start: %v, want CodeCorrupt", err)
	}
}
