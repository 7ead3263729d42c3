// Package optim is the update rules: one row, one gradient, exact bits.
//
// Every replica runs the rule on its own copy of a row, so a rule must give the
// same bits on every machine and in every build:
//
//	push ─► log ─► shard Apply ─► rowstore ─► Rule.Update(weights, state, gradient)
//
// # Invariants
//
//  1. Each product is written float32(a*b), so that no compiler fuses it with an
//     addition (x*y+z differs between GOAMD64=v1 and v3, and on arm64).
//  2. Rules use only + - * / and the correctly rounded square root, and no transcendental
//     function. Adam's β^t are two numbers of the row's state.
//  3. The SIMD kernels (GOEXPERIMENT=simd, amd64, AVX2) give the same bits as the
//     plain ones, element by element, never fused; tests compare all dims 1 … 70.
//  4. Elements of a row are independent, so a kernel may process them in any order.
//     The only sum over a row is eight partial sums, added as a tree in both builds.
//
// The rules and the initializers ([Init]) are formats (docs/formats/rules.md): if one
// bit of a result changes, old logs replay to other rows.
package optim
