package runs

import (
	"bytes"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/trainer/report"
)

// recorded makes a run of one trainer with scores.
func recorded(t *testing.T, dir, job string, settings map[string]any, auc float64) *Run {
	t.Helper()
	r := begin(t, dir, Head{Job: job, Settings: settings, Set: map[string]string{"note": job}})
	r.Observe(startEvent(r))
	for step := int64(1); step <= 40; step++ {
		e := stepEvent(r, step)
		r.Observe(e)
		if step%10 == 0 {
			e.Event, e.Held = report.EventValidation, &report.Held{Step: step, AUC: report.Number(auc), LogLoss: 0.5,
				Accuracy: report.Number(math.NaN()), RMSE: report.Number(math.NaN()), Calibration: 1.1}
			r.Observe(e)
		}
	}
	note := stepEvent(r, 40)
	note.Event, note.Message = report.EventNote, "<b>"+job+"</b>"
	r.Observe(note)
	r.End(testResult(auc), nil)
	return open(t, dir, r.Run())
}

func TestPageLoadsNothingAndEscapesStrings(t *testing.T) {
	const evil = `x"><script>alert(1)</script>`
	dir := t.TempDir()
	all := []*Run{
		recorded(t, dir, evil, map[string]any{"data": map[string]any{"file": evil}, "dim": 8}, 0.7),
		recorded(t, dir, "plain", map[string]any{"data": map[string]any{"file": "https://example.com/x.js"}, "dim": 16}, 0.8),
	}
	all[0].Name = evil // a folder may have any name
	var out bytes.Buffer
	if err := WritePage(&out, all, time.Now()); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "<b>"+evil) || strings.Contains(page, `x">`) {
		t.Error("a string of a run is markup in the page")
	}
	loads := regexp.MustCompile(`(?i)\s(src|href|srcset|action|poster|data)\s*=|url\(|@import|fetch\(|XMLHttpRequest|` +
		`WebSocket|import\(|<(link|iframe|object|embed|base|form)`)
	if found := loads.FindAllString(page, -1); len(found) > 0 {
		t.Errorf("the page loads something: %q", found)
	}
	if !strings.Contains(page, `content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"`) {
		t.Error("the page has no policy that forbids to load")
	}
	for _, chart := range []string{"Training loss", "Training AUC", "Held-out AUC", "Held-out log loss",
		"Held-out calibration",
		"Examples per second", "Staleness", "Waiting"} {
		_, after, found := strings.Cut(page, "<figcaption>"+chart)
		figure, _, _ := strings.Cut(after, "</figure>")
		if !found || strings.Count(figure, "<svg") != 2 || strings.Count(figure, "<polyline") != 4 ||
			strings.Count(figure, `role="img" aria-label="`+chart+": run ") != 2 {
			t.Errorf("%s: want two drawings of two curves each, with a text: found %v, %d, %d", chart, found,
				strings.Count(figure, "<svg"), strings.Count(figure, "<polyline"))
		}
	}
	for _, absent := range []string{"accuracy", "RMSE"} { // no run has them
		if strings.Contains(page, "<figcaption>Held-out "+absent) {
			t.Errorf("a chart of %s without a value", absent)
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") || strings.Contains(page, "ZgotmplZ") {
		t.Error("the page has a number that is none, or a value that the template refuses")
	}
	for _, tag := range []string{"svg", "figure", "table", "details", "g", "script", "style"} {
		begins := strings.Count(page, "<"+tag+" ") + strings.Count(page, "<"+tag+">")
		if ends := strings.Count(page, "</"+tag+">"); begins != ends {
			t.Errorf("%d <%s>, %d </%s>", begins, tag, ends, tag)
		}
	}
}

func TestCurveOfSeveralTrainers(t *testing.T) {
	dir := t.TempDir()
	a := begin(t, dir, Head{Run: "r", Job: "ctr", Rank: 0, Trainers: 2})
	b := begin(t, dir, Head{Run: "r", Job: "ctr", Rank: 1, Trainers: 2})
	b.head.Started = a.head.Started
	for _, r := range []*Recorder{a, b} {
		r.Observe(startEvent(r))
		for step := int64(1); step <= 100; step++ {
			r.Observe(stepEvent(r, step))
		}
	}
	a.End(nil, nil)
	b.End(nil, nil)
	r := open(t, dir, "r")
	if len(r.Processes) != 2 || r.State() != Finished {
		t.Fatalf("%d processes, %s", len(r.Processes), r.State())
	}
	c := r.Curve(50)
	last := c[len(c)-1]
	if len(c) != 50 || math.Abs(last.Batches-200) > 1 || math.Abs(last.Examples-20_000) > 100 {
		t.Errorf("%d samples, the last %+v; want 50, 200 batches, 20,000 examples", len(c), last)
	}
	for _, s := range c[1 : len(c)-1] {
		if math.Abs(s.ExamplesPerSecond-200) > 2 || math.Abs(s.Waiting-0.25) > 0.01 || math.Abs(s.Stale-2) > 1e-9 {
			t.Fatalf("sample %+v: want 200 examples/s, a quarter of the time waiting, staleness 2", s)
		}
	}
	for i := 1; i < len(c); i++ {
		if c[i].Seconds <= c[i-1].Seconds || c[i].Batches < c[i-1].Batches {
			t.Fatalf("samples %d and %d fall: %+v %+v", i-1, i, c[i-1], c[i])
		}
	}
}

