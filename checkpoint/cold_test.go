package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// localStream is a stream with references.
type localStream struct {
	stream
	files []ColdFile
	cold  []block // after the block of its slot
}

// goldenLocal is what stands in testdata/local.hex.
func goldenLocal() localStream {
	s := localStream{stream: goldenStream}
	s.header.Local, s.sessions = true, nil
	s.files = []ColdFile{{
		Table:       10,
		ID:          [16]byte{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf},
		RecordBytes: 32, PerExtent: 3, Cut: 5, Secret: [4]uint64{1, 2, 3, 4}, Seeds: []uint64{0x11, 0x22},
	}}
	slot := goldenStream.blocks[0]
	s.blocks = []block{{slot.Slot, 1, slot.records[:28]}}
	s.cold = []block{{slot.Slot, 2, "\x00\x00\x00\x80\xef\xbe\xad\xde\x04\x00\x00\x80\x01\x00\x00\x00"}}
	return s
}

var coldDigest = Digest{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

func readLocal(r io.Reader) (s localStream, err error) {
	rd, err := NewLocalReader(r)
	if err != nil {
		return s, err
	}
	s.stream = stream{
		header: rd.Header(), tables: rd.Tables(), sessions: rd.Sessions(), ended: rd.Ended(), jobs: rd.Jobs(),
	}
	s.files = rd.ColdFiles()
	for {
		b, err := rd.Next()
		switch {
		case errors.Is(err, io.EOF):
			s.digest = rd.Trailer().Digest
			return s, nil
		case err != nil:
			return s, err
		case b.Cold != nil:
			s.cold = append(s.cold, block{b.Slot, b.Rows, string(b.Cold)})
			if b.ColdDigest != coldDigest {
				return s, errors.New("another digest of the rows")
			}
		case b.Candidates == nil:
			s.blocks = append(s.blocks, block{b.Slot, b.Rows, string(b.Records)})
		}
	}
}

func TestGoldenLocalSnapshot(t *testing.T) {
	golden := testutil.GoldenHex(t, "testdata/local.hex")
	want := goldenLocal()
	if got, err := readLocal(bytes.NewReader(golden)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, want.header, want.tables, nil, Ended{}, nil)
	err = errors.Join(err, w.ColdFiles(want.files), w.BeginSlot(want.blocks[0].Slot),
		w.Append([]byte(want.blocks[0].records)))
	var entries []uint64
	for rest := []byte(want.cold[0].records); len(rest) > 0; rest = rest[8:] {
		entries = append(entries, binary.LittleEndian.Uint64(rest))
	}
	err = errors.Join(err, w.Cold(entries, coldDigest), w.Finish(want.digest))
	if err != nil || !bytes.Equal(b.Bytes(), golden) {
		t.Errorf("written %x, %v; want %x", b.Bytes(), err, golden)
	}
	_, err = NewReader(bytes.NewReader(golden))
	testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "refers to rows in files")
}

// TestColdFilesOfManyExtents: the seeds of large files take several chunks.
func TestColdFilesOfManyExtents(t *testing.T) {
	want := []ColdFile{{Table: 1, PerExtent: 1, Cut: 1}, {Table: 2, PerExtent: 1, Cut: 1}, {Table: 3, Cut: 7}}
	for i := range uint64(200_000) {
		want[0].Seeds = append(want[0].Seeds, i)
		want[1].Seeds = append(want[1].Seeds, 3*i)
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, Header{Shard: 1, Local: true}, nil, nil, Ended{}, nil)
	if err = errors.Join(err, w.ColdFiles(want), w.Finish(Digest{})); err != nil {
		t.Fatal(err)
	}
	got, err := readLocal(&b)
	if err != nil || !reflect.DeepEqual(got.files, want) {
		t.Errorf("%d files, %v", len(got.files), err)
	}
}

// TestFullBytesIsTheLengthOfTheFullForm, for any number of rows and split of them.
func TestFullBytesIsTheLengthOfTheFullForm(t *testing.T) {
	for _, rows := range []int{0, 1, 2, 5000, 18723, 18724, 18725, 60_000} {
		for _, removed := range []uint64{0, 3} {
			slot := Slot{Table: 10, Slot: 5, Counter: 9, RecordBytes: 28, Removed: removed}
			lengths := map[bool]int64{}
			for _, local := range []bool{false, true} {
				var b bytes.Buffer
				w, err := NewWriter(&b, Header{Shard: 1, Local: local}, goldenStream.tables, nil, Ended{}, nil)
				cold := 0
				if local {
					err = errors.Join(err, w.ColdFiles(goldenLocal().files))
					cold = rows * 2 / 3
				}
				err = errors.Join(err, w.BeginSlot(slot), w.Append(make([]byte, 28*(rows-cold))), w.Cold(make([]uint64, cold),
					Digest{}), w.Candidates(make([]byte, 16)), w.Finish(Digest{}))
				if err != nil {
					t.Fatal(err)
				}
				lengths[local] = w.FullBytes()
				if !local && w.FullBytes() != int64(b.Len()) {
					t.Errorf("%d rows: %d bytes, and FullBytes returns %d", rows, b.Len(), w.FullBytes())
				}
			}
			if lengths[true] != lengths[false] {
				t.Errorf("%d rows: the local form states %d bytes, want %d", rows, lengths[true], lengths[false])
			}
		}
	}
}

// FuzzLocalReader sets the checksums of what it gets. What is read has as many rows as its trailer states.
func FuzzLocalReader(f *testing.F) {
	f.Add(testutil.GoldenHex(f, "testdata/local.hex"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := readLocal(bytes.NewReader(sums(bytes.Clone(b))))
		if err == nil && s.header.Local && len(s.files) == 0 {
			t.Error("a local form without a file")
		}
		if err == nil && !s.header.Local && len(s.files)+len(s.cold) > 0 {
			t.Error("a full form that refers to files")
		}
	})
}
