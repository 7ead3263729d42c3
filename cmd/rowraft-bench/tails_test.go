package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/cli"
)

func TestTailsVerdict(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*tailsResult)
		want  string // part of the error; "": passes
	}{
		{"as promised", func(*tailsResult) {}, ""},
		{"a long tail", func(r *tailsResult) { r.P99 = 21 }, "p99 is 2.1"},
		{"a push that waits", func(r *tailsResult) { r.Max = 301 }, "151 ms more"},
		{"the disk is slow, too", func(r *tailsResult) { r.Max, r.ProbeMax = 301, 250 }, ""},
		{"snapshots that cost", func(r *tailsResult) { *r.Lost = 0.04 }, "cost 4.0 %"},
		{"no snapshot", func(r *tailsResult) { r.Snapshots = nil }, "no snapshot"},
		{"nothing to compare with", func(r *tailsResult) { r.Lost = nil }, "every second had a snapshot"},
	} {
		lost, rate := 0.02, 100.0
		r := &tailsResult{P50: 10, P99: 20, Max: 250, ProbeMax: 150, Lost: &lost, WithoutSnapshots: &rate,
			Snapshots: make([]tailsSnapshot, 3), Trace: []tailsSecond{{Snapshots: 2}}}
		tc.spoil(r)
		r.judge()
		err := r.Verdict("tails")
		if r.Passed != (tc.want == "") || (cli.ExitCode(t.Context(), err) == cli.ExitVerdict) == r.Passed ||
			tc.want != "" && (len(r.Failed) != 1 || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: passed: %v, %v, want %q", tc.name, r.Passed, err, tc.want)
		}
		var b strings.Builder
		if err := r.Print(&b); err != nil || !strings.Contains(b.String(), tc.want) || !strings.Contains(b.String(), "▪▪") {
			t.Errorf("%s: printed without %q: %v\n%s", tc.name, tc.want, err, b.String())
		}
	}
}

// The rate that is lost is relative to the seconds without a snapshot.
func TestTailsResult(t *testing.T) {
	b := newTails(4)
	push := func(second, pushes int, took time.Duration) {
		end := b.begun.Add(time.Duration(second)*time.Second + time.Millisecond)
		for range pushes {
			b.pushed(end.Add(-took), end)
		}
	}
	push(0, 10, 10*time.Millisecond)
	push(1, 8, 20*time.Millisecond)
	push(2, 8, 20*time.Millisecond)
	push(3, 10, 10*time.Millisecond)
	push(4, 99, time.Millisecond) // after the end
	n1, n2 := tailsSnapshot{Server: "n1", Shard: "shard-0"}, tailsSnapshot{Server: "n2", Shard: "shard-0"}
	b.writing(map[string]tailsSnapshot{"a": n1}, 1.1)
	b.writing(map[string]tailsSnapshot{"a": n1, "b": n2}, 1.5)
	b.writing(map[string]tailsSnapshot{"b": n2}, 1.75)
	b.writing(map[string]tailsSnapshot{"b": n2}, 2.5)
	b.writing(nil, 3.0)
	r := b.result(100)
	if r.RowsPerSecond != 900 || *r.WithoutSnapshots != 1000 || fmt.Sprintf("%.3f", *r.Lost) != "0.100" {
		t.Errorf("rate %v, without snapshots %v, lost %v", r.RowsPerSecond, *r.WithoutSnapshots, *r.Lost)
	}
	if r.Together != 0.25 || len(r.Snapshots) != 2 || r.Snapshots[0].End != 1.75 || r.Snapshots[1].End != 3 {
		t.Errorf("together %v, snapshots %+v", r.Together, r.Snapshots)
	}
	if s := r.Trace[1]; s.Snapshots != 2 || s.Max < 19 || s.RowsPerSecond != 800 || len(r.Trace) != 4 {
		t.Errorf("trace %+v", r.Trace)
	}
}

func TestProbeMeasuresTheDisk(t *testing.T) {
	in, stop := io.Pipe()
	var out bytes.Buffer
	time.AfterFunc(10*probeEvery, func() { stop.Close() })
	if err := probeDisk(filepath.Join(t.TempDir(), "probe"), in, &out); err != nil {
		t.Skip(err)
	}
	var at, took int64
	_, err := fmt.Sscan(out.String(), &at, &took)
	if err != nil || took <= 0 || time.Since(time.Unix(0, at)) > time.Minute {
		t.Errorf("the probe wrote %q: %d, %d, %v", out.String(), at, took, err)
	}
}
