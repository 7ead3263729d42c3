package trainer

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/tables"
)

// giver gives the splits of a plan to one trainer, and holds back the last until the test releases it.
type giver struct {
	plan   client.PartPlan
	offset int64 // of the first part
	mu     sync.Mutex
	held   bool // the last part is another worker's
	ended  []int64
}

func (g *giver) NextPart(_ context.Context, take int64, _ int) (client.Part, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	parts := (g.plan.Examples + g.plan.PartExamples - 1) / g.plan.PartExamples
	if take > parts*g.plan.Epochs {
		return client.Part{}, client.ErrNoParts
	}
	if g.held && take == parts*g.plan.Epochs {
		return client.Part{}, client.ErrPartsHeld
	}
	p := client.Part{Epoch: (take - 1) / parts, Part: (take - 1) % parts}
	p.From = p.Part * g.plan.PartExamples
	p.To = min(p.From+g.plan.PartExamples, g.plan.Examples)
	if take == 1 {
		p.Offset = g.offset
	}
	return p, nil
}

func (g *giver) EndPart(_ context.Context, p client.Part) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = append(g.ended, p.Epoch*100+p.Part)
	return nil
}

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

// A trainer reads splits one after the other, from their offsets, and ends one when all of its batches are
// acknowledged, in any order.
func TestPartsAreReadAndEnded(t *testing.T) {
	set := testGenerator(t, 250)
	g := &giver{plan: client.PartPlan{Examples: 250, PartExamples: 100, Epochs: 1}, offset: 40, held: true}
	d := &dataSplits{set: set, source: g, ctx: t.Context()}
	defer d.close()
	var list []splitRange
	var first []int64
	w := &work{data: data.NewBatch(32, set.Shape())}
	for len(list) < 6 {
		if err := d.next(w); err != nil {
			t.Fatal(err)
		}
		list, first = append(list, w.Place.(splitRange)), append(first, w.data.First)
	}
	if want := []int64{40, 72, 100, 132, 164, 196}; !slices.Equal(first, want) {
		t.Fatalf("the batches begin at %v, want %v", first, want)
	}
	if err := d.next(w); !errors.Is(err, errNotYet) {
		t.Fatalf("while another worker has the last part: %v", err)
	}
	ack := func(i int) {
		t.Helper()
		if err := d.batchDone(list[i]); err != nil {
			t.Fatal(err)
		}
	}
	ack(1)
	ack(5)
	ack(3)
	if got := d.reached(); len(got) != 2 || got[0].Acknowledged != 40 || got[0].Read != 100 ||
		got[1].Acknowledged != 0 || got[1].Read != 100 {
		t.Errorf("reached %v", got)
	}
	ack(2)
	if got := d.reached(); got[1].Acknowledged != 64 {
		t.Errorf("with three of its batches acknowledged, the part is at %v", got[1])
	}
	ack(4)
	if err := d.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.ended, []int64{1}) {
		t.Errorf("ended: %v, want part 1", g.ended)
	}
	if err := d.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.held = false
	g.mu.Unlock()
	err := d.next(w)
	for err == errNotYet {
		err = d.next(w)
	}
	if err != nil || w.data.First != 200 || w.Step != 7 {
		t.Fatalf("the last part: step %d from %d, %v", w.Step, w.data.First, err)
	}
	list = append(list, w.Place.(splitRange))
	if err := d.next(w); err != nil || w.data.N != 18 {
		t.Fatalf("its end: %d examples, %v", w.data.N, err)
	}
	list = append(list, w.Place.(splitRange))
	if err := d.next(w); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	for _, i := range []int{7, 6, 0} {
		ack(i)
	}
	if err := d.flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.ended, []int64{1, 2, 0}) || len(d.reached()) != 0 {
		t.Errorf("ended: %v, still held: %v", g.ended, d.reached())
	}
}

// A trainer ends a split of which nothing is left, because its last reader died before it could report the end.
func TestAPartThatIsReadIsEnded(t *testing.T) {
	set := testGenerator(t, 250)
	g := &giver{plan: client.PartPlan{Examples: 250, PartExamples: 100, Epochs: 1}, offset: 100}
	d := &dataSplits{set: set, source: g, ctx: t.Context()}
	defer d.close()
	w := &work{data: data.NewBatch(32, set.Shape())}
	if err := errors.Join(d.next(w), d.flush(t.Context())); err != nil || w.data.First != 100 ||
		!slices.Equal(g.ended, []int64{0}) {
		t.Errorf("the first batch begins at %d, ended are %v, %v", w.data.First, g.ended, err)
	}
}

