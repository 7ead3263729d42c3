package optim

import (
	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
)

// gamma is the increment of splitmix64 (Steele, Lea, Flood 2014); gamma2 and gamma3 are multiples of it.
const (
	gamma  = 0x9E3779B97F4A7C15
	gamma2 = 2 * gamma & (1<<64 - 1)
	gamma3 = 3 * gamma & (1<<64 - 1)
)

// mix64 is the finalizer of splitmix64.
func mix64(z uint64) uint64 {
	z ^= z >> 30
	z *= 0xBF58476D1CE4E5B9
	z ^= z >> 27
	z *= 0x94D049BB133111EB
	return z ^ z>>31
}

// NameHash returns the hash of a table's name for Initializer.NameHash: XXH3-64 with seed 0.
func NameHash(table string) uint64 { return xxh3.HashString(table) }

// Init writes to dst the weights that key has before its first push. They are a pure
// function of the initializer and the key. Init allocates nothing.
//
// With 64-bit wrap-around arithmetic, mix64 and gamma as above:
//
//	h   = mix64(mix64(mix64(seed + gamma) ^ name hash) ^ key)
//	x_j = mix64(h + j·gamma),  j = 1, 2, …      (a splitmix64 stream from h)
//
//	zeros    w_i = 0
//	uniform  u = (x_{i+1} >> 11) · 2^-53
//	         w_i = float32(A + u·(B−A)) in float64, not fused; A if that rounds to B
//	normal   S = the sum of the twelve 16-bit parts of x_{3i+1}, x_{3i+2}, x_{3i+3}
//	         z = (2·S − 786420) · 2^-17         (exact; mean 0, variance 1 − 2^-32)
//	         w_i = float32(A + B·z) in float64, not fused
//
// A and B are widened to float64 first.
func Init(init rowraft.Initializer, key rowraft.Key, dst []float32) {
	InitFrom(init, key, 0, dst)
}

// InitFrom is Init for the weights from number first on. It computes any range of a row without
// the weights before it.
func InitFrom(init rowraft.Initializer, key rowraft.Key, first int, dst []float32) {
	if init.Kind == rowraft.InitZeros {
		clear(dst)
		return
	}
	x := mix64(mix64(mix64(init.Seed+gamma)^init.NameHash) ^ uint64(key))
	a, b := float64(init.A), float64(init.B)
	switch init.Kind {
	case rowraft.InitUniform:
		x += uint64(first) * gamma
		for i := range dst {
			x += gamma
			u := float64(float64(mix64(x)>>11) * 0x1p-53)
			w := float32(a + float64(u*(b-a)))
			if w >= init.B {
				w = init.A
			}
			dst[i] = w
		}
	case rowraft.InitNormal:
		x += uint64(first) * gamma3
		for i := range dst {
			s := parts(mix64(x+gamma)) + parts(mix64(x+gamma2)) + parts(mix64(x+gamma3))
			x += gamma3
			z := float64(float64(int64(2*s)-12*65535) * 0x1p-17)
			dst[i] = float32(a + float64(b*z))
		}
	}
}

// parts returns the sum of the four 16-bit parts of x.
func parts(x uint64) uint64 {
	x = x&0x0000FFFF0000FFFF + x>>16&0x0000FFFF0000FFFF
	return x&0xFFFFFFFF + x>>32
}
