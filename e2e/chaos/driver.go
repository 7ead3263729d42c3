package chaos

import (
	"context"
	"net"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/nemesis"
)

// Driver starts the servers of a run.
type Driver interface {
	// Start starts the servers and returns when all serve.
	Start(ctx context.Context, cfg *Config, rec *history.Recorder) (*System, error)
	// Limits returns what the servers must keep.
	Limits() Limits
}

// Limits bound the liveness phase, from the end of the faults, and say how much a run must do.
type Limits struct {
	FirstPush  time.Duration // each shard takes a push
	AllClients time.Duration // each client has a push acknowledged
	Serving    time.Duration // each server serves
	CatchUp    time.Duration // each replica has caught up, counted from the moment when all servers serve

	AcksPerSecond float64 // the least of a run
}

// System is the servers of a run.
type System struct {
	Cluster  Cluster
	Net      Network
	Watch    Watch
	Machines nemesis.Machines   // nil if servers are processes
	Hung     *nemesis.HungStore // nil: none

	Endpoints     []string
	Dial          func(ctx context.Context, addr string) (net.Conn, error) // of clients; nil: TCP
	ShortLogBytes int64                                                    // as in nemesis.World
}

// Observer is a driver that measures the servers around the faults.
type Observer interface {
	// BeforeFaults and AfterFaults run while the servers do. BeforeFaults may put load on them.
	BeforeFaults(ctx context.Context, r *Run) error
	AfterFaults(ctx context.Context, r *Run)
	// AfterEnd runs when the servers have ended, and returns the leaderships in their logs.
	AfterEnd(r *Run) []check.Leading
}

// Cluster is what a run does to servers and asks them.
type Cluster interface {
	nemesis.Cluster
	// Close ends the servers.
	Close() error
	// CaughtUp waits until every replica has caught up with its leader.
	CaughtUp(ctx context.Context) error
	// AwaitWhole waits until every shard has so many replicas.
	AwaitWhole(ctx context.Context, replicas int) error
	// Proved compares all replicas and lists those that were fenced.
	Proved(ctx context.Context) (wrong []string, err error)
	// Digests returns the digest of each replica of a shard.
	Digests(ctx context.Context, shard rowraft.ShardID) (map[string]cluster.Digest, error)
	// Dead describes the servers that no fault has ended.
	Dead() []string
	// WronglyRefused lists the replicas that were refused because of their disk though no fault rolled it back. It
	// reads the logs of servers that have ended.
	WronglyRefused() ([]string, error)
}

// Network is the network of the servers.
type Network interface {
	nemesis.Network
	// Heal ends all that was done to it.
	Heal()
}

// Watch observes leaders and digests.
type Watch interface {
	nemesis.Watch
	Seen() cluster.Sights
	Close()
}
