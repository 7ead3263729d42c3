package checkpoint

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

func goldenManifestBytes(tb testing.TB) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/manifest.txt")
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func slotRange(from, to int) (out []rowraft.Slot) {
	for s := from; s <= to; s++ {
		out = append(out, rowraft.Slot(s))
	}
	return out
}

func repeated(b byte) (sum [32]byte) {
	for i := range sum {
		sum[i] = b
	}
	return sum
}

// goldenManifest is what stands in testdata/manifest.txt.
func goldenManifest() *Manifest {
	all := Digest{}
	for i := range all {
		all[i] = 0xff
	}
	return &Manifest{
		ID: "0b8ee3a2-5a43-4b53-9d31-6f4e0f3d8a11", Created: time.Date(2026, 11, 21, 6, 0, 0, 5e8, time.UTC),
		Binary:  "v0.1.0",
		Cluster: "048fe114-130c-4d26-b977-a06b494661e6", Epoch: 2, Map: 12, HashVers: 1, Slots: rowraft.DefaultSlots,
		HeldFor: 41 * time.Millisecond,
		Tables: []TableSum{{
			Schema: rowraft.Schema{
				ID: 10, Name: "t", Kind: rowraft.Sparse, Dim: 1,
				Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0x76033e85f0acf92d},
				Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
			},
			Rows: 3, Digest: Digest{5}, Written: 3,
		}},
		Shards: []ShardFile{
			{Shard: 0, Applied: 7, Slots: slotRange(0, 2047), Rows: 1, Digest: all, Written: 1,
				Stream: File{"shard-0000.rows", 300, repeated(0)}, Sums: File{"shard-0000.sums", 76, repeated(0x11)}},
			{Shard: 1, Applied: 9, Slots: slotRange(2048, 4095), Rows: 2, Digest: Digest{6}, Written: 2,
				Stream: File{"shard-0001.rows", 330, repeated(0x22)}, Sums: File{"shard-0001.sums", 116, repeated(0x33)}},
		},
		Blobs: []Blob{{"trainer/ctr/0", File{"blob-0000", 20, repeated(0x44)}}},
	}
}

// goldenDeltaManifest is what stands in testdata/manifest-delta.txt.
func goldenDeltaManifest() *Manifest {
	m := goldenManifest()
	m.Parent = &Parent{Name: "nightly-1", ID: "7a9c3f10-2f57-4a43-8f0e-2a1b3c4d5e6f"}
	m.Tables[0].Written, m.Shards[0].Written, m.Shards[1].Written = 1, 0, 1
	return m
}

func TestGoldenManifest(t *testing.T) {
	for file, m := range map[string]*Manifest{"manifest.txt": goldenManifest(),
		"manifest-delta.txt": goldenDeltaManifest()} {
		want, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseManifest(want)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%s: read  %+v\nwant %+v", file, got, m)
		}
		written, err := m.Encode()
		if err != nil || !bytes.Equal(written, want) {
			t.Errorf("%s: wrote %s, %v\nwant  %s", file, written, err, want)
		}
	}
}

func TestDeltasThatContradictThemselves(t *testing.T) {
	good, err := os.ReadFile("testdata/manifest-delta.txt")
	if err != nil {
		t.Fatal(err)
	}
	body := string(good[bytes.IndexByte(good, '\n')+1:])
	for _, tc := range []struct{ name, old, new string }{
		{"no parent", `"parent": "nightly-1"`, `"parent": ""`},
		{"a parent that leads elsewhere", `"parent": "nightly-1"`, `"parent": "../x"`},
		{"a parent without an id", ` "parent_id": "7a9c3f10-2f57-4a43-8f0e-2a1b3c4d5e6f",`, ``},
		{"its own parent", `7a9c3f10-2f57-4a43-8f0e-2a1b3c4d5e6f`, `0b8ee3a2-5a43-4b53-9d31-6f4e0f3d8a11`},
		{"more rows than there are", `"written": 0`, `"written": 2`},
		{"no count of a part", `   "written": 0,` + "\n", ``},
		{"other rows in the tables", "\"written\": 1,\n   \"schema\"", "\"written\": 2,\n   \"schema\""},
	} {
		if !strings.Contains(body, tc.old) {
			t.Fatalf("the golden manifest has no %s", tc.old)
		}
		_, err := ParseManifest(reseal(strings.Replace(body, tc.old, tc.new, 1)))
		testutil.WantCodeOf(t, tc.name, err, rowraft.CodeCorrupt)
	}
}

