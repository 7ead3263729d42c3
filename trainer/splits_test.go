package trainer

import (
	"math"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/tables"
)

func testGenerator(t *testing.T, examples int64) *data.Generator {
	t.Helper()
	cfg := data.DefaultGenerator()
	cfg.Examples, cfg.Held = examples, 10
	set, err := data.NewGenerator(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A run in splits trains the same as a single trainer.
func TestARunInParts(t *testing.T) {
	for _, inFlight := range []int{0, 3} {
		cfg := tinyConfig(0, inFlight)
		cfg.Epochs = 2
		gen := *cfg.Generator
		gen.Examples = 1000
		cfg.Generator = &gen
		tables, err := tables.NewLocal(4, rowraft.Float32)
		if err != nil {
			t.Fatal(err)
		}
		j, err := NewJob(t.Context(), cfg, tables, nil)
		if err != nil {
			t.Fatal(err)
		}
		j.steps = 0
		plan := cfg.splitPlan(1000)
		d := newDealer(plan, 1)
		d.counted, d.batch = func() float32 { return math.MaxFloat32 }, int64(cfg.Batch)
		j.splits = member.NewSplits(j.set, hand{d, 0}, plan, false)
		r, err := j.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		parts := int((plan.Examples + plan.SplitExamples - 1) / plan.SplitExamples)
		if r.Examples != 2000 || r.PushesAcknowledged != r.Steps || len(d.ended) != 2*parts ||
			plan.SplitExamples%int64(cfg.Batch) != 0 {
			t.Errorf("in_flight %d: %d examples in %d steps, %d acknowledged, splits ended %v of %+v", inFlight,
				r.Examples, r.Steps, r.PushesAcknowledged, d.ended, plan)
		}
	}
}

// The registry compares settings by the names of the job's file, and its error names the difference.
func TestSettingsOfAJob(t *testing.T) {
	c := DefaultConfig()
	got := c.settings()
	for name, want := range map[string]string{"mode": "async", "batch": "512", "embeddings.lr": "0.05",
		"model.top": "[64,32]", "dense.optimizer": "adagrad"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if _, there := got["trainers"]; there || got["embeddings.storage"] != "" {
		t.Errorf("settings: %v", got)
	}
	accumulator := float32(0.5)
	c.Dense.InitialAccumulator = &accumulator
	if got := c.settings()["dense.initial_accumulator"]; got != "0.5" {
		t.Errorf("initial_accumulator is %q", got)
	}
}

func TestWhoDividesTheData(t *testing.T) {
	set := testGenerator(t, 1000)
	endless := testGenerator(t, 0)
	yes, no, rank := true, false, 1
	divided, strided := member.SavedSplits{Found: true, Splits: &checkpoint.Splits{}}, member.SavedSplits{Found: true}
	for name, tc := range map[string]struct {
		set    data.Set
		change func(*Config)
		want   bool
		fails  bool
		saved  member.SavedSplits
	}{
		"several trainers":      {set, func(c *Config) { c.Trainers = 2 }, true, false, member.SavedSplits{}},
		"one":                   {set, func(*Config) {}, true, false, member.SavedSplits{}},
		"one that wants splits": {set, func(c *Config) { c.Splits = &yes }, true, false, member.SavedSplits{}},
		"ranks are given": {set, func(c *Config) { c.Trainers, c.Rank = 2, &rank }, true, false,
			member.SavedSplits{}},
		"they want none": {set, func(c *Config) { c.Trainers, c.Splits = 2, &no }, false, false,
			member.SavedSplits{}},
		"mode sync": {set, func(c *Config) { c.Trainers, c.Mode = 2, Sync }, true, false,
			member.SavedSplits{}},
		"mode ssp": {set, func(c *Config) { c.Trainers, c.Mode = 2, SSP }, true, false,
			member.SavedSplits{}},
		"with checkpoints": {set, func(c *Config) { c.Trainers, c.Checkpoint.To = 2, "/mnt" }, true, false,
			member.SavedSplits{}},
		"it may resume": {set, func(c *Config) { c.Trainers, c.Resume = 2, "auto" }, true, false,
			member.SavedSplits{}},
		"it resumes in splits":    {set, func(c *Config) { c.Trainers = 2 }, true, false, divided},
		"it resumes with a share": {set, func(c *Config) { c.Trainers = 2 }, false, false, strided},
		"it had splits before":    {set, func(c *Config) { c.Trainers, c.Splits = 2, &no }, false, true, divided},
		"it had none before":      {set, func(c *Config) { c.Trainers, c.Splits = 2, &yes }, true, true, strided},
		"mode geo": {set, func(c *Config) { c.Trainers, c.Mode = 2, Geo }, true, false,
			member.SavedSplits{}},
		"no end":                   {endless, func(c *Config) { c.Trainers = 2 }, false, false, member.SavedSplits{}},
		"no end, and wants splits": {endless, func(c *Config) { c.Splits = &yes }, false, true, member.SavedSplits{}},
	} {
		c := DefaultConfig()
		tc.change(&c)
		if got, err := c.usesSplits(tc.set, tc.saved); got != tc.want || (err != nil) != tc.fails {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// A lost trainer registers again if the scheduler hands out its data, or if its data has neither an end nor a
// position; it would train a fixed share twice.
func TestWhoMayEnterAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		set      data.Set
		change   func(*Config)
		hasShare bool
	}{
		"in splits": {testGenerator(t, 1000), func(c *Config) { c.splitData = true }, false},
		"no end":    {testGenerator(t, 0), func(*Config) {}, false},
		"a share":   {testGenerator(t, 1000), func(*Config) {}, true},
		"a stream":  {testGenerator(t, 0), func(c *Config) { c.Data.Follow = "-" }, true},
		"not known": {nil, func(*Config) {}, true},
	} {
		c := DefaultConfig()
		c.set, c.member = tc.set, &jobs.Member{}
		tc.change(&c)
		if got := c.hasFixedShare(); got != tc.hasShare {
			t.Errorf("%s: %v", name, got)
		}
		if tc.hasShare && Lost(t.Context(), &c) { // it asks no server
			t.Errorf("%s: it would enter again", name)
		}
	}
}
