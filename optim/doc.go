// Package optim is the update rules: one row, one gradient, exact bits.
//
// Every replica runs the rule on its own copy of a row, so a rule must give the
// same bits on every machine and in every build:
//
//	push ─► log ─► shard Apply ─► rowstore ─► Rule.Update(weights, state, gradient)
//
// # Invariants
//
//  1. Each product is written float32(a*b), so no compiler fuses it with an
//     addition (x*y+z differs between GOAMD64=v1 and v3, and on arm64).
//  2. Only + - * / and the correctly rounded square root; no transcendental
//     function. Adam's β^t are two numbers of the row's state.
//  3. The SIMD kernels (GOEXPERIMENT=simd, amd64, AVX2) give the bits of the
//     plain ones, element by element, never fused; tests compare all dims 1 … 70.
//  4. Elements of a row are independent, so a kernel may take them in any order;
//     the one sum over a row is eight sums added as a tree, in both builds.
//
// A rule and the initializers ([Init]) are formats (docs/formats/rules.md): a
// change of one bit changes what an old log replays to.
package optim
