package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestRunPrintsFigures: each line is a figure with its name, and --only leaves
// the other groups out.
func TestRunPrintsFigures(t *testing.T) {
	var out bytes.Buffer
	missed, err := run([]string{"--rows", "100000", "--rounds", "1", "--only", "create|bytes", "--json"}, &out)
	if err != nil || missed != 0 {
		t.Fatalf("%d missed without --check, %v", missed, err)
	}
	names := 0
	for line := range strings.Lines(out.String()) {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if f.Value <= 0 || !strings.HasPrefix(f.Name, "create/") && !strings.HasPrefix(f.Name, "bytes/") {
			t.Errorf("unexpected figure %+v", f)
		}
		names++
	}
	if names != 5 {
		t.Errorf("%d figures, want 5:\n%s", names, out.String())
	}
}

func TestFiguresKnowTheirBar(t *testing.T) {
	for _, tc := range []struct {
		f    figure
		ok   bool
		text string
	}{
		{atLeast("a", 5, "Mrows/s", 5), true, "≥ 5 ok"},
		{atLeast("a", 4.9, "Mrows/s", 5), false, "≥ 5 MISSED"},
		{atMost("a", 1, "ms", 1), true, "≤ 1 ok"},
		{atMost("a", 1.1, "ms", 1), false, "≤ 1 MISSED"},
		{free("a", 7, "ms"), true, "ms"},
	} {
		if s := tc.f.String(); tc.f.OK != tc.ok || !strings.HasSuffix(strings.TrimSpace(s), tc.text) {
			t.Errorf("%q: ok %v, want %v and %q at its end", s, tc.f.OK, tc.ok, tc.text)
		}
	}
}

func TestHistogramKeepsTheLongest(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{500, 1000, 3 * time.Microsecond, time.Hour} {
		h.add(d)
	}
	if h.counts[0] != 1 || h.counts[1] != 1 || h.counts[2] != 1 || h.counts[len(h.counts)-1] != 1 || h.longest != time.Hour {
		t.Errorf("%+v", h)
	}
}
