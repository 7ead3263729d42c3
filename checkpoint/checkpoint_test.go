package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// golden reads testdata/snapshot.hex, written by hand from the page.
func golden(tb testing.TB) []byte { return testutil.GoldenHex(tb, "testdata/snapshot.hex") }

// block is a Block that outlives the next call of Next.
type block struct {
	Slot
	rows    int // areCandidates: records are candidates
	records string
}

const areCandidates = -1

// stream is everything in a snapshot.
type stream struct {
	header   Header
	tables   []rowraft.Schema
	sessions []Session
	ended    Ended
	jobs     []Job
	blocks   []block
	digest   Digest
}

var goldenStream = func() stream {
	s := stream{
		header: Header{Shard: 2, Applied: 7, LogTime: 1000, Epoch: 4},
		tables: []rowraft.Schema{{
			ID: 10, Name: "t", Kind: rowraft.Sparse, Dim: 1,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0x76033e85f0acf92d},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}},
		sessions: []Session{{
			Client:      rowraft.ClientID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
			Incarnation: 3, Floor: 5, LastUsed: 400,
			Window:  [16]uint64{0: 1<<7 | 1<<8, 15: 1},
			Refused: []Refusal{{8, rowraft.CodeTableNotFound}},
		}},
		blocks: []block{
			{Slot{Table: 10, Slot: 5, Counter: 9, RecordBytes: 28}, 2, "" +
				"\x00\x00\x00\x00\x00\x00\x00\x00\x2a\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc0\x3f" +
				"\x00\x00\x00\x00\x00\x00\x00\x00\x2b\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc0"},
			{Slot{Table: 10, Slot: 6, Counter: 3, RecordBytes: 28}, 0, ""},
		},
	}
	for i := range s.digest {
		s.digest[i] = byte(16 + i)
	}
	return s
}()

// goldenDelta is what stands in testdata/delta.hex.
var goldenDelta = func() stream {
	s := goldenStream
	s.header.Delta, s.sessions = true, nil
	s.blocks = []block{
		{Slot{Table: 10, Slot: 5, Counter: 9, RecordBytes: 28, Removed: 1}, 1, goldenStream.blocks[0].records[:28]},
		{Slot{Table: 10, Slot: 6, Counter: 3, RecordBytes: 28, Removed: 3, Whole: true}, 0, ""},
	}
	return s
}()

func read(r io.Reader) (s stream, err error) {
	rd, err := NewReader(r)
	if err != nil {
		return s, err
	}
	s = stream{header: rd.Header(), tables: rd.Tables(), sessions: rd.Sessions(), ended: rd.Ended(), jobs: rd.Jobs()}
	for {
		b, err := rd.Next()
		if errors.Is(err, io.EOF) {
			s.digest = rd.Trailer().Digest
			return s, nil
		}
		if err != nil {
			return s, err
		}
		if b.Candidates != nil {
			s.blocks = append(s.blocks, block{b.Slot, areCandidates, string(b.Candidates)})
			continue
		}
		s.blocks = append(s.blocks, block{b.Slot, b.Rows, string(b.Records)})
	}
}

func write(w io.Writer, s stream) error {
	wr, err := NewWriter(w, s.header, s.tables, s.sessions, s.ended, s.jobs)
	if err != nil {
		return err
	}
	for _, b := range s.blocks {
		if b.rows == areCandidates {
			if err := wr.Candidates([]byte(b.records)); err != nil {
				return err
			}
			continue
		}
		if err := wr.BeginSlot(b.Slot); err != nil {
			return err
		}
		if err := wr.Append([]byte(b.records)); err != nil {
			return err
		}
	}
	return wr.Finish(s.digest)
}

func mustWrite(tb testing.TB, s stream) []byte {
	tb.Helper()
	var b bytes.Buffer
	if err := write(&b, s); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func TestGoldenSnapshot(t *testing.T) {
	for file, holds := range map[string]stream{"snapshot.hex": goldenStream, "delta.hex": goldenDelta,
		"candidates.hex": goldenCandidates(), "snapshot_removed.hex": goldenRemoved(), "jobs.hex": goldenJobs(),
		"ended.hex": goldenEnded()} {
		want := testutil.GoldenHex(t, "testdata/"+file)
		got, err := read(iotest.OneByteReader(bytes.NewReader(want)))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, holds) {
			t.Errorf("%s: read  %+v\nwant %+v", file, got, holds)
		}
		if written := mustWrite(t, holds); !bytes.Equal(written, want) {
			t.Errorf("%s: written %x\nwant    %x", file, written, want)
		}
	}
}

