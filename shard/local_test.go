package shard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
	"github.com/rowraft/rowraft/wire"
)

// local takes a snapshot in the local form and keeps it.
func (r *replica) local() []byte {
	r.tb.Helper()
	s, err := r.Snapshot()
	if err != nil {
		r.tb.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteLocal(&b); err != nil {
		r.tb.Fatal(err)
	}
	if n := s.FullBytes(); n > 0 {
		if full, err := r.full(b.Bytes()); err != nil || int64(len(full)) != n {
			r.tb.Fatalf("the full form has %d bytes, %d are announced: %v", len(full), n, err)
		}
	}
	s.Keep(true)
	return b.Bytes()
}

// full expands a local form.
func (r *replica) full(local []byte) ([]byte, error) {
	x, err := r.Cold.Expand(bytes.NewReader(local))
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(x)
	return b, errors.Join(err, x.Close())
}

const coldPath = "/cold"

// restarted returns a replica that has restored local with the files of disk, with index and time of r.
func restarted(tb testing.TB, r *replica, disk vfs.FS, local []byte) *replica {
	tb.Helper()
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		tb.Fatal(err)
	}
	n := newReplica(tb, Config{Shard: 3, Tier: dir})
	if err := n.Restore(bytes.NewReader(local)); err != nil {
		tb.Fatal(err)
	}
	if err := dir.RemoveStale(); err != nil {
		tb.Fatal(err)
	}
	n.index, n.now = r.index, r.now
	return n
}

// TestARestartContinuesWithTheFilesOfColdRows: a replica of tiered tables loses the power again and again. It restores
// the newest local snapshot without reading a cold row, applies the log after it, and is equal to one in memory. The
// full form of each snapshot is what the machine in memory would have written at that index.
func TestARestartContinuesWithTheFilesOfColdRows(t *testing.T) {
	tables := tieredTables()
	disk := vfs.NewMem()
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		t.Fatal(err)
	}
	memory, tiered := newReplica(t, Config{Shard: 3}), newReplica(t, Config{Shard: 3, Tier: dir})
	for _, r := range []*replica{memory, tiered} {
		r.create(tables...)
		r.mustOpen(1, 1)
	}
	random := rand.New(rand.NewPCG(3, 4))
	var local, want []byte
	var log [][]byte // since local
	var at replica   // index and time of local
	for i := range 160 {
		entry := randomTierEntry(random, memory.header(), rowraft.Seq(i+1), tables)
		log = append(log, entry)
		for _, r := range []*replica{memory, tiered} {
			if err := r.apply(entry).Parts[0].Err; err != nil {
				t.Fatal(err)
			}
			r.now += uint64(rowraft.Tick)
		}
		if i%13 == 12 {
			local, want, log, at.index, at.now = tiered.local(), memory.snapshot(), nil, tiered.index, tiered.now
		}
		if i%40 != 39 {
			continue
		}
		got, err := tiered.full(local)
		if err != nil || len(got) != len(want) {
			t.Fatalf("the full form has %d bytes, in memory %d: %v", len(got), len(want), err)
		}
		copied := newReplica(t, Config{Shard: 3})
		if err := copied.Restore(bytes.NewReader(got)); err != nil {
			t.Fatal(err)
		}
		if len(local) > len(want)*9/10 {
			t.Errorf("the local form has %d bytes, the full form %d: nothing is referred to", len(local), len(want))
		}
		disk = disk.Crash(uint64(i))
		_ = tiered.Close() // its disk is gone
		tiered = restarted(t, &at, disk, local)
		cold := int64(0)
		for _, s := range tiered.Stats() {
			cold += s.Tier.Records
			if s.Tier.Read != 0 {
				t.Errorf("table %s: the restore read %d of %d cold rows, want 0", s.Name, s.Tier.Read, s.Tier.Records)
			}
		}
		if cold == 0 {
			t.Error("no row was on disk")
		}
		if !sameState(copied, tiered) {
			t.Fatalf("restored %+v, the full form has %+v", tiered.digest(), copied.digest())
		}
		for _, entry := range log {
			tiered.apply(entry)
			tiered.now += uint64(rowraft.Tick)
		}
		if !sameState(memory, tiered) {
			t.Fatalf("after a restart: %+v, want %+v", tiered.digest(), memory.digest())
		}
		if err := tiered.Scrub(1 << 30); err != nil || tiered.Fenced() != nil {
			t.Fatal(err, tiered.Fenced())
		}
	}
	for _, s := range tables {
		want := scanSlots(t, memory.Machine, s, rowraft.Float32, 0, rowraft.DefaultSlots, nil)
		got := scanSlots(t, tiered.Machine, s, rowraft.Float32, 0, rowraft.DefaultSlots, nil)
		if len(got.keys) != len(want.keys) {
			t.Errorf("table %s has %d rows, want %d", s.Name, len(got.keys), len(want.keys))
		}
	}
	if files, err := disk.ReadDir(coldPath); err != nil || len(files) != len(tables) {
		t.Errorf("%d files, want one for each table: %v", len(files), err)
	}
}

