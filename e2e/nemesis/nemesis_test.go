package nemesis

import (
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
)

func TestScheduleRepeats(t *testing.T) {
	kinds, err := Pick("all")
	if err != nil {
		t.Fatal(err)
	}
	a, b, other := NewSchedule(7, kinds), NewSchedule(7, kinds), NewSchedule(8, kinds)
	same := true
	for i := range 200 {
		x, y := a.next(), b.next()
		if !reflect.DeepEqual(x, y) {
			t.Fatalf("step %d of one seed: %+v and %+v", i, x, y)
		}
		same = same && reflect.DeepEqual(x, other.next())
	}
	if same {
		t.Error("two seeds have one schedule")
	}
}

func TestScheduleTakesEveryKindInTurn(t *testing.T) {
	kinds, err := Pick("all")
	if err != nil {
		t.Fatal(err)
	}
	s := NewSchedule(1, kinds)
	seen, n, pairs := make(map[string]int), 0, 0
	for n < 3*len(kinds) {
		st := s.next()
		if len(st.kinds) == 2 {
			pairs++
			if st.kinds[0] == st.kinds[1] {
				t.Errorf("a pair of %s with itself", st.kinds[0])
			}
		}
		for _, k := range st.kinds {
			seen[k]++
			n++
		}
	}
	for _, k := range kinds {
		if seen[k] < 2 {
			t.Errorf("%s came %d times in %d faults of %d kinds", k, seen[k], n, len(kinds))
		}
	}
	if pairs == 0 {
		t.Error("no pairs")
	}
}

func TestPick(t *testing.T) {
	got, err := Pick("kill-all,delay")
	if err != nil || !reflect.DeepEqual(got, []string{"kill-all", "delay"}) {
		t.Errorf("Pick = %v, %v", got, err)
	}
	if _, err := Pick("kill-al"); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("an unknown kind: %v", err)
	}
	for kind, about := range Kinds() {
		if about == "" {
			t.Errorf("%s says nothing about itself", kind)
		}
	}
}