func TestImpossibleFieldsOfDeltas(t *testing.T) {
	const rows = 168 + 16
	wantImpossible(t, "delta.hex", []changedByte{
		{"no delta", 48, 0},
		{"another flag of the header", 48, 3},
		{"reserved bytes of the header", 52, 1},
		{"another flag of the rows", rows + 10, 6},
		{"a flag in the second byte", rows + 11, 1},
	})
}

// changedByte is a change of one byte that makes a stream impossible.
type changedByte struct {
	name  string
	at    int
	value byte
}

// wantImpossible makes each change to a golden stream, sets its sums, and wants it to be refused.
func wantImpossible(t *testing.T, file string, changes []changedByte) {
	t.Helper()
	for _, c := range changes {
		b := testutil.GoldenHex(t, "testdata/"+file)
		if b[c.at] == c.value {
			t.Fatalf("%s: nothing changes", c.name)
		}
		b[c.at] = c.value
		_, err := read(bytes.NewReader(sums(b)))
		testutil.WantCodeOf(t, fmt.Sprintf("%s (byte %d)", c.name, c.at), err, rowraft.CodeCorrupt)
	}
}

// bigStream has more than one chunk of everything.
func bigStream() stream {
	s := stream{header: goldenStream.header}
	for id := range rowraft.TableID(3000) {
		schema := goldenStream.tables[0]
		schema.ID, schema.Name = id+1, fmt.Sprintf("t%0127d", id)
		s.tables = append(s.tables, schema)
	}
	for n := range 4096 {
		session := Session{Client: rowraft.ClientID{0: byte(n >> 8), 1: byte(n)}, Incarnation: 1, LastUsed: uint64(n)}
		if n%1000 == 0 {
			for i := range session.Window {
				session.Window[i] = 1<<64 - 1
			}
			for seq := range rowraft.Seq(WindowBits) {
				session.Refused = append(session.Refused, Refusal{seq + 1, rowraft.CodeWrongShard})
			}
		}
		s.sessions = append(s.sessions, session)
	}
	const size = 3 * 4096 * 4 // the longest kind of record
	record := bytes.Repeat([]byte("record: "), size/8)
	for i, rows := range []int{0, 1, 9, 10, 11, 40} {
		s.blocks = append(s.blocks, block{Slot{Table: 3, Slot: rowraft.Slot(100 * i), Counter: 99, RecordBytes: size}, rows,
			strings.Repeat(string(record), rows)})
	}
	return s
}

func TestChunksAreSplitAndJoined(t *testing.T) {
	want := bigStream()
	b := mustWrite(t, want)
	got, err := read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	joined := join(got.blocks)
	if len(got.blocks) <= len(joined) {
		t.Error("no slot takes more than one chunk")
	}
	got.blocks = joined
	if !reflect.DeepEqual(got, want) {
		t.Error("what was read differs from what was written")
	}
	for _, c := range chunks(b) {
		if len(c) > targetChunk+refusalSize*WindowBits+sessionFixed {
			t.Errorf("a chunk of kind %d has %d bytes", c[0], len(c))
		}
	}
}

// join puts the blocks of one slot together.
func join(blocks []block) (joined []block) {
	for _, b := range blocks {
		if k := len(joined) - 1; k >= 0 && joined[k].Slot == b.Slot && b.rows != areCandidates {
			joined[k].rows += b.rows
			joined[k].records += b.records
			continue
		}
		joined = append(joined, b)
	}
	return joined
}

// chunks cuts a whole stream behind its header.
func chunks(stream []byte) (out [][]byte) {
	for b := stream[headerSize:]; len(b) > 0; {
		n := chunkHeaderSize + int(le.Uint64(b[8:]))
		out = append(out, b[:n])
		b = b[n:]
	}
	return out
}