func TestEveryFlippedBitOfAManifestIsFound(t *testing.T) {
	good := goldenManifestBytes(t)
	for i := range good {
		for bit := range 8 {
			bad := slices.Clone(good)
			bad[i] ^= 1 << bit
			if _, err := ParseManifest(bad); err == nil {
				t.Fatalf("bit %d of byte %d flipped, and no check noticed", bit, i)
			}
		}
	}
	for n := range good {
		if _, err := ParseManifest(good[:n]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Fatalf("cut to %d bytes: %v, want Corrupt", n, err)
		}
	}
}

// reseal gives a body its first line.
func reseal(body string) []byte {
	return fmt.Appendf(nil, "ROWRAFT-CHECKPOINT %d %08x %d\n%s", ManifestVersion, crc32.Checksum([]byte(body), castagnoli),
		len(body), body)
}

func TestManifestsThatContradictThemselves(t *testing.T) {
	good := goldenManifestBytes(t)
	body := string(good[bytes.IndexByte(good, '\n')+1:])
	if _, err := ParseManifest(reseal(body)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, old, new string
		code           rowraft.Code
	}{
		{"rows of a part", `"rows": 2`, `"rows": 4`, rowraft.CodeCorrupt},
		{"digest of a table", `"digest": "05`, `"digest": "04`, rowraft.CodeCorrupt},
		{"a slot twice", `"2048-4095"`, `"2047-4095"`, rowraft.CodeCorrupt},
		{"a slot missing", `"2048-4095"`, `"2049-4095"`, rowraft.CodeCorrupt},
		{"slots not in their shortest form", `"2048-4095"`, `"2048-2049,2050-4095"`, rowraft.CodeCorrupt},
		{"a slot that does not exist", `"2048-4095"`, `"2048-4096"`, rowraft.CodeCorrupt},
		{"slots that no cluster can have", `"slot_count": 4096`, `"slot_count": 4095`, rowraft.CodeCorrupt},
		{"slots of more parts than there are", `"slot_count": 4096`, `"slot_count": 8192`, rowraft.CodeCorrupt},
		{"a file that leads elsewhere", `"shard-0000.rows"`, `"../shard-0000.rows"`, rowraft.CodeCorrupt},
		{"two files of one name", `"shard-0001.sums"`, `"shard-0001.rows"`, rowraft.CodeCorrupt},
		{"a file in the place of the manifest", `"shard-0001.sums"`, `"MANIFEST"`, rowraft.CodeCorrupt},
		{"a shard out of place", `"shard": 1`, `"shard": 2`, rowraft.CodeCorrupt},
		{"another name than its schema's", `"name": "t"`, `"name": "u"`, rowraft.CodeCorrupt},
		{"no epoch", `"epoch": 2`, `"epoch": 0`, rowraft.CodeCorrupt},
		{"an unknown field", `"parent": ""`, `"parents": ""`, rowraft.CodeCorrupt},
		{"upper-case hex", `"digest": "ffff`, `"digest": "FFFF`, rowraft.CodeCorrupt},
		{"something behind the JSON", "\n}\n", "\n}\n{}\n", rowraft.CodeCorrupt},
		{"a later hash", `"hash_version": 1`, `"hash_version": 2`, rowraft.CodeVersionTooNew},
		{"a full one with a parent", `"parent": ""`, `"parent": "x"`, rowraft.CodeCorrupt},
		{"a full one with the id of a parent", `"parent": ""`, `"parent": "", "parent_id": "y"`, rowraft.CodeCorrupt},
		{"a full one with a count of a delta", `"slots": "0-2047",`, `"slots": "0-2047", "written": 1,`, rowraft.CodeCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(body, tc.old) {
				t.Fatalf("the golden manifest has no %s", tc.old)
			}
			bad := strings.Replace(body, tc.old, tc.new, 1)
			if strings.HasPrefix(tc.old, "\n}") {
				bad = strings.TrimSuffix(body, tc.old) + tc.new
			}
			_, err := ParseManifest(reseal(bad))
			testutil.WantCodeOf(t, tc.name, err, tc.code)
		})
	}
}

