package checkpoint

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// goldenParts is what testdata/splits.py says in its own words.
func goldenParts() *Splits {
	return &Splits{
		Job: "ctr", Examples: 1000, SplitExamples: 96, Epochs: 3, Epoch: 1, Split: 2, AgainKnown: 32, AgainMost: 64,
		Open: []OpenSplit{{Split: 10, Offset: 40}, {Epoch: 1, Split: 1, Offset: 64}},
	}
}

func TestGoldenParts(t *testing.T) {
	want, file := goldenParts(), testutil.GoldenHex(t, "testdata/splits.hex")
	b, err := want.Encode()
	if err != nil || !bytes.Equal(b, file) {
		t.Errorf("written:\n%x, %v\nwant, from the page:\n%x", b, err, file)
	}
	got, err := DecodeSplits(file)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v, want %+v", got, err, want)
	}
	for i := range file {
		for _, flip := range []byte{1, 0x80} {
			bad := bytes.Clone(file)
			bad[i] ^= flip
			if _, err := DecodeSplits(bad); rowraft.CodeOf(err) != rowraft.CodeCorrupt &&
				!(rowraft.CodeOf(err) == rowraft.CodeVersionTooNew && (i == 8 || i == 9)) {
				t.Errorf("byte %d changed by %#x: %v", i, flip, err)
			}
		}
		if _, err := DecodeSplits(file[:i]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("cut behind byte %d: %v", i, err)
		}
	}
}

func TestImpossiblePartsAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Splits){
		"no name":                    func(p *Splits) { p.Job = "" },
		"no examples":                func(p *Splits) { p.Examples = 0 },
		"empty splits":               func(p *Splits) { p.SplitExamples = 0 },
		"too many splits":            func(p *Splits) { p.Examples = 1 << 30; p.SplitExamples = 1 },
		"a split behind the last":    func(p *Splits) { p.Split = 11 },
		"an epoch behind the last":   func(p *Splits) { p.Epoch = 4 },
		"a split behind the end":     func(p *Splits) { p.Epoch = 3 },
		"open, and not begun":        func(p *Splits) { p.Open[1].Split = 2 },
		"open twice":                 func(p *Splits) { p.Open[0] = p.Open[1] },
		"read beyond its end":        func(p *Splits) { p.Open[0].Offset = 41 },
		"more read again than there": func(p *Splits) { p.AgainKnown = 65 },
	} {
		p := goldenParts()
		change(p)
		if _, err := p.Encode(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func FuzzSplits(f *testing.F) {
	f.Add(testutil.GoldenHex(f, "testdata/splits.hex"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodeSplits(b)
		if err != nil {
			return
		}
		if again, err := p.Encode(); err != nil || !bytes.Equal(again, b) {
			t.Errorf("read %+v, written again %x, %v", p, again, err)
		}
	})
}
