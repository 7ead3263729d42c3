package average

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/allocs"
)

// The frames of docs/formats/average.md.
func TestGoldenFrames(t *testing.T) {
	text, err := os.ReadFile("testdata/frames.hex")
	if err != nil {
		t.Fatal(err)
	}
	var job [16]byte
	for i := range job {
		job[i] = byte(i + 1)
	}
	floats := []float32{1.5, -2, 0.25}
	want := []frame{
		{hello, 3, 7, 2, jobFloats(job)}, {begin, 3, 7, 0, nil}, {wanted, 3, 8, 0, nil}, {state, 3, 8, 1, floats},
		{part, 3, 8, 1, floats}, {result, 3, 8, 4, floats}, {farewell, 3, 9, 1, nil},
		{refused, 0, 0, uint32(rowraft.CodeInvalidArgument), nil},
	}
	lines := strings.Fields(string(text))
	if len(lines) != len(want) {
		t.Fatalf("%d golden frames, want %d", len(lines), len(want))
	}
	for i, line := range lines {
		b, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		var c frameCodec
		var out bytes.Buffer
		if err := c.write(&out, &want[i]); err != nil || !bytes.Equal(out.Bytes(), b) {
			t.Errorf("frame %d is written as %x, %v, want %x", i, out.Bytes(), err, b)
		}
		f, err := c.read(bytes.NewReader(b), 4, nil)
		if err != nil || f.kind != want[i].kind || f.generation != want[i].generation || f.round != want[i].round ||
			f.who != want[i].who ||
			!slices.Equal(bitsOf(f.values), bitsOf(want[i].values)) {
			t.Errorf("frame %d is read as %+v, %v, want %+v", i, f, err, want[i])
		}
	}
}

func TestBadFrames(t *testing.T) {
	var c frameCodec
	var out bytes.Buffer
	if err := c.write(&out, &frame{kind: part, values: []float32{1, 2}}); err != nil {
		t.Fatal(err)
	}
	good := out.Bytes()
	for _, tc := range []struct {
		name string
		at   int
		v    byte
		code rowraft.Code
	}{
		{"magic", 0, 'X', rowraft.CodeCorrupt}, {"a newer version", 4, 2, rowraft.CodeVersionTooNew},
		{"version 0", 4, 0, rowraft.CodeCorrupt},
		{"kind 0", 6, 0, rowraft.CodeCorrupt}, {"kind 9", 6, 9, rowraft.CodeCorrupt},
		{"too long", 28, 11, rowraft.CodeInvalidArgument},
	} {
		b := slices.Clone(good)
		b[tc.at] = tc.v
		if _, err := c.read(bytes.NewReader(b), 10, nil); rowraft.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want code %v", tc.name, err, tc.code)
		}
	}
	for n := range good {
		if _, err := c.read(bytes.NewReader(good[:n]), 10, nil); !errors.Is(err, io.EOF) &&
			!errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v", n, len(good), err)
		}
	}
}

// FuzzFrame: any bytes are a frame, which is written as it was, or an error; a length
// alone takes no memory.
func FuzzFrame(f *testing.F) {
	text, err := os.ReadFile("testdata/frames.hex")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.FieldsSeq(string(text)) {
		b, _ := hex.DecodeString(line)
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var c frameCodec
		var got *frame
		var err error
		if n := allocs.Bytes(func() { got, err = c.read(bytes.NewReader(b), math.MaxInt32, nil) }); n > 5<<20+16*uint64(
			len(b)) {
			t.Errorf("%d bytes made it allocate %d", len(b), n)
		}
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := c.write(&out, got); err != nil || !bytes.HasPrefix(b, out.Bytes()) {
			t.Errorf("%x is written as %x, %v", b, out.Bytes(), err)
		}
	})
}
