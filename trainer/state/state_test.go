package state

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math"
	"reflect"
	"testing"
	"testing/iotest"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/testutil"
)

// golden is what testdata/golden.py says in its own words.
func golden() *State {
	return &State{
		Job: "ctr", Rank: 1, Trainers: 3, Step: 1000, Examples: 511488, Skipped: 1, Acknowledged: 999,
		Config: []byte(`{"batch":512}`), Positions: []Position{{Share: 1, Shares: 3, Epoch: 2, Offset: 4096}},
		Tensors: []Tensor{
			{Kind: InitialWeights, Name: "bias", Shape: []int{2}, Values: []float32{0.5, -1}},
			{Kind: OptimizerState, Name: "step", Values: []float32{7}},
		},
	}
}

// goldenPlace is what it says of a stream.
func goldenPlace() *State {
	return &State{
		Job: "ctr", Trainers: 1, Step: 7, Examples: 3500, Acknowledged: 7,
		Config: []byte(`{"batch":512}`), Positions: []Position{{Shares: 1}},
		Place: &Place{Name: "clicks-01.csv", Bytes: 90000, Lines: 3500, HeadBytes: 256, HeadSum: 0x01020304},
	}
}

// goldenStep is what it says of trainers that keep step.
func goldenStep() *State {
	return &State{
		Job: "ctr", Rank: 1, Trainers: 2, Step: 41, JobStep: 43, Examples: 20992, Acknowledged: 40,
		Config: []byte(`{"batch":512}`), Positions: []Position{{Share: 1, Shares: 2, Offset: 20992}},
	}
}

// goldenOpaque is the state in testdata/opaque.hex: that of a trainer of another program.
func goldenOpaque() *State {
	return &State{
		Job: "ctr", Trainers: 1, Step: 12, JobStep: 15, Acknowledged: 12, Config: []byte(`{"mode":"sync"}`),
		Opaque: []byte{0x80, 2, '}', 'q', 0, '.'},
	}
}

func goldenBytes(t testing.TB) []byte { return testutil.GoldenHex(t, "testdata/state.hex") }

func encode(t testing.TB, s *State) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	if err != nil {
		t.Fatal(err)
	}
	if n != int64(b.Len()) || n != s.Size() {
		t.Fatalf("WriteTo says %d bytes, Size %d, there are %d", n, s.Size(), b.Len())
	}
	return b.Bytes()
}