// TestExpandWhileRowsMove: pushes, pulls and newer snapshots do not change a snapshot that is being sent.
func TestExpandWhileRowsMove(t *testing.T) {
	disk := vfs.NewMem()
	r, s, seq := tieredReplica(t, disk)
	local := r.local()
	want := r.snapshot()
	x, err := r.Cold.Expand(bytes.NewReader(local))
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 1000)
	if _, err := io.ReadFull(x, got); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for first := 0; first < 5000; first += 500 {
			seq++
			r.parts(tierPush(s, seq, first))
		}
		r.local()
	}
	rest, err := io.ReadAll(x)
	if err != nil || x.Close() != nil || len(got)+len(rest) != len(want) {
		t.Fatalf("the full form has %d bytes, want %d: %v", len(got)+len(rest), len(want), err)
	}
	copied, before := newReplica(t, Config{}), newReplica(t, Config{})
	if err := errors.Join(copied.Restore(bytes.NewReader(append(got, rest...))),
		before.Restore(bytes.NewReader(want))); err != nil || !sameState(copied, before) {
		t.Errorf("the full form has another state: %v", err)
	}
	if _, err := r.Cold.Expand(bytes.NewReader(local)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a snapshot that newer ones replaced is expanded: %v", err)
	}
	// Nothing pins the old rows any more, so the file does not grow further.
	before2 := r.Stats()[0].Tier.FileBytes
	for range 5 {
		for first := 0; first < 5000; first += 500 {
			seq++
			r.parts(tierPush(s, seq, first))
		}
		r.local()
	}
	if after := r.Stats()[0].Tier; after.FileBytes > before2 {
		t.Errorf("the file grew from %d to %d bytes, %d of them pinned", before2, after.FileBytes, after.PinnedBytes)
	}
}

// TestARestoreWithoutItsFile: a snapshot whose file is missing, cut or another one is refused, and the replica is as
// before. So is a local snapshot by a machine without files.
func TestARestoreWithoutItsFile(t *testing.T) {
	disk := vfs.NewMem()
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Config{Tier: dir})
	s := tieredTables()[0]
	r.create(s)
	r.mustOpen(1, 1)
	for i := range 10 {
		r.parts(tierPush(s, rowraft.Seq(i+1), 500*i))
	}
	local := r.local()
	files, err := disk.ReadDir(coldPath)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	name := filepath.Join(coldPath, files[0].Name())
	change := func(f func(vfs.File) error) func(vfs.FS) error {
		return func(d vfs.FS) error {
			file, err := d.OpenFile(name, os.O_RDWR)
			if err != nil {
				return err
			}
			return errors.Join(f(file), file.Close())
		}
	}
	for want, damage := range map[string]func(vfs.FS) error{
		"is missing":    func(d vfs.FS) error { return d.Remove(name) },
		"too short":     change(func(f vfs.File) error { return f.Truncate(1 << 20) }),
		"has no header": change(func(f vfs.File) error { return f.Truncate(10) }),
		"is damaged":    change(func(f vfs.File) error { _, err := f.WriteAt([]byte{1}, 20); return err }),
	} {
		d := disk.Crash(vfs.LoseUnsynced)
		_ = r.Close()
		if err := damage(d); err != nil {
			t.Fatal(err)
		}
		dir, err := coldfile.OpenDir(d, coldPath)
		if err != nil {
			t.Fatal(err)
		}
		n := newReplica(t, Config{Tier: dir})
		testutil.WantCode(t, n.Restore(bytes.NewReader(local)), rowraft.CodeCorrupt, want)
		if n.AppliedIndex() != 0 || len(n.Tables()) != 0 {
			t.Errorf("%s: the machine has changed", want)
		}
	}
	plain := newReplica(t, Config{})
	testutil.WantCode(t, plain.Restore(bytes.NewReader(local)), rowraft.CodeInvalidArgument, "refers to rows in files")
	_, err = checkpoint.NewReader(bytes.NewReader(local))
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "DIR/cold")
}

