package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/testutil"
)

// memFiles keeps the files of a checkpoint in memory.
type memFiles map[string][]byte

func (m memFiles) Open(_ context.Context, name string) (io.ReadCloser, error) {
	b, ok := m[name]
	if !ok {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "no %s", name)
	}
	return io.NopCloser(bytes.NewReader(b)), nil
}

func fileOf(name string, b []byte) File {
	return File{Name: name, Bytes: int64(len(b)), SHA256: sha256.Sum256(b)}
}

// testCheckpoint is a whole checkpoint of two shards, a sparse and a dense table
// and a blob, made of nothing but this package.
func testCheckpoint(tb testing.TB, keys int) (*Manifest, memFiles) {
	tb.Helper()
	schemas := []rowraft.Schema{
		{ID: 10, Name: "s", Kind: rowraft.Sparse, Dim: 2, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
			Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}},
		{ID: 11, Name: "d", Kind: rowraft.Dense, Dim: 3, Storage: rowraft.BFloat16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}},
	}
	records := map[SlotSum][][]byte{} // by table and slot alone
	for i := range keys {
		for _, s := range schemas {
			key := rowraft.Key(i)
			if s.Kind == rowraft.Dense {
				key = rowraft.DenseKey(uint32(i%3), uint64(i))
			}
			at := SlotSum{Table: s.ID, Slot: clustermap.SlotOf(s.ID, s.Kind, key, rowraft.DefaultSlots)}
			rec := make([]byte, 24+s.WeightBytes())
			le.PutUint64(rec[8:], uint64(key))
			le.PutUint64(rec[16:], uint64(len(records[at])+1))
			le.PutUint32(rec[24:], uint32(i))
			records[at] = append(records[at], rec)
		}
	}
	m := &Manifest{ID: "id", Cluster: "c", Epoch: 1, HashVers: 1, Slots: rowraft.DefaultSlots,
		Created: time.Unix(1, 0).UTC()}
	for _, s := range schemas {
		m.Tables = append(m.Tables, TableSum{Schema: s})
	}
	files := memFiles{}
	for shard, slots := range [][]rowraft.Slot{slotRange(0, 1000), slotRange(1001, 4095)} {
		p := ShardFile{Shard: rowraft.ShardID(shard), Applied: 7, Slots: slots}
		var stream bytes.Buffer
		w, err := NewWriter(&stream, Header{Shard: p.Shard, Applied: 7, Epoch: 1}, schemas, nil, Ended{}, nil)
		if err != nil {
			tb.Fatal(err)
		}
		var sums []SlotSum
		order := slices.SortedFunc(maps.Keys(records), func(a, b SlotSum) int {
			if a.before(b) {
				return -1
			}
			return 1
		})
		for _, at := range order {
			if !slices.Contains(slots, at.Slot) {
				continue
			}
			recs := records[at]
			sum := SlotSum{Table: at.Table, Slot: at.Slot, Rows: uint32(len(recs)), Counter: uint64(len(recs)) + 2}
			if err := w.BeginSlot(Slot{Table: at.Table, Slot: at.Slot, Counter: sum.Counter,
				RecordBytes: len(recs[0])}); err != nil {
				tb.Fatal(err)
			}
			for _, r := range recs {
				sum.Digest = sum.Digest.Add(RecordDigest(r))
				if err := w.Append(r); err != nil {
					tb.Fatal(err)
				}
			}
			sums = append(sums, sum)
			p.Rows += uint64(sum.Rows)
			p.Digest = p.Digest.Add(sum.Digest)
			t := &m.Tables[at.Table-10]
			t.Rows += uint64(sum.Rows)
			t.Digest = t.Digest.Add(sum.Digest)
		}
		if err := w.Finish(p.Digest); err != nil {
			tb.Fatal(err)
		}
		name := fmt.Sprintf("shard-%04d", shard)
		files[name+".rows"], files[name+".sums"] = stream.Bytes(), EncodeSums(p.Shard, 7, sums)
		p.Written = p.Rows
		p.Stream, p.Sums = fileOf(name+".rows", files[name+".rows"]), fileOf(name+".sums", files[name+".sums"])
		m.Shards = append(m.Shards, p)
	}
	for i := range m.Tables {
		m.Tables[i].Written = m.Tables[i].Rows
	}
	files["blob-0000"] = []byte("position 17")
	m.Blobs = []Blob{{"trainer/0", fileOf("blob-0000", files["blob-0000"])}}
	b, err := m.Encode()
	if err != nil {
		tb.Fatal(err)
	}
	files[ManifestFile] = b
	return m, files
}

