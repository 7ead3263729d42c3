package trainer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/report"
)

// Validate refuses every setting of a mode outside its range, and in a mode without it.
func TestModeSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		set  func(*Config)
		want string
	}{
		"a mode that is none": {func(c *Config) { c.Mode = "bsp" }, `mode "bsp" is not supported`},
		"no quorum":           {func(c *Config) { c.Quorum = 0 }, "quorum 0: want a share"},
		"more than all":       {func(c *Config) { c.Quorum = 1.1 }, "quorum 1.1: want a share"},
		"a quorum in async":   {func(c *Config) { c.Quorum = 0.75 }, "quorum is 0.75 in mode async"},
		"a deadline before":   {func(c *Config) { c.Deadline = -1 }, "deadline is -1ns"},
		"a deadline in async": {func(c *Config) { c.Deadline = time.Second }, "deadline is 1s in mode async"},
		"staleness below 0":   {func(c *Config) { c.Staleness = -1 }, "staleness -1"},
		"staleness in async":  {func(c *Config) { c.Staleness = 3 }, "staleness 3 in mode async"},
		"geo in async":        {func(c *Config) { c.Geo.Every = 5 }, "geo is set in mode async"},
		"geo every so often":  {func(c *Config) { c.Geo.Every = -5 }, "every -5"},
		"geo without a copy":  {func(c *Config) { c.Geo.Rows = -5 }, "rows -5"},
		"another scale":       {func(c *Config) { c.Geo.Scale = "max" }, `scale "max": want mean or sum`},
		"audit with a quorum": {func(c *Config) { c.Mode, c.Quorum, c.Audit = Sync, 0.75, true },
			"audit with quorum 0.75"},
		"audit and deadline": {func(c *Config) { c.Mode, c.Deadline, c.Audit = Sync, time.Second, true },
			"and deadline 1s"},
		"no thread":            {func(c *Config) { c.Threads = 0 }, "threads 0"},
		"threads that are odd": {func(c *Config) { c.Threads = 5 }, "threads 5: want a divisor of the batch size 32"},
		"reads of no mode":     {func(c *Config) { c.Reads.Mode = "any" }, `reads: mode "any"`},
	} {
		cfg := tinyConfig(1, 0)
		tc.set(&cfg)
		if err := cfg.Validate(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			!strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%s: %v, want InvalidArgument with %q", name, err, tc.want)
		}
	}
}