// sums sets the checksums of whatever stands where chunks would.
func sums(stream []byte) []byte {
	if len(stream) < headerSize {
		return stream
	}
	le.PutUint32(stream[headerSize-4:], crc32.Checksum(stream[:headerSize-4], castagnoli))
	for b := stream[headerSize:]; len(b) >= chunkHeaderSize; {
		n := le.Uint64(b[8:])
		if n > uint64(len(b)-chunkHeaderSize) {
			break
		}
		end := chunkHeaderSize + int(n)
		le.PutUint32(b[4:], chunkSum(b[:chunkHeaderSize], b[chunkHeaderSize:end]))
		b = b[end:]
	}
	return stream
}

func TestEveryFlippedBitAndEveryCutIsFound(t *testing.T) {
	good := golden(t)
	for at := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[at] ^= 1 << bit
			if _, err := read(bytes.NewReader(bad)); rowraft.CodeOf(err) != rowraft.CodeCorrupt &&
				rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
				t.Fatalf("bit %d of byte %d: %v", bit, at, err)
			}
		}
		_, err := read(bytes.NewReader(good[:at]))
		testutil.WantCodeOf(t, fmt.Sprintf("cut at %d", at), err, rowraft.CodeCorrupt)
	}
	_, err := read(bytes.NewReader(append(bytes.Clone(good), 0)))
	testutil.WantCodeOf(t, "a byte behind the end", err, rowraft.CodeCorrupt)
}

// TestChunksOutOfPlaceAreFound: their checksums hold.
func TestChunksOutOfPlaceAreFound(t *testing.T) {
	big := bigStream()
	big.tables, big.sessions = big.tables[:2], big.sessions[:2]
	b := mustWrite(t, big)
	list := chunks(b)
	whole := func(c [][]byte) []byte { return append(bytes.Clone(b[:headerSize]), slices.Concat(c...)...) }
	if _, err := read(bytes.NewReader(whole(list))); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		_, err := read(bytes.NewReader(whole(slices.Delete(slices.Clone(list), i, i+1))))
		testutil.WantCodeOf(t, fmt.Sprintf("chunk %d of kind %d lost", i, list[i][0]), err, rowraft.CodeCorrupt)
		_, err = read(bytes.NewReader(whole(slices.Insert(slices.Clone(list), i, list[i]))))
		testutil.WantCodeOf(t, fmt.Sprintf("chunk %d of kind %d doubled", i, list[i][0]), err, rowraft.CodeCorrupt)
		if i > 0 {
			swapped := slices.Clone(list)
			swapped[i], swapped[i-1] = swapped[i-1], swapped[i]
			_, err = read(bytes.NewReader(whole(swapped)))
			testutil.WantCodeOf(t, fmt.Sprintf("chunk %d of kind %d moved ahead", i, list[i][0]), err, rowraft.CodeCorrupt)
		}
	}
}

func TestNewerThanMe(t *testing.T) {
	for _, at := range []int{8, 9, 10} { // format, format, hash version
		bad := golden(t)
		bad[at] += Version
		_, err := read(bytes.NewReader(sums(bad)))
		testutil.WantCodeOf(t, fmt.Sprintf("byte %d", at), err, rowraft.CodeVersionTooNew)
	}
	bad := golden(t)
	bad[8] += Version // and a checksum elsewhere than ours
	_, err := read(bytes.NewReader(bad))
	testutil.WantCodeOf(t, "a later format with another header", err, rowraft.CodeVersionTooNew)
	bad[0] = 'r'
	_, err = read(bytes.NewReader(sums(bad)))
	testutil.WantCodeOf(t, "another magic", err, rowraft.CodeCorrupt)
}