func verify(files memFiles, read func(int)) (TableRows, error) {
	c, err := OpenChain(context.Background(), func(string) Files { return files }, "a")
	if err != nil {
		return nil, err
	}
	return c.Verify(context.Background(), read)
}

func TestVerifyReadsEveryByte(t *testing.T) {
	m, files := testCheckpoint(t, 50)
	n := 0
	rows, err := verify(files, func(k int) { n += k })
	if err != nil || rows[10] != 50 || rows[11] != 50 || m.Rows() != 100 {
		t.Fatalf("rows %v, %v", rows, err)
	}
	if int64(n) != m.Bytes() {
		t.Errorf("%d bytes were read, the files have %d", n, m.Bytes())
	}
}

func TestEveryFlippedBitOfACheckpointIsFound(t *testing.T) {
	_, files := testCheckpoint(t, 12)
	for name, good := range files {
		for i := range good {
			bad := maps.Clone(files)
			bad[name] = slices.Clone(good)
			bad[name][i] ^= 1 << (i % 8)
			if _, err := verify(bad, nil); err == nil {
				t.Fatalf("byte %d of %s was changed, and no check noticed", i, name)
			}
		}
		for what, b := range map[string][]byte{"cut": good[:len(good)-1], "longer": append(slices.Clone(good), 0)} {
			bad := maps.Clone(files)
			bad[name] = b
			_, err := verify(bad, nil)
			testutil.WantCodeOf(t, name+" "+what, err, rowraft.CodeCorrupt)
		}
		bad := maps.Clone(files)
		delete(bad, name)
		_, err := verify(bad, nil)
		testutil.WantCodeOf(t, name+" missing", err, rowraft.CodeNotFound)
	}
}

// TestVerifyComparesRowsWithWhatTheShardCounted forges files whose checksums all
// fit, as a faulty writer would make them.
func TestVerifyComparesRowsWithWhatTheShardCounted(t *testing.T) {
	stream, sums := "shard-0001.rows", "shard-0001.sums"
	for _, tc := range []struct {
		name, want string
		change     func(rec []byte)
	}{
		{"another weight", "the shard counted", func(rec []byte) { rec[24]++ }},
		{"a key of another slot", "belongs in slot", func(rec []byte) { le.PutUint64(rec[8:], 1<<50) }},
		{"a version beyond the counter", "belongs in slot", func(rec []byte) { rec[23] = 1 }},
		{"version 0", "belongs in slot", func(rec []byte) { le.PutUint64(rec[16:], 0) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, files := testCheckpoint(t, 12)
			files[stream] = rewrite(t, files[stream], tc.change)
			m.Shards[1].Stream = fileOf(stream, files[stream])
			_, err := Chain{{"a", files, m}}.Verify(context.Background(), nil)
			testutil.WantCodeOf(t, tc.name, err, rowraft.CodeCorrupt)
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want something about %q", err, tc.want)
			}
		})
	}
	t.Run("a slot that the stream lacks", func(t *testing.T) {
		m, files := testCheckpoint(t, 12)
		_, _, list, err := ParseSums(files[sums])
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, SlotSum{Table: 11, Slot: 4095, Counter: 1})
		files[sums] = EncodeSums(1, 7, list)
		m.Shards[1].Sums = fileOf(sums, files[sums])
		_, err = Chain{{"a", files, m}}.Verify(context.Background(), nil)
		testutil.WantCodeOf(t, "a slot", err, rowraft.CodeCorrupt)
	})
	t.Run("the sums of another index", func(t *testing.T) {
		m, files := testCheckpoint(t, 12)
		_, _, list, _ := ParseSums(files[sums])
		files[sums] = EncodeSums(1, 8, list)
		m.Shards[1].Sums = fileOf(sums, files[sums])
		_, err := Chain{{"a", files, m}}.Verify(context.Background(), nil)
		testutil.WantCodeOf(t, "index", err, rowraft.CodeCorrupt)
	})
}

// rewrite copies a stream and changes its first record on the way.
func rewrite(tb testing.TB, stream []byte, change func(rec []byte)) []byte {
	tb.Helper()
	rd, err := NewReader(bytes.NewReader(stream))
	if err != nil {
		tb.Fatal(err)
	}
	var out bytes.Buffer
	w, err := NewWriter(&out, rd.Header(), rd.Tables(), rd.Sessions(), Ended{}, rd.Jobs())
	if err != nil {
		tb.Fatal(err)
	}
	for first := true; ; first = false {
		b, err := rd.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			tb.Fatal(err)
		}
		recs := slices.Clone(b.Records)
		if first {
			change(recs[:b.RecordBytes])
		}
		if b.First {
			err = w.BeginSlot(b.Slot)
		}
		if err == nil {
			err = w.Append(recs)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Finish(rd.Trailer().Digest); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}
