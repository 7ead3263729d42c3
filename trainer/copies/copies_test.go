package copies

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/ramp"
	"github.com/rowraft/rowraft/trainer/report"
)

func TestConfig(t *testing.T) {
	for _, tc := range []struct {
		cache Config
		mode  string
		want  string // "": valid
	}{
		{Config{}, "geo", ""},
		{Config{Bytes: "64MiB", Staleness: Limit{Steps: 8}}, "async", ""},
		{Config{Bytes: "1048576", Staleness: Limit{Age: time.Second}}, "ssp", ""},
		{Config{Bytes: "", Staleness: Limit{Steps: 8}}, "async", "set cache.bytes"},
		{Config{On: Device}, "async", "set cache.bytes"},
		{Config{Bytes: "64MiB", On: "gpu"}, "async", `on "gpu": want host or device`},
		{Config{Bytes: "64MiB", On: Device, Staleness: Limit{Steps: 8}}, "ssp", ""},
		{Config{Bytes: "64MiB", Staleness: Limit{}}, "async", ""},
		{Config{Bytes: "64MiB", Staleness: Limit{1, 1}}, "async", "set either steps or age"},
		{Config{Bytes: "64MiB", Staleness: Limit{Steps: -1}}, "async", "want ≥ 0"},
		{Config{Bytes: "many", Staleness: Limit{Steps: 8}}, "async", `bytes "many": want a size like 64MiB`},
		{Config{Bytes: "1KiB", Staleness: Limit{Steps: 8}}, "async", "want 1.0 MiB to 16 TiB"},
		{Config{Bytes: "64MiB", Staleness: Limit{Steps: 8}}, "sync", "mode sync has no cache"},
		{Config{Bytes: "64MiB", Staleness: Limit{Steps: 8}}, "geo", "mode geo has no cache"},
	} {
		err := tc.cache.Validate(tc.mode, "leader")
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v in mode %s: %v, want %q", tc.cache, tc.mode, err, tc.want)
		}
	}
	linearizable := Config{Bytes: "64MiB", Staleness: Limit{Steps: 8}}
	if err := linearizable.Validate("async", "linearizable"); err == nil {
		t.Error("a cache with linearizable reads is accepted")
	}
	if got := (&Config{Bytes: "64MiB"}).Size(); got != 64<<20 {
		t.Errorf("64MiB are %d bytes", got)
	}
}

// The number of rows of scripts for other frameworks gives the memory of so many copies.
func TestCacheOfRows(t *testing.T) {
	for _, tc := range []struct {
		rows, dim int
		had, want Config
	}{
		{0, 16, Config{Bytes: "64MiB", Staleness: Limit{Steps: 4}}, Config{}},
		{1, 16, Config{}, Config{Bytes: "1048576", Staleness: Limit{Steps: 8}}},
		{math.MaxInt, 16, Config{Bytes: "1MiB", Staleness: Limit{Steps: 2}},
			Config{Bytes: "17592186044416", Staleness: Limit{Steps: 2}}},
		{1, 1, Config{Bytes: "1MiB", Staleness: Limit{Age: 1}},
			Config{Bytes: "1048576", Staleness: Limit{Age: 1}}},
	} {
		got := tc.had
		if got.SetRows(tc.rows, tc.dim); got != tc.want {
			t.Errorf("%d rows of dim %d: %+v, want %+v", tc.rows, tc.dim, got, tc.want)
		}
	}
	var c Config
	c.SetRows(300_000, 80)
	if n := c.Size(); n < 300_000*(24+80*4) || n > 300_000*(24+80*4)+64<<10 {
		t.Errorf("300,000 rows of dim 80 have %d bytes", n)
	}
	if err := c.Validate("async", "leader"); err != nil {
		t.Error(err)
	}
}

// The bound of copies rises with the batches of the job, more slowly with more trainers.
func TestReuseFollowsTheRamp(t *testing.T) {
	newRamp := func(trainers int) *ramp.Ramp {
		return ramp.New(0, trainers, ramp.Rule{Every: 100})
	}
	cached := func(l Limit) *Config { return &Config{Bytes: "64MiB", Staleness: l} }
	steps, r := cached(Limit{Steps: 8}), newRamp(1)
	for _, tc := range []struct{ batches, step, want int64 }{
		{0, 1, 0}, {99, 99, 0}, {100, 100, 1}, {350, 350, 3}, {5000, 5000, 8}, {5000, 2, 2},
	} {
		r.Reached(tc.batches)
		want := client.Reuse{Now: uint64(tc.step), Since: uint64(tc.step - tc.want)}
		if got := steps.Reuse(r, tc.step); got != want {
			t.Errorf("batch %d, after %d of the job: %+v, want %+v", tc.step, tc.batches, got, want)
		}
	}
	four := newRamp(4)
	four.Reached(1100)
	if got, want := steps.Reuse(four, 300), (client.Reuse{Now: 300, Since: 298}); got != want {
		t.Errorf("one of 4 trainers, after 1100 batches of the job: %+v, want %+v", got, want)
	}
	age, r := cached(Limit{Age: time.Second}), newRamp(1)
	if got := age.Reuse(r, 1); got != (client.Reuse{}) {
		t.Errorf("the first batch: %+v, want no copies", got)
	}
	r.Reached(500)
	if got := age.Reuse(r, 1); got != (client.Reuse{MaxAge: time.Second / 2}) {
		t.Errorf("after 500 batches: %+v, want half a second", got)
	}
	if got, want := cached(Limit{}).Reuse(r, 500), (client.Reuse{Now: 500, Since: 500}); got != want {
		t.Errorf("without staleness: %+v, want %+v", got, want)
	}
	if got := new(Config).Reuse(r, 1); got != (client.Reuse{}) {
		t.Errorf("without a cache: %+v", got)
	}
}

func TestCopiesInTheResult(t *testing.T) {
	n := client.Copies{Hits: 30, Stale: 4, Misses: 6, Age: 60, Evicted: 2}
	c := Config{Bytes: "64MiB", Staleness: Limit{Steps: 8}}
	want := report.Copies{RowsReused: 30, RowsPulled: 10, BytesSaved: 30 * (8 + 64), Evicted: 2, ReusedSteps: 2}
	if got := c.Counts(n, 64); got != want {
		t.Errorf("by steps: %+v, want %+v", got, want)
	}
	c.Staleness, n.Age = Limit{Age: time.Second}, 15e9
	want.BytesSaved, want.ReusedSteps, want.ReusedSeconds = 30*(8+32), 0, 0.5
	if got := c.Counts(n, 32); got != want {
		t.Errorf("by age: %+v, want %+v", got, want)
	}
	if got := new(Config).Counts(n, 64); got != (report.Copies{}) {
		t.Errorf("without a cache: %+v", got)
	}
}
