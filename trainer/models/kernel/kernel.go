package kernel

import "fmt"

// Lanes is the unit of a row's width: Gemm writes whole units.
const Lanes = 16

// Pad rounds a width up to whole units.
func Pad(width int) int { return (width + Lanes - 1) / Lanes * Lanes }

// tileRows is how many rows of a product are computed at once.
const tileRows = 4

// Matrix is a matrix in a slice: element (i, j) is V[i·Rows + j·Columns].
type Matrix struct {
	V             []float32
	Rows, Columns int // distance between rows, and between columns
}

// Gemm writes a·b to c, or adds it: c is [m, n] with rows of ldc numbers, a is [m, k], b is [k, n] with rows of ldb
// numbers. n is a multiple of [Lanes].
func Gemm(c []float32, ldc int, a Matrix, b []float32, ldb, m, n, k int, add bool) {
	if m < 1 || n < 1 {
		return
	}
	if k < 1 {
		if !add {
			for i := range m {
				clear(c[i*ldc:][:n])
			}
		}
		return
	}
	if n%Lanes != 0 || len(c) < (m-1)*ldc+n || len(a.V) <= (m-1)*a.Rows+(k-1)*a.Columns || len(b) < (k-1)*ldb+n {
		panic(fmt.Sprintf("kernel: a product [%d, %d]·[%d, %d] of %d and %d numbers in rows of %d, to %d in rows of %d",
			m, k, k, n, len(a.V), len(b), ldb, len(c), ldc))
	}
	gemm(c, ldc, a, b, ldb, m, n, k, add)
}

func gemmPlain(c []float32, ldc int, a Matrix, b []float32, ldb, m, n, k int, add bool) {
	for i := range m {
		row := c[i*ldc:][:n]
		if !add {
			clear(row)
		}
		at := i * a.Rows
		for p := range k {
			addScaledPlain(row, b[p*ldb:][:n], a.V[at])
			at += a.Columns
		}
	}
}

// addScaledPlain adds x·src to dst.
func addScaledPlain(dst, src []float32, x float32) {
	for len(dst) >= 4 && len(src) >= 4 {
		dst[0] += x * src[0]
		dst[1] += x * src[1]
		dst[2] += x * src[2]
		dst[3] += x * src[3]
		dst, src = dst[4:], src[4:]
	}
}

// Add adds the first len(dst) numbers of src to dst.
func Add(dst, src []float32) { add(dst, src[:len(dst)]) }

func addPlain(dst, src []float32) {
	for i, v := range src[:len(dst)] {
		dst[i] += v
	}
}

// Mul writes the products of a and b to dst, or adds them.
func Mul(dst, a, b []float32, add bool) {
	a, b = a[:len(dst)], b[:len(dst)]
	if add {
		mulAdd(dst, a, b)
	} else {
		mul(dst, a, b)
	}
}

func mulPlain(dst, a, b []float32) {
	for i := range dst {
		dst[i] = a[i] * b[i]
	}
}

func mulAddPlain(dst, a, b []float32) {
	for i := range dst {
		dst[i] += float32(a[i] * b[i])
	}
}

// Relu replaces negative numbers of x by 0.
func Relu(x []float32) { relu(x) }

func reluPlain(x []float32) {
	for i, v := range x {
		if v < 0 {
			x[i] = 0
		}
	}
}

// ReluGrad replaces the numbers of d by 0 where y, the result of [Relu], is not positive.
func ReluGrad(d, y []float32) { reluGrad(d, y[:len(d)]) }

func reluGradPlain(d, y []float32) {
	for i, v := range y {
		if !(v > 0) {
			d[i] = 0
		}
	}
}
