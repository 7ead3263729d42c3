// Package zipf draws numbers by a power law.
package zipf

import (
	"math"

	"github.com/rowraft/rowraft"
)

// Law draws ranks from 1 to n with probability proportional to rank^-s, by
// rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate
// variates from monotone discrete distributions", 1996). Unlike math/rand's it
// takes every s > 0, 1 and less included. Immutable; O(1) a draw.
type Law struct {
	n, s           float64
	hx1, hn, reach float64

	// The ranks up to len(from) − 2 by table: rank k is drawn for from[k] ≤ u < from[k+1], and accepted for u ≥ accept[k].
	// guide[i] is the rank at hx1 + i/density.
	from, accept []float64
	guide        []int32
	density      float64
}

const (
	// maxTable is the number of ranks in tables: 2 MiB. The others are rare.
	maxTable = 1 << 16
	// doubt is how near to a border in its table a number is computed instead: far more than the rounding errors of
	// the two ways, so that a table changes no rank.
	doubt = 1e-9
)

// New returns a sampler for n ≥ 1 ranks and exponent s > 0.
func New(n int64, s float64) (*Law, error) {
	if n < 1 || n > 1<<53 || !(s > 0) || math.IsInf(s, 0) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"zipf: %d ranks with exponent %v: want 1 to 2^53 ranks and a finite exponent > 0", n, s)
	}
	z := &Law{n: float64(n), s: s}
	z.hx1 = z.integral(1.5) - 1
	z.hn = z.integral(z.n + 0.5)
	z.reach = 2 - z.inverse(z.integral(2.5)-z.h(2))
	z.tabulate()
	return z, nil
}

// tabulate fills the tables.
func (z *Law) tabulate() {
	most := int(min(z.n, maxTable))
	z.from, z.accept = []float64{0, math.Inf(-1)}, []float64{0}
	for k := 1; k <= most && z.h(float64(k)) > 1000*doubt; k++ {
		x := float64(k)
		end := z.integral(x + 0.5)
		z.from = append(z.from, end)
		z.accept = append(z.accept, min(z.integral(x-z.reach), end-z.h(x)))
	}
	last := z.from[len(z.from)-1]
	if len(z.from) < 4 || !(last > z.hx1) {
		z.from = nil
		return
	}
	n := 4 * len(z.from)
	z.density = float64(n) / (last - z.hx1)
	k := int32(1)
	for i := range n {
		for z.from[k+1] < z.hx1+float64(i)/z.density {
			k++
		}
		z.guide = append(z.guide, k)
	}
}

// look returns the rank that the tables have for u and whether it is accepted; ok is false if u must be computed.
func (z *Law) look(u float64) (k int64, accepted, ok bool) {
	i := (u - z.hx1) * z.density
	if len(z.from) == 0 || !(i >= 0 && i < float64(len(z.guide))) {
		return 0, false, false
	}
	rank := int(z.guide[int(i)])
	if rank > 1 {
		rank-- // i may be rounded up
	}
	for u >= z.from[rank+1] {
		if rank++; rank+1 == len(z.from) {
			return 0, false, false
		}
	}
	a := z.accept[rank]
	if u-z.from[rank] < doubt || z.from[rank+1]-u < doubt || math.Abs(u-a) < doubt {
		return 0, false, false
	}
	return int64(rank), u >= a, true
}

// Draw returns a rank, taking uniform numbers of [0, 1) from next.
func (z *Law) Draw(next func() float64) int64 {
	for {
		u := z.hn + next()*(z.hx1-z.hn)
		if k, accepted, ok := z.look(u); accepted {
			return k
		} else if ok {
			continue
		}
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
func (z *Law) h(x float64) float64 { return math.Exp(-z.s * math.Log(x)) }

func (z *Law) integral(x float64) float64 {
	l := math.Log(x)
	return l * expm1Over((1-z.s)*l)
}

func (z *Law) inverse(x float64) float64 {
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
