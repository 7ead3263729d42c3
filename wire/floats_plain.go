//go:build !(goexperiment.simd && amd64)

package wire

func roundMany(dst []byte, src []float32) int { return 0 }
func widenMany(dst, src []byte) int           { return 0 }
