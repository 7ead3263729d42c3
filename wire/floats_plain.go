//go:build !(goexperiment.simd && amd64)

package wire

func roundMany(dst []byte, src []float32) int { return 0 }
func widenMany(dst, src []byte) int           { return 0 }

func scanExponents([]byte, uint32, uint32) (or uint64, n int) { return 0, 0 }
