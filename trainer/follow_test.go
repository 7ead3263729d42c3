package trainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tables"
)

// streamConfig follows path; its windows are short.
func streamConfig(t *testing.T, path string, inFlight int) Config {
	t.Helper()
	schema := filepath.Join(t.TempDir(), "schema.yaml")
	text := "label: {column: click}\ncategorical:\n  - {column: ad}\n  - {column: user}\n"
	if err := os.WriteFile(schema, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := tinyConfig(0, inFlight)
	cfg.Generator, cfg.Evaluate, cfg.Audit, cfg.Batch = nil, nil, true, 16
	cfg.Data = DataConfig{Follow: path, Schema: schema, Window: 20 * time.Millisecond}
	return cfg
}

func putLines(t *testing.T, path string, from, to int) {
	t.Helper()
	var b strings.Builder
	if from == 0 {
		b.WriteString("click,ad,user\n")
	}
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "%d,ad%d,user%d\n", i%2, i, i%7)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(b.String())
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// streamRun is a run concurrent with the test.
type streamRun struct {
	t     *testing.T
	job   *Job
	stop  context.CancelFunc
	ended chan *report.Result

	mu      sync.Mutex
	changed chan struct{} // capacity 1
	now     report.Event
	windows []report.Window
}

func runStream(t *testing.T, cfg Config, tables tables.Tables, from *state.State) *streamRun {
	t.Helper()
	r := &streamRun{t: t, ended: make(chan *report.Result, 1), changed: make(chan struct{}, 1)}
	r.job = newJob(t, cfg, tables, func(e report.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now = e
		if e.Window != nil {
			r.windows = append(r.windows, *e.Window)
		}
		select {
		case r.changed <- struct{}{}:
		default:
		}
	})
	if from != nil {
		if err := r.job.Resume(from); err != nil {
			t.Fatal(err)
		}
	}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(t.Context())
	go func() {
		result, err := r.job.Run(ctx)
		if err != nil {
			t.Errorf("the run: %v", err)
		}
		r.ended <- result
	}()
	t.Cleanup(r.stop)
	return r
}

// until waits for an event that satisfies a condition.
func (r *streamRun) until(what string, reached func() bool) {
	r.t.Helper()
	limit := time.NewTimer(3 * time.Minute)
	defer limit.Stop()
	for {
		r.mu.Lock()
		ok := reached()
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-r.changed:
		case <-limit.C:
			r.t.Fatalf("%s: not after three minutes; the last event was %+v", what, r.now)
		}
	}
}

func (r *streamRun) trained(n int64) {
	r.t.Helper()
	r.until(fmt.Sprint(n, " examples"),
		func() bool { return r.now.Examples >= n && r.now.PushesAcknowledged >= r.now.Step })
}

// inWindows returns the number of examples in closed windows.
func (r *streamRun) inWindows() (n int64) {
	for _, w := range r.windows {
		n += w.Examples
	}
	return n
}

// A job learns the lines appended to a file while it runs, in windows of time. It answers a request for its state
// while no line comes, is stopped, and resumes from that state.
func TestAJobFollowsAStream(t *testing.T) {
	for _, inFlight := range []int{0, 2} {
		t.Run(fmt.Sprint("in_flight ", inFlight), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "clicks.csv")
			cfg, tables := streamConfig(t, path, inFlight), newLocal(t)
			r := runStream(t, cfg, tables, nil)
			putLines(t, path, 0, 40)
			r.trained(40)
			r.until("a window that is over although nothing comes", func() bool { return r.inWindows() == 40 })
			s, release, err := r.job.Pause(t.Context())
			if err != nil || s.Place == nil || s.Place.Name != "clicks.csv" || s.Place.Lines != 40 || s.Examples != 40 {
				t.Fatalf("state while nothing comes: %+v, %v", s, err)
			}
			putLines(t, path, 40, 70)
			release()
			r.trained(70)
			r.stop()
			result := <-r.ended
			if !result.Interrupted || result.Examples != 70 || result.HeldExamples != 0 {
				t.Errorf("result %+v", result)
			}
			if n := r.inWindows(); n != 70 {
				t.Errorf("%d examples in windows, want 70", n)
			}
			for _, w := range r.windows {
				if !(w.Loss > 0) || !(w.AUC >= 0 && w.AUC <= 1) || w.Steps == 0 || !w.To.After(w.From) ||
					w.To.Sub(w.From) > cfg.Data.Window {
					t.Errorf("window %+v", w)
				}
			}
			if s, release, err = r.job.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			release()
			if s.Ended || s.Place.Lines != 70 {
				t.Fatalf("state at the end: %+v", s)
			}

			putLines(t, path, 70, 75)
			again := runStream(t, cfg, tables, through(t, s))
			again.trained(75)
			putLines(t, path, 75, 90)
			again.trained(90)
			again.stop()
			if result := <-again.ended; result.Examples != 90 || result.PushesAcknowledged != result.Steps {
				t.Errorf("after it went on: %+v", result)
			}
			// Each ad is in one line, so its row differs from its initializer by one push.
			for _, i := range []int{0, 39, 40, 69, 70, 89} {
				if !pushedOnce(t, again.job, tables, fmt.Appendf(nil, "ad%d", i)) {
					t.Errorf("ad%d has not been learnt", i)
				}
			}
			if pushedOnce(t, again.job, tables, []byte("ad90")) {
				t.Error("an ad that never came has been learnt")
			}
		})
	}
}

// pushedOnce reports whether the row of an ad differs from its initializer.
func pushedOnce(t *testing.T, j *Job, local *tables.Local, ad []byte) bool {
	t.Helper()
	key := data.NewHasher("ad").Key(ad)
	row := make([]float32, j.fields.Tables[0].Dim)
	if err := local.Pull(t.Context(),
		[]tables.Segment{{Table: j.fields.Tables[0].ID, Dim: j.fields.Tables[0].Dim, Keys: []rowraft.Key{key},
			Values: row}}); err != nil {
		t.Fatal(err)
	}
	fresh := make([]float32, j.fields.Tables[0].Dim)
	other := newLocal(t)
	s, err := other.EnsureTable(t.Context(), j.fields.Tables[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Pull(t.Context(),
		[]tables.Segment{{Table: s.ID, Dim: s.Dim, Keys: []rowraft.Key{key}, Values: fresh}}); err != nil {
		t.Fatal(err)
	}
	for i := range row {
		if row[i] != fresh[i] {
			return true
		}
	}
	return false
}

func TestWhatAStreamCannotHave(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"epochs":                          func(c *Config) { c.Epochs = 2 },
		"has no schema":                   func(c *Config) { c.Data.Schema = "" },
		"given more than once":            func(c *Config) { c.Data.File = data.Paths{"x"} },
		"cannot share one standard input": func(c *Config) { c.Data.Follow, c.Trainers = "-", 2 },
		"window -1":                       func(c *Config) { c.Data.Window = -1 },
		"window needs a stream":           func(c *Config) { c.Data.Follow, c.Data.File = "", data.Paths{"x"} },
	} {
		cfg := streamConfig(t, t.TempDir(), 0)
		change(&cfg)
		if err := cfg.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
