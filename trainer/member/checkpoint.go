package member

import (
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
)

// CheckpointConfig configures the checkpoints that a job makes.
type CheckpointConfig struct {
	To string `yaml:"to"` // destination
	// Every is the interval of checkpoints in To while the job trains, by a policy that the first trainer sets and
	// deletes when the job is done; 0: never. The policy keeps Keep of them, 5 by default, and those younger than
	// KeepWithin. With FullEvery > 1 the others are deltas.
	Every      time.Duration `yaml:"every"`
	Keep       int           `yaml:"keep"`
	KeepWithin time.Duration `yaml:"keep_within"`
	FullEvery  int           `yaml:"full_every"`
	// AtEnd is "true" for a checkpoint in To when all trainers are done, or another destination. OnStop makes one
	// in To when a trainer gets a stop request.
	AtEnd      string `yaml:"at_end"`
	OnStop     bool   `yaml:"on_stop"`
	SkipAbsent bool   `yaml:"skip_absent"` // make checkpoints without trainers that do not answer
	// KeepBest makes one in To after each score that is the best one of the run, and keeps the last of these.
	KeepBest bool `yaml:"keep_best"`
}

// atEnd returns the destination of the checkpoint at the end, "" for none.
func (c *CheckpointConfig) atEnd() string {
	switch c.AtEnd {
	case "", "false":
		return ""
	case "true":
		return c.To
	}
	return c.AtEnd
}

// WhenParked returns the destinations of the checkpoints that a trainer may request when it parks, or after a score.
func (c *CheckpointConfig) WhenParked() (out []string) {
	if d := c.atEnd(); d != "" {
		out = append(out, d)
	}
	if c.OnStop || c.KeepBest {
		out = append(out, c.To)
	}
	return out
}

// Validate returns the first problem of c, with CodeInvalidArgument.
func (c *CheckpointConfig) Validate() error {
	if c.Every < 0 || c.Keep < 0 || c.KeepWithin < 0 || c.FullEvery < 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"checkpoint: every %v, keep %d, keep_within %v, full_every %d: want ≥ 0",
			c.Every, c.Keep, c.KeepWithin, c.FullEvery)
	}
	if c.To == "" && (c.OnStop || c.AtEnd == "true" || c.Every > 0 || c.KeepBest) {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"checkpoint: to is missing: set it to the destination, an absolute path that all servers share "+
				"or s3://bucket/prefix")
	}
	for _, to := range []string{c.To, c.atEnd()} {
		if to == "" {
			continue
		}
		if _, err := depot.Open(to); err != nil {
			return err
		}
	}
	return nil
}
