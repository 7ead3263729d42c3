package checkpoint

import (
	"bytes"
	"io"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// goldenCandidates is what stands in testdata/candidates.hex.
func goldenCandidates() stream {
	slot := Slot{Table: 10, Slot: 5, Counter: 3, RecordBytes: 28}
	s := stream{
		header: Header{Shard: 2, Applied: 7, LogTime: 1_000_000_000, Epoch: 4},
		tables: []rowraft.Schema{{
			ID: 10, Name: "t", Kind: rowraft.Sparse, Dim: 1, Admission: rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3},
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0x76033e85f0acf92d},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}},
		blocks: []block{{slot, 0, ""}, {slot, areCandidates, "" +
			"\x07\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00" +
			"\x2a\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"}},
	}
	for i := range s.digest {
		s.digest[i] = byte(32 + i)
	}
	return s
}

// TestCandidatesOutOfPlace: they stand once, behind the rows of their slot, in order.
func TestCandidatesOutOfPlace(t *testing.T) {
	const chunk, body, trailer = 240, 256, 304 // where they begin in the file
	file := testutil.GoldenHex(t, "testdata/candidates.hex")
	change := func(at int, v byte) []byte {
		b := bytes.Clone(file)
		b[at] = v
		return b
	}
	before := bytes.Clone(file)
	copy(before[184:], file[chunk:trailer])
	copy(before[184+trailer-chunk:], file[184:chunk])
	twice := bytes.Join([][]byte{file[:trailer], file[chunk:trailer], file[trailer:]}, nil)
	for name, bad := range map[string][]byte{
		"of another table":    change(body, 11),
		"of another slot":     change(body+8, 6),
		"a byte that is zero": change(body+10, 1),
		"another number":      change(body+12, 1),
		"not in order":        change(body+16, 0x2b),
		"a key twice":         change(body+16, 0x2a),
		"before the rows":     before,
		"twice":               twice,
		"counted otherwise":   change(trailer+16+24, 3),
	} {
		_, err := read(bytes.NewReader(sums(bad)))
		testutil.WantCodeOf(t, name, err, rowraft.CodeCorrupt)
	}
	alone := goldenCandidates()
	alone.blocks = alone.blocks[1:]
	testutil.WantCodeOf(t, "written without a slot", write(io.Discard, alone), rowraft.CodeInternal)
}

func TestCandidateDigestIsOfKeyAndCount(t *testing.T) {
	c := []byte("\x07\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00")
	later := bytes.Clone(c)
	later[12] = 9
	more := bytes.Clone(c)
	more[8] = 3
	if CandidateDigest(c) != CandidateDigest(later) || CandidateDigest(c) == CandidateDigest(more) {
		t.Error("the digest of a candidate is of its key and count, not of its tick")
	}
}

// TestCandidatesOfAChain are those of the link that has most: of its streams what is
// neither rows nor headers.
func TestCandidatesOfAChain(t *testing.T) {
	schema := rowraft.Schema{Dim: 4, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD}} // records of 40 bytes
	link := func(rows, candidates uint64) Link {
		bytes := int64(rows*40 + candidates*CandidateBytes + rowraft.DefaultSlots*slotHeaders)
		return Link{Manifest: &Manifest{
			Slots:  rowraft.DefaultSlots,
			Tables: []TableSum{{Schema: schema, Rows: 1 << 40, Written: rows}},
			Shards: []ShardFile{{Stream: File{Bytes: bytes / 3}}, {Stream: File{Bytes: bytes - bytes/3}}},
		}}
	}
	for _, tc := range []struct {
		chain Chain
		want  uint64
	}{
		{Chain{link(9, 700)}, 700},
		{Chain{link(9, 0)}, 0},
		{Chain{link(5, 3), link(9, 700)}, 700},
		{Chain{link(5, 900), link(9, 700)}, 900},
		// few slots
		{Chain{{Manifest: &Manifest{Slots: rowraft.DefaultSlots, Tables: []TableSum{{Schema: schema, Written: 9}},
			Shards: []ShardFile{{Stream: File{Bytes: 500}}}}}}, 0},
	} {
		if n, err := tc.chain.Candidates(); err != nil || n != tc.want {
			t.Errorf("%d links: %d, %v; want %d", len(tc.chain), n, err, tc.want)
		}
	}
}
