//go:build goexperiment.simd && amd64

package optim

import "testing"

func simd() bool { return haveAVX2 }

// TestUpdateBitsWithoutAVX2 runs the SIMD build like a machine without AVX2.
func TestUpdateBitsWithoutAVX2(t *testing.T) {
	saved := haveAVX2
	haveAVX2 = false
	defer func() { haveAVX2 = saved }()
	TestUpdateBits(t)
}
