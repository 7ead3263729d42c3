//go:build goexperiment.simd && amd64

package wire

import "testing"

// TestConversionsWithoutAVX2 runs the SIMD build like a machine without AVX2.
func TestConversionsWithoutAVX2(t *testing.T) {
	saved := haveAVX2
	haveAVX2 = false
	defer func() { haveAVX2 = saved }()
	TestConversionsOfMany(t)
}
