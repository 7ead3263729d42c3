package checkpoint

import (
	"bytes"
	"io"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// goldenRemoved is what stands in testdata/snapshot_removed.hex.
func goldenRemoved() stream {
	s := stream{
		header: Header{Shard: 2, Applied: 7, LogTime: 1000, Epoch: 4},
		tables: []rowraft.Schema{{
			ID: 10, Name: "t", Kind: rowraft.Sparse, Dim: 3, Storage: rowraft.BFloat16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0x76033e85f0acf92d},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
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

// A removal is at most the counter, and stands where the flag says so: a slot from which
// nothing was removed is 8 bytes shorter.
func TestImpossibleRemovals(t *testing.T) {
	beyond := goldenRemoved()
	beyond.blocks[0].Removed = 10
	testutil.WantCodeOf(t, "written: a removal beyond the counter", write(io.Discard, beyond), rowraft.CodeInternal)
	const rows = 192 + 16
	wantImpossible(t, "snapshot_removed.hex", []changedByte{
		{"a removal beyond the counter", rows + 32, 10},
		{"a removal at 0", rows + 32, 0},
		{"a removal without its flag", rows + 10, 0},
	})
	none := goldenRemoved()
	none.blocks[1].Removed = 0
	if n, with := len(mustWrite(t, none)), len(mustWrite(t, goldenRemoved())); n != with-8 {
		t.Errorf("%d bytes where nothing was removed from a slot, %d where something was", n, with)
	}
}

// A manifest and a stream keep a schema with an extension whole.
func TestExtendedSchemasAreKept(t *testing.T) {
	for _, change := range []func(*rowraft.Schema){
		func(s *rowraft.Schema) { s.Storage = rowraft.BFloat16 },
		func(s *rowraft.Schema) {
			s.Optimizer = rowraft.Optimizer{Kind: rowraft.RowWiseAdagrad, LR: 1, Epsilon: 0.5, WeightDecay: 0.25}
		},
	} {
		m := goldenManifest()
		change(&m.Tables[0].Schema)
		b, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ParseManifest(b); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("read %+v, %v\nwant %+v", got, err, m)
		}
		stream := goldenStream
		stream.tables, stream.blocks = []rowraft.Schema{goldenStream.tables[0]}, nil
		change(&stream.tables[0])
		if got, err := read(bytes.NewReader(mustWrite(t, stream))); err != nil || got.tables[0] != stream.tables[0] {
			t.Errorf("read %+v, %v, want %+v", got, err, stream.tables[0])
		}
	}
}
