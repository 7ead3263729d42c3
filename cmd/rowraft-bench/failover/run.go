package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// failoverCalm is how long a cluster is left alone between two faults, and
	// failoverJitter is added at random: elections have a rhythm.
	failoverCalm   = 300 * time.Millisecond
	failoverJitter = 500 * time.Millisecond
	// failoverAfter is how long acknowledgements are watched after a planned change.
	failoverAfter = time.Second
)

// disturber injects faults into a cluster under load.
type disturber struct {
	cluster  *localcluster.Cluster
	load     *failoverLoad
	dir      string
	rng      *rand.Rand
	progress io.Writer
	trace    *trace
	gone     int    // servers that ended by themselves
	turn     int    // number of the server that restarts next
	moved    uint64 // the newest move
	stalls   bool   // the servers' disks can be told to hang
}

func newDisturber(ctx context.Context, cfg Config, reads *readTally, progress io.Writer) (*disturber, error) {
	fmt.Fprintf(progress, "starting %s with %s …\n", cli.Plural(cfg.Own.Number, "server"),
		cli.Plural(cfg.Own.Shards, "shard"))
	d := &disturber{rng: rand.New(rand.NewPCG(cfg.Seed, 0)), progress: progress, trace: newTrace()}
	if cfg.Stalls > 0 && cfg.Own.Binary == "" {
		if binary, err := localcluster.FindBinary("rowraft-faults", ""); err == nil {
			cfg.Own.Binary, d.stalls = binary, true
		}
	}
	var err error
	d.cluster, d.dir, err = cfg.Own.Start(ctx, failoverPatience, func(dir string, o *localcluster.Options) {
		o.Args = []string{"--log-level", "info", "--log-format", "json", "--disk-stall-limit",
			cfg.StallLimit.String(), fmt.Sprintf("--rebalance=%v", !cfg.still)}
		if d.stalls {
			o.Env = append(o.Env, "ROWRAFT_DISK_FAULTS="+localcluster.PerServer(dir, diskStallFile))
		}
	})
	if err != nil {
		return nil, err
	}
	d.trace.servers = d.cluster.Servers
	if d.load, err = startFailoverLoad(ctx, client.Options{Endpoints: d.cluster.Endpoints(), Logger: d.trace.logger()},
		reads); err != nil {
		return nil, errors.Join(err, d.cluster.Stop(), os.RemoveAll(d.dir))
	}
	return d, nil
}

func (d *disturber) close() error {
	return errors.Join(d.load.close(), d.cluster.Stop(), os.RemoveAll(d.dir))
}

// repeat does one fault n times, each on a cluster that is whole.
func (d *disturber) repeat(ctx context.Context, what string, n int,
	fault func(context.Context) (time.Duration, error)) (all []time.Duration, err error) {
	for i := range n {
		if err := d.calm(ctx); err != nil {
			return nil, fmt.Errorf("before %s %d: %w", what, i+1, err)
		}
		d.load.mark()
		took, err := fault(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s %d: %w", what, i+1, err)
		}
		all = append(all, took)
		fmt.Fprintf(d.progress, "%s %d of %d: %.3f s\n", what, i+1, n, took.Seconds())
	}
	return all, nil
}

// calm waits until all servers run and have applied the entries of the leaders, and a while longer.
func (d *disturber) calm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	for {
		for _, s := range d.cluster.Servers() {
			if s.Running() {
				continue
			}
			d.gone++
			if err := d.cluster.Restart(ctx, s); err != nil {
				return err
			}
		}
		whole, err := d.whole(ctx)
		if whole {
			return scaffold.PauseFor(ctx, failoverCalm+time.Duration(d.rng.Int64N(int64(failoverJitter))))
		}
		if perr := scaffold.PauseFor(ctx, 20*time.Millisecond); perr != nil {
			return fmt.Errorf("the replicas do not catch up: %w", errors.Join(perr, err))
		}
	}
}

// failoverLag is how many entries a replica that is counted as whole may lack: pushes go
// on while it is asked.
const failoverLag = 20

// failoverCopies is how many replicas a shard has.
const failoverCopies = 3

