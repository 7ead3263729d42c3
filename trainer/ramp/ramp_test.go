package ramp

import "testing"

// One more batch may be under way after every hundred: first one for each trainer by rank, then the second ones.
func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		rank, trainers int
		together       bool
		batches        int64
		want           int
	}{
		{0, 1, false, 0, 1}, {0, 1, false, 99, 1}, {0, 1, false, 100, 2}, {0, 1, false, 299, 3}, {0, 1, false, 900, 4},
		{0, 4, false, 0, 1}, {1, 4, false, 99, 0}, {1, 4, false, 100, 1}, {3, 4, false, 299, 0}, {3, 4, false, 300, 1},
		{0, 4, false, 399, 1}, {0, 4, false, 400, 2}, {1, 4, false, 400, 1}, {3, 4, false, 1500, 4},
		{3, 4, true, 0, 1}, {3, 4, true, 700, 2},
	} {
		r := New(tc.rank, tc.trainers, Rule{Every: 100, Together: tc.together})
		r.Reached(tc.batches)
		r.Reached(tc.batches - 1) // of a slower read
		if got := r.Limit(4); got != tc.want {
			t.Errorf("trainer %d of %d, together %v, after %d batches: %d, want %d", tc.rank, tc.trainers, tc.together,
				tc.batches, got, tc.want)
		}
	}
}

// When trainers join and leave, those that train now share the places: the first goes on with one batch of two, and a
// trainer behind one that has left gets its turn.
func TestRampFollowsTheMembers(t *testing.T) {
	r := New(0, 1, Rule{Every: 100})
	r.Reached(199)
	for _, tc := range []struct {
		ranks      []int
		rank, want int
		alone      bool
	}{{[]int{0}, 0, 2, true}, {[]int{0, 1}, 0, 1, false}, {[]int{0, 1, 2}, 2, 0, false}, {[]int{0, 2}, 2, 1, false},
		{nil, 2, 1, false}, {[]int{2}, 2, 2, true}} {
		r.Members(tc.ranks, tc.rank)
		if got := r.Limit(4); got != tc.want || r.Alone() != tc.alone {
			t.Errorf("rank %d of %v: %d batches, alone %v; want %d, %v", tc.rank, tc.ranks, got, r.Alone(), tc.want,
				tc.alone)
		}
	}
}

// With a bound for all trainers, each has its share of that, but not less than it may have anyway.
func TestMostOfAllTrainers(t *testing.T) {
	for trainers, want := range map[int]int{1: 10, 2: 8, 3: 6, 4: 4, 9: 4} {
		r := New(0, trainers, Rule{Every: 100, Most: 16, Each: 4})
		r.Reached(1 << 20)
		if got := r.Limit(10); got != want {
			t.Errorf("the first of %d trainers: %d batches, want %d", trainers, got, want)
		}
	}
}
