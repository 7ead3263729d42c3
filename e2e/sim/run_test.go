package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
)

// More than CI runs:
//
//	go test ./e2e/sim -run TestSeeds -sim.seeds 60 -sim.for 6m -timeout 1h
var (
	seedCount  = flag.Int("sim.seeds", 0, "how many seeds TestSeeds runs; 0: 4, or 1 under -race")
	firstSeed  = flag.Uint64("sim.seed", 1, "the first of them")
	faultsFor  = flag.Duration("sim.for", defaultFor, "how long faults are done, in virtual time")
	faultKinds = flag.String("sim.faults", "all", "all, or kinds separated by commas")
	servers    = flag.Int("sim.servers", 0, "servers; 0: 3, every fourth seed 5")
	verbose    = flag.Bool("sim.v", false, "log every fault")
)

const defaultFor = time.Minute

// tempDir is memory if there is some, and is kept when the test fails.
func tempDir(t *testing.T) string {
	parent := "/dev/shm"
	if dir := os.Getenv("ROWRAFT_SIM_DIR"); dir != "" {
		parent = dir
	}
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "rowraft-sim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kept: %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// runSeed does one run in a bubble of its own. It reports whether the logs that are left hold sums of pushes.
func runSeed(t *testing.T, cfg chaos.Config) (summed bool) {
	t.Helper()
	cfg.Tier, cfg.Rate, cfg.Dir = "A", 20, tempDir(t)
	var res *chaos.Result
	began := time.Now()
	synctest.Test(t, func(t *testing.T) {
		if *verbose {
			cfg.Log = func(line string) { t.Log(line) }
		}
		var err error
		if res, err = chaos.Start(context.Background(), cfg, Driver{}); err != nil {
			t.Error(err)
		}
	})
	took := time.Since(began)
	if res == nil {
		return false
	}
	if err := res.Judge(cfg); err != nil {
		t.Error(err)
	}
	for _, p := range res.Problems {
		t.Errorf("WRONG: %s", p)
	}
	for _, v := range res.Verdicts {
		if v.Checker == "replay" {
			t.Log(v.Looked)
			summed = !strings.HasSuffix(v.Looked, "; 0 pushes were summed")
		}
	}
	t.Logf("seed %d: %v virtual in %v (%.0f×), %d rounds, %d faults of %d kinds, %d pushes acknowledged, %d reads, "+
		"%d rows from copies, %d terms, %d checked, %d violations",
		cfg.Seed, res.Took.Round(time.Second), took.Round(time.Millisecond), res.Took.Seconds()/took.Seconds(),
		res.Rounds, res.Observed, len(res.Faults), res.Acks, res.Pulls, res.Reused, res.Terms, res.Checked, len(res.Problems))
	if t.Failed() {
		t.Logf(
			"again: go test ./e2e/sim -run TestSeeds -sim.seeds 1 -sim.seed %d -sim.for %v -sim.faults %s -sim.servers %d "+
				"-sim.v", cfg.Seed, cfg.For, cfg.Faults, cfg.Servers)
	}
	return summed
}

func TestSeeds(t *testing.T) {
	n := *seedCount
	if n == 0 {
		n = 4
		if raceEnabled {
			n = 1
		}
	}
	// The logs hold only the last of the entries, so those of one seed may have no sum: 2 of 7 runs had none.
	const enoughSeeds = 16
	var summed atomic.Int32
	t.Cleanup(func() {
		if !t.Failed() && n >= enoughSeeds && *faultsFor >= defaultFor && summed.Load() == 0 {
			t.Errorf("no log of %d seeds holds a sum of pushes", n)
		}
	})
	for i := range n {
		seed := *firstSeed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			cfg := chaos.Config{Seed: seed, For: *faultsFor, Faults: *faultKinds, Servers: *servers}
			if cfg.Servers == 0 && seed%4 == 0 { // one of the seeds that make test runs
				cfg.Servers = 5
			}
			if runSeed(t, cfg) {
				summed.Add(1)
			}
		})
	}
}
