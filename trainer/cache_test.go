package trainer

import (
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/client"
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
		{CacheConfig{"64MiB", StalenessLimit{}}, Async, "set either steps or age"},
		{CacheConfig{"64MiB", StalenessLimit{1, 1}}, Async, "set either steps or age"},
		{CacheConfig{"64MiB", StalenessLimit{Steps: -1}}, Async, "want ≥ 0"},
		{CacheConfig{"many", StalenessLimit{Steps: 8}}, Async, `bytes "many": want a size like 64MiB`},
		{CacheConfig{"1KiB", StalenessLimit{Steps: 8}}, Async, "want 1.0 MiB or more"},
		{CacheConfig{"64MiB", StalenessLimit{Steps: 8}}, Sync, "mode sync has no cache"},
		{CacheConfig{"64MiB", StalenessLimit{Steps: 8}}, Geo, "mode geo has no cache"},
	} {
		err := tc.cache.validate(tc.mode)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v in mode %s: %v, want %q", tc.cache, tc.mode, err, tc.want)
		}
	}
	if got := (&CacheConfig{Bytes: "64MiB"}).Size(); got != 64<<20 {
		t.Errorf("64MiB are %d bytes", got)
	}
}

// The bound of copies rises with the batches of the job, and no copy of an earlier run is new enough.
func TestReuseFollowsTheRamp(t *testing.T) {
	steps, r := StalenessLimit{Steps: 8}, &ramp{every: 100}
	for _, tc := range []struct {
		batches, step int64
		want          uint64 // batches before this one
	}{
		{0, 1, 0}, {99, 99, 0}, {100, 100, 1}, {350, 350, 3}, {5000, 5000, 8}, {5000, 2, 2},
	} {
		r.reached(tc.batches)
		got := steps.reuse(r, 1<<40, tc.step)
		if got.Now != 1<<40+uint64(tc.step) || got.Now-got.Since != tc.want || got.Since < 1<<40 {
			t.Errorf("batch %d, after %d of the job: %+v, want copies of %d batches before", tc.step, tc.batches, got, tc.want)
		}
	}
	age, r := StalenessLimit{Age: time.Second}, &ramp{every: 100}
	if got := age.reuse(r, 1, 1); got != (client.Reuse{}) {
		t.Errorf("the first batch: %+v, want no copies", got)
	}
	r.reached(500)
	if got := age.reuse(r, 1, 1); got != (client.Reuse{MaxAge: time.Second / 2}) {
		t.Errorf("after 500 batches: %+v, want half a second", got)
	}
	if got := (&StalenessLimit{}).reuse(r, 1, 1); got != (client.Reuse{}) {
		t.Errorf("without a cache: %+v", got)
	}
}