func TestGoldenBytes(t *testing.T) {
	for name, s := range map[string]*State{"state.hex": golden(), "place.hex": goldenPlace(), "step.hex": goldenStep(),
		"opaque.hex": goldenOpaque()} {
		want := testutil.GoldenHex(t, "testdata/"+name)
		if got := encode(t, s); !bytes.Equal(got, want) {
			t.Errorf("%s: written:\n%x\nwant, from the page:\n%x", name, got, want)
		}
		got, err := Read(iotest.OneByteReader(bytes.NewReader(want)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, s) {
			t.Errorf("%s: read %+v, want %+v", name, got, s)
		}
	}
}

func TestLargeTensorsSurvive(t *testing.T) {
	s := golden()
	s.Ended, s.Config, s.Positions = true, []byte{}, nil
	s.Opaque = bytes.Repeat([]byte("0123456789"), 100_000)
	big := make([]float32, 3*chunkValues+17)
	for i := range big {
		big[i] = math.Float32frombits(uint32(i) * 2654435761) // NaNs too
	}
	s.Tensors = []Tensor{{Kind: Weights, Name: "w", Shape: []int{1, len(big)}, Values: big}}
	got, err := Read(bytes.NewReader(encode(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range got.Tensors[0].Values {
		if math.Float32bits(x) != math.Float32bits(big[i]) {
			t.Fatalf("value %d is %x, want %x", i, math.Float32bits(x), math.Float32bits(big[i]))
		}
	}
	if !bytes.Equal(got.Opaque, s.Opaque) {
		t.Errorf("%d opaque bytes, want the %d that were written", len(got.Opaque), len(s.Opaque))
	}
	if len(got.Tensors[0].Values) != len(big) || !got.Ended {
		t.Errorf("%d values, ended %v", len(got.Tensors[0].Values), got.Ended)
	}
}

func TestEveryChangedByteIsFound(t *testing.T) {
	for _, name := range []string{"state.hex", "place.hex", "step.hex", "opaque.hex"} {
		t.Run(name, func(t *testing.T) { everyChangedByteIsFound(t, testutil.GoldenHex(t, "testdata/"+name)) })
	}
}

func everyChangedByteIsFound(t *testing.T, b []byte) {
	for i := range b {
		for _, flip := range []byte{1, 0x80} {
			bad := bytes.Clone(b)
			bad[i] ^= flip
			if _, err := Read(bytes.NewReader(bad)); err == nil {
				t.Errorf("byte %d changed by %#x: no error", i, flip)
			} else if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt &&
				!(c == rowraft.CodeVersionTooNew && (i == 8 || i == 9)) {
				t.Errorf("byte %d changed by %#x: %v (%v)", i, flip, err, c)
			}
		}
	}
	for n := range b {
		if _, err := Read(bytes.NewReader(b[:n])); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("the first %d bytes: %v, want Corrupt", n, err)
		}
	}
	if _, err := Read(bytes.NewReader(append(bytes.Clone(b), 0))); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a byte behind the end: %v, want Corrupt", err)
	}
}

// A format or flags that do not fit are refused: what was read is written again as the
// same bytes.
func TestStatesAreWrittenOneWay(t *testing.T) {
	for _, tc := range []struct {
		file          string
		format, flags byte
		want          rowraft.Code
	}{
		{"state.hex", 0, 0, rowraft.CodeCorrupt}, {"state.hex", Version + 1, 0, rowraft.CodeVersionTooNew},
		{"state.hex", Version, flagPlace, rowraft.CodeCorrupt},
		{"place.hex", Version, 0, rowraft.CodeCorrupt}, {"state.hex", Version, 16, rowraft.CodeCorrupt},
		{"state.hex", Version, flagOpaque, rowraft.CodeCorrupt}, {"opaque.hex", Version, flagJobStep, rowraft.CodeCorrupt},
	} {
		b := testutil.GoldenHex(t, "testdata/"+tc.file)
		b[8], b[10] = tc.format, tc.flags
		if _, err := Read(bytes.NewReader(reseal(b))); rowraft.CodeOf(err) != tc.want {
			t.Errorf("%s as format %d with flags %d: %v, want %v", tc.file, tc.format, tc.flags, err, tc.want)
		}
	}
}

// A reader that fails is not a damaged file.
func TestErrorsOfTheMediumStay(t *testing.T) {
	broken := errors.New("broken")
	if _, err := Read(iotest.ErrReader(broken)); !errors.Is(err, broken) || rowraft.CodeOf(err) == rowraft.CodeCorrupt {
		t.Errorf("%v, want the reader's own error", err)
	}
}

func TestWhatDoesNotFitIsNotWritten(t *testing.T) {
	for name, change := range map[string]func(*State){
		"a rank beyond the trainers": func(s *State) { s.Rank = 3 },
		"no name":                    func(s *State) { s.Job = "" },
		"more skipped than steps":    func(s *State) { s.Skipped = 1001 },
		"a share beyond the shares":  func(s *State) { s.Positions[0].Share = 3 },
		"fewer values than its shape says": func(s *State) {
			s.Tensors[0].Values = s.Tensors[0].Values[:1]
		},
		"a shape beyond all bounds":   func(s *State) { s.Tensors[0].Shape = []int{1 << 30, 1 << 30} },
		"a kind without meaning":      func(s *State) { s.Tensors[0].Kind = 4 },
		"a place in no file":          func(s *State) { s.Place = &Place{} },
		"a head beyond what was read": func(s *State) { s.Place = &Place{Name: "a", Bytes: 1, HeadBytes: 2} },
	} {
		s := golden()
		change(s)
		var b bytes.Buffer
		if _, err := s.WriteTo(&b); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || b.Len() > 0 {
			t.Errorf("%s: %v and %d bytes, want InvalidArgument and none", name, err, b.Len())
		}
	}
}

// reseal makes the sums of b right again, so that what lies behind them is reached.
func reseal(b []byte) []byte {
	if len(b) < headerBytes+4 {
		return b
	}
	b = bytes.Clone(b)
	le.PutUint32(b[68:], crc32.Checksum(b[:68], castagnoli))
	le.PutUint32(b[len(b)-4:], crc32.Checksum(b[:len(b)-4], castagnoli))
	return b
}

// FuzzRead: what is read is written as the same bytes; what is refused is Corrupt
// or VersionTooNew; neither takes memory beyond what was there.
func FuzzRead(f *testing.F) {
	f.Add(goldenBytes(f))
	f.Add(testutil.GoldenHex(f, "testdata/place.hex"))
	f.Add(testutil.GoldenHex(f, "testdata/opaque.hex"))
	f.Add(encode(f, &State{Job: "a", Trainers: 1, Ended: true}))
	endless := bytes.Clone(goldenBytes(f))
	le.PutUint64(endless[72+3+13+24+8:], 1<<39)
	f.Add(endless)
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, b := range [][]byte{in, reseal(in)} {
			var s *State
			var err error
			if n := allocs.Bytes(func() { s, err = Read(bytes.NewReader(b)) }); n > 2<<20+64*uint64(len(b)) {
				t.Errorf("%d bytes made it allocate %d", len(b), n)
			}
			if err != nil {
				if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeVersionTooNew {
					t.Errorf("%v has code %v", err, c)
				}
				continue
			}
			if again := encode(t, s); !bytes.Equal(again, b) {
				t.Errorf("read from\n%x, written as\n%x", b, again)
			}
		}
	})
}
