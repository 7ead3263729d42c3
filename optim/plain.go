package optim

import "math"

// lanes is the number of partial sums of squares, and of float32 in one AVX2 register.
const lanes = 8

// sqrt32 is the correctly rounded float32 square root. Rounding the float64
// root a second time is exact for float32 arguments, so the result equals SQRTPS.
func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// signed returns x ≥ 0 with the sign of s.
func signed(x, s float32) float32 {
	const sign = 1 << 31
	return math.Float32frombits(math.Float32bits(x) | math.Float32bits(s)&sign)
}

// sgdPlain: w ← w − lr·g.
func sgdPlain(w, g []float32, lr float32) {
	for i := range w {
		w[i] -= float32(lr * g[i])
	}
}

// addPlain: w ← w + g.
func addPlain(w, g []float32) {
	g = g[:len(w)]
	for i := range w {
		w[i] += g[i]
	}
}

// momentumPlain: v ← μ·v + g; w ← w − lr·v.
func momentumPlain(w, v, g []float32, lr, mu float32) {
	v = v[:len(w)]
	g = g[:len(w)]
	for i := range w {
		vi := float32(mu*v[i]) + g[i]
		v[i] = vi
		w[i] -= float32(lr * vi)
	}
}

// adagradPlain: acc ← acc + g²; w ← w − lr·g ÷ (√acc + ε).
func adagradPlain(w, acc, g []float32, lr, eps float32) {
	acc = acc[:len(w)]
	g = g[:len(w)]
	for i := range w {
		a := acc[i] + float32(g[i]*g[i])
		acc[i] = a
		w[i] -= float32(lr*g[i]) / (sqrt32(a) + eps)
	}
}

// squaresPlain adds g[i]² to sums[i mod 8], in the order of i.
func squaresPlain(sums *[lanes]float32, g []float32) {
	for i, v := range g {
		sums[i%lanes] += float32(v * v)
	}
}

// rowWisePlain: w ← w − lr·g ÷ d.
func rowWisePlain(w, g []float32, lr, d float32) {
	g = g[:len(w)]
	for i := range w {
		w[i] -= float32(lr*g[i]) / d
	}
}

// adamPlain: m ← β1·m + (1−β1)·g; v ← β2·v + (1−β2)·g²;
// w ← w − lr·(m ÷ (1−β1^t)) ÷ (√(v ÷ (1−β2^t)) + ε).
func adamPlain(w, m, v, g []float32, s *adamStep) {
	m = m[:len(w)]
	v = v[:len(w)]
	g = g[:len(w)]
	for i := range w {
		mi := float32(s.b1*m[i]) + float32(s.omb1*g[i])
		vi := float32(s.b2*v[i]) + float32(s.omb2*float32(g[i]*g[i]))
		m[i] = mi
		v[i] = vi
		w[i] -= float32(s.lr*(mi/s.c1)) / (sqrt32(vi/s.c2) + s.eps)
	}
}

// ftrlPlain implements FTRL of docs/formats/rules.md. A NaN must keep its bits, so there is no
// negation: λ1·sgn(z) − z, not −(z − λ1·sgn(z)).
func ftrlPlain(w, z, n, g []float32, s *ftrlStep) {
	z = z[:len(w)]
	n = n[:len(w)]
	g = g[:len(w)]
	for i := range w {
		before := sqrt32(n[i])
		ni := n[i] + float32(g[i]*g[i])
		after := sqrt32(ni)
		sigma := (after-before)/s.alpha + float32((s.beta+before)*s.k)
		zi := (z[i] + g[i]) - float32(sigma*w[i])
		z[i] = zi
		n[i] = ni
		if zi <= s.l1 && zi >= -s.l1 {
			w[i] = 0
			continue
		}
		w[i] = (signed(s.l1, zi) - zi) / ((s.beta+after)/s.alpha + s.l2)
	}
}

// ftrlFit sets z to the value from which ftrlPlain computes the weights w.
func ftrlFit(w, z, n []float32, s *ftrlStep) {
	for i, wi := range w {
		z[i] = 0
		if wi != 0 {
			d := (s.beta+sqrt32(n[i]))/s.alpha + s.l2
			z[i] = 0 - (float32(wi*d) + signed(s.l1, wi))
		}
	}
}

// addDecayPlain: dst ← g + λ·w.
func addDecayPlain(dst, w, g []float32, lambda float32) {
	w = w[:len(dst)]
	g = g[:len(dst)]
	for i := range dst {
		dst[i] = g[i] + float32(lambda*w[i])
	}
}

// clampPlain limits w to ±b; a NaN stays.
func clampPlain(w []float32, b float32) {
	for i, v := range w {
		if v > b {
			w[i] = b
		}
		if v < -b {
			w[i] = -b
		}
	}
}
