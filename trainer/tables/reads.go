package tables

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// ReadConfig selects the replicas that answer the pulls of a job. Every mode sees the trainer's own acknowledged
// pushes.
type ReadConfig struct {
	Mode   string        `yaml:"mode"`    // leader, linearizable or bounded; "": leader
	MaxAge time.Duration `yaml:"max_age"` // bounded: default 10 s
	MaxLag uint64        `yaml:"max_lag"` // bounded: log entries; 0: any
}

// DefaultMaxAge is the MaxAge of bounded reads that do not set it. It is longer than any failover.
const DefaultMaxAge = 10 * time.Second

// Validate returns the first problem of r, with CodeInvalidArgument.
func (r *ReadConfig) Validate() error {
	switch r.Mode {
	case "", "leader", "linearizable":
		if r.MaxAge != 0 || r.MaxLag != 0 {
			return invalid("reads: max_age and max_lag need mode: bounded")
		}
	case "bounded":
		if r.MaxAge < 0 {
			return invalid("reads: max_age %v: want > 0", r.MaxAge)
		}
	default:
		return invalid("reads: mode %q: want leader, linearizable or bounded", r.Mode)
	}
	return nil
}

// how returns the read mode of a client that has pushed up to own.
func (r *ReadConfig) how(own func() client.Position) client.Read {
	switch r.Mode {
	case "linearizable":
		return client.Read{Mode: client.Linearizable}
	case "bounded":
		how := client.Read{Mode: client.Bounded, MaxAge: r.MaxAge, MaxLag: r.MaxLag, AtLeast: own()}
		if how.MaxAge == 0 {
			how.MaxAge = DefaultMaxAge
		}
		return how
	}
	return client.Read{}
}

// SetReads selects the replicas that answer Pull; by default the leaders do. Call it before Pull.
func (c *Cluster) SetReads(r ReadConfig) { c.reads = r }

// PullAged is [Cluster.Pull]. It returns how old the rows were when bounded reads found them, copies apart.
//
// If no replica can prove that it is fresh enough, it reads from the leader, which proves that it leads: a trainer
// waits rather than ends.
func (c *Cluster) PullAged(ctx context.Context, segs []Segment) (age time.Duration, err error) {
	s, err := c.segments(segs)
	if err != nil {
		return 0, err
	}
	how := c.reads.how(c.client.Position)
	got, err := c.client.PullWith(ctx, how, s...)
	if how.Mode == client.Bounded && rowraft.CodeOf(err) == rowraft.CodeTooStale {
		for i := range s {
			s[i].Reuse = client.Reuse{} // a linearizable read uses no copies
		}
		return 0, c.client.PullLinearizable(ctx, s...)
	}
	return got.Age, err
}
