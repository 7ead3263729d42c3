package shard

import (
	"bytes"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
	"github.com/rowraft/rowraft/wire"
)

// tierIn returns a Config.Tier with files in a new directory of fs.
func tierIn(tb testing.TB, fs vfs.FS) *coldfile.Dir {
	dir, err := coldfile.OpenDir(fs, filepath.Join(tb.TempDir(), "cold"))
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// tieredTables are tables whose rows do not fit in their memory.
func tieredTables() []rowraft.Schema {
	plain := testTable(1, "plain", 64, adagrad)
	plain.Memory = 1 << 20
	recent := testTable(2, "recent", 90, adam)
	recent.Memory, recent.Expire = 1<<20, 40
	recent.Capacity = rowraft.Capacity{Rows: rowraft.DefaultSlots, Evict: rowraft.EvictLRU}
	rare := testTable(3, "rare", 301, sgd)
	rare.Memory, rare.Storage = 1<<20, rowraft.BFloat16
	rare.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}
	return []rowraft.Schema{plain, recent, rare}
}

const tierKeys = 9000

// randomTierEntry changes one of tables.
func randomTierEntry(r *rand.Rand, h wire.EntryHeader, seq rowraft.Seq, tables []rowraft.Schema) []byte {
	s := tables[r.IntN(len(tables))]
	var keys []rowraft.Key
	for range 1 + r.IntN(600) {
		k := r.IntN(tierKeys) // three of four among a tenth of the keys
		if r.IntN(4) > 0 {
			k = k / 10 * 10
		}
		keys = append(keys, rowraft.Key(k))
	}
	slices.Sort(keys)
	segment := rows{schema: s, keys: slices.Compact(keys)}
	p := wire.Part{Client: client(1), Incarnation: 1, Seq: seq, Op: wire.OpPush}
	switch n := r.IntN(12); {
	case n == 0 && s.Expire > 0:
		return wire.SweepEntry(h, &wire.Sweep{Table: s.ID, Slots: rowraft.DefaultSlots, Conditions: wire.SweepExpire})
	case n == 1:
		segment.flags, p.Op, segment.keys = wire.FlagNoValues, wire.OpDelete, segment.keys[:(len(segment.keys)+9)/10]
	case n == 2:
		p.Op = wire.OpAssign
	}
	if p.Op != wire.OpDelete {
		segment.values = make([]float32, len(segment.keys)*s.Dim)
		for i := range segment.values {
			segment.values[i] = r.Float32() - 0.5
		}
	}
	p.Payload = payloadOf(segment)
	return entryOf(h, p)
}

