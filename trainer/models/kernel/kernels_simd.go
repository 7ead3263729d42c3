//go:build goexperiment.simd && amd64

package kernel

import (
	"simd/archsimd"
	"unsafe"
)

// What the processor has; fixed at start. Without AVX2 the plain kernels run.
var (
	haveAVX2   = archsimd.X86.AVX2() && archsimd.X86.FMA()
	haveAVX512 = archsimd.X86.AVX512()
)

func gemm(c []float32, ldc int, a Matrix, b []float32, ldb, m, n, k int, add bool) {
	if !haveAVX2 {
		gemmPlain(c, ldc, a, b, ldb, m, n, k, add)
		return
	}
	columns, tile := 2*8, tile8
	if haveAVX512 {
		columns, tile = 2*16, tile16
	}
	for j := 0; j < n; j += columns {
		second := columns / 2
		if j+second >= n {
			second = 0
		}
		for i := 0; i < m; i += tileRows {
			tile(&c[i*ldc+j], ldc, &a.V[i*a.Rows], a.Rows, a.Columns, &b[j], ldb, k, min(tileRows, m-i), second, add)
		}
	}
	archsimd.ClearAVXUpperBits()
}

func at(p *float32, i int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*i)) }

func load16(p *float32, i int) archsimd.Float32x16 {
	return archsimd.LoadFloat32x16((*[16]float32)(unsafe.Pointer(at(p, i))))
}

func store16(v archsimd.Float32x16, p *float32, i int) {
	v.Store((*[16]float32)(unsafe.Pointer(at(p, i))))
}

func load8(p *float32, i int) archsimd.Float32x8 {
	return archsimd.LoadFloat32x8((*[8]float32)(unsafe.Pointer(at(p, i))))
}

func store8(v archsimd.Float32x8, p *float32, i int) {
	v.Store((*[8]float32)(unsafe.Pointer(at(p, i))))
}

// tile16 writes a block of a product of up to 4 rows and two registers of columns, or adds it. Where the block has
// fewer rows, the last one is computed several times; where it has one register, second is 0 and that one is computed
// twice.
func tile16(c *float32, ldc int, a *float32, rs, cs int, b *float32, ldb, k, rows, second int, add bool) {
	r1, r2, r3 := min(1, rows-1), min(2, rows-1), min(3, rows-1)
	var c00, c01, c10, c11, c20, c21, c30, c31 archsimd.Float32x16
	if add {
		c00, c01 = load16(c, 0), load16(c, second)
		c10, c11 = load16(c, r1*ldc), load16(c, r1*ldc+second)
		c20, c21 = load16(c, r2*ldc), load16(c, r2*ldc+second)
		c30, c31 = load16(c, r3*ldc), load16(c, r3*ldc+second)
	}
	a1, a2, a3 := r1*rs, r2*rs, r3*rs
	ai, bi := 0, 0 // offsets, because a pointer may not leave its slice
	for range k {
		b0, b1 := load16(b, bi), load16(b, bi+second)
		x0 := archsimd.BroadcastFloat32x16(*at(a, ai))
		x1 := archsimd.BroadcastFloat32x16(*at(a, ai+a1))
		x2 := archsimd.BroadcastFloat32x16(*at(a, ai+a2))
		x3 := archsimd.BroadcastFloat32x16(*at(a, ai+a3))
		c00, c01 = b0.MulAdd(x0, c00), b1.MulAdd(x0, c01)
		c10, c11 = b0.MulAdd(x1, c10), b1.MulAdd(x1, c11)
		c20, c21 = b0.MulAdd(x2, c20), b1.MulAdd(x2, c21)
		c30, c31 = b0.MulAdd(x3, c30), b1.MulAdd(x3, c31)
		ai, bi = ai+cs, bi+ldb
	}
	store16(c00, c, 0)
	store16(c01, c, second)
	store16(c10, c, r1*ldc)
	store16(c11, c, r1*ldc+second)
	store16(c20, c, r2*ldc)
	store16(c21, c, r2*ldc+second)
	store16(c30, c, r3*ldc)
	store16(c31, c, r3*ldc+second)
}

