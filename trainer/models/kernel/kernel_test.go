package kernel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func normal(r *rand.Rand, n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(r.NormFloat64())
	}
	return s
}

// Gemm against the sum of products in float64, for shapes with every rest of rows and columns, for both layouts of a,
// with numbers behind the rows that must stay.
func TestGemm(t *testing.T) { eachProcessor(t, testGemm) }

func testGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, m := range []int{1, 2, 3, 4, 5, 9} {
		for _, n := range []int{16, 32, 48} {
			for _, k := range []int{0, 1, 7, 33} {
				for layout := range 4 {
					transposed, add := layout&1 > 0, layout&2 > 0
					a := Matrix{V: normal(r, m*k), Rows: k, Columns: 1}
					if transposed {
						a.Rows, a.Columns = 1, m
					}
					ldb, ldc := n+3, n+5
					b := normal(r, max(0, (k-1)*ldb+n))
					was := normal(r, (m-1)*ldc+n+2)
					got := slices.Clone(was)
					Gemm(got, ldc, a, b, ldb, m, n, k, add)
					for i := range got {
						want := float64(was[i])
						if row, column := i/ldc, i%ldc; row < m && column < n {
							if !add {
								want = 0
							}
							for p := range k {
								want += float64(a.V[row*a.Rows+p*a.Columns]) * float64(b[p*ldb+column])
							}
						}
						if math.Abs(float64(got[i])-want) > 2e-5 {
							t.Fatalf("[%d,%d]·[%d,%d], transposed %v, add %v: number %d is %v, want %v", m, k, k, n, transposed, add, i,
								got[i], want)
						}
					}
				}
			}
		}
	}
}

func TestGemmRefuses(t *testing.T) {
	for name, call := range map[string]func(s []float32){
		"half a unit of columns": func(s []float32) { Gemm(s, 16, Matrix{s, 1, 1}, s, 16, 1, 8, 1, false) },
		"c too short":            func(s []float32) { Gemm(s[:31], 16, Matrix{s, 1, 1}, s, 16, 2, 16, 1, false) },
		"a too short":            func(s []float32) { Gemm(s, 16, Matrix{s[:3], 2, 1}, s, 16, 2, 16, 2, false) },
		"b too short":            func(s []float32) { Gemm(s, 16, Matrix{s, 1, 1}, s[:31], 16, 1, 16, 2, false) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			call(make([]float32, 64))
		})
	}
}

// The vector kernels give the bits of the plain ones, for every rest of a register.
func TestKernelsArePlain(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	nan, negativeZero := float32(math.NaN()), float32(math.Copysign(0, -1))
	for n := range 40 {
		a, b, c := normal(r, n), normal(r, n), normal(r, n)
		for i, v := range []float32{0, negativeZero, nan, float32(math.Inf(-1))} {
			if i < n {
				a[(n-1)*i/4], b[n/2] = v, v
			}
		}
		for name, calls := range map[string][2]func(x []float32){
			"Add":      {func(x []float32) { Add(x, b) }, func(x []float32) { addPlain(x, b) }},
			"Mul":      {func(x []float32) { Mul(x, b, c, false) }, func(x []float32) { mulPlain(x, b, c) }},
			"MulAdd":   {func(x []float32) { Mul(x, b, c, true) }, func(x []float32) { mulAddPlain(x, b, c) }},
			"Relu":     {Relu, reluPlain},
			"ReluGrad": {func(x []float32) { ReluGrad(x, b) }, func(x []float32) { reluGradPlain(x, b) }},
		} {
			got, want := slices.Clone(a), slices.Clone(a)
			calls[0](got)
			calls[1](want)
			for i := range want {
				if g, w := got[i], want[i]; math.Float32bits(g) != math.Float32bits(w) && (g == g || w == w) {
					t.Errorf("%s of %d numbers: number %d is %v, want %v", name, n, i, g, w)
				}
			}
		}
	}
	x := []float32{-1, 0, 2, nan}
	Relu(x)
	if x[0] != 0 || x[1] != 0 || x[2] != 2 || x[3] == x[3] {
		t.Errorf("Relu = %v, want 0, 0, 2 and no number", x)
	}
	d := []float32{1, 2, 3, 4}
	ReluGrad(d, x)
	if !slices.Equal(d, []float32{0, 0, 3, 0}) {
		t.Errorf("ReluGrad = %v, want 0, 0, 3, 0", d)
	}
}

func BenchmarkGemm(b *testing.B) {
	for _, s := range [][3]int{{512, 64, 367}, {367, 64, 512}, {27, 32, 16}, {27, 16, 27}} {
		m, n, k := s[0], s[1], s[2]
		b.Run(fmt.Sprintf("m=%d/n=%d/k=%d", m, n, k), func(b *testing.B) {
			x, y, z := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
			for b.Loop() {
				Gemm(z, n, Matrix{x, k, 1}, y, n, m, n, k, false)
			}
			b.ReportMetric(float64(2*m*n*k*b.N)/float64(b.Elapsed().Nanoseconds()), "GFLOP/s")
		})
	}
}
