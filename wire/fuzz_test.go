package wire

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// FuzzParseSchema: a parsed schema is valid, and encoding it gives the same bytes.
func FuzzParseSchema(f *testing.F) {
	for _, s := range []rowraft.Schema{
		{ID: 1, Name: "user", Kind: rowraft.Sparse, Dim: 16,
			Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 7, A: -1, B: 1},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1, Epsilon: 1e-8}},
		{ID: 1 << 63, Name: "dense.0123456789",
			Kind: rowraft.Dense, Dim: rowraft.MaxDim, Initializer: rowraft.Initializer{Kind: rowraft.InitNormal, A: 0, B: 0.5},
			Optimizer: rowraft.Optimizer{Kind: rowraft.Adam, LR: 0.1, Epsilon: 1e-8, Beta1: 0.9, Beta2: 0.999}},
		{ID: 2, Name: "x", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
			Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}},
	} {
		b := AppendSchema(nil, &s)
		f.Add(b)
		s.Storage = rowraft.BFloat16
		if s.Kind == rowraft.Sparse {
			s.Admission, s.Expire = rowraft.Admission{Kind: rowraft.AdmitProbability, Probability: 0.5}, 60
			s.Capacity = rowraft.Capacity{Rows: 1 << 20, Evict: rowraft.EvictLFU}
		}
		f.Add(AppendSchema(nil, &s))
		f.Add(append(b[:len(b):len(b)], 1, 2, 3))
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, err := ParseSchema(b)
		if err != nil {
			testutil.WantCode(t, err, rowraft.CodeCorrupt, "")
			return
		}
		if err := s.Validate(); err != nil {
			t.Errorf("%+v was accepted: %v", s, err)
		}
		if n := len(b) - len(rest); !bytes.Equal(AppendSchema(nil, &s), b[:n]) || n != SchemaSize(&s) {
			t.Errorf("%x is written as %x", b[:n], AppendSchema(nil, &s))
		}
	})
}
