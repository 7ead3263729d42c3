//go:build !(goexperiment.simd && amd64)

package optim

func simd() bool { return false }
