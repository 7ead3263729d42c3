package sim

import (
	"context"
	"time"

	"github.com/rowraft/rowraft/e2e/chaos"
	"github.com/rowraft/rowraft/e2e/history"
)

// Driver starts the nodes of a run of package chaos. The run must be in a bubble.
type Driver struct{}

// Start starts the nodes.
func (Driver) Start(ctx context.Context, cfg *chaos.Config, _ *history.Recorder) (*chaos.System, error) {
	c, err := Start(ctx, Options{
		Dir: cfg.Dir, Servers: cfg.Servers, Shards: cfg.Shards, Slots: cfg.Slots, Profile: cfg.Profile, Backend: cfg.Backend,
		DiskStallLimit: 2 * time.Second,
		// Frequent snapshots, and replicas that need them.
		SnapshotEveryBytes: 20_000, TrailingLogBytes: 5_000, LogSegmentBytes: 64 << 10,
	})
	if err != nil {
		return nil, err
	}
	c.Watch.Sample(c.Admins, cfg.Shards)
	return &chaos.System{Cluster: c, Net: c.Net, Watch: c.Watch, Machines: c, Endpoints: c.Endpoints(),
		Dial: c.DialClient}, nil
}

// Limits are tighter than those of processes: no other work takes virtual time.
func (Driver) Limits() chaos.Limits {
	return chaos.Limits{
		FirstPush: 10 * time.Second, AllClients: 20 * time.Second, Serving: 40 * time.Second, CatchUp: 30 * time.Second,
		AcksPerSecond: 5,
	}
}
