package zipf

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft"
)

// Draws against the exact law, by the χ² statistic, for exponents on both
// sides of 1 and 1 itself. The seeds are fixed, so the test cannot flicker.
func TestLaw(t *testing.T) {
	for _, tc := range []struct {
		n int64
		s float64
	}{{1, 1}, {2, 0.5}, {50, 0.1}, {50, 0.8}, {50, 1}, {50, 1.0000001}, {50, 1.05}, {50, 3}, {1 << 40, 1.2}} {
		z, err := New(tc.n, tc.s)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(7, 1))
		const draws = 200_000
		counts := make([]float64, 51)
		for range draws {
			k := z.Draw(r.Float64)
			if k < 1 || k > tc.n {
				t.Fatalf("n %d s %v: drew %d", tc.n, tc.s, k)
			}
			if k <= 50 {
				counts[k]++
			}
		}
		cells := int(min(tc.n, 50))
		total, all := 0.0, 0.0
		for k := 1; k <= cells; k++ {
			total += math.Pow(float64(k), -tc.s)
			all += counts[k]
		}
		chi := 0.0
		for k := 1; k <= cells; k++ {
			want := all * math.Pow(float64(k), -tc.s) / total
			chi += (counts[k] - want) * (counts[k] - want) / want
		}
		// 49 degrees of freedom: above 95 once in 10,000.
		if chi > 95 {
			t.Errorf("n %d s %v: χ² = %.1f over %d cells", tc.n, tc.s, chi, cells)
		}
	}
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := New(10, bad); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("exponent %v: %v, want InvalidArgument", bad, err)
		}
	}
}

// The tables change no draw: with them and without, the same numbers give the same ranks.
func TestTables(t *testing.T) {
	looked, all := 0, 0
	for _, n := range []int64{1, 2, 3, 50, 20_000, 1 << 17, 1 << 40} {
		for _, s := range []float64{0.1, 0.8, 1, 1.0000001, 1.05, 1.7, 3} {
			with, err := New(n, s)
			if err != nil {
				t.Fatal(err)
			}
			without := *with
			without.from = nil
			a, b := rand.New(rand.NewPCG(uint64(n), 1)), rand.New(rand.NewPCG(uint64(n), 1))
			for i := range 20_000 {
				if x, y := with.Draw(a.Float64), without.Draw(b.Float64); x != y {
					t.Fatalf("n %d, s %v, draw %d: %d with tables, %d without", n, s, i, x, y)
				}
				if n == 20_000 && s == 1.05 {
					all++
					if _, _, ok := with.look(with.hn + a.Float64()*(with.hx1-with.hn)); ok {
						looked++
					}
					b.Float64()
				}
			}
		}
	}
	if looked*1000 < all*999 {
		t.Errorf("%d of %d draws by tables, want 99.9 %%", looked, all)
	}
}
