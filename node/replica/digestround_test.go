package replica

import (
	"errors"
	"testing"

	"github.com/rowraft/rowraft/shard"
)

// TestTally tries all votes of up to five voters and a learner. It compares tally with a second
// implementation of docs/formats/entry.md.
func TestTally(t *testing.T) {
	const silent, abstains, fenced, kinds = 3, 4, 5, 6 // below: one of three digests
	say := func(kind int) digestVote {
		switch kind {
		case silent:
			return digestVote{voter: true, err: errors.New("silent")}
		case abstains:
			return digestVote{voter: true}
		case fenced: // its digest does not count
			return digestVote{voter: true, fenced: "it is", noted: true, digest: shard.Digest{Index: 9, Sum: [16]byte{0}}}
		}
		return digestVote{voter: true, noted: true, digest: shard.Digest{Index: 9, Sum: [16]byte{byte(kind)}}}
	}
	verdicts := make(map[verdict]int)
	for voters := 1; voters <= 5; voters++ {
		count := 1
		for range voters {
			count *= kinds
		}
		for code := range count {
			var all []digestVote
			var held [kinds]int
			for c := code; len(all) < voters; c /= kinds {
				held[c%kinds]++
				all = append(all, say(c%kinds))
			}
			want, digest, differ := undecided, byte(0), 0
			for d := range byte(3) {
				if 2*held[d] > voters && held[d] >= 2 {
					want, digest = agreed, d
				}
				if held[d] > 0 {
					differ++
				}
			}
			if want != agreed && held[silent]+held[abstains] == 0 && differ > 1 {
				want = noMajority
			}
			learner := say(2)
			learner.voter = false
			got, f := tally(append([]digestVote{learner}, all...))
			if got != want || got == agreed && f.Sum[0] != digest {
				t.Fatalf("%d voters say %v (three digests, silent, abstains, fenced): %v of %d, want %v of %d", voters, held, got,
					f.Sum[0], want, digest)
			}
			verdicts[got]++
		}
	}
	if len(verdicts) != 3 {
		t.Errorf("verdicts %v: want some of each", verdicts)
	}
}