// TestTieredTablesEqualThoseInMemory: the same log gives the same rows, digests, scans and snapshots, whether rows lie
// on disk or not, while pulls move rows. A replica that restores a snapshot in the middle continues with the same rows.
func TestTieredTablesEqualThoseInMemory(t *testing.T) {
	tables := tieredTables()
	memory := newReplica(t, Config{Shard: 3})
	tiered := newReplica(t, Config{Shard: 3, Tier: tierIn(t, vfs.OS)})
	late := newReplica(t, Config{Shard: 3, Tier: tierIn(t, vfs.OS)})
	all := []*replica{memory, tiered}
	for _, r := range all {
		r.create(tables...)
		r.mustOpen(1, 1)
	}
	var stop atomic.Bool
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for range 2 {
		wg.Go(func() { // pulls whole rows: the keys of a row's neighbours are initial or not, never torn
			for n := 0; !stop.Load(); n++ {
				s := tables[n%len(tables)]
				var keys []rowraft.Key
				for k := n * 131 % tierKeys; len(keys) < 300; k = (k + 10) % tierKeys {
					keys = append(keys, rowraft.Key(k/10*10))
				}
				_, _, err := tiered.Pull(payloadOf(rows{schema: s, flags: wire.FlagNoValues, keys: keys}), true, 0, alloc)
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		entry := randomTierEntry(random, memory.header(), rowraft.Seq(i+1), tables)
		for _, r := range all {
			if err := r.apply(entry).Parts[0].Err; err != nil {
				t.Fatal(err)
			}
			r.now += uint64(rowraft.Tick)
		}
		for _, r := range all[1:] {
			if !sameState(memory, r) {
				t.Fatalf("after entry %d: %+v, want %+v as in memory", i, r.digest(), memory.digest())
			}
		}
		if i == 100 {
			snap := tiered.snapshot()
			if err := late.Restore(bytes.NewReader(snap)); err != nil {
				t.Fatal(err)
			}
			late.index, late.now = memory.index, memory.now
			all = append(all, late)
		}
	}
	keys := make([]rowraft.Key, tierKeys)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	for _, s := range tables {
		known, _, _ := memory.pullVersions(s, 0, keys, nil)
		for i := range known {
			known[i] += uint32(i % 3 / 2) // every third version is wrong
		}
		ask := rows{schema: s, flags: askVersions | wire.FlagKnown, keys: keys, known: known}
		reply, _, err := memory.Pull(payloadOf(ask), true, memory.Epoch(), alloc)
		if err != nil {
			t.Fatal(err)
		}
		weights, present := memory.pull(s, keys...)
		want := scanSlots(t, memory.Machine, s, rowraft.Float32, 0, rowraft.DefaultSlots, nil)
		for _, r := range all[1:] {
			if w, p := r.pull(s, keys...); !slices.Equal(w, weights) || !slices.Equal(p, present) {
				t.Errorf("table %s: a pull differs from that of rows in memory", s.Name)
			}
			if got, _, err := r.Pull(payloadOf(ask), true, r.Epoch(), alloc); err != nil || !bytes.Equal(got, reply) {
				t.Errorf("table %s: a pull with versions differs from that of rows in memory, %v", s.Name, err)
			}
			got := scanSlots(t, r.Machine, s, rowraft.Float32, 0, rowraft.DefaultSlots, nil)
			if !slices.Equal(got.keys, want.keys) || !slices.Equal(got.values, want.values) {
				t.Errorf("table %s: a scan has %d rows, and %d in memory, or other values", s.Name, len(got.keys), len(want.keys))
			}
		}
	}
	sweep := wire.Sweep{Table: 2, Slots: rowraft.DefaultSlots, Conditions: wire.SweepExpire}
	want, err := memory.PreviewSweep(&sweep, 190, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		if got, err := r.PreviewSweep(&sweep, 190, 1<<40); err != nil || got != want {
			t.Errorf("a preview counts %+v, %v; in memory %+v", got, err, want)
		}
		if err := r.Scrub(1 << 30); err != nil {
			t.Error(err)
		}
		for i, s := range r.Stats() {
			t.Logf("%s: %d rows, %d on disk, %d KiB in memory and %d there; %d rows read, %d written", s.Name, s.Rows,
				s.Tier.Records, s.Bytes>>10, s.Tier.FileBytes>>10, s.Tier.Read, s.Tier.Written)
			if s.Tier.Records == 0 || s.Tier.Read == 0 || s.TierError != nil {
				t.Errorf("table %s has %d rows on disk: the test shows nothing; error %v", s.Name, s.Tier.Records, s.TierError)
			}
			// The index of 4,096 slots alone takes half a MiB, and the candidates another.
			if most := uint64(8 << 20); s.Bytes > most || memory.Stats()[i].Rows != s.Rows {
				t.Errorf("table %s: %d bytes in memory, want at most %d; %d rows, want %d", s.Name, s.Bytes, most, s.Rows,
					memory.Stats()[i].Rows)
			}
		}
	}
	if a, b := memory.snapshot(), tiered.snapshot(); len(a) != len(b) {
		t.Errorf("the snapshot has %d bytes, in memory %d", len(b), len(a))
	}
}

// tieredReplica returns a replica of one table with rows on disk, and the last sequence number used.
func tieredReplica(t *testing.T, disk vfs.FS) (r *replica, s rowraft.Schema, seq rowraft.Seq) {
	s = tieredTables()[0]
	r = newReplica(t, Config{Tier: tierIn(t, disk)})
	r.create(s)
	r.mustOpen(1, 1)
	for first := 0; first < 5000; first += 500 {
		seq++
		if err := r.parts(tierPush(s, seq, first))[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	if r.Stats()[0].Tier.Records == 0 {
		t.Fatal("no row is on disk")
	}
	return r, s, seq
}

// tierPush is a push of 500 keys from first on.
func tierPush(s rowraft.Schema, seq rowraft.Seq, first int) wire.Part {
	var keys []rowraft.Key
	for k := range 500 {
		keys = append(keys, rowraft.Key(first+k))
	}
	return push(1, seq, payloadOf(rows{schema: s, keys: keys}))
}

// TestFullTierDisk: while the disk is full, the leader refuses pushes to the table, but a replica applies what is in
// the log, until its memory is used up. Then it stops. A disk with room again ends the refusals.
func TestFullTierDisk(t *testing.T) {
	disk := vfs.NewFaulty(vfs.NewMem())
	r, s, seq := tieredReplica(t, disk)
	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Err: "ENOSPC"}); err != nil {
		t.Fatal(err)
	}
	next := 5000
	apply := func() any {
		seq, next, r.index = seq+1, next+500, r.index+1
		return r.Apply(r.index, entryOf(r.header(), tierPush(s, seq, next)))
	}
	apply()
	p := tierPush(s, seq+1, 0)
	_, err := r.CheckPart(&p)
	testutil.WantCode(t, err, rowraft.CodeOverloaded, "cannot be written")
	if e := r.Stats()[0].TierError; e == nil || !strings.Contains(e.Error(), "no space left") {
		t.Errorf("the status says %v", e)
	}
	other := push(1, seq+1, nil)
	if _, err := r.CheckPart(&other); err != nil {
		t.Errorf("a push to no table: %v", err)
	}
	disk.Clear()
	if _, err := r.CheckPart(&p); err != nil {
		t.Errorf("with room on the disk: %v", err)
	}

	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpWrite}, Err: "EIO"}); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if fatal, ok := apply().(*FatalError); ok {
			testutil.WantCode(t, fatal, rowraft.CodeInternal, "rows in memory, the limit")
			return
		}
	}
	t.Error("the replica still takes rows into memory")
}

