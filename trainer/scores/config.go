package scores

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft"
)

// Interval is the interval between two scores: a number of steps, or a time. The zero Interval means the end of each
// epoch, and ten times as many trained as held-out examples.
type Interval struct {
	Steps int64
	Time  time.Duration
}

// IsZero implements yaml.IsZeroer.
func (i Interval) IsZero() bool { return i == Interval{} }

// UnmarshalYAML reads a number of steps, or a time with its unit.
func (i *Interval) UnmarshalYAML(n *yaml.Node) error {
	var err error
	if i.Steps, err = strconv.ParseInt(n.Value, 10, 64); err != nil {
		i.Steps = 0
		i.Time, err = time.ParseDuration(n.Value)
	}
	if err != nil || i.Steps < 0 || i.Time < 0 {
		return fmt.Errorf("line %d: evaluate_every %q: want a number of steps, or a time such as 5m", n.Line, n.Value)
	}
	return nil
}

// MarshalYAML writes what UnmarshalYAML reads.
func (i Interval) MarshalYAML() (any, error) {
	if i.Time > 0 {
		return i.Time.String(), nil
	}
	return i.Steps, nil
}

// EarlyStop ends a job whose score does not improve.
type EarlyStop struct {
	Patience int     `yaml:"patience"`  // scores after the best one at which the job stops; 0: it does not stop early
	MinDelta float64 `yaml:"min_delta"` // a score is better if it is better by more than this
}

// Validate returns the first problem of e, with CodeInvalidArgument.
func (e *EarlyStop) Validate() error {
	switch {
	case e.Patience < 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "early_stop: patience %d: want 0 or more scores", e.Patience)
	case !(e.MinDelta >= 0) || math.IsInf(e.MinDelta, 0):
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "early_stop: min_delta %v: want a number ≥ 0", e.MinDelta)
	case e.MinDelta > 0 && e.Patience == 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "early_stop: min_delta %v without patience: set patience, the "+
			"number of scores after the best one at which the job stops", e.MinDelta)
	}
	return nil
}

// examplesPerHeld is how many times as many examples as are held out a trainer trains between two scores without an
// Interval. Scoring an example costs less than half of training it, so the scores cost less than a twentieth of a long
// epoch.
const examplesPerHeld = 10

// Clock tells when a score is due. One goroutine uses it.
type Clock struct {
	Every    Interval
	Held     int64 // held-out examples; 0: unknown
	Step     int64 // at the last score, or at the begin
	Examples int64 // likewise
	At       time.Time
}

// Due reports whether a trainer that has trained so many steps and examples must score now.
func (c *Clock) Due(step, examples int64, epochEnded bool, now time.Time) bool {
	switch {
	case step == c.Step:
		return false
	case c.Every.Steps > 0:
		return step-c.Step >= c.Every.Steps
	case c.Every.Time > 0:
		return now.Sub(c.At) >= c.Every.Time
	}
	return epochEnded || c.Held > 0 && examples-c.Examples >= examplesPerHeld*c.Held
}

// Scored records a score. The time until the next one begins when the score is computed.
func (c *Clock) Scored(step, examples int64, now time.Time) {
	c.Step, c.Examples, c.At = step, examples, now
}
