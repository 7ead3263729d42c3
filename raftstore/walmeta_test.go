package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/types"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// metaDisk is a disk whose META is raw; nil: an empty directory.
func metaDisk(t testing.TB, raw []byte) *vfs.Mem {
	t.Helper()
	disk := vfs.NewMem()
	if err := disk.Mkdir("/log"); err != nil {
		t.Fatal(err)
	}
	if raw != nil {
		if err := vfs.WriteFile(disk, "/log/META", raw); err != nil {
			t.Fatal(err)
		}
	}
	if err := disk.SyncDir("/log"); err != nil {
		t.Fatal(err)
	}
	if err := disk.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	return disk
}

func loadMeta(disk vfs.FS) (*metaStore, types.PersistentState, error) {
	s := newMetaStore(disk, slog.New(slog.DiscardHandler))
	p, err := s.Load("/log")
	return s, p, err
}

func mustLoadMeta(t testing.TB, disk vfs.FS) (*metaStore, types.PersistentState) {
	t.Helper()
	s, p, err := loadMeta(disk)
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

func stable(t testing.TB, s *metaStore, key string) string {
	t.Helper()
	v, err := s.GetStable([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return string(v)
}

// goldenMeta is the newest state in testdata/META.
func goldenMeta() metaState {
	return metaState{
		generation: 9,
		wal: types.PersistentState{NextSegmentID: 5, Segments: []types.SegmentInfo{
			{ID: 3, BaseIndex: 1, MinIndex: 40, MaxIndex: 99, Codec: 1, IndexStart: 1048000, CreateTime: time.Unix(0, 1700000000000000001).UTC(), SealTime: time.Unix(0, 1700000005000000002).UTC(), SizeLimit: 1 << 20},
			{ID: 4, BaseIndex: 100, MinIndex: 100, Codec: 1, CreateTime: time.Unix(0, 1700000005000000003).UTC(), SizeLimit: 1 << 20},
		}},
		stable: map[string]string{"CurrentTerm": "\x07\x00\x00\x00\x00\x00\x00\x00", "LastVoteTerm": "\x06\x00\x00\x00\x00\x00\x00\x00", "LastVoteCand": "replica-b"},
	}
}

func readGolden(t testing.TB) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/META")
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestMetaGoldenBytes reads and writes the file that testdata/meta.py made from
// docs/formats/log-meta.md.
func TestMetaGoldenBytes(t *testing.T) {
	raw := readGolden(t)
	s, p := mustLoadMeta(t, metaDisk(t, raw))
	want := goldenMeta()
	if diff := cmp.Diff(want.wal, p); diff != "" {
		t.Errorf("segments (-want +got):\n%s", diff)
	}
	for k, v := range want.stable {
		if got := stable(t, s, k); got != v {
			t.Errorf("%s is %q, want %q", k, got, v)
		}
	}
	if frame := want.encode(); !bytes.HasPrefix(raw, frame) || !bytes.HasPrefix(raw[4096:], frame) {
		t.Errorf("the state is encoded as\n%x, golden is\n%x", frame, raw[:len(frame)])
	}
}

// TestMetaSurvivesOneBadCopy: whatever single copy is damaged, the newest state is
// found, and the file is whole again afterwards.
func TestMetaSurvivesOneBadCopy(t *testing.T) {
	for copyNo := range metaCopies {
		for _, bit := range []int{0, 8*8 + 1, 12*8 + 3, 30 * 8, 257 * 8} { // magic, version, length, body, checksum
			raw := readGolden(t)
			raw[copyNo*4096+bit/8] ^= 1 << (bit % 8)
			disk := metaDisk(t, raw)
			s, p := mustLoadMeta(t, disk)
			if diff := cmp.Diff(goldenMeta().wal, p); diff != "" || stable(t, s, "LastVoteCand") != "replica-b" {
				t.Errorf("bit %d of copy %d flipped (-want +got):\n%s", bit, copyNo, diff)
			}
			after, err := vfs.ReadFile(disk, "/log/META")
			if err != nil {
				t.Fatal(err)
			}
			if _, slots, err := newestMeta(after, 4096); err != nil || slots[0].generation != 9 || !slots[0].intact {
				t.Errorf("bit %d of copy %d was not repaired: %+v, %v", bit, copyNo, slots[0], err)
			}
		}
	}
}

func TestMetaDamageIsRefused(t *testing.T) {
	newer := func(raw []byte) []byte {
		n := binary.LittleEndian.Uint32(raw[12:])
		binary.LittleEndian.PutUint16(raw[8:], metaVersion+1)
		binary.LittleEndian.PutUint32(raw[16+n:], crc32.Checksum(raw[:16+n], castagnoli))
		return raw
	}
	for _, tc := range []struct {
		name string
		edit func(raw []byte) []byte
		code rowraft.Code
		says string
	}{
		{"an empty file", func([]byte) []byte { return []byte{} }, rowraft.CodeCorrupt, "0 bytes"},
		{"a cut file", func(raw []byte) []byte { return raw[:len(raw)-1] }, rowraft.CodeCorrupt, "16383 bytes"},
		{"zeros", func(raw []byte) []byte { return make([]byte, len(raw)) }, rowraft.CodeCorrupt, "no copy"},
		{"all copies damaged", func(raw []byte) []byte {
			for c := range metaCopies {
				raw[c*4096+20] ^= 1
			}
			return raw
		}, rowraft.CodeCorrupt, "no copy"},
		{"a newer version", newer, rowraft.CodeVersionTooNew, "version 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := loadMeta(metaDisk(t, tc.edit(readGolden(t))))
			if rowraft.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "META") {
				t.Errorf("%v, want %v that says %q and names the file", err, tc.code, tc.says)
			}
		})
	}
}

func TestMetaOfTheOldLayoutIsRefused(t *testing.T) {
	disk := metaDisk(t, nil)
	if err := vfs.WriteFile(disk, "/log/wal-meta.db", nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := loadMeta(disk); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "wal-meta.db") {
		t.Errorf("a log with wal-meta.db: %v", err)
	}
}

// TestMetaGrows: as many segments as it takes, a new file when they do not fit.
func TestMetaGrows(t *testing.T) {
	disk := metaDisk(t, nil)
	s, _ := mustLoadMeta(t, disk)
	if err := s.SetStable([]byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	var p types.PersistentState
	for id := range uint64(500) {
		p.Segments = append(p.Segments, types.SegmentInfo{ID: id, BaseIndex: 10*id + 1})
		p.NextSegmentID = id + 1
		if err := s.CommitState(p); err != nil {
			t.Fatal(err)
		}
	}
	after, got := mustLoadMeta(t, disk.Crash(vfs.LoseUnsynced))
	if diff := cmp.Diff(p, got); diff != "" || stable(t, after, "k") != "v" {
		t.Errorf("after a crash (-want +got):\n%s", diff)
	}
	if info, err := after.disk.Stat("/log/META"); err != nil || info.Size() != 4*64<<10 {
		t.Errorf("META has %d bytes (%v), want %d", info.Size(), err, 4*64<<10)
	}
	if disk.Open() != 1 {
		t.Errorf("%d files are open, want 1", disk.Open())
	}
}

func TestMetaCostsOneWriteAndOneSync(t *testing.T) {
	steps := vfs.NewFaulty(metaDisk(t, nil))
	s, _ := mustLoadMeta(t, steps)
	for _, tc := range []struct {
		key   string
		value []byte
		want  []vfs.Op
	}{
		{"a", []byte("1"), []vfs.Op{vfs.OpWrite, vfs.OpSync}},
		{"a", []byte("1"), nil},
		{"a", []byte("2"), []vfs.Op{vfs.OpWrite, vfs.OpSync}},
		{"b", nil, nil},
		{"b", []byte{}, []vfs.Op{vfs.OpWrite, vfs.OpSync}},
		{"b", nil, []vfs.Op{vfs.OpWrite, vfs.OpSync}},
	} {
		var got []vfs.Op
		steps.OnStep(func(st vfs.Step) { got = append(got, st.Op) })
		if err := s.SetStable([]byte(tc.key), tc.value); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("SetStable(%q, %q) (-want +got):\n%s", tc.key, tc.value, diff)
		}
	}
}

// TestMetaFailsForGood: after a write that failed the disk may hold either state,
// so nothing is answered any more.
func TestMetaFailsForGood(t *testing.T) {
	faulty := vfs.NewFaulty(metaDisk(t, nil))
	s, _ := mustLoadMeta(t, faulty)
	faulty.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Err: "EIO", Times: 1})
	if err := s.SetStable([]byte("k"), []byte("v")); err == nil || !strings.Contains(err.Error(), "/log") {
		t.Errorf("a failed sync: %v", err)
	}
	if _, err := s.GetStable([]byte("k")); err == nil {
		t.Error("a value was read after a failed write")
	}
	if err := s.CommitState(types.PersistentState{}); err == nil {
		t.Error("a state was stored after a failed write")
	}
}

