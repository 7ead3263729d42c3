package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
)

// TestAWorkerJoinsAndAnotherLeaves: in every mode a third worker joins a job of two that trains, and then one of the
// two leaves. The workers train each example once.
func TestAWorkerJoinsAndAnotherLeaves(t *testing.T) {
	const examples, hold = 2400, 10
	c := startLive(t, 1)
	for _, tc := range []struct {
		name, mode string
		quorum     float64
		staleness  int
	}{{"async", trainer.Async, 1, 0}, {"sync", trainer.Sync, 1, 0}, {"quorum", trainer.Sync, 0.5, 0},
		{"ssp", trainer.SSP, 1, 2}, {"geo", trainer.Geo, 1, 0}} {
		t.Run(tc.name, func(t *testing.T) {
			c := &live{t, c.addr}
			cfg := smallJob("grow"+tc.name, "sgd", 0)
			cfg.Mode, cfg.Quorum, cfg.Staleness, cfg.Trainers, cfg.Audit = tc.mode, tc.quorum, tc.staleness, 2, false
			cfg.Generator.Examples, cfg.Batch, cfg.Epochs, cfg.Lease = examples, 16, 1, 5*time.Minute
			until := int64(hold)
			if tc.mode == trainer.Async { // the third one begins after 200 batches of the job
				cfg.Batch, until = 4, 220
			}
			ctx := testutil.Context(t)
			leaving, leave := context.WithCancel(ctx)
			defer leave()
			start, entered, joined := make(chan struct{}), make(chan struct{}), make(chan struct{})
			begin, enter, join := sync.OnceFunc(func() { close(start) }), sync.OnceFunc(func() { close(entered) }),
				sync.OnceFunc(func() { close(joined) })
			wait := func(c chan struct{}) {
				select {
				case <-c:
				case <-ctx.Done():
				}
			}
			early := func(e report.Event) { // the two wait until the third one is there, and later until it trains
				if e.Event != report.EventStep || e.Step < hold {
					return
				}
				begin()
				wait(entered)
				if e.Step >= until {
					wait(joined)
				}
			}
			late := func(e report.Event) {
				enter()
				if e.Event == report.EventStep {
					if join(); e.Step >= 3 {
						leave()
					}
				}
			}
			results := make([]*report.Result, 3)
			var all sync.WaitGroup
			run := func(i int, ctx context.Context, watch report.Observer) {
				all.Go(func() {
					var err error
					if results[i], err = enterAs(ctx, c, cfg, "w"+string(rune('0'+i)), watch); err != nil {
						t.Errorf("worker %d: %v", i, err)
						enter()
						join()
					}
				})
			}
			run(0, ctx, early)
			run(1, leaving, early)
			select {
			case <-start:
			case <-ctx.Done():
				t.Fatal("the two workers do not train")
			}
			run(2, ctx, late)
			all.Wait()
			if t.Failed() {
				return
			}
			sum := int64(0)
			for _, r := range results {
				sum += r.Examples
			}
			again := results[0].ReadAgainAtMost
			if sum != examples || again == nil || *again != 0 || results[2].Examples == 0 || !results[1].Interrupted {
				t.Errorf("the workers trained %d, %d and %d examples of %d, read again: %v", results[0].Examples,
					results[1].Examples, results[2].Examples, examples, again)
			}
			if now := c.must("job", "describe", cfg.Job, "-o", "json"); !strings.Contains(now, `"state": "done"`) ||
				!strings.Contains(now, `"workers": 3`) {
				t.Errorf("the job is\n%s", now)
			}
		})
	}
	t.Run("another setting is refused by its name", func(t *testing.T) {
		ctx := testutil.Context(t)
		cfg := smallJob("growdiffers", "sgd", 0)
		cfg.Trainers, cfg.Audit, cfg.Generator.Examples, cfg.Lease = 2, false, examples, 5*time.Minute
		first := cfg
		cl := c.dial()
		if err := trainer.Enter(ctx, &first, cl, "w0"); err != nil {
			t.Fatal(err)
		}
		cfg.Batch = 32
		err := trainer.Enter(ctx, &cfg, c.dial(), "w1")
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(err.Error(), "batch is 64 in the job, and 32 at the worker") {
			t.Errorf("another batch size: %v", err)
		}
		trainer.Abandon(ctx, &first, context.Canceled)
	})
}
