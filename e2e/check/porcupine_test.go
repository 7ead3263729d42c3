package check

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/rowraft/rowraft/e2e/history"
)

// blind changes something in ops without asking whether that makes them wrong.
func blind(rng *rand.Rand, ops []history.Op, clients int) {
	m := mutator{rng: rng, ops: ops, clients: clients}
	reads := m.reads()
	if len(reads) == 0 {
		return
	}
	t := reads[rng.IntN(len(reads))]
	switch rng.IntN(7) {
	case 0, 1:
		t.v[rng.IntN(clients)] += int64(1 - 2*rng.IntN(2))
	case 2:
		t.v[rng.IntN(clients)]++
		t.v[rng.IntN(clients)]--
	case 3: // another time
		by := rng.Int64N(200) - 100
		t.op.Client = elsewhere
		t.op.Call, t.op.Return = t.op.Call+by, t.op.Return+by
	case 4: // another read's answer
		for _, o := range reads {
			if o.row == t.row && o.op != t.op {
				copy(t.v, o.v)
				break
			}
		}
	case 5:
		t.op.Mode = map[string]string{ModeLeader: ModeLinearizable, ModeLinearizable: ModeLeader}[t.op.Mode]
	case 6: // a shorter push
		if p := m.pushes(history.OK); len(p) > 0 {
			p[0].Call += rng.Int64N(p[0].Return - p[0].Call + 1)
			p[0].Return = p[0].Call + rng.Int64N(p[0].Return-p[0].Call+1)
		}
	}
}

// tight draws shapes with much concurrency, where rules (a), (b) and (d) decide.
func tight(rng *rand.Rand) shape {
	return shape{
		clients: 2 + rng.IntN(3), readers: 1 + rng.IntN(2), rows: 1, perOp: 1, ops: 3 + rng.IntN(6), push: 0.5,
		leader: []float64{0, 0.5, 1}[rng.IntN(3)], grain: []int64{1, 20}[rng.IntN(2)], long: 100, noFinal: true,
	}
}

// The rules are exact: Vec and the search agree on right and on wrong.
func TestVecAndPorcupineAgree(t *testing.T) {
	agree(t, 20_000, []Rule{RuleChain, RuleMonotonic, RuleAcked, RuleIssued, RuleOrder},
		func(rng *rand.Rand) (shape, []history.Op) {
			s := tight(rng)
			ops := clone(good(rng, s))
			for range rng.IntN(3) {
				blind(rng, ops, s.clients)
			}
			return s, ops
		})
}

// agree compares Vec with the search on histories of so many seeds. Enough of them must be right
// and wrong, and each of the rules must have been the only one that says so.
func agree(t *testing.T, n uint64, rules []Rule, of func(*rand.Rand) (shape, []history.Op)) {
	t.Helper()
	wrong, byRule := map[bool]int{}, map[Rule]int{}
	for seed := range seeds(n) {
		s, ops := of(seeded(seed))
		var vec []Violation
		for _, v := range Vec(ops, s.clients) {
			if v.Rule != RuleHistory {
				vec = append(vec, v)
			}
		}
		o := Porcupine(ops, s.clients, PorcupineOptions{})
		if o.Unknown+o.Skipped > 0 || o.Windows > 1 {
			t.Fatalf("seed %d: %v", seed, o)
		}
		if (len(vec) > 0) != (len(o.Illegal) > 0) {
			t.Fatalf("seed %d: rules say %v, the search says %v %v\n%s", seed, vec, o, o.Illegal, print(ops))
		}
		wrong[len(vec) > 0]++
		if len(vec) == 1 {
			byRule[vec[0].Rule]++
		}
	}
	t.Logf("right: %d, wrong: %d, by one rule alone: %v", wrong[false], wrong[true], byRule)
	if least := int(seeds(n) / 10); wrong[true] < least || wrong[false] < least {
		t.Errorf("%v: too few of a kind to mean something", wrong)
	}
	for _, r := range rules {
		if byRule[r] == 0 {
			t.Errorf("rule %s never decided", r)
		}
	}
}

// With unknown pushes Vec may see less than the search, never more.
func TestVecIsNecessaryWithUnknownPushes(t *testing.T) {
	both, only := 0, 0
	for seed := range seeds(6000) {
		rng := seeded(seed)
		s := tight(rng)
		s.unknown = 0.3
		ops := clone(good(rng, s))
		if o := Porcupine(ops, s.clients, PorcupineOptions{}); len(o.Illegal) > 0 {
			t.Fatalf("seed %d: the search finds no order for a good history: %v\n%s", seed, o.Illegal, print(ops))
		}
		blind(rng, ops, s.clients)
		vec := false
		for _, v := range Vec(ops, s.clients) {
			vec = vec || v.Rule != RuleHistory
		}
		o := Porcupine(ops, s.clients, PorcupineOptions{})
		switch {
		case vec && len(o.Illegal) == 0:
			t.Fatalf("seed %d: rules say %v, the search explains it\n%s", seed, Vec(ops, s.clients), print(ops))
		case vec:
			both++
		case len(o.Illegal) > 0:
			only++
		}
	}
	t.Logf("found by both: %d, by the search alone: %d", both, only)
	if both == 0 {
		t.Error("nothing was wrong")
	}
}

