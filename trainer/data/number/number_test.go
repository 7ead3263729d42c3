package number

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
)

// The fast path returns what strconv.ParseFloat returns, bit by bit.
func TestParse(t *testing.T) {
	texts := []string{"", ".", "-", "1.", ".5", "-0", "+3", "1e5", "0x1p-2", "inf", "nan", "1_0", "123456789012345",
		"1234567890123456", "12345678901234.5", "0.1", "00012", "1..2", "-.", "999999999999999.", "-.25", "1e-400"}
	r := rand.New(rand.NewPCG(3, 4))
	for range 20000 {
		texts = append(texts, strconv.FormatFloat(r.NormFloat64()*math.Pow(10, float64(r.IntN(20)-8)), 'f', r.IntN(12), 64))
	}
	for _, text := range texts {
		want, err := strconv.ParseFloat(text, 64)
		good := err == nil && !math.IsNaN(want) && !math.IsInf(want, 0)
		got, ok := Parse([]byte(text))
		if ok != good || ok && math.Float64bits(got) != math.Float64bits(want) {
			t.Errorf("%q: %v %v, want %v %v", text, got, ok, want, good)
		}
	}
	for x := -1500.0; x < 1500; x += 0.5 {
		if got, want := SignedLog(x), math.Copysign(math.Log1p(math.Abs(x)), x); got != want {
			t.Errorf("SignedLog(%v) = %v, want %v", x, got, want)
		}
	}
}