// The points before a resume count, and those of a process that was started again add up.
func TestCurveAfterAResume(t *testing.T) {
	at := func(started time.Time, from int64) *Process {
		p := &Process{Head: Head{Started: started}}
		for i := range int64(11) {
			p.Points = append(p.Points, Point{Seconds: report.Number(i), Step: from + i, Examples: 10 * (from + i)})
		}
		return p
	}
	start := time.Unix(1000, 0)
	r := &Run{Processes: []*Process{at(start, 500), at(start.Add(20*time.Second), 0)}}
	c := r.Curve(100)
	if first, last := c[0], c[len(c)-1]; first.Batches != 0 || math.Abs(last.Batches-20) > 1e-6 {
		t.Errorf("from %v to %v batches, want 0 to 20", first.Batches, last.Batches)
	}
	r = &Run{Processes: []*Process{at(start, 500)}}
	c = r.Curve(100)
	if first, last := c[0], c[len(c)-1]; first.Batches != 500 || last.Batches != 510 || last.Examples != 5100 {
		t.Errorf("from %+v to %+v, want batches 500 to 510", first, last)
	}
}

func TestCompareNamesWhatDiffers(t *testing.T) {
	dir := t.TempDir()
	all := []*Run{
		recorded(t, dir, "a", map[string]any{"rank": 0, "batch": 512,
			"model": map[string]any{"dim": 8, "top": []any{64.0}}}, 0.7),
		recorded(t, dir, "b", map[string]any{"rank": 1, "batch": 512,
			"model": map[string]any{"dim": 16, "top": []any{}}}, 0.8),
	}
	got := Compare(all)
	if len(got) != 2 || got[0].Name != "model.dim" || got[0].Values[1] != "16" || got[1].Name != "model.top" ||
		got[1].Values[0] != "[64]" || got[1].Values[1] != "" {
		t.Errorf("differences %+v, want model.dim and model.top", got)
	}
	measures := Measures(all)
	if m := measures[0]; m.Name != "held-out AUC" || m.Best != 1 || m.Values[0] != 0.7 {
		t.Errorf("first measure %+v, want the AUC, the second run best", m)
	}
	for _, m := range measures {
		if m.Name == "held-out RMSE" || m.Name == "held-out accuracy" {
			t.Errorf("%s, which no run has", m.Name)
		}
	}
}

func TestScoresAreOrdered(t *testing.T) {
	auc, rmse := testResult(0.7), testResult(math.NaN())
	rmse.RMSE = 1.5
	better := *rmse
	better.RMSE = 1.25
	none := Score{Value: math.NaN()}
	if s := ScoreOf(rmse); s.Name != "RMSE" || !ScoreOf(&better).Better(s) || s.Better(ScoreOf(&better)) {
		t.Errorf("%+v: a smaller RMSE is better", s)
	}
	early := testResult(0)
	early.HeldExamples, early.BestScore = 0, &report.BestScore{Metric: report.MetricLogLoss, Value: 0.25}
	if s := ScoreOf(early); s.String() != "log loss 0.2500 best" || !s.Less {
		t.Errorf("a run that stopped early: %v", s)
	}
	if s := ScoreOf(nil); s.String() != "no score" {
		t.Errorf("no result: %v", s)
	}
	if s := ScoreOf(auc); !ScoreOf(testResult(0.8)).Better(s) || s.Better(s) || !s.Better(none) || none.Better(s) {
		t.Errorf("%+v: a larger AUC is better, and any is better than none", s)
	}
}

func TestVerticalRangeKeepsOutliersAtTheEdge(t *testing.T) {
	ys := make([]float64, 200)
	for i := range ys {
		ys[i] = 0.5 + float64(i)/2000
	}
	ys[100] = 1e6
	if _, hi := verticalRange(ys, false); hi > 1 {
		t.Errorf("one value of 1e6 makes the chart end at %v", hi)
	}
	if lo, hi := verticalRange([]float64{0, 0}, true); lo != 0 || hi != 1 {
		t.Errorf("zeros are drawn from %v to %v, want 0 to 1", lo, hi)
	}
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		lo, hi float64
		want   string
	}{
		{0, 1, "0 0.2 0.4 0.6 0.8 1"}, {0, 240, "0 50 100 150 200"}, {0.775, 0.79, "0.775 0.78 0.785 0.79"},
		{0, 2_500_000, "0 500k 1M 1.5M 2M 2.5M"}, {-1, 1, "-1 -0.5 0 0.5 1"},
	} {
		var got []string
		for _, v := range ticks(tc.lo, tc.hi, 5) {
			got = append(got, short(v))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("ticks from %v to %v: %v, want %s", tc.lo, tc.hi, got, tc.want)
		}
	}
}
