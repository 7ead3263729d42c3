package nemesis

import (
	"context"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/history"
)

func TestScheduleRepeats(t *testing.T) {
	kinds, err := Pick("all", false)
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
	kinds, err := Pick("all", false)
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
	got, err := Pick("kill-all,delay", false)
	if err != nil || !reflect.DeepEqual(got, []string{"kill-all", "delay"}) {
		t.Errorf("Pick = %v, %v", got, err)
	}
	if _, err := Pick("kill-al", false); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("an unknown kind: %v", err)
	}
	for kind, about := range Kinds() {
		if about == "" {
			t.Errorf("%s says nothing about itself", kind)
		}
	}
}

// A fault that stands has its effect until the heal, and ends then.
func TestStanding(t *testing.T) { synctest.Test(t, standing) }

func standing(t *testing.T) {
	var mu sync.Mutex
	now := make(map[string]bool)
	over := make(map[string]bool)
	defer func(before []fault) { faults = before }(faults)
	fake := func(kind string) fault {
		return fault{kind: kind, about: "a test", stands: stands, do: func(ctx context.Context, a *act) error {
			mu.Lock()
			now[kind] = true
			mu.Unlock()
			a.hold(ctx, time.Nanosecond, 2*time.Nanosecond)
			mu.Lock()
			over[kind] = true
			mu.Unlock()
			a.saw("it")
			return nil
		}}
	}
	faults = []fault{fake("a"), fake("b"), fake("c"), {kind: "d", about: "does not stand"}}
	rec, err := history.Create(filepath.Join(t.TempDir(), "h"))
	if err != nil {
		t.Fatal(err)
	}
	w := &World{Recorder: rec, Log: t.Logf}
	heal, ended := w.Stand(t.Context(), NewSchedule(3, []string{"a", "b", "c", "d"}))
	mu.Lock()
	if len(now) < fewestStanding || now["d"] || len(over) > 0 {
		t.Errorf("standing %v, over %v", now, over)
	}
	mu.Unlock()
	heal()
	<-ended
	if len(over) != len(now) {
		t.Errorf("of %v only %v have ended", now, over)
	}
	for kind, n := range w.Counts() {
		if n != (Count{Tried: 1, Observed: 1, Stood: 1}) {
			t.Errorf("%s: counted %+v", kind, n)
		}
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}
}
