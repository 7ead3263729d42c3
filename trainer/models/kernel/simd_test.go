//go:build goexperiment.simd && amd64

package kernel

import "testing"

// eachProcessor runs f with the kernels of each kind of processor that this one includes.
func eachProcessor(t *testing.T, f func(t *testing.T)) {
	two, five := haveAVX2, haveAVX512
	defer func() { haveAVX2, haveAVX512 = two, five }()
	for _, p := range []struct {
		name      string
		two, five bool
	}{{"AVX-512", true, true}, {"AVX2", true, false}, {"plain", false, false}} {
		if p.two && !two || p.five && !five {
			t.Logf("this processor has no %s", p.name)
			continue
		}
		haveAVX2, haveAVX512 = p.two, p.five
		t.Run(p.name, f)
	}
}
