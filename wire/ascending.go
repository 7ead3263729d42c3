package wire

import (
	"cmp"
	"math"
	"slices"

	"github.com/rowraft/rowraft"
)

// Ascending returns the keys of a write strictly ascending, as a shard requires them, with their rows of dim values.
// It sums the rows of a repeated key in the order of keys or, for an assign, keeps the last one; a delete has no
// values. It does not change its arguments, and returns them if the keys ascend already.
func Ascending(op Op, keys []rowraft.Key, values []float32, dim int) ([]rowraft.Key, []float32) {
	if ascends(keys) {
		return keys, values
	}
	if op == OpDelete {
		keys = slices.Clone(keys)
		slices.Sort(keys)
		return slices.Compact(keys), values
	}
	order := make([]int32, len(keys))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(keys[a], keys[b]), cmp.Compare(a, b))
	})
	outKeys, outValues := make([]rowraft.Key, 0, len(keys)), make([]float32, 0, len(values))
	for _, i := range order {
		k, row := keys[i], values[int(i)*dim:(int(i)+1)*dim]
		last := len(outKeys) - 1
		if last < 0 || outKeys[last] != k {
			outKeys = append(outKeys, k)
			outValues = append(outValues, row...)
			continue
		}
		same := outValues[last*dim:]
		if op == OpAssign {
			copy(same, row)
			continue
		}
		for d, v := range row {
			same[d] += v
		}
	}
	return outKeys, outValues
}

func ascends(keys []rowraft.Key) bool {
	for i := 1; i < len(keys); i++ {
		if keys[i] <= keys[i-1] {
			return false
		}
	}
	return true
}

// infinite32 and infinite16 are the bits, without sign, of the smallest value that is not finite: as float32, and
// after rounding to bfloat16.
const (
	infinite32 = 0x7f800000
	infinite16 = 0x7f7f8000
)

// CheckNumbers refuses values that are not finite as dtype, and a learning rate that is not finite or is below 0, with
// CodeInvalidArgument. Row i of values, of dim values, belongs to keys[i].
func CheckNumbers(table string, keys []rowraft.Key, values []float32, dim int, lr float32, dtype rowraft.DType) error {
	infinite := uint32(infinite32)
	if dtype == rowraft.BFloat16 {
		infinite = infinite16
	}
	for i, v := range values {
		if math.Float32bits(v)&^(1<<31) >= infinite {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"table %s: key %d, dimension %d is %v: gradients and weights must be finite as %s", table, keys[i/dim], i%dim, v,
				dtype)
		}
	}
	if !(lr >= 0) || lr-lr != 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: learning rate %v: want a finite number ≥ 0", table, lr)
	}
	return nil
}
