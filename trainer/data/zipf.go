package data

import "math"

// Zipf draws ranks from 1 to n with probability proportional to rank^-s, by
// rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate
// variates from monotone discrete distributions", 1996). Unlike math/rand's it
// takes every s > 0, 1 and less included. Immutable; O(1) a draw.
type Zipf struct {
	n, s           float64
	hx1, hn, reach float64
}

// NewZipf returns a sampler for n ≥ 1 ranks and exponent s > 0.
func NewZipf(n int64, s float64) (*Zipf, error) {
	if n < 1 || n > 1<<53 || !(s > 0) || math.IsInf(s, 0) {
		return nil, invalid("zipf: %d ranks with exponent %v: want 1 to 2^53 ranks and a finite exponent > 0", n, s)
	}
	z := &Zipf{n: float64(n), s: s}
	z.hx1 = z.integral(1.5) - 1
	z.hn = z.integral(z.n + 0.5)
	z.reach = 2 - z.inverse(z.integral(2.5)-z.h(2))
	return z, nil
}

// Draw returns a rank, taking uniform numbers of [0, 1) from next.
func (z *Zipf) Draw(next func() float64) int64 {
	for {
		u := z.hn + next()*(z.hx1-z.hn)
		x := z.inverse(u)
		k := math.Floor(x + 0.5)
		k = min(max(k, 1), z.n)
		if k-x <= z.reach || u >= z.integral(k+0.5)-z.h(k) {
			return int64(k)
		}
	}
}

// h is x^-s; integral is its antiderivative (x^(1-s) − 1)/(1−s), which is ln x
// at s = 1, and inverse the inverse of that.
func (z *Zipf) h(x float64) float64 { return math.Exp(-z.s * math.Log(x)) }

func (z *Zipf) integral(x float64) float64 {
	l := math.Log(x)
	return l * expm1Over((1-z.s)*l)
}

func (z *Zipf) inverse(x float64) float64 {
	t := max(x*(1-z.s), -1) // rounding may carry t below −1
	return math.Exp(x * log1pOver(t))
}

// expm1Over is (e^x − 1)/x, and log1pOver ln(1+x)/x, both 1 at 0 without loss near it.
func expm1Over(x float64) float64 {
	if math.Abs(x) < 1e-8 {
		return 1 + x/2*(1+x/3)
	}
	return math.Expm1(x) / x
}

func log1pOver(x float64) float64 {
	if math.Abs(x) < 1e-8 {
		return 1 - x*(0.5-x/3)
	}
	return math.Log1p(x) / x
}