// tile8 writes a block of a product of up to 4 rows and two registers of columns, or adds it. Where the block has
// fewer rows, the last one is computed several times; where it has one register, second is 0 and that one is computed
// twice.
func tile8(c *float32, ldc int, a *float32, rs, cs int, b *float32, ldb, k, rows, second int, add bool) {
	r1, r2, r3 := min(1, rows-1), min(2, rows-1), min(3, rows-1)
	var c00, c01, c10, c11, c20, c21, c30, c31 archsimd.Float32x8
	if add {
		c00, c01 = load8(c, 0), load8(c, second)
		c10, c11 = load8(c, r1*ldc), load8(c, r1*ldc+second)
		c20, c21 = load8(c, r2*ldc), load8(c, r2*ldc+second)
		c30, c31 = load8(c, r3*ldc), load8(c, r3*ldc+second)
	}
	a1, a2, a3 := r1*rs, r2*rs, r3*rs
	ai, bi := 0, 0 // offsets, because a pointer may not leave its slice
	for range k {
		b0, b1 := load8(b, bi), load8(b, bi+second)
		x0 := archsimd.BroadcastFloat32x8(*at(a, ai))
		x1 := archsimd.BroadcastFloat32x8(*at(a, ai+a1))
		x2 := archsimd.BroadcastFloat32x8(*at(a, ai+a2))
		x3 := archsimd.BroadcastFloat32x8(*at(a, ai+a3))
		c00, c01 = b0.MulAdd(x0, c00), b1.MulAdd(x0, c01)
		c10, c11 = b0.MulAdd(x1, c10), b1.MulAdd(x1, c11)
		c20, c21 = b0.MulAdd(x2, c20), b1.MulAdd(x2, c21)
		c30, c31 = b0.MulAdd(x3, c30), b1.MulAdd(x3, c31)
		ai, bi = ai+cs, bi+ldb
	}
	store8(c00, c, 0)
	store8(c01, c, second)
	store8(c10, c, r1*ldc)
	store8(c11, c, r1*ldc+second)
	store8(c20, c, r2*ldc)
	store8(c21, c, r2*ldc+second)
	store8(c30, c, r3*ldc)
	store8(c31, c, r3*ldc+second)
}

// lanes is the number of float32 in an AVX2 register. The kernels below process whole registers and leave the rest to
// the plain kernel; their bits equal those of the plain kernel.
const lanes = 8

func add(dst, src []float32) {
	i := 0
	if haveAVX2 && len(dst) >= lanes {
		src = src[:len(dst)]
		for ; i+lanes <= len(dst); i += lanes {
			archsimd.LoadFloat32x8Slice(dst[i:]).Add(archsimd.LoadFloat32x8Slice(src[i:])).StoreSlice(dst[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	addPlain(dst[i:], src[i:])
}

func mul(dst, a, b []float32) {
	i := 0
	if haveAVX2 && len(dst) >= lanes {
		a, b = a[:len(dst)], b[:len(dst)]
		for ; i+lanes <= len(dst); i += lanes {
			archsimd.LoadFloat32x8Slice(a[i:]).Mul(archsimd.LoadFloat32x8Slice(b[i:])).StoreSlice(dst[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	mulPlain(dst[i:], a[i:], b[i:])
}

func mulAdd(dst, a, b []float32) {
	i := 0
	if haveAVX2 && len(dst) >= lanes {
		a, b = a[:len(dst)], b[:len(dst)]
		for ; i+lanes <= len(dst); i += lanes {
			p := archsimd.LoadFloat32x8Slice(a[i:]).Mul(archsimd.LoadFloat32x8Slice(b[i:]))
			archsimd.LoadFloat32x8Slice(dst[i:]).Add(p).StoreSlice(dst[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	mulAddPlain(dst[i:], a[i:], b[i:])
}

func relu(x []float32) {
	i := 0
	if haveAVX2 && len(x) >= lanes {
		zero := archsimd.BroadcastFloat32x8(0)
		for ; i+lanes <= len(x); i += lanes {
			v := archsimd.LoadFloat32x8Slice(x[i:])
			zero.Merge(v, v.Less(zero)).StoreSlice(x[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	reluPlain(x[i:])
}

func reluGrad(d, y []float32) {
	i := 0
	if haveAVX2 && len(d) >= lanes {
		y = y[:len(d)]
		zero := archsimd.BroadcastFloat32x8(0)
		for ; i+lanes <= len(d); i += lanes {
			positive := archsimd.LoadFloat32x8Slice(y[i:]).Greater(zero)
			archsimd.LoadFloat32x8Slice(d[i:]).Merge(zero, positive).StoreSlice(d[i:])
		}
		archsimd.ClearAVXUpperBits()
	}
	reluGradPlain(d[i:], y[i:])
}
