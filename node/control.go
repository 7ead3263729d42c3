package node

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler"
)

// control is the connection of this server to the scheduler: it registers the server, reports its state
// and, on servers without the scheduler's group, fetches the map.
type control struct {
	n   *Node
	tls *certs.Source

	registered atomic.Bool // the scheduler has this server's current addresses

	mu     sync.Mutex
	leader rowraft.NodeID // the scheduler's leader, by the last answer; "" if unknown
}

func newControl(n *Node, conf *certs.Source) *control {
	return &control{n: n, tls: conf}
}

// schedulers lists addresses of the scheduler's group: its leader by the last answer, then all members.
func (c *control) schedulers() []string {
	c.mu.Lock()
	leader := c.leader
	c.mu.Unlock()
	var out []string
	if m := c.n.sched.View().Map(); m != nil {
		for _, node := range m.Nodes {
			if !node.Scheduler {
				continue
			}
			if node.ID == leader {
				out = slices.Insert(out, 0, node.Addr)
			} else {
				out = append(out, node.Addr)
			}
		}
	}
	for _, addr := range append(slices.Clone(c.n.cfg.Join), c.n.self.Addr) {
		if !slices.Contains(out, addr) {
			out = append(out, addr)
		}
	}
	return out
}

// call is ask for a call of the Cluster service.
func (c *control) call(ctx context.Context, f func(context.Context, rowraftv1.ClusterClient) error) error {
	return c.ask(ctx, 2*time.Second, func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, rowraftv1.NewClusterClient(conn))
	})
}

// ask makes a call to the scheduler's leader. It asks each scheduler at most once, with the given
// timeout for each.
func (c *control) ask(ctx context.Context, timeout time.Duration,
	f func(context.Context, *grpc.ClientConn) error) error {
	places := c.schedulers()
	w := route.Walk{Layer: route.Control, Places: func() []string { return places }, AddrOf: c.addrOf, Rounds: 1}
	for {
		conn, err := c.n.conns.Get(w.Addr())
		if err == nil {
			attempt, cancel := context.WithTimeout(ctx, timeout)
			err = f(attempt, conn)
			cancel()
		}
		if err == nil {
			return nil
		}
		if nl, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
			c.mu.Lock()
			c.leader = nl.Leader
			c.mu.Unlock()
		}
		if !w.Again(ctx, err) {
			return err
		}
	}
}

// addrOf returns the address of a server; "" if the map does not have the server.
func (c *control) addrOf(id rowraft.NodeID) string {
	if m := c.n.sched.View().Map(); m != nil {
		if node, ok := m.Node(id); ok {
			return node.Addr
		}
	}
	return ""
}

