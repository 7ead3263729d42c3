//go:build goexperiment.simd && amd64

package optim

import "simd/archsimd"

// haveAVX2 is fixed at start; without it the plain kernels run.
var haveAVX2 = archsimd.X86.AVX2()

// lanes is the number of float32 in one AVX2 register. What is left of a row
// after whole registers goes through the plain kernel.
const lanes = 8

func sgd(w, g []float32, lr float32) {
	i := 0
	if haveAVX2 && len(w) >= lanes {
		g = g[:len(w)]
		vlr := archsimd.BroadcastFloat32x8(lr)
		for ; i+lanes <= len(w); i += lanes {
			wv := archsimd.LoadFloat32x8Slice(w[i:])
			gv := archsimd.LoadFloat32x8Slice(g[i:])
			wv.Sub(vlr.Mul(gv)).StoreSlice(w[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	if i < len(w) {
		sgdPlain(w[i:], g[i:], lr)
	}
}

func adagrad(w, acc, g []float32, lr, eps float32) {
	i := 0
	if haveAVX2 && len(w) >= lanes {
		acc = acc[:len(w)]
		g = g[:len(w)]
		vlr := archsimd.BroadcastFloat32x8(lr)
		veps := archsimd.BroadcastFloat32x8(eps)
		for ; i+lanes <= len(w); i += lanes {
			gv := archsimd.LoadFloat32x8Slice(g[i:])
			a := archsimd.LoadFloat32x8Slice(acc[i:]).Add(gv.Mul(gv))
			a.StoreSlice(acc[i:])
			step := vlr.Mul(gv).Div(a.Sqrt().Add(veps))
			archsimd.LoadFloat32x8Slice(w[i:]).Sub(step).StoreSlice(w[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	if i < len(w) {
		adagradPlain(w[i:], acc[i:], g[i:], lr, eps)
	}
}

func adam(w, m, v, g []float32, s *adamStep) {
	i := 0
	if haveAVX2 && len(w) >= lanes {
		m = m[:len(w)]
		v = v[:len(w)]
		g = g[:len(w)]
		lr, eps := archsimd.BroadcastFloat32x8(s.lr), archsimd.BroadcastFloat32x8(s.eps)
		b1, b2 := archsimd.BroadcastFloat32x8(s.b1), archsimd.BroadcastFloat32x8(s.b2)
		omb1, omb2 := archsimd.BroadcastFloat32x8(s.omb1), archsimd.BroadcastFloat32x8(s.omb2)
		c1, c2 := archsimd.BroadcastFloat32x8(s.c1), archsimd.BroadcastFloat32x8(s.c2)
		for ; i+lanes <= len(w); i += lanes {
			gv := archsimd.LoadFloat32x8Slice(g[i:])
			mv := b1.Mul(archsimd.LoadFloat32x8Slice(m[i:])).Add(omb1.Mul(gv))
			vv := b2.Mul(archsimd.LoadFloat32x8Slice(v[i:])).Add(omb2.Mul(gv.Mul(gv)))
			mv.StoreSlice(m[i:])
			vv.StoreSlice(v[i:])
			step := lr.Mul(mv.Div(c1)).Div(vv.Div(c2).Sqrt().Add(eps))
			archsimd.LoadFloat32x8Slice(w[i:]).Sub(step).StoreSlice(w[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	if i < len(w) {
		adamPlain(w[i:], m[i:], v[i:], g[i:], s)
	}
}