// A run in splits trains the same as a single trainer.
func TestARunInParts(t *testing.T) {
	for _, inFlight := range []int{0, 3} {
		cfg := tinyConfig(0, inFlight)
		cfg.Epochs = 2
		gen := *cfg.Generator
		gen.Examples = 1000
		cfg.Generator = &gen
		tables, err := tables.NewLocal(4, nil)
		if err != nil {
			t.Fatal(err)
		}
		j, err := NewJob(t.Context(), cfg, tables, nil)
		if err != nil {
			t.Fatal(err)
		}
		j.steps = 0
		plan := cfg.partPlan(1000)
		g := &giver{plan: plan}
		j.parts = &dataSplits{set: j.set, source: g}
		r, err := j.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		parts := int((plan.Examples + plan.PartExamples - 1) / plan.PartExamples)
		if r.Examples != 2000 || r.PushesAcknowledged != r.Steps || len(g.ended) != 2*parts ||
			plan.PartExamples%int64(cfg.Batch) != 0 {
			t.Errorf("in_flight %d: %d examples in %d steps, %d acknowledged, parts ended %v of %+v", inFlight,
				r.Examples, r.Steps, r.PushesAcknowledged, g.ended, plan)
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
	divided, strided := savedSplits{found: true, parts: &checkpoint.Parts{}}, savedSplits{found: true}
	for name, tc := range map[string]struct {
		set    data.Set
		change func(*Config)
		want   bool
		fails  bool
		saved  savedSplits
	}{
		"several trainers":     {set, func(c *Config) { c.Trainers = 2 }, true, false, savedSplits{}},
		"one":                  {set, func(*Config) {}, false, false, savedSplits{}},
		"one that wants parts": {set, func(c *Config) { c.Parts = &yes }, true, false, savedSplits{}},
		"ranks are given":      {set, func(c *Config) { c.Trainers, c.Rank = 2, &rank }, true, false, savedSplits{}},
		"they want none":       {set, func(c *Config) { c.Trainers, c.Parts = 2, &no }, false, false, savedSplits{}},
		"mode sync":            {set, func(c *Config) { c.Trainers, c.Mode = 2, Sync }, true, false, savedSplits{}},
		"mode ssp":             {set, func(c *Config) { c.Trainers, c.Mode = 2, SSP }, true, false, savedSplits{}},
		"with checkpoints": {set, func(c *Config) { c.Trainers, c.Checkpoint.To = 2, "/mnt" }, true, false,
			savedSplits{}},
		"it may resume": {set, func(c *Config) { c.Trainers, c.Resume = 2, "auto" }, true, false,
			savedSplits{}},
		"it goes on in parts":     {set, func(c *Config) { c.Trainers = 2 }, true, false, divided},
		"it goes on with a share": {set, func(c *Config) { c.Trainers = 2 }, false, false, strided},
		"it had parts before":     {set, func(c *Config) { c.Trainers, c.Parts = 2, &no }, false, true, divided},
		"it had none before":      {set, func(c *Config) { c.Trainers, c.Parts = 2, &yes }, true, true, strided},
		"mode geo":                {set, func(c *Config) { c.Trainers, c.Mode = 2, Geo }, true, false, savedSplits{}},
		"no end":                  {endless, func(c *Config) { c.Trainers = 2 }, false, false, savedSplits{}},
		"no end, and wants parts": {endless, func(c *Config) { c.Parts = &yes }, false, true, savedSplits{}},
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
		"in parts":  {testGenerator(t, 1000), func(c *Config) { c.splitData = true }, false},
		"no end":    {testGenerator(t, 0), func(*Config) {}, false},
		"a share":   {testGenerator(t, 1000), func(*Config) {}, true},
		"a stream":  {testGenerator(t, 0), func(c *Config) { c.Data.Follow = "-" }, true},
		"not known": {nil, func(*Config) {}, true},
	} {
		c := DefaultConfig()
		c.set, c.member = tc.set, &client.Member{}
		tc.change(&c)
		if got := c.hasFixedShare(); got != tc.hasShare {
			t.Errorf("%s: %v", name, got)
		}
		if tc.hasShare && Lost(t.Context(), &c) { // it asks no server
			t.Errorf("%s: it would enter again", name)
		}
	}
}

// A checkpoint without a job does not decide how the job's data is divided.
func TestACheckpointOfAnotherJob(t *testing.T) {
	dir := t.TempDir()
	manifest, err := os.ReadFile("../checkpoint/testdata/manifest.txt") // of job ctr, which was trained in shares
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one", checkpoint.ManifestFile), manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	for job, want := range map[string]bool{"ctr": true, "another": false, "ct": false} {
		if p, trained, err := readParts(t.Context(), dir+"/one", job); p != nil || trained != want || err != nil {
			t.Errorf("job %s: %v, %v, %v", job, p, trained, err)
		}
	}
}
