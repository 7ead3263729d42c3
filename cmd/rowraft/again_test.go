package main

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
)

// notes collects the notes of a run.
type notes struct {
	mu   sync.Mutex
	text strings.Builder
}

func (n *notes) observe(e report.Event) {
	if e.Event == report.EventNote {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.text.WriteString(e.Message + "\n")
	}
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// TestAJobThatRunsAgain: a second run of a job reports the rows that it continues with, a run with refused settings
// leaves the job done, and a job that starts over has no rows.
func TestAJobThatRunsAgain(t *testing.T) {
	c := startLive(t, 1)
	ctx := testutil.Context(t)
	cfg := smallJob("again", "sgd", 6)
	cfg.Audit = false
	run := func(change func(*trainer.Config)) (string, error) {
		t.Helper()
		cfg, said := cfg, &notes{}
		if change != nil {
			change(&cfg)
		}
		_, err := enterAndRun(ctx, c, cfg, said.observe)
		return said.String(), err
	}
	// rows waits until the servers report the rows of the job, as they do every second.
	rows := func(some bool) {
		t.Helper()
		testutil.Eventually(t, "the servers report the rows of the job", func() bool {
			tables, err := cfg.Tables(ctx, c.dial())
			n := uint64(0)
			for _, table := range tables {
				n += table.Rows
			}
			return err == nil && (n > 0) == some
		})
	}
	state := func() string { return c.must("job", "describe", "again", "-o", "json") }

	if said, err := run(nil); err != nil || strings.Contains(said, "continues") {
		t.Fatalf("the first run: %v, %s", err, said)
	}
	rows(true)
	said, err := run(nil)
	if err != nil || !strings.Contains(said, "job again continues with ") || !strings.Contains(said,
		"rows from step 6, and reads its data from the beginning; --fresh starts over") {
		t.Errorf("the second run: %v, %s", err, said)
	}
	if _, err := run(func(cfg *trainer.Config) { cfg.Model.Dim *= 2 }); rowraft.CodeOf(err) != rowraft.CodeTableExists {
		t.Errorf("another dim: %v, want TableExists", err)
	}
	if now := state(); !strings.Contains(now, `"state": "done"`) {
		t.Errorf("after a refused run the job is\n%s", now)
	}

	// A worker that trains keeps its tables.
	began, over := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(began) })
	var wg sync.WaitGroup
	training, stop := context.WithCancel(ctx)
	wg.Go(func() {
		cfg := cfg
		cfg.Steps = 1 << 20
		_, _ = enterAndRun(training, c, cfg, func(e report.Event) {
			if e.Event == report.EventStep {
				first()
				<-over
			}
		})
	})
	<-began
	cl := c.dial()
	tables, err := cfg.Tables(ctx, cl)
	if err == nil {
		err = cfg.StartOver(ctx, cl, tables)
	}
	if rowraft.CodeOf(err) != rowraft.CodePrecondition || !strings.Contains(err.Error(), "rowraft job stop again") {
		t.Errorf("a job that trains starts over: %v", err)
	}
	stop()
	close(over)
	wg.Wait()

	if err := cfg.StartOver(ctx, cl, tables); err != nil {
		t.Fatal(err)
	}
	rows(false)
	if said, err := run(nil); err != nil || strings.Contains(said, "continues") {
		t.Errorf("the run after the tables were deleted: %v, %s", err, said)
	}
}