// failedPages is a disk on which the sync of a META fails, and which takes its bytes
// for written from then on: they are read, and gone with the power.
type failedPages struct {
	vfs.FS
	fail bool // the next sync
	lost bool // what META holds is in memory only
}

type failedFile struct {
	vfs.File
	disk *failedPages
}

func (d *failedPages) OpenFile(name string, flag int) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag)
	if err != nil || filepath.Base(name) != metaName {
		return f, err
	}
	return &failedFile{f, d}, nil
}

func (f *failedFile) WriteAt(b []byte, at int64) (int, error) {
	f.disk.lost = false
	return f.File.WriteAt(b, at)
}

func (f *failedFile) Sync() error {
	if f.disk.fail {
		f.disk.fail, f.disk.lost = false, true
		return errors.New("EIO")
	}
	if f.disk.lost {
		return nil // nothing to write, it thinks
	}
	return f.File.Sync()
}

// TestMetaReadAfterAFailedSyncStays: a state that the disk has and does not hold is
// answered only once it is written again.
func TestMetaReadAfterAFailedSyncStays(t *testing.T) {
	mem := metaDisk(t, nil)
	disk := &failedPages{FS: mem}
	s, _ := mustLoadMeta(t, disk)
	if err := s.SetStable([]byte("k"), []byte("old")); err != nil {
		t.Fatal(err)
	}
	disk.fail = true
	if err := s.SetStable([]byte("k"), []byte("new")); err == nil {
		t.Fatal("the sync did not fail")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := mustLoadMeta(t, disk)
	told := stable(t, again, "k")
	after, _ := mustLoadMeta(t, mem.Crash(vfs.LoseUnsynced))
	if got := stable(t, after, "k"); got != told || told != "new" {
		t.Errorf("%q was read, and %q after a crash; the last one written is %q", told, got, "new")
	}
}

// FuzzMetaDecode: no bytes crash the decoder, and what it accepts is what it would
// write.
func FuzzMetaDecode(f *testing.F) {
	raw := readGolden(f)
	f.Add(raw)
	f.Add(raw[8192:])
	empty := metaState{generation: 1}
	f.Add(empty.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 20 { // let the fuzzer past the checksum
			if n := uint64(binary.LittleEndian.Uint32(b[12:])); n <= uint64(len(b)-20) {
				b = bytes.Clone(b)
				binary.LittleEndian.PutUint32(b[16+n:], crc32.Checksum(b[:16+n], castagnoli))
			}
		}
		m, err := decodeMeta(b)
		if err != nil {
			return
		}
		again := m.encode()
		same := bytes.Clone(b[:len(again)])
		copy(same[10:12], again[10:12]) // ignored
		binary.LittleEndian.PutUint32(same[len(same)-4:], crc32.Checksum(same[:len(same)-4], castagnoli))
		if !bytes.Equal(again, same) {
			t.Errorf("decoded %x\nencodes as %x", same, again)
		}
	})
}

// BenchmarkVote is what raft stores when it votes: term, term of the vote,
// candidate.
func BenchmarkVote(b *testing.B) {
	open := func(backend, dir string) (logBackend, error) {
		if backend == "wal-bbolt" { // as raft-wal keeps it
			return wal.Open(dir)
		}
		return openBackend(vfs.OS, backend, dir, 1<<20, slog.New(slog.DiscardHandler))
	}
	for _, backend := range []string{BackendWAL, "wal-bbolt", BackendBolt} {
		b.Run("log="+backend, func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "log")
			if err := os.Mkdir(dir, 0o700); err != nil {
				b.Fatal(err)
			}
			s, err := open(backend, dir)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			for term := uint64(1); b.Loop(); term++ {
				err1 := s.SetUint64([]byte("CurrentTerm"), term)
				err2 := s.SetUint64([]byte("LastVoteTerm"), term)
				err3 := s.Set([]byte("LastVoteCand"), fmt.Appendf(nil, "replica-%d", term%3))
				if err1 != nil || err2 != nil || err3 != nil {
					b.Fatal(err1, err2, err3)
				}
			}
		})
	}
}
