package wire

import (
	"bytes"
	"math"
	"testing"

	"github.com/rowraft/rowraft"
)

func TestGoldenSweep(t *testing.T) {
	file := golden(t, "entry_sweep.hex")
	want := Sweep{
		Table: 0x0102030405060708, First: 3072, Slots: 1024,
		Conditions: SweepUnseen | SweepCount | SweepNorm, Unseen: 7 * 24 * 3600, Count: 2, Norm: 0.5,
	}
	h, body, err := ParseEntryHeader(file)
	if err != nil || h != (EntryHeader{Kind: EntrySweep, Version: FirstVersion, LogTime: 1_000_000_000, Epoch: 3}) {
		t.Fatalf("header %+v, %v", h, err)
	}
	got, err := ParseSweep(body)
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if s, text := got.String(), "unseen for more than 604800s and pushed fewer than 2 times and norm "+
		"below 0.5"; s != text {
		t.Errorf("%q, want %q", s, text)
	}
	if got := SweepEntry(EntryHeader{Version: 1, LogTime: 1_000_000_000, Epoch: 3, Parts: 7}, &want); !bytes.Equal(got,
		file) {
		t.Errorf("written %x\nwant    %x", got, file)
	}
}

func TestAnImpossibleSweepIsCorrupt(t *testing.T) {
	good := Sweep{Table: 1, First: 5, Slots: 1, Conditions: SweepExpire}
	for _, tc := range []struct {
		name string
		make func(s *Sweep)
	}{
		{"no slots", func(s *Sweep) { s.Slots = 0 }},
		{"slots beyond the last", func(s *Sweep) { s.First, s.Slots = 65535, 2 }},
		{"no condition", func(s *Sweep) { s.Conditions = 0 }},
		{"an unknown condition", func(s *Sweep) { s.Conditions = 16 }},
		{"ticks without their condition", func(s *Sweep) { s.Unseen = 1 }},
		{"a count without its condition", func(s *Sweep) { s.Count = 1 }},
		{"a norm without its condition", func(s *Sweep) { s.Norm = 1 }},
		{"a norm of minus zero without its condition", func(s *Sweep) { s.Norm = float32(math.Copysign(0, -1)) }},
		{"a count of 0", func(s *Sweep) { s.Conditions = SweepCount }},
		{"a norm of 0", func(s *Sweep) { s.Conditions = SweepNorm }},
		{"a norm that is infinite", func(s *Sweep) { s.Conditions, s.Norm = SweepNorm, float32(math.Inf(1)) }},
		{"a norm that is no number", func(s *Sweep) { s.Conditions, s.Norm = SweepNorm, float32(math.NaN()) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := good
			tc.make(&s)
			if err := s.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("Validate = %v, want InvalidArgument", err)
			}
			wantCorruptSweep(t, SweepEntry(EntryHeader{Version: FirstVersion, Epoch: 1}, &s))
		})
	}
	entry := SweepEntry(EntryHeader{Version: FirstVersion, Epoch: 1}, &good)
	for _, bad := range [][]byte{entry[:len(entry)-1], append(bytes.Clone(entry), 0), with(entry, len(entry)-1, 1)} {
		wantCorruptSweep(t, bad)
	}
}

func wantCorruptSweep(t *testing.T, entry []byte) {
	t.Helper()
	_, body, err := ParseEntryHeader(entry)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := ParseSweep(body); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("%x: %+v, %v, want Corrupt", body, s, err)
	}
}

// with returns b with one byte changed.
func with(b []byte, at int, v byte) []byte {
	b = bytes.Clone(b)
	b[at] = v
	return b
}
