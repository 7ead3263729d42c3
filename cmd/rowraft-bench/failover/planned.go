package failover

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// plannedShards is how many shards there are when servers restart: each leads one.
	plannedShards = 3
	// restartPatience is when a server that was told to stop fails the benchmark.
	restartPatience = 30 * time.Second
)

// plannedGaps are the longest times without an acknowledgement of one kind of planned
// change, one of each change.
type plannedGaps struct {
	failoverTimes
	Worst *gap `json:"worst"`
}

func (p *plannedGaps) times() *failoverTimes {
	if p == nil {
		return nil
	}
	return &p.failoverTimes
}

// gap is a time without an acknowledgement, with the lines that servers and client logged in it.
type gap struct {
	Shard   int        `json:"shard"`
	Seconds float64    `json:"seconds"`
	Phases  gapPhases  `json:"phases"`
	Events  []gapEvent `json:"events"`
}

// gapPhases are the parts of a gap, in seconds, one after the other; 0 if the logs do not show a part.
type gapPhases struct {
	Before   float64 `json:"until_the_hand_over_begins"`
	Transfer float64 `json:"until_the_next_leader_is_elected"`
	Begin    float64 `json:"until_it_serves"`
	Found    float64 `json:"until_a_push_is_acknowledged"`
}

// repeatPlanned is repeat of a planned change.
func (d *disturber) repeatPlanned(ctx context.Context, what string, n int,
	change func(context.Context) error) (*plannedGaps, error) {
	var worst *gap
	all, err := d.repeat(ctx, what, n, func(ctx context.Context) (time.Duration, error) {
		d.trace.mark()
		if err := change(ctx); err != nil {
			return 0, err
		}
		longest, err := d.longestGap(ctx)
		if err != nil {
			return 0, err
		}
		if worst == nil || longest.Seconds > worst.Seconds {
			worst = longest
		}
		return time.Duration(longest.Seconds * float64(time.Second)), nil
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &plannedGaps{failoverTimes: *timesOf(all), Worst: worst}, nil
}

// longestGap returns the longest gap of any shard since the mark, after a while in which
// pushes go on everywhere.
func (d *disturber) longestGap(ctx context.Context) (*gap, error) {
	if err := scaffold.PauseFor(ctx, failoverAfter); err != nil {
		return nil, err
	}
	var shard int
	var begin, end time.Time
	for i, s := range d.load.shards {
		if _, err := s.recovered(ctx, time.Now()); err != nil { // a gap that has not ended yet
			return nil, fmt.Errorf("shard %d: %w", i, err)
		}
		if from, to := s.longestGap(); to.Sub(from) > end.Sub(begin) {
			shard, begin, end = i, from, to
		}
	}
	events, err := d.trace.between(shard, begin, end)
	if err != nil {
		return nil, err
	}
	g := &gap{Shard: shard, Seconds: end.Sub(begin).Seconds(), Events: events}
	g.Phases = phasesOf(g.Seconds, events)
	return g, nil
}

// phasesOf returns the phases of a gap, given the lines that were logged in it.
func phasesOf(length float64, events []gapEvent) (p gapPhases) {
	at := func(what string) float64 {
		i := slices.IndexFunc(events, func(e gapEvent) bool { return e.What == what })
		if i < 0 {
			return 0
		}
		return max(events[i].At, 0)
	}
	serves := 0.0
	for _, e := range events { // if several leaders were elected, the last one ends the gap
		if e.What == logServes {
			serves = max(e.At, 0)
		}
	}
	asked, elected := at(logHandsOver), at(logElected)
	if asked > 0 {
		p.Before = asked
	}
	if elected > asked {
		p.Transfer = elected - asked
	}
	if serves > elected {
		p.Begin = serves - elected
	}
	if serves > 0 {
		p.Found = length - serves
	}
	return p
}

// handOver has shard 0 led by another server.
func (d *disturber) handOver(ctx context.Context) error {
	from, err := d.leader(ctx, 0)
	if err != nil {
		return err
	}
	return d.lead(ctx, 0, d.other(from))
}

func (d *disturber) other(than *localcluster.Server) *localcluster.Server {
	for servers := d.cluster.Servers(); ; {
		if s := servers[d.rng.IntN(len(servers))]; s != than {
			return s
		}
	}
}

// rollingRestart stops one server after the other with SIGTERM, which leads a shard, and
// starts it again.
func (d *disturber) rollingRestart(ctx context.Context) error {
	servers := d.cluster.Servers()
	victim := servers[d.turn%len(servers)]
	d.turn++
	for shard := range d.load.shards {
		if err := d.lead(ctx, shard, servers[shard%len(servers)]); err != nil {
			return err
		}
	}
	if err := scaffold.PauseFor(ctx, failoverCalm); err != nil { // leads have just changed hands
		return err
	}
	d.load.mark()
	if err := victim.Stop(restartPatience); err != nil {
		return err
	}
	if err := d.restart(ctx, victim); err != nil {
		return err
	}
	return d.calm(ctx) // it has caught up, so that leads are given back to it
}

// move moves the leader of shard 0 to the server without a replica of it.
func (d *disturber) move(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	from, err := d.leader(ctx, 0)
	if err != nil {
		return err
	}
	to, err := d.without(ctx, 0)
	if err != nil {
		return err
	}
	var id uint64
	err = d.onScheduler(ctx, func(c rowraftv1.ClusterClient) error {
		reply, err := c.MoveReplica(ctx, &rowraftv1.MoveReplicaRequest{Shard: 0, FromNode: string(from.ID()),
			ToNode: string(to.ID())})
		id = reply.GetMove().GetId()
		if err == nil {
			return nil
		}
		// An earlier try whose answer was lost may have begun the move: no other process moves replicas here.
		st, serr := c.Status(ctx, &rowraftv1.StatusRequest{})
		if serr != nil {
			return err
		}
		for _, m := range st.GetFinishedMoves() {
			id = max(id, m.GetId())
		}
		for _, m := range st.GetMoves() {
			id = max(id, m.GetMove().GetId())
		}
		if id <= d.moved {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.moved = id
	for running := true; running; {
		if err := scaffold.PauseFor(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("move %d does not end: %w", id, err)
		}
		err := d.onScheduler(ctx, func(c rowraftv1.ClusterClient) error {
			reply, err := c.Status(ctx, &rowraftv1.StatusRequest{})
			if err == nil {
				running = slices.ContainsFunc(reply.GetMoves(), func(m *rowraftv1.MoveStatus) bool {
					return m.GetMove().GetId() == id
				})
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// without returns a server that has no replica of a shard.
func (d *disturber) without(ctx context.Context, shard uint32) (*localcluster.Server, error) {
	for _, s := range d.cluster.Servers() {
		st, err := localcluster.AwaitStatus(ctx, s.Addr)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(st.Replicas, func(r *rowraftv1.ReplicaStatus) bool { return r.Shard == shard }) {
			return s, nil
		}
	}
	return nil, fmt.Errorf("every server has a replica of shard %d", shard)
}

// onScheduler makes a call to the scheduler's leader until one answers. The cluster
// may not be ready for the call yet.
func (d *disturber) onScheduler(ctx context.Context, call func(rowraftv1.ClusterClient) error) error {
	c := route.Cluster{Pool: route.NewPool(nil, nil, 1)}
	defer c.Pool.Close()
	for _, s := range d.cluster.Servers() {
		c.Endpoints = append(c.Endpoints, s.Addr)
	}
	for b := new(route.Backoff); ; {
		err := c.Call(ctx, route.Control, func(_ context.Context, conn *grpc.ClientConn) error {
			return call(rowraftv1.NewClusterClient(conn))
		})
		if rowraft.CodeOf(err) != rowraft.CodePrecondition || b.Wait(ctx, 0) != nil {
			return err
		}
	}
}