// TestADroppedTablesFileStaysForTheSnapshot: the newest durable snapshot may need the file of a table that the log
// dropped since. The file goes when a snapshot without the table is durable.
func TestADroppedTablesFileStaysForTheSnapshot(t *testing.T) {
	disk := vfs.NewMem()
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Config{Shard: 3, Tier: dir})
	s := tieredTables()[0]
	r.create(s)
	r.mustOpen(1, 1)
	for i := range 10 {
		r.parts(tierPush(s, rowraft.Seq(i+1), 500*i))
	}
	local := r.local()
	drop := func(r *replica) {
		r.apply(wire.DropTableEntry(r.header(), s.ID))
		r.freeing.Wait()
	}
	at := replica{index: r.index, now: r.now}
	drop(r)
	disk = disk.Crash(vfs.KeepUnsynced)
	_ = r.Close()
	r = restarted(t, &at, disk, local)
	drop(r)
	r.local()
	if files, err := disk.ReadDir(coldPath); err != nil || len(files) != 0 {
		t.Errorf("%d files after the snapshot without the table, %v", len(files), err)
	}
}

// tierLife has the number of entries in the newest durable snapshot, and in the one that is being written.
type tierLife struct{ done, pending int }

// tierLog is a log of a small table, and the digest after each entry.
type tierLog struct {
	entries [][]byte
	digests []Digest
}

func newTierLog(t *testing.T, s rowraft.Schema, n int) *tierLog {
	l := &tierLog{}
	r := newReplica(t, Config{})
	add := func(entry []byte) {
		r.apply(entry)
		r.now++
		l.entries, l.digests = append(l.entries, entry), append(l.digests, r.digest())
	}
	add(wire.CreateTableEntry(r.header(), &s))
	add(wire.OpenSessionEntry(r.header(), wire.Opening{Client: client(1), Incarnation: 1}))
	random := rand.New(rand.NewPCG(5, 6))
	for i := range n {
		keys := map[rowraft.Key]bool{}
		var list []rowraft.Key
		for range 40 {
			if k := rowraft.Key(random.IntN(150)); !keys[k] {
				keys[k] = true
			}
		}
		for k := range rowraft.Key(150) {
			if keys[k] {
				list = append(list, k)
			}
		}
		add(entryOf(r.header(), push(1, rowraft.Seq(i+1), payloadOf(rows{schema: s, keys: list}))))
	}
	return l
}

// open returns the machine of the newest snapshot on disk, after it has checked every row.
func (l *tierLog) open(disk vfs.FS, life *tierLife) (m *Machine, err error) {
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		return nil, err
	}
	if m, err = New(Config{Tier: dir}); err != nil {
		return nil, err
	}
	f, err := disk.OpenFile("/snap", os.O_RDONLY)
	if err == nil {
		err = errors.Join(m.Restore(f), f.Close())
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = dir.RemoveStale()
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	done := int(m.AppliedIndex())
	if done != life.done && done != life.pending {
		err := fmt.Errorf("a snapshot of %d entries, want %d or %d", done, life.done, life.pending)
		return nil, errors.Join(err, m.Close())
	}
	life.done = done
	return m, l.check(m)
}

// check compares the rows of m with the log, by their digest and one by one.
func (l *tierLog) check(m *Machine) error {
	d, err := m.Digest()
	if err == nil && d.Index > 0 && d != l.digests[d.Index-1] {
		err = fmt.Errorf("after %d entries: digest %x, want %x", d.Index, d.Sum, l.digests[d.Index-1].Sum)
	}
	if err == nil {
		err = m.Scrub(1 << 30)
	}
	return err
}

// run applies entries and takes n snapshots.
func (l *tierLog) run(disk vfs.FS, m *Machine, life *tierLife, n int) error {
	for range n {
		for range 2 {
			if err, bad := m.Apply(m.AppliedIndex()+1, l.entries[m.AppliedIndex()]).(error); bad {
				return err
			}
		}
		life.pending = int(m.AppliedIndex())
		s, err := m.Snapshot()
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if _, err = s.WriteLocal(&b); err == nil {
			err = vfs.WriteFile(disk, "/snap.tmp", b.Bytes())
		}
		if err == nil {
			err = errors.Join(disk.Rename("/snap.tmp", "/snap"), disk.SyncDir("/"))
		}
		if err == nil {
			life.done = life.pending
			s.Keep(true)
		}
		s.Release()
		if err != nil {
			return err
		}
	}
	return l.check(m)
}