// TestBrokenTierDisk: a replica that cannot read its cold rows is fenced, by a pull, an entry, a scan or its own check.
func TestBrokenTierDisk(t *testing.T) {
	for name, use := range map[string]func(r *replica, s rowraft.Schema, seq rowraft.Seq) error{
		"pull": func(r *replica, s rowraft.Schema, _ rowraft.Seq) error {
			keys := make([]rowraft.Key, 5000)
			for i := range keys {
				keys[i] = rowraft.Key(i)
			}
			_, _, err := r.Pull(payloadOf(rows{schema: s, flags: wire.FlagNoValues, keys: keys}), false, 0, alloc)
			return err
		},
		"push": func(r *replica, s rowraft.Schema, seq rowraft.Seq) error {
			err, _ := r.Apply(r.index+1, entryOf(r.header(), tierPush(s, seq+1, 0))).(error)
			return err
		},
		"check": func(r *replica, _ rowraft.Schema, _ rowraft.Seq) error { return r.Scrub(1 << 30) },
		"scan": func(r *replica, s rowraft.Schema, _ rowraft.Seq) error {
			scan, err := r.NewScan(s.ID, rowraft.Float32)
			for slot := rowraft.Slot(0); err == nil && slot < rowraft.DefaultSlots; slot++ {
				_, _, _, err = scan.Append(nil, slot, 0)
			}
			if rowraft.CodeOf(err) == rowraft.CodeFenced {
				return r.Scrub(1)
			}
			return err
		},
		"snapshot": func(r *replica, _ rowraft.Schema, _ rowraft.Seq) error {
			snap, err := r.Snapshot()
			if err != nil {
				return err
			}
			defer snap.Release()
			if _, err = snap.WriteTo(io.Discard); rowraft.CodeOf(err) == rowraft.CodeFenced {
				return r.Scrub(1)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewFaulty(vfs.NewMem())
			r, s, seq := tieredReplica(t, disk)
			if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpRead}, Err: "EIO"}); err != nil {
				t.Fatal(err)
			}
			testutil.WantCode(t, use(r, s, seq), rowraft.CodeFenced, "cannot be read")
			if r.Fenced() == nil {
				t.Error("the replica is not fenced")
			}
		})
	}
}

