package failover

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
)

func seconds(all ...float64) (out []time.Duration) {
	for _, s := range all {
		out = append(out, time.Duration(s*float64(time.Second)))
	}
	return out
}

func TestTimesOfFailovers(t *testing.T) {
	if timesOf(nil) != nil {
		t.Error("no faults have times")
	}
	var all []float64
	for i := 100; i > 0; i-- {
		all = append(all, float64(i)/100)
	}
	got := timesOf(seconds(all...))
	if got.N != 100 || got.P50 != 0.5 || got.P90 != 0.9 || got.P99 != 0.99 || got.Max != 1 || got.All[0] != 1 {
		t.Errorf("of 0.01 to 1 s: %+v", got)
	}
	if got := timesOf(seconds(3)); got.P50 != 3 || got.P99 != 3 || got.Max != 3 {
		t.Errorf("of one: %+v", got)
	}
}

// Each bar is one that a figure can be above of.
func TestFailoverVerdict(t *testing.T) {
	good := func() *Result {
		return &Result{
			Kills: timesOf(seconds(0.15, 0.15, 0.4)), Transfers: gapsOf(0.5), Moves: gapsOf(0.5), Restarts: gapsOf(0.5),
			Stalls: timesOf(seconds(2)), Servers: timesOf(seconds(1)),
			Reads: &failoverReads{Share: 0.999},
		}
	}
	for _, tc := range []struct {
		name  string
		spoil func(*Result)
		want  string // part of the error; "": passes
	}{
		{"at every bar", func(*Result) {}, ""},
		{"only kills", func(r *Result) {
			r.Transfers, r.Moves, r.Restarts, r.Stalls, r.Servers = nil, nil, nil, nil,
				nil
		}, ""},
		{"median", func(r *Result) { r.Kills = timesOf(seconds(0.1, 0.16, 0.2)) },
			"kills, p50: 0.16 s, the bar is 0.15 s"},
		{"nine of ten", func(r *Result) { r.Kills = timesOf(seconds(0.1, 0.1, 0.5)) }, "kills, p90"},
		{"transfer", func(r *Result) { r.Transfers = gapsOf(0.6) }, "transfers"},
		{"move", func(r *Result) { r.Moves = gapsOf(0.1, 0.51) }, "moves"},
		{"restart", func(r *Result) { r.Restarts = gapsOf(0.1, 0.51) }, "restarts"},
		{"stall", func(r *Result) { r.Stalls = timesOf(seconds(1, 1, 1, 2.1)) }, "disk stalls"},
		{"server", func(r *Result) { r.Servers = timesOf(seconds(0.5, 0.5, 0.5, 1.1)) }, "a third"},
		{"reads", func(r *Result) { r.Reads.Share = 0.9989 }, "bounded reads: 0.9989"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := good()
			tc.spoil(r)
			r.judge()
			err := r.Verdict("failover")
			verdict := cli.ExitCode(t.Context(), err) == cli.ExitVerdict
			if r.Passed != (tc.want == "") || verdict == r.Passed || tc.want != "" &&
				(len(r.Failed) != 1 || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("passed: %v, %v, want %q", r.Passed, err, tc.want)
			}
			var b strings.Builder
			if err := r.Print(&b); err != nil || !strings.Contains(b.String(), tc.want) {
				t.Errorf("printed without %q: %v\n%s", tc.want, err, b.String())
			}
		})
	}
}

func TestBoundedReadsAreTallied(t *testing.T) {
	var tally readTally
	tally.note(time.Second, 3*time.Millisecond, nil)
	tally.note(2*time.Second, time.Millisecond, nil)
	tally.note(0, time.Second, &rowraft.TooStaleError{Shard: 3, MaxAge: time.Second})
	tally.note(0, time.Second, errors.New("another"))
	got := tally.result()
	if got.Reads != 4 || got.Served != 2 || got.Share != 0.5 || got.Oldest != 2 || got.Slowest != 0.003 ||
		!strings.Contains(got.Error, "shard 3") {
		t.Errorf("%+v", got)
	}
}

// What was acknowledged counts from a push that began after the fault: one that was
// under way then may have been taken before it.
func TestRecoveredIsOfAPushAfterTheFault(t *testing.T) {
	s := &shardAcks{moved: make(chan struct{})}
	fault := time.Now()
	at := func(ms int) time.Time { return fault.Add(time.Duration(ms) * time.Millisecond) }
	for _, a := range []ack{{at(-20), at(-10)}, {at(-5), at(1)}, {at(600), at(610)}, {at(611), at(620)}} {
		s.note(a, nil)
	}
	if took, err := s.recovered(t.Context(), fault); err != nil || took != 610*time.Millisecond {
		t.Errorf("recovered after %v, %v, want 610 ms", took, err)
	}
	if begin, end := s.longestGap(); begin != at(1) || end != at(610) {
		t.Errorf("longest gap from %v to %v, want 1 ms to 610 ms", begin.Sub(fault), end.Sub(fault))
	}
	s.note(ack{}, errors.New("lost"))
	if _, err := s.recovered(t.Context(), at(1000)); err == nil {
		t.Error("a shard whose push failed recovers")
	}
}

func gapsOf(all ...float64) *plannedGaps {
	return &plannedGaps{failoverTimes: *timesOf(seconds(all...)), Worst: &gap{Seconds: all[0]}}
}

// The events of a gap are those of its shard, from all logs, and say what took how long.
func TestPhasesOfAGap(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	line := func(ms int, rest string) string {
		return `{"time":"` + begin.Add(time.Duration(ms)*time.Millisecond).Format(time.RFC3339Nano) + `",` + rest + "}\n"
	}
	log := line(-500, `"msg":"leads the shard","shard":1`) + "panic: no JSON\n" +
		line(10, `"msg":"transferring the leadership","group":"shard-1","to":"b"`) +
		line(15, `"msg":"is elected","shard":2`) +
		line(30, `"msg":"is elected","shard":1`) + line(60, `"msg":"leads the shard","shard":1,"after":"30ms"`) +
		line(90, `"msg":"leads the shard","shard":1`)
	events := eventsIn(strings.NewReader(log), "n1", 1, begin, begin.Add(70*time.Millisecond))
	if len(events) != 3 || events[0].More != "b" || events[2].More != "30ms" || events[2].Who != "n1" {
		t.Fatalf("events %v", events)
	}
	got := phasesOf(0.07, events)
	for _, p := range []struct{ got, want float64 }{{got.Before, 0.01}, {got.Transfer, 0.02}, {got.Begin, 0.03},
		{got.Found, 0.01}} {
		if p.got < p.want-1e-6 || p.got > p.want+1e-6 {
			t.Errorf("phases %+v", got)
		}
	}
	if got := phasesOf(0.07, nil); got != (gapPhases{}) {
		t.Errorf("phases of nothing: %+v", got)
	}
}
