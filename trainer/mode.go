package trainer

import (
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/tableconf"
)

// Modes: how the trainers of a job work together.
const (
	Async = "async" // a push is applied at once; no worker waits for another
	Sync  = "sync"  // a step is applied once, as the mean of the workers' pushes
	SSP   = "ssp"   // as async, but no worker gets more than Staleness steps ahead of the slowest
	Geo   = "geo"   // each worker trains its own copy and sends its changes every few batches
)

// modes are the modes that this version supports.
var modes = []string{Async, Sync, SSP, Geo}

// GeoConfig is the configuration of mode geo.
type GeoConfig struct {
	// Every is the number of batches between two rounds; 0: 50. The first rounds come sooner.
	Every int `yaml:"every" json:"every,omitempty"`
	// Scale of the changes that a trainer sends: "mean", a share of 1/trainers, or "sum", all of them; "": mean.
	Scale string `yaml:"scale" json:"scale,omitempty"`
	// Rows limits the embedding rows in a trainer's copy; 0: 1,000,000.
	Rows int `yaml:"rows" json:"-"`
}

const (
	defaultGeoEvery = 50
	defaultGeoRows  = 1_000_000
)

func (g *GeoConfig) every() int {
	if g.Every == 0 {
		return defaultGeoEvery
	}
	return g.Every
}

func (g *GeoConfig) rows() int {
	if g.Rows == 0 {
		return defaultGeoRows
	}
	return g.Rows
}

// share returns the factor of a delta.
func (g *GeoConfig) share(trainers int) float32 {
	if g.Scale == "sum" {
		return 1
	}
	return 1 / float32(trainers)
}

// tableHint returns what to add to the error of a table that exists with another shape.
func (c *Config) tableHint(err error) string {
	switch {
	case rowraft.CodeOf(err) != rowraft.CodeTableExists:
		return ""
	case c.Mode == Geo:
		return "; mode geo sends differences, to tables whose optimizer is add; --fresh deletes the tables and starts over"
	}
	return "; continue with the settings of the table, or delete the job's tables and start over with --fresh"
}

// auditWeight returns what a batch adds to an audit row, so that the row counts one batch: mode sync divides a push
// by the number of trainers.
func (c *Config) auditWeight() float32 {
	if c.Mode == Sync {
		return float32(c.Trainers)
	}
	return 1
}

// maxStaleness limits staleness: a trainer that may be so far ahead practically never waits.
const maxStaleness = 1 << 20

// validateMode returns an error for the first setting that is invalid or belongs to another mode.
func (c *Config) validateMode() error {
	switch {
	case !slices.Contains(modes, c.Mode):
		return invalid("mode %q is not supported: this version runs %s", c.Mode, strings.Join(modes, ", "))
	case !(c.Quorum > 0 && c.Quorum <= 1):
		return invalid("quorum %v: want a share of the trainers, more than 0 and at most 1", c.Quorum)
	case c.Deadline < 0:
		return invalid("deadline is %v: want 0 or more", c.Deadline)
	case c.Mode != Sync && c.Quorum != 1:
		return invalid("quorum is %v in mode %s: only steps of mode sync have a quorum", c.Quorum, c.Mode)
	case c.Mode != Sync && c.Deadline != 0:
		return invalid("deadline is %v in mode %s: only steps of mode sync have a deadline", c.Deadline, c.Mode)
	case c.Audit && (c.Quorum != 1 || c.Deadline != 0):
		return invalid("audit with quorum %v and deadline %v: audit rows need steps to which all trainers contribute",
			c.Quorum, c.Deadline)
	case c.Staleness < 0 || c.Staleness > maxStaleness:
		return invalid("staleness %d: want 0 to %d steps", c.Staleness, maxStaleness)
	case c.Mode != SSP && c.Staleness != 0:
		return invalid("staleness %d in mode %s: only mode ssp has this bound", c.Staleness, c.Mode)
	case c.Geo.Every < 0 || c.Geo.Rows < 0:
		return invalid("geo: every %d, rows %d: want ≥ 0", c.Geo.Every, c.Geo.Rows)
	case c.Geo.Scale != "" && c.Geo.Scale != "mean" && c.Geo.Scale != "sum":
		return invalid("geo: scale %q: want mean or sum", c.Geo.Scale)
	case c.Mode != Geo && c.Geo != (GeoConfig{}):
		return invalid("geo is set in mode %s: only mode geo uses it", c.Mode)
	case c.Threads < 1 || c.Batch > 0 && c.Batch%c.Threads != 0:
		return invalid("threads %d: want a divisor of the batch size %d", c.Threads, c.Batch)
	}
	return nil
}

// terms are the settings that all trainers of a job must agree on; the registry compares them. How a trainer
// computes, where its data lies and how long it waits may differ.
type terms struct {
	Mode       string            `json:"mode"`
	Quorum     float64           `json:"quorum,omitempty"`
	Deadline   time.Duration     `json:"deadline,omitempty"`
	Staleness  int               `json:"staleness,omitempty"`
	Geo        *GeoConfig        `json:"geo,omitempty"`
	Trainers   int               `json:"trainers"`
	Batch      int               `json:"batch"`
	Seed       uint64            `json:"seed"`
	Epochs     int               `json:"epochs,omitempty"` // sync: all workers take the same steps
	Steps      int64             `json:"steps,omitempty"`
	DType      string            `json:"dtype"`
	Model      ModelConfig       `json:"model"`
	Embeddings tableconf.Table   `json:"embeddings"`
	Dense      tableconf.Table   `json:"dense"`
	Parameters []ParameterConfig `json:"parameters,omitempty"`
	Average    int               `json:"average_every,omitempty"`
	Audit      bool              `json:"audit"`
}

func (c *Config) terms() terms {
	t := terms{
		Mode: c.Mode, Deadline: c.Deadline, Staleness: c.Staleness, Trainers: c.Trainers, Batch: c.Batch, Seed: c.Seed,
		DType: c.DType, Model: c.Model.fingerprint(), Embeddings: c.Embeddings, Dense: c.Dense,
		Parameters: c.Parameters, Average: c.Average.Every, Audit: c.Audit,
	}
	if c.Mode == Sync {
		t.Quorum, t.Epochs, t.Steps = c.Quorum, c.Epochs, c.Steps
	}
	if c.Mode == Geo {
		t.Geo = &GeoConfig{Every: c.Geo.every(), Scale: c.Geo.Scale}
		if t.Geo.Scale == "" {
			t.Geo.Scale = "mean"
		}
	}
	return t
}