// register adds this server to the cluster, or updates its addresses. After that it reports its replicas
// until ctx ends.
func (c *control) register(ctx context.Context) {
	known := false
	var b route.Backoff
	for refused := 0; ; {
		wait := scheduler.HeartbeatInterval
		if known {
			known = rowraft.CodeOf(c.heartbeat(ctx)) != rowraft.CodeNotFound
		} else {
			err := c.registerOnce(ctx)
			switch code := rowraft.CodeOf(err); {
			case err == nil:
				known, wait, b = true, 0, route.Backoff{}
				c.registered.Store(true)
			case code == rowraft.CodeIdentity || code == rowraft.CodeInvalidArgument:
				c.n.fail(err)
				return
			default:
				wait = b.Delay(0)
				// A taken name does not become free by itself, except if its server is dead.
				if refused++; refused%50 == 0 || refused == 1 && code == rowraft.CodeAlreadyExists {
					c.n.log.Warn("server not ready, the scheduler does not take it yet", "err", err)
				}
			}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// hear asks the servers of --join for their addresses until the scheduler has registered this server. From
// then on the map is correct again, and newer than those answers.
func (c *control) hear(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !c.registered.Load() {
		peers, err := c.n.sched.Peers(ctx)
		if err != nil {
			c.n.log.Debug("not every server of --join answers", "err", err)
		}
		for _, p := range peers {
			c.n.heard.Store(p.Node, p.PeerAddr)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	c.n.heard.Clear()
}

func (c *control) registerOnce(ctx context.Context) error {
	var reply *rowraftv1.RegisterNodeReply
	err := c.call(ctx, func(ctx context.Context, stub rowraftv1.ClusterClient) (err error) {
		reply, err = stub.RegisterNode(ctx, &rowraftv1.RegisterNodeRequest{
			ClusterId: string(c.cluster()), Node: rpc.NodeToProto(c.n.self),
			FormatVersion: uint32(c.n.cfg.announce),
		})
		return err
	})
	if err != nil {
		return err
	}
	if name := reply.GetName(); name != "" {
		if err := c.n.identity.SetName(name); err != nil { // the scheduler knows the name, and answers it again
			c.n.log.Warn("the name of this server was not written to its data directory", "name", name, "err", err)
		}
	}
	return nil
}

func (c *control) cluster() rowraft.ClusterID { return c.n.identity.Identity().Cluster }

func (c *control) heartbeat(ctx context.Context) error {
	req := &rowraftv1.HeartbeatRequest{ClusterId: string(c.cluster()), NodeId: string(c.n.self.ID),
		Replicas:      c.n.host.Status(),
		FormatVersion: uint32(c.n.cfg.announce), Version: c.n.cfg.Version, UptimeNs: uint64(time.Since(c.n.started)),
		Stopping: c.n.leaving.Load(),
		Disk:     c.n.disk(), CertificateEnds: c.n.certificateEnds(), Profile: c.n.profile(), Slowness: c.n.slowness(),
		MetadataReplica: c.n.self.Scheduler, MetadataRolledBack: c.n.metaRolledBack()}
	if m := c.n.host.Map(); m != nil {
		req.MapVersion = uint64(m.Version)
	}
	return c.call(ctx, func(ctx context.Context, stub rowraftv1.ClusterClient) error {
		reply, err := stub.Heartbeat(ctx, req)
		if err == nil {
			c.n.oldest.Store(reply.OldestServer)
		}
		return err
	})
}

// followMap keeps the map of this server up to date if it gets none from the Raft group of the scheduler: it runs no
// member of it, or its member has no seat, or it is a founder that lost its seat long ago.
func (c *control) followMap(ctx context.Context) {
	const poll = 10 * time.Second
	view := c.n.sched.View()
	wait := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
	out := 0 // seconds for which its own member was not seated
	var b route.Backoff
	for i := 0; ctx.Err() == nil; i++ {
		if c.n.seated() {
			out = 0
			wait(time.Second)
			continue
		}
		if out++; out < founderPatience && c.n.identity.Identity().Founder() {
			wait(time.Second)
			continue
		}
		addrs := c.schedulers()
		addr := addrs[i%len(addrs)]
		if addr == c.n.self.Addr && len(addrs) > 1 {
			continue
		}
		var known uint64
		if m := view.Map(); m != nil {
			known = uint64(m.Version)
		}
		err := func() error {
			conn, err := c.n.conns.Get(addr)
			if err != nil {
				return err
			}
			attempt, cancel := context.WithTimeout(ctx, poll+2*time.Second)
			defer cancel()
			reply, err := rowraftv1.NewClusterClient(conn).GetMap(attempt,
				&rowraftv1.GetMapRequest{KnownVersion: known, WaitNs: uint64(poll)})
			if err != nil || reply.Map == nil {
				return err
			}
			m, err := mapOf(c.cluster(), reply)
			if err != nil {
				return fmt.Errorf("cluster map from %s: %w", addr, err)
			}
			view.Set(m)
			return nil
		}()
		if err == nil {
			b = route.Backoff{}
			continue
		}
		if rowraft.CodeOf(err) == rowraft.CodeIdentity {
			c.n.log.Error("a server of another cluster runs under an address of this one", "err", err)
		}
		wait(b.Delay(0))
	}
}

// founderPatience is the number of seconds that a founder of the scheduler's group waits for that group before
// it asks other servers for the map. It may have lost its seat.
const founderPatience = 15

// seated reports whether this server gets the map from its own member of the scheduler.
func (n *Node) seated() bool {
	g := n.meta.Load()
	if g == nil {
		return false
	}
	leader, _, _ := g.Leader()
	now, err := g.Members()
	return leader != "" && err == nil && now.HasVoter(n.self.ID)
}

// mapOf returns the map of a reply, after a check that it belongs to the cluster.
func mapOf(cluster rowraft.ClusterID, reply *rowraftv1.GetMapReply) (*clustermap.Map, error) {
	m, err := rpc.MapFromProto(reply.Map)
	if err != nil {
		return nil, err
	}
	return m, identity.CheckCluster(cluster, m.Cluster)
}

// status describes the server and its replicas.
func (n *Node) status() *rowraftv1.NodeStatusReply {
	st := &rowraftv1.NodeStatusReply{
		ClusterId: string(n.identity.Identity().Cluster), NodeId: string(n.self.ID), NodeName: n.name(),
		Version: n.cfg.Version, UptimeNs: uint64(time.Since(n.started)), Replicas: n.host.Status(),
		Goroutines: uint32(runtime.NumGoroutine()),
		Disk:       n.disk(), CertificateEnds: n.certificateEnds(), Profile: n.profile(), Slowness: n.slowness(),
	}
	if m := n.host.Map(); m != nil {
		st.MapVersion = uint64(m.Version)
	}
	if l := n.cfg.OpsListener; l != nil {
		st.OpsAddr = l.Addr().String()
	}
	return st
}

// disk returns the space of the file system with the server's data; nil if it is unknown.
func (n *Node) disk() *rowraftv1.Disk {
	store := n.opened.Load()
	if store == nil {
		return nil
	}
	free, reserve, known := store.Disk()
	if !known {
		return nil
	}
	return &rowraftv1.Disk{FreeBytes: uint64(free), ReserveBytes: uint64(reserve)}
}

// slowness returns the server's measurements of its disk and its timers; nil if there are none.
func (n *Node) slowness() *rowraftv1.Slowness {
	store := n.opened.Load()
	if store == nil {
		return nil
	}
	s := store.Slowness()
	return &rowraftv1.Slowness{
		FsyncNs: uint64(s.Fsync), FsyncLimitNs: uint64(s.FsyncLimit),
		LatenessNs: uint64(s.Lateness), LatenessLimitNs: uint64(s.LatenessLimit), HeartbeatNs: uint64(s.Heartbeat),
	}
}

// certificateEnds returns the end of the certificate in Unix seconds; 0 without a certificate.
func (n *Node) certificateEnds() uint64 {
	if n.certs == nil {
		return 0
	}
	return uint64(max(n.certs.NotAfter().Unix(), 0))
}

// metaRolledBack returns why this server's member of the scheduler was found to be rolled back; "" if
// it was not. Such a member has no vote, and the scheduler gives its seat to a standby.
func (n *Node) metaRolledBack() string {
	if why := n.metaLost.Load(); why != nil {
		return (*why).Error()
	}
	return ""
}