func (d *disturber) whole(ctx context.Context) (bool, error) {
	want, err := scaffold.AppliedOf(ctx, d.cluster.Servers())
	if err != nil {
		return false, err
	}
	replicas := 0
	for _, s := range d.cluster.Servers() {
		st, err := localcluster.Status(ctx, s.Addr)
		if err != nil {
			return false, err
		}
		for _, r := range st.Replicas {
			replicas++
			if r.LeaderNode == "" || r.AppliedIndex+failoverLag < want[r.Shard] {
				return false, nil
			}
		}
	}
	return replicas == failoverCopies*len(d.load.shards), nil
}

// leader waits for a server that reports that it leads a shard.
func (d *disturber) leader(ctx context.Context, shard int) (*localcluster.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	for {
		for _, s := range d.cluster.Servers() {
			st, err := localcluster.Status(ctx, s.Addr)
			if err != nil {
				continue
			}
			for _, r := range st.Replicas {
				if int(r.Shard) == shard && r.LeaderNode == string(s.ID()) {
					return s, nil
				}
			}
		}
		if err := scaffold.PauseFor(ctx, 20*time.Millisecond); err != nil {
			return nil, fmt.Errorf("shard %d has no leader: %w", shard, err)
		}
	}
}

// kill kills the leader of shard 0.
func (d *disturber) kill(ctx context.Context) (time.Duration, error) {
	victim, err := d.leader(ctx, 0)
	if err != nil {
		return 0, err
	}
	killed := time.Now()
	if err := victim.Kill(); err != nil {
		return 0, err
	}
	took, err := d.load.shards[0].recovered(ctx, killed)
	if err != nil {
		return 0, err
	}
	return took, d.restart(ctx, victim)
}

func (d *disturber) restart(ctx context.Context, s *localcluster.Server) error {
	ctx, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	return d.cluster.Restart(ctx, s)
}

func handOver(ctx context.Context, from *localcluster.Server, shard uint32, to rowraft.NodeID) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return route.With(from.Addr, nil, func(conn *grpc.ClientConn) error {
		_, err := rowraftv1.NewReplicasClient(conn).TransferLeader(ctx,
			&rowraftv1.TransferLeaderRequest{Shard: shard, ToNode: string(to)})
		return err
	})
}

// stall hangs the disk of the leader of shard 0 until another replica leads.
func (d *disturber) stall(ctx context.Context) (time.Duration, error) {
	victim, err := d.leader(ctx, 0)
	if err != nil {
		return 0, err
	}
	stalled := time.Now()
	if err := setDiskStall(stallFile(victim), true); err != nil {
		return 0, err
	}
	// A push that the old leader had taken may still be acknowledged.
	took, err := d.load.shards[0].recovered(ctx, stalled.Add(stallSettles))
	if err != nil {
		return 0, err
	}
	return took + stallSettles, setDiskStall(stallFile(victim), false)
}

// stallSettles is how long a server may take to notice that its disk hangs: it reads
// the file every 10 ms.
const stallSettles = 50 * time.Millisecond

// killNode kills a server that leads a third of the shards, and waits for all of them.
func (d *disturber) killNode(ctx context.Context) (longest time.Duration, err error) {
	servers := d.cluster.Servers()
	for shard := range d.load.shards {
		if err := d.lead(ctx, shard, servers[shard%len(servers)]); err != nil {
			return 0, err
		}
	}
	victim := d.rng.IntN(len(servers))
	d.load.mark()
	killed := time.Now()
	if err := servers[victim].Kill(); err != nil {
		return 0, err
	}
	for shard := victim; shard < len(d.load.shards); shard += len(servers) {
		took, err := d.load.shards[shard].recovered(ctx, killed)
		if err != nil {
			return 0, fmt.Errorf("shard %d: %w", shard, err)
		}
		longest = max(longest, took)
	}
	return longest, d.restart(ctx, servers[victim])
}

// lead has a shard led by a server.
func (d *disturber) lead(ctx context.Context, shard int, by *localcluster.Server) error {
	ctx, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	for b := new(route.Backoff); ; {
		now, err := d.leader(ctx, shard)
		if err == nil && now == by {
			return nil
		}
		if err == nil {
			err = handOver(ctx, now, uint32(shard), by.ID())
		}
		if err == nil {
			return nil
		}
		if route.On(route.Control, err) == route.Return && rowraft.CodeOf(err) != rowraft.CodePrecondition {
			return err
		}
		if b.Wait(ctx, 0) != nil {
			return fmt.Errorf("shard %d to %s: %w", shard, by.Name, err)
		}
	}
}
