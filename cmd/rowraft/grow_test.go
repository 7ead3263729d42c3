package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/report"
)

// TestAWorkerJoinsAndAnotherLeaves: in every mode another worker joins a job of one or two that trains, and then one of
// those that began leaves. The workers train each example once, and none takes the place of another.
func TestAWorkerJoinsAndAnotherLeaves(t *testing.T) {
	const examples, hold = 2400, 10
	c := startLive(t, 1)
	type mode struct {
		name, mode string
		quorum     float64
		staleness  int
		first      int // workers that begin
	}
	var cases []mode
	for _, m := range []mode{{"async", trainer.Async, 1, 0, 0}, {"sync", trainer.Sync, 1, 0, 0},
		{"quorum", trainer.Sync, 0.5, 0, 0}, {"ssp", trainer.SSP, 1, 2, 0}, {"geo", trainer.Geo, 1, 0, 0}} {
		for m.first = 1; m.first <= 2; m.first++ {
			cases = append(cases, m)
		}
	}
	for _, tc := range cases {
		t.Run(fmt.Sprintf("%s %d", tc.name, tc.first), func(t *testing.T) {
			c := &live{t, c.addr}
			cfg := smallJob(fmt.Sprintf("grow%s%d", tc.name, tc.first), "sgd", 0)
			cfg.Mode, cfg.Quorum, cfg.Staleness, cfg.Trainers, cfg.Audit = tc.mode, tc.quorum, tc.staleness, tc.first, false
			cfg.Generator.Examples, cfg.Batch, cfg.Epochs, cfg.Lease = examples, 16, 1, 5*time.Minute
			cfg.Checkpoint.To, cfg.Checkpoint.Every = t.TempDir(), time.Hour
			until := int64(hold)
			if tc.mode == trainer.Async { // the one that joins begins after 100 batches of the job for each of the others
				cfg.Batch, until = 4, 10+100*int64(tc.first)
			}
			ctx := testutil.Context(t)
			leaving, leave := context.WithCancel(ctx)
			defer leave()
			start, entered, joined := make(chan struct{}), make(chan struct{}), make(chan struct{})
			begin, enter, join := sync.OnceFunc(func() { close(start) }), sync.OnceFunc(func() { close(entered) }),
				sync.OnceFunc(func() { close(joined) })
			wait := func(c <-chan struct{}) {
				select {
				case <-c:
				case <-ctx.Done():
				}
			}
			early := func(e report.Event) { // the first wait until the other one is there, and later until it trains
				if e.Event != report.EventStep || e.Step < hold {
					return
				}
				begin()
				wait(entered)
				if e.Step >= until {
					wait(joined)
				}
			}
			// Without a wait the one that leaves may train the rest of the data before it is told to.
			leaves := func(e report.Event) {
				if early(e); e.Event == report.EventStep && e.Step >= until+20 {
					wait(leaving.Done())
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
			results := make([]*report.Result, tc.first+1)
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
			if tc.first == 2 {
				run(0, ctx, early)
			}
			run(tc.first-1, leaving, leaves)
			select {
			case <-start:
			case <-ctx.Done():
				t.Fatal("the first workers do not train")
			}
			run(tc.first, ctx, late)
			all.Wait()
			if t.Failed() {
				return
			}
			var trained []int64
			sum := int64(0)
			for _, r := range results {
				trained, sum = append(trained, r.Examples), sum+r.Examples
			}
			came, left := results[tc.first], results[tc.first-1]
			again := came.ReadAgainAtMost
			if sum != examples || again == nil || *again != 0 || came.Examples == 0 || came.Rank != tc.first ||
				!left.Interrupted {
				t.Errorf("the workers trained %v examples of %d, none again: %v; the last has rank %d; the one before left: %v",
					trained, examples, again != nil && *again == 0, came.Rank, left.Interrupted)
			}
			if now := c.must("job", "describe", cfg.Job, "-o", "json"); !strings.Contains(now, `"state": "done"`) ||
				!strings.Contains(now, fmt.Sprintf(`"workers": %d`, tc.first+1)) {
				t.Errorf("the job is\n%s", now)
			}
			if left := c.must("checkpoint", "policy", "list"); strings.Contains(left, cfg.Job) {
				t.Errorf("the job is done, and its regular checkpoints are not:\n%s", left)
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
