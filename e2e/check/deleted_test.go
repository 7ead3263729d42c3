package check

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowraft/rowraft/e2e/history"
)

// withDeletes draws a shape in which some rows are deleted.
func withDeletes(seed uint64) shape {
	rng := seeded(seed)
	s := random(rng)
	s.owned = []float64{0.5, 1}[rng.IntN(2)]
	return s
}

func TestGoodHistoriesWithDeletes(t *testing.T) {
	deletes, nothing := 0, 0
	for seed := range seeds(1500) {
		s := withDeletes(seed)
		ops := good(seeded(seed+1<<40), s)
		was := clone(ops)
		if got := Vec(ops, s.clients); len(got) > 0 {
			t.Fatalf("seed %d: %v\n%s", seed, got, print(ops))
		}
		c := Count(ops)
		if c.Lost+c.Doubled != 0 || c.UnreadRows != 0 {
			t.Fatalf("seed %d: %v\n%s", seed, c, print(ops))
		}
		if print(ops) != print(was) {
			t.Fatalf("seed %d: a checker has changed the history", seed)
		}
		deletes += c.Deletes
		for row := range Sequences(ops) {
			for _, op := range ops {
				if at := slices.Index(op.Rows, row); at >= 0 && op.Kind == history.Pull && op.Outcome == history.OK &&
					slices.Max(op.Values[at]) == 0 {
					nothing++
				}
			}
		}
	}
	if least := int(seeds(1500)); deletes < least || nothing < least {
		t.Errorf("%d deletes and %d reads of nothing: too few to mean something", deletes, nothing)
	}
}

// Of rows that are deleted the rules are exact, too: they and the search, which knows a
// register, agree on right and on wrong.
func TestVecAndPorcupineAgreeOnDeletes(t *testing.T) {
	agree(t, 5000, []Rule{RuleMonotonic, RuleAcked, RuleIssued, RuleDeleted}, func(rng *rand.Rand) (shape, []history.Op) {
		s := tight(rng)
		s.owned, s.leader, s.ops, s.push = 1, 0, 4+rng.IntN(10), 0.7
		ops := clone(good(rng, s))
		for range rng.IntN(3) {
			spoil(rng.IntN, ops)
		}
		return s, ops
	})
}

// spoil changes what a read of a row returned: to nothing, to what some op left, or by one.
func spoil(intN func(int) int, ops []history.Op) {
	var reads []*history.Op
	for i := range ops {
		if ops[i].Kind == history.Pull && ops[i].Outcome == history.OK {
			reads = append(reads, &ops[i])
		}
	}
	if len(reads) == 0 {
		return
	}
	v := reads[intN(len(reads))].Values[0]
	switch intN(4) {
	case 0:
		v[0] = 0
	case 1:
		v[0] = int64(intN(12))
	default:
		v[0] += int64(1 - 2*intN(2))
	}
}

func remove(client int, call, ret int64, o history.Outcome, rows ...int) history.Op {
	op := push(client, call, ret, o, rows...)
	op.Kind = history.Delete
	return op
}

func TestRulesOfDeletesOneByOne(t *testing.T) {
	const ok, lin, lead = history.OK, ModeLinearizable, ModeLeader
	for _, tc := range []struct {
		name string
		ops  []history.Op
		want string
	}{
		{"a row is gone after its delete, and back after the next push", []history.Op{
			push(0, 1, 2, ok, 7), pull(lin, 1, 3, 4, 1, 0), remove(0, 5, 6, ok, 7), pull(lin, 1, 7, 8, 0, 0),
			push(0, 9, 10, ok, 7), pull(lin, 1, 11, 12, 3, 0)}, ""},
		{"a delete that had no effect", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, ok, 7), pull(lin, 1, 7, 8, 1, 0)}, "acked/7"},
		{"the next push after a delete that had none", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, ok, 7), push(0, 9, 10, ok, 7), pull(lin, 1, 11, 12, 4, 0)}, "issued/7"},
		{"a delete that was applied again behind a push", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, ok, 7), push(0, 9, 10, ok, 7), pull(lin, 1, 11, 12, 0, 0)}, "acked/7"},
		{"a value that a delete would have left", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 20, ok, 7), pull(lin, 1, 7, 8, 2, 0)}, "deleted/7"},
		{"gone before anybody deleted it", []history.Op{
			push(0, 1, 2, ok, 7), pull(lin, 1, 3, 4, 0, 0), remove(0, 5, 6, ok, 7)}, "acked/7"},
		{"nothing, and then what was there before", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 20, ok, 7), pull(lin, 1, 7, 8, 0, 0), pull(lin, 1, 9, 10, 1, 0)}, "monotonic/7"},
		{"a leader read may be older", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, ok, 7), pull(lead, 1, 7, 8, 1, 0)}, ""},
		{"but not than what its own client knows", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, ok, 7), pull(lead, 0, 7, 8, 1, 0)}, "acked/7"},
		{"what may have been deleted may be gone", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, history.Unknown, 7), pull(lin, 1, 7, 8, 0, 0)}, ""},
		{"a delete that was refused and had an effect", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 3, 4, history.Refused, 7), pull(lin, 1, 7, 8, 0, 0)}, "acked/7"},
		{"a row of two clients", []history.Op{
			push(0, 1, 2, ok, 7), remove(1, 3, 4, ok, 7)}, "history/7"},
		{"in the end it is gone", []history.Op{
			push(0, 1, 2, ok, 7), remove(0, 5, 6, ok, 7), phase(PhaseFinal, 10), pull(lead, 1, 11, 12, 1, 0)}, "final/7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Vec(tc.ops, 2)
			if rules(got) != tc.want {
				t.Errorf("violations %v, want %q\n%s", got, tc.want, print(tc.ops))
			}
		})
	}
}
