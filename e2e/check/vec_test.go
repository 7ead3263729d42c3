package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/e2e/history"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 3)) }

// seeds is how many histories a test draws: fewer where each costs more.
func seeds(n uint64) uint64 {
	if testing.Short() || raceEnabled {
		return n / 10
	}
	return n
}

func print(ops []history.Op) string {
	var b strings.Builder
	for i, op := range ops {
		fmt.Fprintf(&b, "%3d %-5s client %d [%d, %d] %s rows %v %s %v %s\n", i, op.Kind, op.Client, op.Call, op.Return,
			op.Outcome, op.Rows, op.Mode, op.Values, op.Fault)
	}
	return b.String()
}

func TestGoodHistoriesHaveNoViolation(t *testing.T) {
	modes := make(map[string]int)
	for seed := range seeds(6000) {
		rng := seeded(seed)
		s := random(rng)
		if seed%2 == 1 {
			s.unknown = 0.3 * rng.Float64()
		}
		ops := good(rng, s)
		if got := Vec(ops, s.clients); len(got) > 0 {
			t.Fatalf("seed %d: %v\n%s", seed, got, print(ops))
		}
		if c := Count(ops); c.Lost+c.Doubled != 0 || c.UnreadRows != 0 {
			t.Fatalf("seed %d: %v\n%s", seed, c, print(ops))
		}
		for _, op := range ops {
			modes[op.Mode]++
		}
	}
	if modes[ModeLeader] < 1000 || modes[ModeLinearizable] < 1000 || modes[ModeBounded] < 1000 {
		t.Errorf("reads by mode: %v: too few to mean something", modes)
	}
}

// Each mutation says which rule must find it; each must be tried hundreds of times.
func TestEveryMutationIsCaught(t *testing.T) {
	for i, mu := range mutations {
		t.Run(mu.name, func(t *testing.T) {
			made := 0
			for seed := range seeds(300) {
				rng := seeded(seed + uint64(i)<<32)
				s := random(rng)
				if seed%4 == 0 {
					s.unknown = 0.2
				}
				m := mutator{rng: rng, ops: clone(good(rng, s)), clients: s.clients}
				if !mu.make(&m) {
					continue
				}
				made++
				got := Vec(m.ops, s.clients)
				found := slices.ContainsFunc(got, func(v Violation) bool {
					return v.Rule != RuleHistory && (v.Rule == mu.rule || mu.rule == "" || mu.rule == RuleIssued &&
						v.Rule == RuleFinal || mu.rule == RuleAcked && v.Rule == RuleFinal)
				})
				if !found {
					t.Fatalf("seed %d: not caught: %v\n%s", seed, got, print(m.ops))
				}
				if mu.rule == RuleFinal {
					if c := Count(m.ops); c.Lost+c.Doubled == 0 {
						t.Fatalf("seed %d: not counted: %v\n%s", seed, c, print(m.ops))
					}
				}
			}
			least := seeds(300) / 6
			if seeds(300) < 300 { // few: what is made in a sixth of them may be made in two of thirty
				least = 1
			}
			if uint64(made) < least {
				t.Errorf("made in %d of %d histories: too few to mean something", made, seeds(300))
			}
			t.Logf("caught %d of %d", made, made)
		})
	}
}

func TestOrderOfOpsInTheFileDoesNotMatter(t *testing.T) {
	for seed := range seeds(300) {
		rng := seeded(seed)
		s := random(rng)
		m := mutator{rng: rng, ops: clone(good(rng, s)), clients: s.clients}
		if seed%2 == 0 {
			mutations[rng.IntN(len(mutations))].make(&m)
		}
		want := rules(Vec(m.ops, s.clients))
		rng.Shuffle(len(m.ops), func(i, j int) { m.ops[i], m.ops[j] = m.ops[j], m.ops[i] })
		if got := rules(Vec(m.ops, s.clients)); got != want {
			t.Fatalf("seed %d: shuffled %s, in order %s\n%s", seed, got, want, print(m.ops))
		}
	}
}

// rules prints which rules are violated in which rows.
func rules(vs []Violation) string {
	var s []string
	for _, v := range vs {
		s = append(s, fmt.Sprintf("%s/%d", v.Rule, v.Row))
	}
	return strings.Join(s, " ")
}

func push(client int, call, ret int64, o history.Outcome, rows ...int) history.Op {
	return history.Op{Kind: history.Push, Client: client, Call: call, Return: ret, Outcome: o, Rows: rows}
}

