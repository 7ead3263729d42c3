//go:build !(goexperiment.simd && amd64)

package kernel

func gemm(c []float32, ldc int, a Matrix, b []float32, ldb, m, n, k int, add bool) {
	gemmPlain(c, ldc, a, b, ldb, m, n, k, add)
}

func add(dst, src []float32)     { addPlain(dst, src) }
func mul(dst, a, b []float32)    { mulPlain(dst, a, b) }
func mulAdd(dst, a, b []float32) { mulAddPlain(dst, a, b) }
func relu(x []float32)           { reluPlain(x) }
func reluGrad(d, y []float32)    { reluGradPlain(d, y) }