// lockedReads counts the reads of files while a lock of a machine is held.
type lockedReads struct {
	vfs.FS
	locked func() bool
	n      atomic.Int32
}

func (d *lockedReads) OpenFile(name string, flag int) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag)
	return lockedFile{f, d}, err
}

type lockedFile struct {
	vfs.File
	disk *lockedReads
}

func (f lockedFile) ReadAt(b []byte, at int64) (int, error) {
	if f.disk.locked() {
		f.disk.n.Add(1)
	}
	return f.File.ReadAt(b, at)
}

// coldRows returns a replica of a table with the rows of keys 0 to 9,999 on disk.
func coldRows(t *testing.T) (r *replica, s rowraft.Schema, pushKeys func(from, to int), disk *lockedReads) {
	s = tieredTables()[0]
	disk = &lockedReads{FS: vfs.OS, locked: func() bool { return false }}
	r = newReplica(t, Config{Tier: tierIn(t, disk)})
	r.create(s)
	r.mustOpen(1, 1)
	seq := rowraft.Seq(0)
	pushKeys = func(from, to int) {
		seq++
		var keys []rowraft.Key
		for k := from; k < to; k++ {
			keys = append(keys, rowraft.Key(k))
		}
		if err := r.parts(push(1, seq, payloadOf(rows{schema: s, keys: keys})))[0].Err; err != nil {
			t.Fatal(err)
		}
	}
	pushKeys(0, 10_000)
	for first := 10_000; first < 14_000; first += 500 { // nothing else of the first rows stays in memory
		pushKeys(first, first+500)
	}
	return r, s, pushKeys, disk
}

// TestALargePushReadsWithoutTheLock: a push of more cold rows than may stay in memory reads none of them while it
// holds the lock, because it moves them into memory chunk by chunk.
func TestALargePushReadsWithoutTheLock(t *testing.T) {
	r, _, pushKeys, disk := coldRows(t)
	before := r.Stats()[0].Tier
	disk.locked = func() bool {
		if r.mu.TryRLock() {
			r.mu.RUnlock()
			return false
		}
		return true
	}
	pushKeys(0, 10_000)
	if n := r.Stats()[0].Tier.Read - before.Read; n < 9000 || disk.n.Load() > 0 {
		t.Errorf("a push of 10,000 cold rows read %d, %d of them while it held the lock", n, disk.n.Load())
	}
}

// TestAScanReadsWithoutTheLock: entries are applied while a scan waits for the disk.
func TestAScanReadsWithoutTheLock(t *testing.T) {
	r, s, _, disk := coldRows(t)
	disk.locked = func() bool {
		if r.applyMu.TryLock() {
			r.applyMu.Unlock()
			return false
		}
		return true
	}
	before := r.Stats()[0].Tier
	got := scanSlots(t, r.Machine, s, rowraft.Float32, 0, rowraft.DefaultSlots, nil)
	if n := r.Stats()[0].Tier.Read - before.Read; len(got.keys) != 14_000 || n == 0 || disk.n.Load() > 0 {
		t.Errorf("a scan of %d rows read %d of them from the disk, %d while it kept entries out", len(got.keys), n,
			disk.n.Load())
	}
}

// TestASnapshotEndsWhileAPullWaitsForTheDisk: the end of a snapshot holds the lock without which no push is applied, so
// it must not wait for a pull that reads cold rows.
func TestASnapshotEndsWhileAPullWaitsForTheDisk(t *testing.T) {
	r, s, _, disk := coldRows(t)
	snap, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	reads, resume := make(chan bool), make(chan bool)
	disk.locked = func() bool {
		reads <- true
		<-resume
		return false
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(resume)
	wg.Go(func() {
		if _, _, err := r.Pull(payloadOf(rows{schema: s, flags: wire.FlagNoValues, keys: []rowraft.Key{1}}), false, 0,
			alloc); err != nil {
			t.Error(err)
		}
	})
	<-reads
	ended := make(chan bool)
	wg.Go(func() {
		snap.Release()
		close(ended)
	})
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the snapshot does not end before the pull")
	}
}
