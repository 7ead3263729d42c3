// Package kernel has the arithmetic of the models on slices of float32, in vector instructions where the processor has
// them.
//
// Each function has a plain Go version; kernels_simd.go replaces it on amd64, built with GOEXPERIMENT=simd, by AVX2 or
// AVX-512. The order of every sum is fixed, so equal inputs give equal bits on one build and kind of processor. Gemm
// fuses products and sums where the processor can, so its bits differ between kinds.
//
// Slices must not overlap unless they are the same. All functions are safe for concurrent use.
package kernel
