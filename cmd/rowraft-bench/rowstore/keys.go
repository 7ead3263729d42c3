package rowstore

import (
	"math/rand/v2"

	"github.com/rowraft/rowraft"
)

// batchKeys is the unit of work of docs and bench/README.md.
const batchKeys = 8192

// batches draws n batches of keys below rows. "zipf" has exponent 1.05, its hot
// keys scattered over the rows. With unique no key is twice in a batch, which is
// how a trainer pulls.
func batches(dist string, rows, n int, unique bool) [][]rowraft.Key {
	rng := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rng, 1.05, 1, uint64(rows-1))
	draw := func() rowraft.Key {
		if dist == "zipf" {
			return rowraft.Key(zipf.Uint64() * 7919 % uint64(rows))
		}
		return rowraft.Key(rng.IntN(rows))
	}
	out := make([][]rowraft.Key, n)
	for i := range out {
		seen := make(map[rowraft.Key]bool, batchKeys)
		out[i] = make([]rowraft.Key, 0, batchKeys)
		for len(out[i]) < batchKeys {
			key := draw()
			if unique && seen[key] {
				continue
			}
			seen[key] = true
			out[i] = append(out[i], key)
		}
	}
	return out
}

// someGradients returns gradients for n numbers, small ones of both signs.
func someGradients(n int) []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	g := make([]float32, n)
	for i := range g {
		g[i] = float32(rng.NormFloat64()) / 100
	}
	return g
}
