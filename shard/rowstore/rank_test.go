package rowstore

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestLowestFindsTheLowest(t *testing.T) {
	var by ranking
	rapid.Check(t, func(rt *rapid.T) {
		his := rapid.SliceOfN(rapid.Uint64Range(0, 9), 1, 200).Draw(rt, "hi")
		var r []rank
		for i, hi := range his { // no two ranks are equal: the table has no rows whose keys could be compared
			r = append(r, rank{hi: hi, lo: uint64(len(his) - i), ref: uint64(i)})
		}
		slices.SortFunc(r, by.compare)
		want := slices.Clone(r)
		for i := range r { // any order
			j := rapid.IntRange(i, len(r)-1).Draw(rt, "swap")
			r[i], r[j] = r[j], r[i]
		}
		n := rapid.IntRange(0, len(r)).Draw(rt, "n")
		got := slices.Clone(by.lowest(r, n))
		slices.SortFunc(got, by.compare)
		if !slices.Equal(got, want[:n]) {
			rt.Fatalf("%d of %v: %v, want %v", n, want, got, want[:n])
		}
		slices.SortFunc(r, by.compare)
		if !slices.Equal(r, want) {
			rt.Fatalf("%v was changed to %v", want, r)
		}
	})
}