// TestCrashAtEachStepOfColdRows: whatever step of the disk the power fails or the process dies at, the newest durable
// snapshot finds each of its cold rows, and the log after it gives the same rows.
func TestCrashAtEachStepOfColdRows(t *testing.T) {
	s := testTable(1, "t", 4, adagrad)
	s.Memory = 4 << 10
	l := newTierLog(t, s, 40)
	life := func(disk vfs.FS, life *tierLife, n int) error {
		m, err := l.open(disk, life)
		if err != nil {
			return err
		}
		return errors.Join(l.run(disk, m, life, n), m.Close())
	}
	vfstest.Crashes(t, vfstest.Script[tierLife]{
		Disk:  vfs.NewMem,
		Seeds: 3,
		Run:   func(disk vfs.FS, acked *tierLife) error { return life(disk, acked, 3) },
		Check: func(disk vfs.FS, acked tierLife) (tierLife, error) {
			err := life(disk, &acked, 1)
			return acked, err
		},
	}, map[string]string{
		"shard/rowstore/coldfile.(*dirFile).get: syncdir /": "the rename of the snapshot syncs the same directory here",
	})
}

// TestAFailedSyncFencesTheReplica: after a sync that failed, the content of the disk is unknown. The snapshot fails,
// and the one before stays pinned.
func TestAFailedSyncFencesTheReplica(t *testing.T) {
	mem := vfs.NewMem()
	disk := vfs.NewFaulty(mem)
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Config{Shard: 3, Tier: dir})
	s := tieredTables()[0]
	r.create(s)
	r.mustOpen(1, 1)
	for i := range 10 {
		r.parts(tierPush(s, rowraft.Seq(i+1), 500*i))
	}
	local, want, at := r.local(), r.digest(), replica{index: r.index, now: r.now}
	for i := range 10 {
		r.parts(tierPush(s, rowraft.Seq(i+11), 500*i))
	}
	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Path: "*.rows", Times: 1, Err: "EIO"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second sync would report success
		snap, err := r.Snapshot()
		if err == nil {
			_, err = snap.WriteLocal(io.Discard)
			snap.Release()
		}
		testutil.WantCode(t, err, rowraft.CodeFenced, "a sync failed")
	}
	if err := r.Scrub(1); rowraft.CodeOf(err) != rowraft.CodeFenced || r.Fenced() == nil {
		t.Errorf("the replica is not fenced: %v", err)
	}
	n := restarted(t, &at, mem.Crash(vfs.LoseUnsynced), local)
	_ = r.Close()
	if got := n.digest(); got != want {
		t.Errorf("restored %+v, want %+v", got, want)
	}
	if err := n.Scrub(1 << 30); err != nil {
		t.Error(err)
	}
}

// TestASnapshotOnAFullTierDisk: while the files cannot grow, pushes are refused, and a snapshot is taken and restored.
func TestASnapshotOnAFullTierDisk(t *testing.T) {
	disk := vfs.NewFaulty(vfs.NewMem())
	dir, err := coldfile.OpenDir(disk, coldPath)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Config{Shard: 3, Tier: dir})
	s := tieredTables()[0]
	r.create(s)
	r.mustOpen(1, 1)
	for i := range 10 {
		r.parts(tierPush(s, rowraft.Seq(i+1), 500*i))
	}
	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Path: "*.rows", Err: "ENOSPC"}); err != nil {
		t.Fatal(err)
	}
	r.parts(tierPush(s, 11, 5000))
	p := tierPush(s, 12, 0)
	_, err = r.CheckPart(&p)
	testutil.WantCode(t, err, rowraft.CodeOverloaded, "cannot be written")
	local, want, at := r.local(), r.digest(), replica{index: r.index, now: r.now}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	disk.Clear()
	if got := restarted(t, &at, disk, local).digest(); got != want {
		t.Errorf("restored %+v, want %+v", got, want)
	}
}

// TestALocalSnapshotWhileRowsChange: rows that change and move out after the cut are in the snapshot as they were then.
func TestALocalSnapshotWhileRowsChange(t *testing.T) {
	r, s, seq := tieredReplica(t, vfs.NewMem())
	before := r.snapshot()
	snap, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.Release()
	for first := 0; first < 5500; first += 500 {
		seq++
		r.parts(tierPush(s, seq, first))
	}
	var local bytes.Buffer
	if _, err := snap.WriteLocal(&local); err != nil {
		t.Fatal(err)
	}
	got, err := r.full(local.Bytes())
	if err != nil || len(got) != len(before) || int64(len(got)) != snap.FullBytes() {
		t.Fatalf("the full form has %d bytes, %d are announced, want %d: %v", len(got), snap.FullBytes(), len(before), err)
	}
	a, b := newReplica(t, Config{}), newReplica(t, Config{})
	if err := errors.Join(a.Restore(bytes.NewReader(before)), b.Restore(bytes.NewReader(got))); err != nil {
		t.Fatal(err)
	}
	if !sameState(a, b) {
		t.Errorf("the snapshot has %+v, want %+v", b.digest(), a.digest())
	}
}
