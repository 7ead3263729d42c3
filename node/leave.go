package node

import (
	"context"
	"sync"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// leaveNotice limits the time to notify the scheduler.
const leaveNotice = 2 * time.Second

// leaveLimit limits how long a server that was told to stop hands over its leaderships while other servers
// could take them. After it, an election follows, as after a crash.
const leaveLimit = 5 * time.Second

// leave hands over all leaderships of this server, so that pushes wait for a transfer and not for an
// election. It tells the scheduler and the load balancers that the server stops.
func (n *Node) leave() {
	n.leaving.Store(true)
	n.health.SetServingStatus(rowraftv1.Table_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_NOT_SERVING)
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	groups, meta := n.host.Groups(), n.meta.Load()
	var wg sync.WaitGroup
	// Without it the scheduler would move leaders back to this server.
	wg.Go(func() { n.notifyLeaving(ctx) })
	for range 2 { // the second round hands over leaderships that arrived during the first
		for id, g := range groups {
			wg.Go(func() { n.giveUp(ctx, g, "shard", uint32(id)) })
		}
		wg.Wait()
	}
	if meta != nil {
		if _, _, leads := meta.Leader(); !leads {
			return
		}
		n.giveUp(ctx, meta, "group", "scheduler")
		n.notifyLeaving(ctx) // the next leader of the scheduler must know that this server stops on purpose
	}
}

// notifyLeaving tells the scheduler that this server stops.
func (n *Node) notifyLeaving(ctx context.Context) {
	if c := n.talk.Load(); c != nil {
		ctx, cancel := context.WithTimeout(ctx, leaveNotice)
		defer cancel()
		if err := c.heartbeat(ctx); err != nil {
			n.log.Debug("the scheduler was not told that this server stops", "err", err)
		}
	}
}

// giveUp hands over the leadership of g, if this server has it. It tries every other voter. It ends when
// none can take over, because none answers, or when ctx ends.
func (n *Node) giveUp(ctx context.Context, g *raftstore.Group, key string, what any) {
	if _, _, leads := g.Leader(); !leads {
		return
	}
	begin := time.Now()
	tries, err := g.GiveUpLead(ctx)
	if err != nil {
		n.log.Info("stops as the leader: no server takes the lead", key, what, "tries", tries, "err", err)
		return
	}
	n.log.Info("handed over the lead, to stop", key, what, "tries", tries, "took", time.Since(begin).String())
}
