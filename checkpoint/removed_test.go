package checkpoint

import (
	"bytes"
	"io"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
)

// goldenStream2 is what stands in testdata/snapshot_v2.hex.
func goldenStream2() stream {
	s := stream{
		header: Header{Shard: 2, Applied: 7, LogTime: 1000, Epoch: 4, Format: 2},
		tables: []rowraft.Schema{{
			ID: 10, Name: "t", Kind: rowraft.Sparse, Dim: 3, Storage: rowraft.BFloat16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}},
		blocks: []block{
			{Slot{Table: 10, Slot: 5, Counter: 9, RecordBytes: 32, Removed: 8}, 1, "" +
				"\x00\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\xc0\x3f\x00\xc0\x00\x00\x00\x00"},
			{Slot{Table: 10, Slot: 6, Counter: 3, RecordBytes: 32, Removed: 3}, 0, ""},
		},
	}
	for i := range s.digest {
		s.digest[i] = byte(16 + i)
	}
	return s
}

func TestGoldenSnapshotOfFormat2(t *testing.T) {
	want, file := goldenStream2(), goldenFile(t, "snapshot_v2.hex")
	got, err := read(bytes.NewReader(file))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, want)
	}
	want.header.Format = 0 // the table alone asks for it
	if written := mustWrite(t, want); !bytes.Equal(written, file) {
		t.Errorf("written %x\nwant    %x", written, file)
	}
}

// TestFormatFollowsTheContent: what holds nothing new is a stream of format 1,
// and such a stream holds nothing new.
func TestFormatFollowsTheContent(t *testing.T) {
	old := goldenStream
	old.header.Format = 0
	if got, want := mustWrite(t, old), golden(t); !bytes.Equal(got, want) {
		t.Errorf("written %x\nwant    %x", got, want)
	}
	removed := goldenStream
	removed.header.Format = 2
	removed.blocks = []block{{Slot{Table: 10, Slot: 5, Counter: 4, RecordBytes: 28, Removed: 4}, 0, ""}}
	if got, err := read(bytes.NewReader(mustWrite(t, removed))); err != nil || got.header.Format != 2 || got.blocks[0].Removed != 4 {
		t.Errorf("rows were removed: %+v, %v", got, err)
	}
	removed.header.Format = 1
	wantCode(t, "removed rows in format 1", write(io.Discard, removed), rowraft.CodeInternal)
	removed.header.Format, removed.blocks[0].Removed = 2, 5
	wantCode(t, "a removal beyond the counter", write(io.Discard, removed), rowraft.CodeInternal)

	bad := goldenFile(t, "snapshot_v2.hex")
	bad[184+16+32] = 10
	_, err := read(bytes.NewReader(sums(bad)))
	wantCode(t, "read: a removal beyond the counter", err, rowraft.CodeCorrupt)
	empty := goldenStream2()
	empty.blocks = nil
	bad = mustWrite(t, empty)
	bad[8] = 1
	_, err = read(bytes.NewReader(sums(bad)))
	wantCode(t, "an extended table in format 1", err, rowraft.CodeCorrupt)
}

// TestLaterOptimizers: a table whose schema has extension 2 is in a manifest of
// format 3, and in a stream of format 2 that keeps it whole.
func TestLaterOptimizers(t *testing.T) {
	m := goldenManifest()
	m.Tables[0].Schema.Optimizer = rowraft.Optimizer{Kind: rowraft.RowWiseAdagrad, LR: 1, Epsilon: 0.5, WeightDecay: 0.25}
	b, err := m.Encode()
	if err != nil || !bytes.HasPrefix(b, []byte("ROWRAFT-CHECKPOINT 3 ")) {
		t.Fatalf("%.30s, %v, want format 3", b, err)
	}
	if got, err := ParseManifest(b); err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, m)
	}
	b[len("ROWRAFT-CHECKPOINT ")] = '2'
	_, err = ParseManifest(b)
	wantCode(t, "it in a manifest of format 2", err, rowraft.CodeCorrupt)

	stream := goldenStream2()
	stream.tables[0].Optimizer = m.Tables[0].Schema.Optimizer
	stream.tables[0].Storage, stream.header.Format, stream.blocks = 0, 0, nil // the optimizer alone asks for it
	text := mustWrite(t, stream)
	if text[8] != 2 {
		t.Errorf("the stream has format %d, want 2", text[8])
	}
	if got, err := read(bytes.NewReader(text)); err != nil || got.tables[0] != stream.tables[0] {
		t.Errorf("read %+v, %v, want %+v", got, err, stream.tables[0])
	}
	text[8] = 1
	_, err = read(bytes.NewReader(sums(text)))
	wantCode(t, "it in a stream of format 1", err, rowraft.CodeCorrupt)
}

// TestManifestOfAnExtendedTable: format 2, and only then.
func TestManifestOfAnExtendedTable(t *testing.T) {
	m := goldenManifest()
	m.Tables[0].Schema.Storage = rowraft.BFloat16
	b, err := m.Encode()
	if err != nil || !bytes.HasPrefix(b, []byte("ROWRAFT-CHECKPOINT 2 ")) {
		t.Fatalf("%.30s, %v, want format 2", b, err)
	}
	got, err := ParseManifest(b)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("read %+v, %v\nwant %+v", got, err, m)
	}
	b[len("ROWRAFT-CHECKPOINT ")] = '1'
	_, err = ParseManifest(b)
	wantCode(t, "an extended table in format 1", err, rowraft.CodeCorrupt)
	plain := goldenManifestBytes(t)
	plain[len("ROWRAFT-CHECKPOINT ")] = '2'
	_, err = ParseManifest(plain)
	wantCode(t, "nothing new in format 2", err, rowraft.CodeCorrupt)
}