func pull(mode string, client int, call, ret int64, v ...int64) history.Op {
	return history.Op{Kind: history.Pull, Client: client, Call: call, Return: ret, Outcome: history.OK, Mode: mode,
		Rows: []int{7}, Values: [][]int64{v}}
}

func phase(name string, t int64) history.Op {
	return history.Op{Kind: history.Phase, Client: -1, Call: t, Return: t, Outcome: history.OK, Fault: name}
}

func TestRulesOneByOne(t *testing.T) {
	const ok, lin, lead = history.OK, ModeLinearizable, ModeLeader
	for _, tc := range []struct {
		name string
		ops  []history.Op
		want string
	}{
		{"a leader read may lack what others were told", []history.Op{
			push(0, 1, 2, ok, 7), pull(lead, 1, 5, 6, 0, 0)}, ""},
		{"a linearizable read may not", []history.Op{
			push(0, 1, 2, ok, 7), pull(lin, 1, 5, 6, 0, 0)}, "acked/7"},
		{"what returns in the nanosecond of the call is concurrent", []history.Op{
			push(0, 1, 5, ok, 7), pull(lin, 1, 5, 6, 0, 0)}, ""},
		{"leader reads of one client may run backwards", []history.Op{
			push(0, 1, 2, ok, 7), pull(lead, 1, 3, 4, 1, 0), pull(lead, 1, 5, 6, 0, 0)}, ""},
		{"a linearizable read is not older than a leader read before it", []history.Op{
			push(0, 1, 9, ok, 7), pull(lead, 1, 3, 4, 1, 0), pull(lin, 1, 5, 6, 0, 0)}, "monotonic/7"},
		{"a leader read may be older than a linearizable one before it", []history.Op{
			push(0, 1, 9, ok, 7), pull(lin, 1, 3, 4, 1, 0), pull(lead, 1, 5, 6, 0, 0)}, ""},
		{"a leader read has its own pushes", []history.Op{
			push(1, 1, 2, ok, 7), pull(lead, 1, 5, 6, 0, 0)}, "acked/7"},
		{"concurrent reads see the pushes in two orders", []history.Op{
			push(0, 1, 9, ok, 7), push(1, 1, 9, ok, 7), pull(lead, 2, 3, 4, 1, 0), pull(lin, 3, 3, 4, 0, 1)}, "chain/7"},
		{"a later push without an earlier one", []history.Op{
			push(0, 1, 2, ok, 7), push(1, 3, 9, ok, 7), pull(lead, 2, 4, 5, 0, 1)}, "order/7"},
		{"a refused push is in the row", []history.Op{
			push(0, 1, 2, history.Refused, 7), pull(lead, 2, 4, 5, 1, 0)}, "issued/7"},
		{"an unknown push may come late, or not", []history.Op{
			push(0, 1, 2, history.Unknown, 7), pull(lin, 2, 4, 5, 0, 0), push(0, 6, 7, ok, 7), pull(lin, 2, 8, 9, 2, 0),
			phase(PhaseFinal, 20), pull(lin, 2, 21, 22, 2, 0)}, ""},
		{"an unknown push that was seen stays", []history.Op{
			push(0, 1, 2, history.Unknown, 7), pull(lin, 2, 4, 5, 1, 0), pull(lin, 2, 8, 9, 0, 0)}, "monotonic/7"},
		{"a push is in before it was called", []history.Op{
			pull(lead, 2, 1, 2, 1, 0), push(0, 3, 4, ok, 7)}, "issued/7"},
		{"a leader's final read is complete", []history.Op{
			push(0, 1, 2, ok, 7), phase(PhaseFinal, 3), pull(lead, 2, 4, 5, 0, 0)}, "final/7"},
		{"a phase after the final one ends it", []history.Op{
			push(0, 1, 2, ok, 7), phase(PhaseFinal, 3), phase("faults", 4), pull(lead, 2, 5, 6, 0, 0)}, ""},
		{"nothing is read of a pull that failed", []history.Op{
			push(0, 1, 2, ok, 7), {Kind: history.Pull, Client: 2, Call: 3, Return: 4, Outcome: history.Refused, Rows: []int{7}}},
			""},
		{"a client makes two calls at a time", []history.Op{
			push(0, 1, 5, ok, 7), push(0, 4, 6, ok, 8)}, "history/-1"},
		{"a push of a client without a dimension", []history.Op{push(2, 1, 5, ok, 7)}, "history/-1"},
		{"a row has too few dimensions", []history.Op{pull(lin, 2, 1, 2, 0)}, "history/-1"},
		{"a pull of no mode", []history.Op{pull("", 2, 1, 2, 0, 0)}, "history/-1"},
		{"an op returns before its call", []history.Op{push(0, 3, 2, ok, 7)}, "history/-1"},
		{"a row twice in one op", []history.Op{push(0, 1, 2, ok, 7, 7)}, "history/-1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if vs := Vec(tc.ops, 2); rules(vs) != tc.want {
				t.Errorf("got %v, want %q of\n%s", vs, tc.want, print(tc.ops))
			}
		})
	}
}