// Windows explain good histories, and find most of what is wrong.
func TestPorcupineInWindows(t *testing.T) {
	caught, made := 0, 0
	for seed := range seeds(300) {
		rng := seeded(seed)
		s := shape{clients: 4, readers: 2, rows: 2, perOp: 2, ops: 60, push: 0.5, leader: 0.4, grain: 1, long: 100}
		if seed%3 == 0 {
			s.unknown = 0.03
		}
		o := PorcupineOptions{Window: 20 + rng.IntN(60), Timeout: time.Minute}
		ops := clone(good(rng, s))
		if got := Porcupine(ops, s.clients, o); len(got.Illegal)+got.Unknown > 0 || got.Windows < 6 {
			t.Fatalf("seed %d: %v %v\n%s", seed, got, got.Illegal, print(ops))
		}
		m := mutator{rng: rng, ops: ops, clients: s.clients}
		if mu := mutations[rng.IntN(len(mutations))]; mu.rule == RuleFinal || mu.rule == "" || !mu.make(&m) {
			continue
		}
		made++
		if got := Porcupine(m.ops, s.clients, o); len(got.Illegal) > 0 {
			caught++
		}
	}
	t.Logf("caught %d of %d", caught, made)
	if caught*10 < made*8 || made == 0 {
		t.Errorf("caught %d of %d: windows are too blind", caught, made)
	}
}

func TestPorcupineTakesTheLargestWindow(t *testing.T) {
	s := shape{clients: 8, readers: 2, rows: 1, perOp: 1, ops: 600, push: 0.6, leader: 0.5, grain: 1, long: 1000}
	ops := good(seeded(5), s)
	start := time.Now()
	o := Porcupine(ops, s.clients, PorcupineOptions{Timeout: time.Minute})
	t.Logf("%d ops in %s: %v", len(ops), time.Since(start), o)
	if len(o.Illegal)+o.Unknown > 0 || o.OK != o.Windows {
		t.Errorf("%v", o)
	}
}

func TestPorcupineOutOfTimeIsNoPass(t *testing.T) {
	s := shape{clients: 8, readers: 2, rows: 2, perOp: 1, ops: 200, push: 0.6, leader: 0.5, grain: 1, long: 1000}
	o := Porcupine(good(seeded(5), s), s.clients, PorcupineOptions{Timeout: time.Nanosecond})
	if o.Unknown != 2 || o.OK != 0 || len(o.Illegal) != 0 {
		t.Errorf("%v, want 2 windows not decided", o)
	}
}

// What Porcupine does to make the search small changes no answer: small
// linearizable histories as they are.
func TestReducedSearchAnswersAsThePlainOne(t *testing.T) {
	answers := map[porcupine.CheckResult]int{}
	for seed := range seeds(3000) {
		rng := seeded(seed)
		s := tight(rng)
		s.ops, s.leader = min(s.ops, 5), 0
		if seed%3 == 0 {
			s.unknown = 0.2
		}
		ops := clone(good(rng, s))
		blind(rng, ops, s.clients)
		var plain []porcupine.Operation
		for _, op := range ops {
			p := porcupine.Operation{Call: op.Call, Return: op.Return}
			switch {
			case op.Mode == ModeLeader: // the mutation
				continue
			case op.Kind == history.Push:
				p.Input = effect{client: op.Client}
			default:
				p.Output = pack(op.Values[0])
			}
			if op.Outcome == history.Unknown {
				p.Return = never
			}
			plain = append(plain, p)
		}
		want := porcupine.CheckOperationsTimeout(model(make([]int64, s.clients)), plain, 10*time.Second)
		answers[want]++
		ops = slices.DeleteFunc(ops, func(op history.Op) bool { return op.Mode == ModeLeader })
		got := Porcupine(ops, s.clients, PorcupineOptions{})
		if want != porcupine.Unknown && (want == porcupine.Ok) != (len(got.Illegal) == 0) {
			t.Fatalf("seed %d: %v, plain: %v\n%s", seed, got, want, print(ops))
		}
	}
	t.Logf("%v", answers)
}
