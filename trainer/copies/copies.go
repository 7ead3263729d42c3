// Package copies configures the copies of rows that a trainer keeps: their memory, and how old they may be.
package copies

import (
	"strconv"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/ramp"
	"github.com/rowraft/rowraft/trainer/report"
)

// Config configures copies of rows in the trainer: it pulls a row again only if its copy is too old.
type Config struct {
	Bytes     string `yaml:"bytes"` // memory of the copies, "64MiB" or a number; "": no copies
	On        string `yaml:"on"`    // the memory of: host, or device, which computes the model; "": host
	Staleness Limit  `yaml:"staleness"`
}

// Values of Config.On.
const (
	Host   = "host"
	Device = "device"
)

// Limit bounds the age of a copy when a batch is pulled, by one of its fields. The zero Limit allows
// no older copy than the batch.
type Limit struct {
	Steps int           `yaml:"steps"` // batches of this trainer since the one for which the row was pulled
	Age   time.Duration `yaml:"age"`   // time since the row was pulled
}

// Size returns the bytes of the cache, 0 if there is none. c is valid.
func (c *Config) Size() int64 {
	if c.Bytes == "" {
		return 0
	}
	n, _ := humanize.ParseBytes(c.Bytes) // Validate has checked it
	return int64(n)
}

// ClientBytes returns the bytes of the copies that the client of the cluster keeps.
func (c *Config) ClientBytes() int64 {
	if c.On == Device {
		return 0
	}
	return c.Size()
}

// rowsStaleness is the bound in steps of SetRows: docs/caching.md has what it saves and what it costs.
const rowsStaleness = 8

// SetRows makes the copies take the memory of that many rows of dim weights, and no less than the smallest cache. 0 is
// no cache. Without a bound, copies may be 8 steps old. REQUIRES: rows and dim are at least 0.
//
// Parameter servers of other frameworks have this setting (MindSpore: vocab_cache_size of EmbeddingLookup).
func (c *Config) SetRows(rows, dim int) {
	if rows == 0 {
		*c = Config{}
		return
	}
	c.Bytes = strconv.FormatInt(cache.BytesFor(rows, dim), 10)
	if c.Staleness == (Limit{}) {
		c.Staleness.Steps = rowsStaleness
	}
}

// Validate returns the first problem of c in a job of that mode and mode of reads.
func (c *Config) Validate(mode, reads string) error {
	limit := c.Staleness
	if c.Bytes == "" {
		if limit != (Limit{}) || c.On != "" {
			return invalid("cache: on or staleness without bytes: set cache.bytes, the memory of the copies, for example 64MiB")
		}
		return nil
	}
	n, err := humanize.ParseBytes(c.Bytes)
	switch {
	case err != nil:
		return invalid("cache: bytes %q: want a size like 64MiB", c.Bytes)
	case n < cache.MinBytes || n > cache.MaxBytes:
		return invalid("cache: bytes %q: want %s to %s", c.Bytes, humanize.IBytes(cache.MinBytes),
			humanize.IBytes(cache.MaxBytes))
	case c.On != "" && c.On != Host && c.On != Device:
		return invalid("cache: on %q: want %s or %s", c.On, Host, Device)
	case limit.Steps < 0 || limit.Age < 0:
		return invalid("cache: staleness of %d steps, %v: want ≥ 0", limit.Steps, limit.Age)
	case limit.Steps > 0 && limit.Age > 0:
		return invalid("cache: staleness: set either steps or age, how old a copy may be")
	case mode != "async" && mode != "ssp":
		return invalid("cache: mode %s has no cache: in sync every trainer computes with the newest rows, and geo has a "+
			"copy of its own; modes async and ssp have one", mode)
	case c.On == Device && limit.Age > 0 && mode == "ssp":
		return invalid("cache: on device with staleness.age: in ssp a batch waits for other trainers after its copies were " +
			"chosen: set staleness.steps")
	case reads == "linearizable":
		return invalid("cache: reads are linearizable, and a copy may be older: set reads.mode to leader or bounded")
	}
	return nil
}

// Reuse returns the bound of the copies that batch step may use. It rises during the ramp: the first batches of a job
// move rows most.
func (c *Config) Reuse(r *ramp.Ramp, step int64) client.Reuse {
	l := &c.Staleness
	switch {
	case c.Bytes == "":
		return client.Reuse{}
	case l.Age > 0:
		return client.Reuse{MaxAge: l.Age * time.Duration(r.Stale(ageSteps)) / ageSteps}
	}
	return client.Reuse{Now: uint64(step), Since: uint64(step - min(r.Stale(int64(l.Steps)), step))}
}

// Counts returns what the copies have done, from the counts n of their cache. The weights of a row take rowBytes on the
// wire.
func (c *Config) Counts(n client.Copies, rowBytes int) report.Copies {
	if c.Bytes == "" {
		return report.Copies{}
	}
	out := report.Copies{RowsReused: int64(n.Hits), RowsPulled: int64(n.Stale + n.Misses), Evicted: int64(n.Evicted),
		BytesSaved: int64(n.Hits) * int64(8+rowBytes)}
	if age := report.Number(n.Age) / report.Number(max(n.Hits, 1)); c.Staleness.Age > 0 {
		out.ReusedSeconds = age / report.Number(time.Second)
	} else {
		out.ReusedSteps = age
	}
	return out
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}

// ageSteps is in how many steps of the ramp a limit in time rises to its value.
const ageSteps = 10
