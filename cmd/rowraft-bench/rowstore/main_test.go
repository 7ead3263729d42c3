package rowstore

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/internal/cli"
)

// TestRunPrintsFigures: each line is a figure with its name, and --only leaves
// the other groups out.
func TestRunPrintsFigures(t *testing.T) {
	var out bytes.Buffer
	c := config{rows: 100_000, rounds: 1, only: regexp.MustCompile("create|bytes")}
	if err := run(t.Context(), c, figures.NewPrinter(&out, cli.FormatJSON)); err != nil {
		t.Fatal(err)
	}
	names := 0
	for line := range strings.Lines(out.String()) {
		var f figures.Figure
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

// TestPauseIsOfTheSameRows: a chunk that was slow in one round of three is none; one
// that was slow in two is, by what it took beyond the median chunk.
func TestPauseIsOfTheSameRows(t *testing.T) {
	const ms = time.Millisecond
	rounds := []grown{
		{chunks: times{2 * ms, 90 * ms, 2 * ms, 8 * ms}},
		{chunks: times{2 * ms, 3 * ms, 2 * ms, 9 * ms}},
		{chunks: times{50 * ms, 3 * ms, 2 * ms, 2 * ms}},
	}
	if first, p, at := pause(rounds, 1); first != -ms || p != 5*ms || at != 3 { // 2 and 8 beyond 3
		t.Errorf("first %v, pause %v of chunk %d, want -1ms, 5ms of chunk 3", first, p, at)
	}
	if first, p, at := pause(rounds[:1], 2); first != 82*ms || p != 0 || at != 3 { // 90 and 8 beyond 8
		t.Errorf("one round: first %v, pause %v of chunk %d, want 82ms, 0 of chunk 3", first, p, at)
	}
}

// TestQuantiles of ten times that come in no order.
func TestQuantiles(t *testing.T) {
	v := times{5, 9, 1, 7, 3, 10, 2, 8, 4, 6}
	if v.quantile(0) != 1 || v.median() != 6 || v.quantile(0.8999) != 9 || v.quantile(1) != 10 {
		t.Errorf("least %d, median %d, 89.99 %% %d, longest %d", v.quantile(0), v.median(), v.quantile(0.8999), v.quantile(1))
	}
}
