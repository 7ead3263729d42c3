package rowstore

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLowestFindsTheLowest(t *testing.T) {
	table := &Table{}
	rapid.Check(t, func(rt *rapid.T) {
		his := rapid.SliceOfN(rapid.Uint64Range(0, 9), 1, 200).Draw(rt, "hi")
		var r []rank
		for i, hi := range his {
			r = append(r, rank{hi: hi, lo: uint64(i * 37 % len(his)), ref: uint64(i)})
		}
		slices.SortFunc(r, table.compareRanks)
		r = slices.CompactFunc(r, func(a, b rank) bool { return a.hi == b.hi && a.lo == b.lo })
		want := slices.Clone(r)
		for i := range r { // any order
			j := rapid.IntRange(i, len(r)-1).Draw(rt, "swap")
			r[i], r[j] = r[j], r[i]
		}
		n := rapid.IntRange(0, len(r)).Draw(rt, "n")
		got := slices.Clone(table.lowest(r, n))
		slices.SortFunc(got, table.compareRanks)
		if !slices.Equal(got, want[:n]) {
			rt.Fatalf("%d of %v: %v, want %v", n, want, got, want[:n])
		}
		slices.SortFunc(r, table.compareRanks)
		if !slices.Equal(r, want) {
			rt.Fatalf("%v was changed to %v", want, r)
		}
	})
}
