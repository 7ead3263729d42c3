package report

import (
	"encoding/json"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/trainer/models"
)

func TestScore(t *testing.T) {
	for _, tc := range []struct {
		name     string
		examples []scored
		auc      float64
	}{
		{"perfect", []scored{{0.9, true}, {0.1, false}}, 1},
		{"reversed", []scored{{0.1, true}, {0.9, false}}, 0},
		{"ties count half", []scored{{0.5, true}, {0.5, false}, {0.5, false}}, 0.5},
		{"three of four pairs", []scored{{0.8, true}, {0.4, true}, {0.6, false}, {0.2, false}}, 0.75},
		{"one label only", []scored{{0.8, true}}, math.NaN()},
		{"nothing", nil, math.NaN()},
	} {
		if got := Predictions(tc.examples).Score().AUC; got != tc.auc && !(math.IsNaN(got) && math.IsNaN(tc.auc)) {
			t.Errorf("%s: AUC %v, want %v", tc.name, got, tc.auc)
		}
	}
	want := -(math.Log(0.8) + math.Log(0.6)) / 2
	if got := (Predictions{{0.8, true}, {0.4, false}}).Score().LogLoss; math.Abs(got-want) > 1e-7 {
		t.Errorf("log loss %v, want %v", got, want)
	}
	var r running
	r.add([]float32{0.8, 0.4, 0.6, 0.2, 1, 0}, []float32{1, 1, 0, 0, 1, 0}, 0.5)
	if got := r.auc(); math.Abs(got-8.0/9) > 1e-9 || r.meanLoss() != 0.5 {
		t.Errorf("running AUC %v loss %v, want 8/9 and 0.5", got, r.meanLoss())
	}
}

func TestWaitingIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m runMetrics
		pass := func(seconds time.Duration) { time.Sleep(seconds * time.Second) } //tidy:allow sleep virtual time
		pass(1)
		m.BeginWait()
		pass(2)
		m.BeginWait() // still does
		pass(4)
		if got := m.Waiting(time.Now()); got != 6*time.Second {
			t.Errorf("with a wait of 6 s: %v", got)
		}
		m.EndWait()
		pass(8)
		m.EndWait()
		m.BeginWait()
		pass(16)
		m.EndWait()
		if got := m.Waiting(time.Now()); got != 22*time.Second {
			t.Errorf("after waits of 6 and 16 s: %v", got)
		}
	})
}

func TestWindowsAreCutByTime(t *testing.T) {
	now := time.Unix(1000, 0)
	var got []Window
	w := &Windows{length: time.Minute, now: func() time.Time { return now },
		tell: func(w Window) { got = append(got, w) }}
	w.Close(false)
	w.Add([]float32{0.9, 0.1}, []float32{1, 0}, 0.5)
	now = now.Add(30 * time.Second)
	w.Add([]float32{0.2}, []float32{0}, 2)
	w.Close(false)
	if len(got) != 0 {
		t.Fatalf("a window of half a minute is over: %+v", got)
	}
	now = now.Add(40 * time.Second)
	w.Add([]float32{0.1, 0.9}, []float32{1, 0}, 3) // of the next
	now = now.Add(time.Second)
	w.Close(true)
	w.Close(true)
	if len(got) != 2 {
		t.Fatalf("windows %+v, want 2", got)
	}
	a, b := got[0], got[1]
	if a.Examples != 3 || a.Steps != 2 || a.Loss != 1 || a.AUC != 1 || a.To.Sub(a.From) != time.Minute {
		t.Errorf("the first: %+v, want 3 examples in a minute, loss (2·0.5 + 2)/3 = 1, AUC 1", a)
	}
	if b.Examples != 2 || b.AUC != 0 || b.To.Sub(b.From) != time.Second || !b.From.Equal(time.Unix(1070, 0)) {
		t.Errorf("the second: %+v", b)
	}
	w.Add([]float32{0.5}, []float32{1}, 1)
	w.Close(true)
	if last := got[2]; !math.IsNaN(float64(last.AUC)) {
		t.Errorf("AUC %v of one label, want NaN", last.AUC)
	}
}

// FuzzNumber: metrics in JSON are finite numbers, or null.
func FuzzNumber(f *testing.F) {
	for _, s := range []string{"0", "-1.5e300", "null", "1e400", `"NaN"`, "NaN", "Inf", "0x1p-2", "1_000"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var n Number
		if err := json.Unmarshal(text, &n); err != nil {
			return
		}
		out, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		var again Number
		if err := json.Unmarshal(out, &again); err != nil || math.IsNaN(float64(n)) != math.IsNaN(float64(again)) ||
			math.Abs(float64(again-n)) > 1e-8*math.Abs(float64(n)) { // nine digits are written
			t.Errorf("%s reads %v, is written as %s and read as %v, %v", text, n, out, again, err)
		}
		if twice, err := json.Marshal(again); err != nil || string(twice) != string(out) {
			t.Errorf("%s is written as %s, then as %s, %v", text, out, twice, err)
		}
	})
}

// One warning comes when the recent loss is a tenth above that of the start; none while it falls or stays.
func TestLossRose(t *testing.T) {
	for _, tc := range []struct {
		name  string
		loss  func(batch int) float64
		warns int
	}{
		{"falls", func(n int) float64 { return 0.7 - 0.001*float64(n) }, 0},
		{"stays", func(n int) float64 { return 0.7 + 0.05*float64(n%2) }, 0},
		{"rises", func(n int) float64 { return 0.7 + 0.002*float64(n) }, 1},
		{"rises after a fall", func(n int) float64 { return math.Abs(0.7-0.01*float64(n)) + 0.01 }, 1},
	} {
		var q Quality
		warns := 0
		for n := range 400 {
			q.Add(&models.Batch{}, &models.Result{Loss: tc.loss(n)})
			if start, recent, rose := q.LossRose(); rose {
				if warns++; recent < 1.1*start {
					t.Errorf("%s: %v at the start, %v now", tc.name, start, recent)
				}
			}
		}
		if warns != tc.warns {
			t.Errorf("%s: %d warnings, want %d", tc.name, warns, tc.warns)
		}
	}
}
