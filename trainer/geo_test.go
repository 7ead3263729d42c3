package trainer

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/tables"
)

func geoConfig(steps int64, inFlight, every int) Config {
	cfg := tinyConfig(steps, inFlight)
	cfg.Mode, cfg.Geo.Every = Geo, every
	return cfg
}

// A single worker learns the same as in mode async, but for the rounding of the differences that it sends.
func TestGeoOfOneTrainerIsAsync(t *testing.T) {
	rows := func(cfg Config) (*report.Result, []float32) {
		l := newLocal(t)
		r := mustRun(t, cfg, l, nil)
		var all []float32
		e := l.Schemas()[0]
		_, rows := l.Rows(e.ID)
		for _, row := range rows {
			all = append(all, row[:e.Dim]...)
		}
		return r, all
	}
	// The weights of ftrl are a function of its state, which must follow a round.
	for _, optimizer := range []string{"adagrad", "ftrl", "adam"} {
		with := func(cfg Config) Config {
			cfg.Embeddings.Optimizer = optimizer
			return cfg
		}
		async, want := rows(with(tinyConfig(40, 0)))
		for _, every := range []int{1, 7, 100} {
			geo, got := rows(with(geoConfig(40, 0, every)))
			if len(got) != len(want) {
				t.Fatalf("%s, every %d: %d numbers, want %d", optimizer, every, len(got), len(want))
			}
			for i := range want {
				if math.Abs(float64(got[i]-want[i])) > 1e-4 {
					t.Fatalf("%s, every %d: number %d is %v, in mode async %v", optimizer, every, i, got[i], want[i])
				}
			}
			if d := math.Abs(float64(geo.LogLoss - async.LogLoss)); d > 1e-4 {
				t.Errorf("%s, every %d: log loss %v, in mode async %v", optimizer, every, geo.LogLoss, async.LogLoss)
			}
			if geo.PushesSent != 40 || geo.PushesAcknowledged != 40 {
				t.Errorf("%s, every %d: %d batches sent, %d acknowledged, want 40", optimizer, every, geo.PushesSent,
					geo.PushesAcknowledged)
			}
		}
	}
}

// At a pause, and at the end, the tables have every batch: the audit rows count them.
func TestGeoIsSettledAtABoundary(t *testing.T) {
	for _, inFlight := range []int{0, 3} {
		l, cfg := newLocal(t), geoConfig(40, inFlight, 7)
		cfg.Generator.Examples, cfg.Audit, cfg.Trainers = 0, true, 2
		counted := func(j *Job, want int64) {
			t.Helper()
			rows := make([]float32, len(j.auditKeys)*2)
			if err := l.Pull(t.Context(),
				[]tables.Segment{{Table: j.audit.ID, Dim: 2, Keys: j.auditKeys, Values: rows}}); err != nil {
				t.Fatal(err)
			}
			for i := range j.auditKeys {
				if rows[2*i] != float32(want) {
					t.Errorf("in_flight %d: audit row %d says %v, want %d batches", inFlight, i, rows[2*i], want)
				}
			}
		}
		at := make(chan struct{})
		j := newJob(t, cfg, l, func(e report.Event) {
			if e.Event == report.EventStep && e.Step == 11 {
				close(at)
			}
		})
		done := make(chan error, 1)
		go func() {
			_, err := j.Run(t.Context())
			done <- err
		}()
		<-at
		s, release, err := j.Pause(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.Acknowledged != s.Step || s.Step < 11 {
			t.Errorf("in_flight %d: at the boundary %d of %d batches are acknowledged", inFlight, s.Acknowledged,
				s.Step)
		}
		counted(j, s.Step)
		release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		counted(j, 40)
	}
}

// The trainers that train now share the changes: one that remains alone sends all of them.
func TestGeoSharesWithThePresentTrainers(t *testing.T) {
	rows := func(scale string, ranks ...int) []uint32 {
		cfg, l := geoConfig(20, 0, 5), newLocal(t)
		cfg.Trainers, cfg.Geo.Scale = 2, scale
		j := newJob(t, cfg, l, nil)
		setMembers(j, jobs.Members{Generation: 2, Ranks: ranks})
		if _, err := j.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		return bits(l)
	}
	both, alone, all := rows("", 0, 1), rows("", 0), rows("sum", 0, 1)
	if slices.Equal(both, all) || !slices.Equal(alone, all) {
		t.Errorf("of two it sends all: %v; alone it sends all: %v", slices.Equal(both, all), slices.Equal(alone, all))
	}
}

// A round that fails ends the run, and its batches count as unknown.
func TestGeoRoundFails(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		s := &strict{Local: newLocal(t), t: t, inFlight: 1, fail: func(push int) error {
			if push == 6 { // after 1, 1, 2, 4 and 5 batches or a few more
				return rowraft.Errorf(rowraft.CodeSessionExpired, "fenced")
			}
			return nil
		}}
		r, err := newJob(t, geoConfig(5000, inFlight, 5), s, nil).Run(t.Context())
		if rowraft.CodeOf(err) != rowraft.CodeSessionExpired || !strings.Contains(err.Error(), "batches changed in") {
			t.Errorf("in_flight %d: Run = %v, want SessionExpired, with the rows", inFlight, err)
		}
		if r.PushesAcknowledged < 5 || r.PushesUnknown < 5 || r.PushesSent != r.PushesAcknowledged+r.PushesUnknown ||
			s.pushes != 6 {
			t.Errorf("in_flight %d: %+v after %d pushes, want five rounds acknowledged and one unknown", inFlight, r,
				s.pushes)
		}
	}
}

func TestGeoRefuses(t *testing.T) {
	l := newLocal(t)
	mustRun(t, tinyConfig(1, 0), l, nil)
	if _, err := NewJob(t.Context(), geoConfig(1, 0, 5), l, nil); rowraft.CodeOf(err) != rowraft.CodeTableExists ||
		!strings.Contains(err.Error(), "whose optimizer is add") {
		t.Errorf("tables of mode async: %v, want TableExists, and why", err)
	}
	cfg := geoConfig(1, 0, 5)
	cfg.Dense.Optimizer = "add"
	if err := cfg.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
		!strings.Contains(err.Error(), `"add"`) {
		t.Errorf("a worker whose optimizer is add: %v, want InvalidArgument", err)
	}
}
