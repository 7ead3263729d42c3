package checkpoint

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// goldenParts is what testdata/parts.py says in its own words.
func goldenParts() *Parts {
	return &Parts{
		Job: "ctr", Examples: 1000, PartExamples: 96, Epochs: 3, Epoch: 1, Part: 2, AgainKnown: 32, AgainMost: 64,
		Open: []OpenPart{{Part: 10, Offset: 40}, {Epoch: 1, Part: 1, Offset: 64}},
	}
}

func TestGoldenParts(t *testing.T) {
	want, file := goldenParts(), testutil.GoldenHex(t, "testdata/parts.hex")
	b, err := want.Encode()
	if err != nil || !bytes.Equal(b, file) {
		t.Errorf("written:\n%x, %v\nwant, from the page:\n%x", b, err, file)
	}
	got, err := DecodeParts(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	for i := range file {
		for _, flip := range []byte{1, 0x80} {
			bad := bytes.Clone(file)
			bad[i] ^= flip
			if _, err := DecodeParts(bad); rowraft.CodeOf(err) != rowraft.CodeCorrupt &&
				!(rowraft.CodeOf(err) == rowraft.CodeVersionTooNew && (i == 8 || i == 9)) {
				t.Errorf("byte %d changed by %#x: %v", i, flip, err)
			}
		}
		if _, err := DecodeParts(file[:i]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("cut behind byte %d: %v", i, err)
		}
	}
}

func TestImpossiblePartsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Parts){
		"no name":                    func(p *Parts) { p.Job = "" },
		"no examples":                func(p *Parts) { p.Examples = 0 },
		"empty parts":                func(p *Parts) { p.PartExamples = 0 },
		"too many parts":             func(p *Parts) { p.Examples = 1 << 30; p.PartExamples = 1 },
		"a part behind the last":     func(p *Parts) { p.Part = 11 },
		"an epoch behind the last":   func(p *Parts) { p.Epoch = 4 },
		"a part behind the end":      func(p *Parts) { p.Epoch = 3 },
		"open, and not begun":        func(p *Parts) { p.Open[1].Part = 2 },
		"open twice":                 func(p *Parts) { p.Open[0] = p.Open[1] },
		"read beyond its end":        func(p *Parts) { p.Open[0].Offset = 41 },
		"more read again than there": func(p *Parts) { p.AgainKnown = 65 },
	} {
		p := goldenParts()
		change(p)
		if _, err := p.Encode(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func FuzzParts(f *testing.F) {
	f.Add(testutil.GoldenHex(f, "testdata/parts.hex"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodeParts(b)
		if err != nil {
			return
		}
		if again, err := p.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("read %+v, written again %x, %v", p, again, err)
		}
	})
}
