//go:build !(goexperiment.simd && amd64)

package kernel

import "testing"

// eachProcessor runs f: there is one kind of kernels.
func eachProcessor(t *testing.T, f func(t *testing.T)) { t.Run("plain", f) }
