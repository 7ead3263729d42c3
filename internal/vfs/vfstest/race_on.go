//go:build race

package vfstest

// stride: with the race detector every fifth step is crashed at, since what the
// others would find is found without it.
const stride = 5
