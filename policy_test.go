package rowraft

import (
	"strings"
	"testing"
)

func TestPoliciesOfATable(t *testing.T) {
	plain := Schema{Name: "t", Kind: Sparse, Dim: 3, Initializer: Initializer{Kind: InitZeros},
		Optimizer: Optimizer{Kind: SGD, LR: 1}}
	for _, tc := range []struct {
		name   string
		change func(*Schema)
		want   string // part of the error; "" for none
	}{
		{"none", func(*Schema) {}, ""},
		{"float32 by name", func(s *Schema) { s.Storage = Float32 }, ""},
		{"bfloat16", func(s *Schema) { s.Storage = BFloat16 }, ""},
		{"an unknown storage", func(s *Schema) { s.Storage = 3 }, "want float32 or bfloat16"},
		{"the 2nd push", func(s *Schema) { s.Admission = Admission{Kind: AdmitCount, Count: 2} }, ""},
		{"the 1st push", func(s *Schema) { s.Admission = Admission{Kind: AdmitCount, Count: 1} }, "want 2 to 65535"},
		{"the 65536th push", func(s *Schema) { s.Admission = Admission{Kind: AdmitCount, Count: 65536} }, "want 2 to 65535"},
		{"count and probability", func(s *Schema) { s.Admission = Admission{Kind: AdmitCount, Count: 2, Probability: 0.5} },
			"by count"},
		{"half of them", func(s *Schema) { s.Admission = Admission{Kind: AdmitProbability, Probability: 0.5} }, ""},
		{"probability 1", func(s *Schema) { s.Admission = Admission{Kind: AdmitProbability, Probability: 1} }, "less than 1"},
		{"a count without a kind", func(s *Schema) { s.Admission.Count = 2 }, "neither"},
		{"an unknown admission", func(s *Schema) { s.Admission.Kind = 3 }, "want all, count or probability"},
		{"a day", func(s *Schema) { s.Expire = 86400 }, ""},
		{"a row in each slot", func(s *Schema) { s.Capacity = Capacity{Rows: DefaultSlots, Evict: EvictLRU} }, ""},
		{"less than that", func(s *Schema) { s.Capacity = Capacity{Rows: DefaultSlots - 1, Evict: EvictLRU} },
			"one in each slot"},
		{"a full table and no way out", func(s *Schema) { s.Capacity = Capacity{Rows: 1 << 20} }, "which row makes room"},
		{"a way out and no full table", func(s *Schema) { s.Capacity = Capacity{Evict: EvictLFU} },
			"without a number of rows"},
		{"dense in bfloat16", func(s *Schema) { s.Kind, s.Storage = Dense, BFloat16 }, ""},
		{"dense that expires", func(s *Schema) { s.Kind, s.Expire = Dense, 1 }, "for sparse ones"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := plain
			tc.change(&s)
			err := s.Validate()
			if tc.want == "" && err != nil || tc.want != "" &&
				(CodeOf(err) != CodeInvalidArgument || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%+v: %v, want %q", s, err, tc.want)
			}
		})
	}
}

// TestSameShapeWhateverFloat32IsCalled: the default by name or left out is one shape.
func TestSameShapeWhateverFloat32IsCalled(t *testing.T) {
	a := Schema{ID: 1, Name: "t", Dim: 3}
	b := a
	b.ID, b.Storage = 2, Float32
	if !a.SameShape(b) || !b.SameShape(a) {
		t.Error("float32 by name is another shape")
	}
	b.Storage = BFloat16
	if a.SameShape(b) {
		t.Error("bfloat16 is the same shape as float32")
	}
	if a.WeightBytes() != 12 || b.WeightBytes() != 8 {
		t.Errorf("3 weights take %d bytes, as bfloat16 %d; want 12 and, padded, 8", a.WeightBytes(), b.WeightBytes())
	}
}

func TestPoliciesInWords(t *testing.T) {
	for text, want := range map[string]Admission{
		"": {}, "all": {}, "count:3": {Kind: AdmitCount, Count: 3},
		"probability:0.1": {Kind: AdmitProbability, Probability: 0.1},
	} {
		got, err := ParseAdmission(text)
		if err != nil || got != want {
			t.Errorf("admission %q: %+v, %v, want %+v", text, got, err, want)
		}
		if text != "" && got.String() != text {
			t.Errorf("admission %q is written %q", text, got)
		}
	}
	for _, bad := range []string{"count", "count:", "count:1", "count:-3", "count:3.5", "all:3", "probability:2",
		"probability:nan", "0.1"} {
		if a, err := ParseAdmission(bad); CodeOf(err) != CodeInvalidArgument {
			t.Errorf("admission %q: %+v, %v, want InvalidArgument", bad, a, err)
		}
	}
	for text, want := range map[string]uint32{"": 0, "0": 0, "90": 90, "90s": 90, "168h": 7 * 24 * 3600} {
		if got, err := ParseTicks(text); err != nil || got != want {
			t.Errorf("expiry %q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, bad := range []string{"-1s", "1500ms", "a week", "4294967296", "2000000h"} {
		if n, err := ParseTicks(bad); CodeOf(err) != CodeInvalidArgument {
			t.Errorf("expiry %q: %d, %v, want InvalidArgument", bad, n, err)
		}
	}
}
