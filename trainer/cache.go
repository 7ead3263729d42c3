package trainer

import (
	"math"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/client"
)

// CacheConfig configures copies of rows in the trainer: it pulls a row again only if its copy is too old.
type CacheConfig struct {
	Bytes     string         `yaml:"bytes"` // memory of the copies, "64MiB" or a number; "": no copies
	Staleness StalenessLimit `yaml:"staleness"`
}

// StalenessLimit bounds the age of a copy when a batch is pulled, by one of its fields.
type StalenessLimit struct {
	Steps int           `yaml:"steps"` // batches of this trainer since the one for which the row was pulled
	Age   time.Duration `yaml:"age"`   // time since the row was pulled
}

// Size returns the bytes of the cache, 0 if there is none. c is valid.
func (c *CacheConfig) Size() int64 {
	if c.Bytes == "" {
		return 0
	}
	n, _ := humanize.ParseBytes(c.Bytes) // Validate has checked it
	return int64(n)
}

// validate returns the first problem of c in a job of that mode.
func (c *CacheConfig) validate(mode string) error {
	limit := c.Staleness
	if c.Bytes == "" {
		if limit != (StalenessLimit{}) {
			return invalid("cache: staleness without bytes: set cache.bytes, the memory of the copies, for example 64MiB")
		}
		return nil
	}
	n, err := humanize.ParseBytes(c.Bytes)
	switch {
	case err != nil:
		return invalid("cache: bytes %q: want a size like 64MiB", c.Bytes)
	case n < cache.MinBytes || n > math.MaxInt64:
		return invalid("cache: bytes %q: want %s or more", c.Bytes, humanize.IBytes(cache.MinBytes))
	case limit.Steps < 0 || limit.Age < 0:
		return invalid("cache: staleness of %d steps, %v: want ≥ 0", limit.Steps, limit.Age)
	case (limit.Steps > 0) == (limit.Age > 0):
		return invalid("cache: staleness: set either steps or age, how old a copy may be")
	case mode != Async && mode != SSP:
		return invalid("cache: mode %s has no cache: in sync every trainer computes with the newest rows, and geo has a "+
			"copy of its own; modes async and ssp have one", mode)
	}
	return nil
}

// reuse returns how old the copies of rows may be that batch step is computed with. The bound rises during the ramp:
// the first batches of a job move rows most. began is when the run began, in ns: an earlier run in this process began
// with a lower number, and pulled less than 10⁹ batches a second.
func (l *StalenessLimit) reuse(r *ramp, began uint64, step int64) client.Reuse {
	if l.Steps == 0 {
		return client.Reuse{MaxAge: l.Age * time.Duration(r.stale(ageSteps)) / ageSteps}
	}
	now := began + uint64(step)
	return client.Reuse{Now: now, Since: now - uint64(min(r.stale(int64(l.Steps)), step))}
}

// ageSteps is in how many steps of the ramp a limit in time rises to its value.
const ageSteps = 10
