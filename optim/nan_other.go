//go:build !amd64

package optim

import "math"

// nanBits is the representation of every NaN that an update makes.
const nanBits = 0xFFC00000

// settle gives every NaN the bits of docs/formats/rules.md. amd64 makes NaNs with these bits, and
// replicas on other processors must have the same.
func settle(numbers []float32) {
	for i, v := range numbers {
		if v != v {
			numbers[i] = math.Float32frombits(nanBits)
		}
	}
}
