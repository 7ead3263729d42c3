package optim

import (
	"math"

	"github.com/rowraft/rowraft"
)

// RoundPush rounds the weights that a push of key has computed to bfloat16, in place, for a table that stores them so
// (docs/formats/rules.md, "Storage"). The rounding is stochastic: it goes to the next larger or the next smaller
// magnitude with probabilities that make the expectation exact, so that steps far smaller than the distance of two
// bfloat16 values add up. Rounding to nearest would discard each of them.
//
// The draw is a hash of the key, the position of the weight and the unrounded bits. So all replicas, a replay of the
// log and a fresh cluster with the same pushes agree. (Rejected: a draw by the row's version, which depends on the
// other keys of its slot.) A value that is a bfloat16 stays as it is, and so does a NaN.
//
// The weights of FTRL are a function of its state, so their rounding errors do not add up: RoundPush leaves them, and
// the store rounds them to nearest. RoundPush allocates nothing.
func (r *Rule) RoundPush(key rowraft.Key, w []float32) {
	if r.opt.Kind == rowraft.FTRL {
		return
	}
	h := mix64(uint64(key) + gamma)
	roundDrawn(w, uint32(h), uint32(h>>32)|1)
}

// Constants of the draw: the multipliers of lowbias32 (Wellons 2018).
const (
	drawFirst  = 0x7FEB352D
	drawSecond = 0x846CA68B
)

// roundDrawnPlain rounds w[i] with the draw of its bits ^ (base + i·step).
func roundDrawnPlain(w []float32, base, step uint32) {
	for i, v := range w {
		bits := math.Float32bits(v)
		x := (bits ^ base) * drawFirst
		x ^= x >> 15
		x *= drawSecond
		base += step
		if bits&0x7FFFFFFF <= 0x7F800000 {
			w[i] = math.Float32frombits((bits + x>>16) &^ 0xFFFF)
		}
	}
}
