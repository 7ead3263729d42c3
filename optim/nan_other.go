//go:build !amd64

package optim

import "math"

// nanBits are those of a NaN that arithmetic made.
const nanBits = 0xFFC00000

// settle gives every NaN the bits of docs/formats/rules.md, which are those that
// amd64 makes: replicas on other processors must have the same.
func settle(numbers []float32) {
	for i, v := range numbers {
		if v != v {
			numbers[i] = math.Float32frombits(nanBits)
		}
	}
}