// differing returns the settings in which two workers differ.
func differing(a, b *Config) string {
	x, y := a.settings(), b.settings()
	var names []string
	for name := range x {
		if y[name] != x[name] {
			names = append(names, name)
		}
	}
	for name := range y {
		if _, ok := x[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The settings of a job change with what its workers must agree on, and with nothing else. The registry compares
// the number of trainers itself.
func TestSettings(t *testing.T) {
	was := tinyConfig(5, 2)
	for name, tc := range map[string]struct {
		set  func(*Config)
		want string // "": the same
	}{
		"mode":               {func(c *Config) { c.Mode = SSP }, "mode"},
		"batch":              {func(c *Config) { c.Batch = 64 }, "batch"},
		"seed":               {func(c *Config) { c.Seed = 7 }, "seed"},
		"table":              {func(c *Config) { c.Dense.LR = 0.5 }, "dense.lr"},
		"trainers":           {func(c *Config) { c.Trainers = 3 }, ""},
		"rank":               {func(c *Config) { c.Rank = new(int) }, ""},
		"threads":            {func(c *Config) { c.Threads = 4 }, ""},
		"in_flight":          {func(c *Config) { c.InFlight = new(0) }, ""},
		"steps, in async":    {func(c *Config) { c.Steps = 9 }, ""},
		"where the data lie": {func(c *Config) { c.Data.File = data.Paths{"/elsewhere"} }, ""},
	} {
		is := was
		tc.set(&is)
		if got := differing(&was, &is); got != tc.want {
			t.Errorf("%s: %q differ, want %q", name, got, tc.want)
		}
	}
	for _, tc := range []struct {
		mode, field string
		set         func(*Config)
	}{
		{Sync, "quorum", func(c *Config) { c.Quorum = 0.75 }},
		{Sync, "deadline", func(c *Config) { c.Deadline = time.Second }},
		{Sync, "steps", func(c *Config) { c.Steps = 9 }},
		{SSP, "staleness", func(c *Config) { c.Staleness = 4 }},
		{Geo, "geo.every", func(c *Config) { c.Geo.Every = 4 }},
		{Geo, "geo.scale", func(c *Config) { c.Geo.Scale = "sum" }},
	} {
		was := tinyConfig(5, 2)
		was.Mode = tc.mode
		is := was
		tc.set(&is)
		if got := differing(&was, &is); got != tc.field {
			t.Errorf("mode %s: %q differ, want %q", tc.mode, got, tc.field)
		}
	}
	spelled, short := tinyConfig(5, 2), tinyConfig(5, 2)
	spelled.Mode, short.Mode = Geo, Geo
	spelled.Geo = GeoConfig{Every: defaultGeoEvery, Scale: "mean", Rows: 77}
	if got := differing(&spelled, &short); got != "" {
		t.Errorf("defaults that are written out: %q differ", got)
	}
}

// Two runs on several threads have the same bits, and nearly those of one thread.
func TestThreadsAreReproducible(t *testing.T) {
	run := func(threads int) (*report.Result, []uint32) {
		l, cfg := newLocal(t), tinyConfig(12, 0)
		cfg.Threads = threads
		return mustRun(t, cfg, l, nil), bits(l)
	}
	one, single := run(1)
	two, a := run(2)
	if _, b := run(2); !slices.Equal(a, b) {
		t.Error("two runs on two threads differ")
	}
	if slices.Equal(a, single) {
		t.Error("two threads have the bits of one: was the batch cut at all?")
	}
	if d := float64(one.LogLoss - two.LogLoss); d > 1e-3 || d < -1e-3 {
		t.Errorf("log loss %v on one thread, %v on two", one.LogLoss, two.LogLoss)
	}
}

// A state of a job with default settings omits threads, modes, later optimizers and schedules.
func TestFingerprintOfAnAsyncJobIsUnchanged(t *testing.T) {
	j := newJob(t, twoPasses(1, 0), newLocal(t), nil)
	fingerprint := string(j.cfg.fingerprint(j.set.TrainSize()))
	for _, field := range []string{"threads", "quorum", "deadline", "staleness", "geo", "Momentum", "L1", "L2", "Beta",
		"WeightDecay", "Bound", "Schedule"} {
		if strings.Contains(fingerprint, `"`+field+`"`) {
			t.Errorf("%s is in %s", field, fingerprint)
		}
	}
}

// A job without in_flight has as many pushes under way as its mode and its optimizers tolerate.
func TestInFlightByDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c *Config)
		want   int
	}{
		"the default":                   {func(*Config) {}, 8},
		"set":                           {func(c *Config) { c.InFlight = new(30) }, 30},
		"0":                             {func(c *Config) { c.InFlight = new(0) }, 0},
		"a mode with pushes in order":   {func(c *Config) { c.Mode = Sync }, 2},
		"adam":                          {func(c *Config) { c.Embeddings.Optimizer, c.Dense.Optimizer = "adam", "adam" }, 8},
		"embeddings without adaptation": {func(c *Config) { c.Embeddings.Optimizer = "sgd" }, 2},
		"dense weights likewise":        {func(c *Config) { c.Dense.Optimizer = "momentum" }, 2},
	} {
		cfg := DefaultConfig()
		if tc.change(&cfg); inFlight(&cfg) != tc.want {
			t.Errorf("%s: in_flight %d, want %d", name, inFlight(&cfg), tc.want)
		}
	}
	for set, want := range map[*int]int{nil: 4, new(30): 32} {
		cfg := DefaultConfig()
		cfg.Trainers, cfg.InFlight = 4, set
		r := newRamp(&cfg, true)
		r.Reached(1 << 20)
		if got := r.Limit(inFlight(&cfg) + notPushed); got != want {
			t.Errorf("one of four trainers may have %d batches under way, want %d", got, want)
		}
	}
}