func TestManifestNewerThanMe(t *testing.T) {
	for _, b := range []string{"ROWRAFT-CHECKPOINT 2\n", "ROWRAFT-CHECKPOINT 17 whatever that means\n"} {
		_, err := ParseManifest([]byte(b))
		testutil.WantCodeOf(t, b, err, rowraft.CodeVersionTooNew)
	}
	_, err := ParseManifest([]byte("ROWRAFT-CHECKPOINT 0 00000000 1\n"))
	testutil.WantCodeOf(t, "version 0", err, rowraft.CodeCorrupt)
}

func TestEncodeRefusesWhatNobodyCouldRead(t *testing.T) {
	m := goldenManifest()
	m.Shards = m.Shards[:1]
	_, err := m.Encode()
	testutil.WantCodeOf(t, "half of the slots", err, rowraft.CodeInternal)
}

var goldenSlotSums = []SlotSum{
	{Table: 10, Slot: 5, Rows: 2, Counter: 3, Digest: Digest{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}},
	{Table: 10, Slot: 4095, Counter: 1},
}

func goldenSumsBytes(tb testing.TB) []byte { return testutil.GoldenHex(tb, "testdata/sums.hex") }

func TestGoldenSums(t *testing.T) {
	want := goldenSumsBytes(t)
	shard, applied, got, err := ParseSums(want)
	if err != nil || shard != 2 || applied != 7 || !slices.Equal(got, goldenSlotSums) {
		t.Errorf("read shard %d index %d %+v, %v", shard, applied, got, err)
	}
	if written := EncodeSums(2, 7, goldenSlotSums); !bytes.Equal(written, want) {
		t.Errorf("wrote %x\nwant  %x", written, want)
	}
}

func TestEveryFlippedBitOfSumsIsFound(t *testing.T) {
	good := goldenSumsBytes(t)
	for i := range good {
		for bit := range 8 {
			bad := slices.Clone(good)
			bad[i] ^= 1 << bit
			if _, _, _, err := ParseSums(bad); err == nil {
				t.Fatalf("bit %d of byte %d flipped, and no check noticed", bit, i)
			}
		}
		if _, _, _, err := ParseSums(good[:i]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Fatalf("cut to %d bytes: %v, want Corrupt", i, err)
		}
	}
	newer := slices.Clone(good)
	newer[8] = 2
	_, _, _, err := ParseSums(newer)
	testutil.WantCodeOf(t, "format 2", err, rowraft.CodeVersionTooNew)
}

func TestImpossibleSumsWithAGoodChecksum(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"slots out of order":       func(b []byte) { copy(b[sumsHeader+8:], []byte{0xff, 0x0f}) },
		"a slot without a version": func(b []byte) { b[sumsHeader+40+16] = 0 },
		"a wrong count":            func(b []byte) { b[24] = 1 },
		"something reserved":       func(b []byte) { b[28] = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			b := goldenSumsBytes(t)
			change(b)
			le.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
			_, _, _, err := ParseSums(b)
			testutil.WantCodeOf(t, name, err, rowraft.CodeCorrupt)
		})
	}
}

// FuzzManifest: no input is taken that would not be written the same way again.
func FuzzManifest(f *testing.F) {
	good := goldenManifestBytes(f)
	f.Add(good[bytes.IndexByte(good, '\n')+1:])
	delta, err := os.ReadFile("testdata/manifest-delta.txt")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(delta[bytes.IndexByte(delta, '\n')+1:])
	f.Add(
		[]byte(
			`{"id":"x","created":"2026-11-21T06:00:00Z","cluster":"c","epoch":1,"hash_version":1,"shards":[{"slots":"0-4095"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if m, err := ParseManifest(body); err == nil {
			t.Fatalf("a manifest without its first line was read: %+v", m)
		}
		m, err := ParseManifest(reseal(string(body)))
		if err != nil {
			return
		}
		b, err := m.Encode()
		if err != nil {
			t.Fatalf("%+v was read and cannot be written: %v", m, err)
		}
		again, err := ParseManifest(b)
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("read %+v, after writing it %+v, %v", m, again, err)
		}
	})
}

// FuzzSums likewise; the checksum is made to fit.
func FuzzSums(f *testing.F) {
	f.Add(goldenSumsBytes(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 {
			le.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
		}
		shard, applied, sums, err := ParseSums(b)
		if err == nil && !bytes.Equal(EncodeSums(shard, applied, sums), b) {
			t.Fatalf("%x was read as %+v, which is written otherwise", b, sums)
		}
	})
}
