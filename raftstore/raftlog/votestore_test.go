package raftlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

func loadMeta(disk vfs.FS) (s *metaStore, newest uint64, err error) {
	s = newMetaStore(disk, testOwner, slog.New(slog.DiscardHandler))
	last, err := s.Load("/log")
	return s, last.newest, err
}

func mustLoadMeta(t testing.TB, disk vfs.FS) (s *metaStore, newest uint64) {
	t.Helper()
	s, newest, err := loadMeta(disk)
	if err != nil {
		t.Fatal(err)
	}
	return s, newest
}

func stable(t testing.TB, s *metaStore, key string) string {
	t.Helper()
	v, err := s.Get([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return string(v)
}

// goldenMeta is the newest state in testdata/META.
func goldenMeta() metaState {
	return metaState{
		generation: 9,
		newest:     4,
		owner:      testOwner,
		stable: map[string]string{"CurrentTerm": "\x07\x00\x00\x00\x00\x00\x00\x00",
			"LastVoteTerm": "\x06\x00\x00\x00\x00\x00\x00\x00", "LastVoteCand": "replica-b"},
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
	s, newest := mustLoadMeta(t, metaDisk(t, raw))
	want := goldenMeta()
	if newest != want.newest {
		t.Errorf("the newest segment is %d, want %d", newest, want.newest)
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
			s, newest := mustLoadMeta(t, disk)
			if newest != goldenMeta().newest || stable(t, s, "LastVoteCand") != "replica-b" {
				t.Errorf("bit %d of copy %d flipped: the newest segment is %d, the vote %q", bit, copyNo, newest,
					stable(t, s, "LastVoteCand"))
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
			if rowraft.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says) ||
				!strings.Contains(err.Error(), "META") {
				t.Errorf("%v, want %v that says %q and names the file", err, tc.code, tc.says)
			}
		})
	}
}

// TestMetaGrows: as many values as it takes, a new file when they do not fit.
func TestMetaGrows(t *testing.T) {
	disk := metaDisk(t, nil)
	s, _ := mustLoadMeta(t, disk)
	if err := s.Set([]byte("k"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if err := s.Set(fmt.Appendf(nil, "%03d", i), make([]byte, 68)); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := mustLoadMeta(t, disk.Crash(vfs.LoseUnsynced))
	if stable(t, after, "499") != string(make([]byte, 68)) || stable(t, after, "k") != "v" {
		t.Error("a value is gone after a crash")
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
		if err := s.Set([]byte(tc.key), tc.value); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("Set(%q, %q) (-want +got):\n%s", tc.key, tc.value, diff)
		}
	}
}

// TestMetaFailsForGood: after a write that failed the disk may hold either state,
// so nothing is answered any more.
func TestMetaFailsForGood(t *testing.T) {
	faulty := vfs.NewFaulty(metaDisk(t, nil))
	s, _ := mustLoadMeta(t, faulty)
	faulty.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Err: "EIO", Times: 1})
	if err := s.Set([]byte("k"), []byte("v")); err == nil || !strings.Contains(err.Error(), "/log") {
		t.Errorf("a failed sync: %v", err)
	}
	if _, err := s.Get([]byte("k")); err == nil {
		t.Error("a value was read after a failed write")
	}
	if err := s.setNewest(1); err == nil {
		t.Error("a state was stored after a failed write")
	}
}

// TestMetaReadAfterAFailedSyncStays: a state that the disk has and does not hold is
// answered only once it is written again.
func TestMetaReadAfterAFailedSyncStays(t *testing.T) {
	mem := metaDisk(t, nil)
	disk := vfs.NewFaulty(mem)
	s, _ := mustLoadMeta(t, disk)
	if err := s.Set([]byte("k"), []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := disk.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Err: "EIO", Times: 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Set([]byte("k"), []byte("new")); err == nil {
		t.Fatal("the sync did not fail")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mem = mem.Kill()
	again, _ := mustLoadMeta(t, mem)
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
	empty := metaState{generation: 1, owner: testOwner, clean: true}
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
	for _, backend := range Backends {
		b.Run("log="+backend, func(b *testing.B) {
			s, shared, err := testDir(b.TempDir()).open(backend, testOwner)
			if err != nil {
				b.Fatal(err)
			}
			defer shared.Close()
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