// TestImpossibleFieldsWithGoodSums changes the golden stream and sets the sums.
func TestImpossibleFieldsWithGoodSums(t *testing.T) {
	const schema, session, rows, empty, trailer = 64 + 16, 152 + 16, 360 + 16, 464 + 16, 512 + 16
	wantImpossible(t, "snapshot.hex", []changedByte{
		{"format 0", 8, 0}, {"hash version 0", 10, 0}, {"an unknown flag of the header", 48, 2},
		{"a table more", 40, 2}, {"no table", 40, 0}, {"a session more", 44, 2}, {"very many sessions", 47, 1},
		{"reserved bytes of a chunk", 65, 1}, {"an unknown kind", 360, 9}, {"a chunk longer than the rest", 367 + 3, 1},
		{"table without dim", schema + 12, 0},
		{"reserved bytes of a session", session + 44, 1}, {"more refusals than bytes", session + 40, 2},
		{"a refusal of a number not answered", session + 176, 9}, {"a refusal below the floor", session + 176, 4},
		{"a refusal beyond the window", session + 177, 4},
		{"a code of nine bits", session + 185, 1},
		{"a slot above the next one", rows + 9, 0x10}, {"reserved bytes of rows", rows + 10, 1},
		{"a part without the one before", rows + 12, 1},
		{"a row more", rows + 24, 3}, {"records of 27 bytes", rows + 28, 27}, {"records of no bytes", empty + 28, 0},
		{"the slot before", empty + 8, 4}, {"the same slot", empty + 8, 5}, {"the table before", empty, 9},
		{"a row less in the trailer", trailer, 1}, {"a chunk more in the trailer", trailer + 8, 3},
		{"another length", trailer + 16, 1}, {"reserved bytes of the trailer", trailer + 24, 1},
	})
}

func TestRefusalsOutOfOrderAreFound(t *testing.T) {
	for _, refused := range [][]Refusal{{{8, 1}, {7, 1}}, {{8, 1}, {8, 2}}} {
		s := goldenStream
		s.sessions = slices.Clone(s.sessions)
		s.sessions[0].Refused = refused
		_, err := read(bytes.NewReader(mustWrite(t, s)))
		testutil.WantCodeOf(t, fmt.Sprint(refused), err, rowraft.CodeCorrupt)
	}
}

func TestWriterRefusesDisorder(t *testing.T) {
	twice := goldenStream
	twice.tables = append(slices.Clone(twice.tables), twice.tables...)
	testutil.WantCodeOf(t, "a table twice", write(io.Discard, twice), rowraft.CodeInternal)
	twice = goldenStream
	twice.sessions = append(slices.Clone(twice.sessions), twice.sessions...)
	testutil.WantCodeOf(t, "a session twice", write(io.Discard, twice), rowraft.CodeInternal)
	twice = goldenStream
	twice.blocks = []block{goldenStream.blocks[1], goldenStream.blocks[0]}
	testutil.WantCodeOf(t, "slots in the wrong order", write(io.Discard, twice), rowraft.CodeInternal)
	twice.blocks = []block{{Slot{Table: 10, RecordBytes: 28}, 1, "short"}}
	testutil.WantCodeOf(t, "half a record", write(io.Discard, twice), rowraft.CodeInternal)
}

type failAfter int

func (f *failAfter) Write(b []byte) (int, error) {
	if *f--; *f < 0 {
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

func TestErrorsOfTheStreamComeThrough(t *testing.T) {
	for n := range 6 {
		f := failAfter(n)
		if err := write(&f, goldenStream); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("write %d fails: %v", n, err)
		}
	}
	for n := range golden(t) {
		r := io.MultiReader(bytes.NewReader(golden(t)[:n]), iotest.ErrReader(io.ErrClosedPipe))
		if _, err := read(r); !errors.Is(err, io.ErrClosedPipe) {
			t.Fatalf("the source fails after %d bytes: %v", n, err)
		}
	}
}

// FuzzReader sets the checksums of what it gets, so that the content is what is
// tested; a stream that is read is written again as it was.
func FuzzReader(f *testing.F) {
	f.Add(golden(f))
	f.Add(golden(f)[:200])
	f.Add(testutil.GoldenHex(f, "testdata/delta.hex"))
	f.Add(testutil.GoldenHex(f, "testdata/candidates.hex"))
	f.Add(testutil.GoldenHex(f, "testdata/jobs.hex"))
	f.Add(testutil.GoldenHex(f, "testdata/ended.hex"))
	f.Add(mustWrite(f, stream{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := read(bytes.NewReader(b)); err != nil && rowraft.CodeOf(err) == rowraft.CodeUnknown {
			t.Fatalf("an error without a code: %v", err)
		}
		b = sums(bytes.Clone(b))
		s, err := read(bytes.NewReader(b))
		if err != nil {
			return
		}
		s.blocks = join(s.blocks)
		if again, err := read(bytes.NewReader(mustWrite(t, s))); err != nil || !reflect.DeepEqual(again, s) {
			t.Fatalf("%+v is written and read as %+v, %v", s, again, err)
		}
	})
}