func TestViolationIsASentence(t *testing.T) {
	vs := Vec([]history.Op{
		push(0, 1e9, 2e9, history.OK, 7), push(0, 3e9, 4e9, history.OK, 7),
		pull(ModeLinearizable, 5, 6e9, 7e9, 1, 0), pull(ModeLinearizable, 5, 8e9, 9e9, 1, 0),
	}, 2)
	const want = "acked: row 7: the linearizable read of client 5 (op 2, 6s to 7s) shows 1 pushes of client 0, of which " +
		"2 had been acknowledged, op 1 at 4s (and 1 more in this row)"
	if len(vs) != 1 || vs[0].String() != want || !slices.Equal(vs[0].Ops, []int{1, 2}) {
		t.Errorf("got %v of ops %v, want %q", vs, vs[0].Ops, want)
	}
}

func TestCount(t *testing.T) {
	const ok, lin = history.OK, ModeLinearizable
	ops := []history.Op{
		push(0, 1, 2, ok, 7), push(0, 3, 4, ok, 7, 8), push(1, 1, 2, ok, 7), push(1, 3, 4, history.Refused, 7),
		push(1, 5, 6, history.Unknown, 7),
		pull(ModeLeader, 2, 5, 6, 0, 0), {Kind: history.Fault, Client: -1, Fault: "kill"},
		phase(PhaseFinal, 10), pull(lin, 2, 11, 12, 1, 4), pull(lin, 2, 13, 14, 0, 3),
	}
	want := Tally{Pushes: 5, Acked: 3, Refused: 1, Unknown: 1, Pulls: 3, Faults: 1, AckedAdditions: 4, FinalReads: 2,
		UnreadRows: 1, Lost: 2, Doubled: 2}
	if got := Count(ops); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestCountsOfRoundsAreOfTheirTime(t *testing.T) {
	const ok, lin = history.OK, ModeLinearizable
	ops := []history.Op{
		push(0, 1, 2, ok, 7), phase(PhaseFinal, 3), pull(lin, 2, 4, 5, 1),
		phase("faults", 6), push(0, 7, 8, ok, 7), phase(PhaseFinal, 9), pull(lin, 2, 10, 11, 2),
	}
	if c := Count(ops); c.Lost+c.Doubled != 0 || c.FinalReads != 2 {
		t.Errorf("%+v: want nothing lost or doubled in 2 reads", c)
	}
	ops[2].Values[0][0]++ // a push of the second round in the first
	if c := Count(ops); c.Lost != 0 || c.Doubled != 1 {
		t.Errorf("%+v: want 1 doubled", c)
	}
}

// million is a history of 10⁶ ops like that of a long round: 16 clients that push
// and pull, 512 rows.
func million() (ops []history.Op, clients int) {
	s := shape{clients: 16, readers: 4, rows: 512, perOp: 4, ops: 50_000, push: 0.6, leader: 0.5, refused: 0.02, grain: 1,
		long: 1_000_000}
	return good(seeded(1), s), s.clients
}

func TestAMillionOpsInSeconds(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("a million ops, of one goroutine")
	}
	ops, clients := million()
	start := time.Now()
	vs := Vec(ops, clients)
	c := Count(ops)
	took := time.Since(start)
	if len(vs) > 0 || c.Lost+c.Doubled > 0 {
		t.Fatalf("%d ops: %v %v", len(ops), vs[:min(len(vs), 5)], c)
	}
	if took > 60*time.Second { // 1 to 2 s next to other work
		t.Errorf("%d ops took %s", len(ops), took)
	}
	t.Logf("%d ops in %s: %s", len(ops), took, c)
}

func BenchmarkVec(b *testing.B) {
	ops, clients := million()
	b.ReportAllocs()
	for b.Loop() {
		if vs := Vec(ops, clients); len(vs) > 0 {
			b.Fatal(vs)
		}
	}
	b.ReportMetric(float64(len(ops))*float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}
