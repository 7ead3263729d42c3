package trainer

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/ramp"
	"github.com/rowraft/rowraft/trainer/report"
)

func TestCacheConfig(t *testing.T) {
	for _, tc := range []struct {
		cache CacheConfig
		mode  string
		want  string // "": valid
	}{
		{CacheConfig{}, Geo, ""},
		{CacheConfig{"64MiB", StalenessLimit{Steps: 8}}, Async, ""},
		{CacheConfig{"1048576", StalenessLimit{Age: time.Second}}, SSP, ""},
		{CacheConfig{"", StalenessLimit{Steps: 8}}, Async, "set cache.bytes"},
		{CacheConfig{"64MiB", StalenessLimit{}}, Async, ""},
		{CacheConfig{"64MiB", StalenessLimit{1, 1}}, Async, "set either steps or age"},
		{CacheConfig{"64MiB", StalenessLimit{Steps: -1}}, Async, "want ≥ 0"},
		{CacheConfig{"many", StalenessLimit{Steps: 8}}, Async, `bytes "many": want a size like 64MiB`},
		{CacheConfig{"1KiB", StalenessLimit{Steps: 8}}, Async, "want 1.0 MiB to 16 TiB"},
		{CacheConfig{"64MiB", StalenessLimit{Steps: 8}}, Sync, "mode sync has no cache"},
		{CacheConfig{"64MiB", StalenessLimit{Steps: 8}}, Geo, "mode geo has no cache"},
	} {
		err := tc.cache.validate(tc.mode, "leader")
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v in mode %s: %v, want %q", tc.cache, tc.mode, err, tc.want)
		}
	}
	linearizable := CacheConfig{"64MiB", StalenessLimit{Steps: 8}}
	if err := linearizable.validate(Async, "linearizable"); err == nil {
		t.Error("a cache with linearizable reads is accepted")
	}
	if got := (&CacheConfig{Bytes: "64MiB"}).Size(); got != 64<<20 {
		t.Errorf("64MiB are %d bytes", got)
	}
}

// The number of rows of scripts for other frameworks gives the memory of so many copies.
func TestCacheOfRows(t *testing.T) {
	for _, tc := range []struct {
		rows, dim int
		had, want CacheConfig
	}{
		{0, 16, CacheConfig{"64MiB", StalenessLimit{Steps: 4}}, CacheConfig{}},
		{1, 16, CacheConfig{}, CacheConfig{"1048576", StalenessLimit{Steps: 8}}},
		{math.MaxInt, 16, CacheConfig{"1MiB", StalenessLimit{Steps: 2}},
			CacheConfig{"17592186044416", StalenessLimit{Steps: 2}}},
		{1, 1, CacheConfig{"1MiB", StalenessLimit{Age: 1}}, CacheConfig{"1048576", StalenessLimit{Age: 1}}},
	} {
		got := tc.had
		if got.SetRows(tc.rows, tc.dim); got != tc.want {
			t.Errorf("%d rows of dim %d: %+v, want %+v", tc.rows, tc.dim, got, tc.want)
		}
	}
	var c CacheConfig
	c.SetRows(300_000, 80)
	if n := c.Size(); n < 300_000*(24+80*4) || n > 300_000*(24+80*4)+64<<10 {
		t.Errorf("300,000 rows of dim 80 have %d bytes", n)
	}
	if err := c.validate(Async, "leader"); err != nil {
		t.Error(err)
	}
}

// The bound of copies rises with the batches of the job, more slowly with more trainers.
func TestReuseFollowsTheRamp(t *testing.T) {
	newRamp := func(trainers int) *ramp.Ramp {
		return ramp.New(0, trainers, 100, false, false)
	}
	cached := func(l StalenessLimit) *CacheConfig { return &CacheConfig{"64MiB", l} }
	steps, r := cached(StalenessLimit{Steps: 8}), newRamp(1)
	for _, tc := range []struct{ batches, step, want int64 }{
		{0, 1, 0}, {99, 99, 0}, {100, 100, 1}, {350, 350, 3}, {5000, 5000, 8}, {5000, 2, 2},
	} {
		r.Reached(tc.batches)
		want := client.Reuse{Now: uint64(tc.step), Since: uint64(tc.step - tc.want)}
		if got := steps.reuse(r, tc.step); got != want {
			t.Errorf("batch %d, after %d of the job: %+v, want %+v", tc.step, tc.batches, got, want)
		}
	}
	four := newRamp(4)
	four.Reached(1100)
	if got, want := steps.reuse(four, 300), (client.Reuse{Now: 300, Since: 298}); got != want {
		t.Errorf("one of 4 trainers, after 1100 batches of the job: %+v, want %+v", got, want)
	}
	age, r := cached(StalenessLimit{Age: time.Second}), newRamp(1)
	if got := age.reuse(r, 1); got != (client.Reuse{}) {
		t.Errorf("the first batch: %+v, want no copies", got)
	}
	r.Reached(500)
	if got := age.reuse(r, 1); got != (client.Reuse{MaxAge: time.Second / 2}) {
		t.Errorf("after 500 batches: %+v, want half a second", got)
	}
	if got, want := cached(StalenessLimit{}).reuse(r, 500), (client.Reuse{Now: 500, Since: 500}); got != want {
		t.Errorf("without staleness: %+v, want %+v", got, want)
	}
	if got := new(CacheConfig).reuse(r, 1); got != (client.Reuse{}) {
		t.Errorf("without a cache: %+v", got)
	}
}

func TestCopiesInTheResult(t *testing.T) {
	n := client.Copies{Hits: 30, Stale: 4, Misses: 6, Age: 60, Evicted: 2}
	c := Config{DType: "float32", Cache: CacheConfig{"64MiB", StalenessLimit{Steps: 8}}, Model: ModelConfig{Dim: 16}}
	want := report.Copies{RowsReused: 30, RowsPulled: 10, BytesSaved: 30 * (8 + 64), Evicted: 2, ReusedSteps: 2}
	if got := copiesOf(&c, n); got != want {
		t.Errorf("by steps: %+v, want %+v", got, want)
	}
	c.DType, c.Cache.Staleness, n.Age = "bfloat16", StalenessLimit{Age: time.Second}, 15e9
	want.BytesSaved, want.ReusedSteps, want.ReusedSeconds = 30*(8+32), 0, 0.5
	if got := copiesOf(&c, n); got != want {
		t.Errorf("by age: %+v, want %+v", got, want)
	}
	if got := copiesOf(&Config{DType: "float32"}, n); got != (report.Copies{}) {
		t.Errorf("without a cache: %+v", got)
	}
}
