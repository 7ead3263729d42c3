package client

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// A client belongs to the cluster that its endpoints belong to. After a lost majority, the servers behind
// the endpoints form a new cluster with a new id and the data of a checkpoint. The client moves to that
// cluster when more than half of the endpoints belong to it and it has shards. The client takes nothing
// with it: no session, no index that reads ask for, no leader hint, no table handle.
//
// Each call names its cluster in a header, and servers of another cluster refuse it. So a batch that the
// network delayed, or a pull with an old table id, never reaches the rows of another cluster.

// cluster is the cluster that the client belongs to, with its newest map.
type cluster struct {
	*lifetime
	log     *slog.Logger
	conns   *route.Pool
	given   []string      // the endpoints of Dial
	attempt time.Duration // Options.AttemptTimeout

	// The newest map; nil before the first one. Its Cluster changes only while mu is held for writing.
	// Within one cluster its Version only rises.
	atomic.Pointer[clustermap.Map]
	refresh chan struct{} // requests a new map from watch; capacity 1, so that requests merge

	learn func(rowraft.ShardID, rowraft.NodeID, rowraft.Term) // receives the leader hints of each reply
	// dropState drops the client's state of the cluster. Called with mu held for writing, so that no call within the old
	// cluster stores anything after it.
	dropState func()

	mu      sync.RWMutex                 // held for reading by within, for writing while the client changes its cluster
	foreign map[string]rowraft.ClusterID // endpoints that belong to another cluster, by their last answer
}

// first asks the endpoints in turn until one returns a map with shards.
func (c *cluster) first(ctx context.Context) error {
	w := route.Walk{Layer: route.Control, Places: func() []string { return c.given }, AddrOf: c.addrOf}
	for {
		err := c.fetch(ctx, w.Addr(), 0)
		if err == nil {
			if m := c.Load(); m != nil && len(m.Shards) > 0 {
				return nil
			}
			err = rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet: it waits for more servers")
		}
		if !w.Again(ctx, err) {
			return err
		}
	}
}

// fetch is ask without the leader hints.
func (c *cluster) fetch(ctx context.Context, addr string, wait time.Duration) error {
	_, err := c.ask(ctx, addr, wait)
	return err
}

// ask asks addr for a map newer than the client's, and lets the server wait for one up to wait. It
// stores the map and the leader hints of the reply, and returns the hints.
func (c *cluster) ask(ctx context.Context, addr string, wait time.Duration) ([]*rowraftv1.LeaderHint, error) {
	conn, err := c.conns.Get(addr)
	if err != nil {
		return nil, err
	}
	var known uint64
	var home rowraft.ClusterID
	if m := c.Load(); m != nil {
		known, home = uint64(m.Version), m.Cluster
	}
	ctx, cancel := context.WithTimeout(ctx, wait+c.attempt)
	defer cancel()
	reply, err := rowraftv1.NewClusterClient(conn).GetMap(ctx,
		&rowraftv1.GetMapRequest{KnownVersion: known, WaitNs: uint64(wait), ClusterId: string(home)})
	if err != nil {
		return nil, fmt.Errorf("cluster map from %s: %w", addr, err)
	}
	if reply.Map != nil {
		m, err := rpc.MapFromProto(reply.Map)
		if err != nil {
			return nil, err
		}
		if err := c.take(addr, m); err != nil {
			return nil, err
		}
		home = m.Cluster
	}
	c.within(home, func() {
		for _, l := range reply.Leaders {
			c.learn(rowraft.ShardID(l.Shard), rowraft.NodeID(l.Node), rowraft.Term(l.Term))
		}
	})
	c.heard(addr)
	return reply.Leaders, nil
}

// take makes m, from addr, the client's map if it is newer. A map of another cluster goes to heardOther
// instead, because versions of two clusters cannot be compared.
func (c *cluster) take(addr string, m *clustermap.Map) error {
	for {
		old := c.Load()
		switch {
		case old != nil && old.Cluster != m.Cluster:
			if c.heardOther(addr, m) {
				return nil
			}
			return rowraft.Errorf(rowraft.CodeIdentity, "server %s belongs to cluster %s, this client talks to %s", addr,
				m.Cluster, old.Cluster)
		case old != nil && old.Version >= m.Version:
			return nil
		case c.CompareAndSwap(old, m):
			return nil
		}
	}
}

// watch keeps the map fresh by long polls. A request in c.refresh ends the current poll.
func (c *cluster) watch() {
	const poll = 10 * time.Second
	var b route.Backoff
	for i := 0; c.ctx.Err() == nil; i++ {
		addrs := c.addrs()
		ctx, cancel := context.WithCancel(c.ctx)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			select {
			case <-c.refresh:
				cancel() // the next poll asks another server
			case <-ctx.Done():
			}
		}()
		err := c.fetch(ctx, addrs[i%len(addrs)], poll)
		cancel()
		<-asked
		if err != nil && c.ctx.Err() == nil {
			c.log.Debug("cluster map", "err", err)
			_ = c.pause(c.ctx, &b, 0)
			continue
		}
		b = route.Backoff{}
	}
}

// addrs lists the addresses to fetch the map from: the servers of the map, then the endpoints.
func (c *cluster) addrs() []string {
	var out []string
	if m := c.Load(); m != nil {
		for _, n := range m.Nodes {
			out = append(out, n.Addr)
		}
	}
	return append(out, c.given...)
}

// askForMap makes watch fetch a new map at once.
func (c *cluster) askForMap() {
	select {
	case c.refresh <- struct{}{}:
	default:
	}
}

// addrOf returns the address of a server; "" if the map does not have the server.
func (c *cluster) addrOf(id rowraft.NodeID) string {
	if m := c.Load(); m != nil {
		if n, ok := m.Node(id); ok {
			return n.Addr
		}
	}
	return ""
}

// heard records that addr belongs to the client's own cluster.
func (c *cluster) heard(addr string) {
	c.mu.RLock()
	_, was := c.foreign[addr]
	c.mu.RUnlock()
	if was {
		c.mu.Lock()
		delete(c.foreign, addr)
		c.mu.Unlock()
	}
}

// heardOther records that addr belongs to another cluster, whose map is m. If more than half of the
// endpoints belong to that cluster, the client moves to it. It returns whether the client moved.
func (c *cluster) heardOther(addr string, m *clustermap.Map) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.foreign == nil {
		c.foreign = make(map[string]rowraft.ClusterID)
	}
	given := slices.Clone(c.given)
	slices.Sort(given)
	given = slices.Compact(given)
	if !slices.Contains(given, addr) {
		return false
	}
	c.foreign[addr] = m.Cluster
	votes := 0
	for _, other := range c.foreign {
		if other == m.Cluster {
			votes++
		}
	}
	old := c.Load()
	if 2*votes <= len(given) || len(m.Shards) == 0 || old.Cluster == m.Cluster {
		return false
	}
	c.log.Warn("the endpoints belong to a new cluster: sessions, read positions and table handles of the old one end",
		"old", string(old.Cluster), "new", string(m.Cluster))
	clear(c.foreign)
	c.dropState()
	c.Store(m)
	return true
}

// within runs f, which changes state of cluster id, if the client still belongs to that cluster. It
// returns whether it ran f. The lock keeps the client in the cluster while f runs.
func (c *cluster) within(id rowraft.ClusterID, f func()) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if m := c.Load(); m == nil || m.Cluster != id {
		return false
	}
	f()
	return true
}

// replaced returns the error of a call that began in cluster id; nil while the client belongs to that
// cluster.
func (c *cluster) replaced(id rowraft.ClusterID) error {
	now := c.Load().Cluster
	if now == id {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeSessionExpired, "the servers form a new cluster %s now, and this began in cluster "+
		"%s: what was not acknowledged there stays unknown; begin again, with table handles of Client.Table", now, id)
}

// ofCluster refuses segments whose table handles belong to another cluster than m.
func ofCluster(m *clustermap.Map, segs []Segment) error {
	for i := range segs {
		if t := segs[i].Table; t.cluster != m.Cluster {
			return rowraft.Errorf(rowraft.CodePrecondition, "table %s: the handle is of cluster %s, and the servers form a "+
				"new cluster %s now: nothing was sent, get a new handle with Client.Table", t.schema.Name, t.cluster, m.Cluster)
		}
	}
	return nil
}

// retryUntilTableKnown replaces CodeTableNotFound by CodeStarting, so that the call is tried
// again, if the map has all tables of payload: the scheduler puts a table into the map first
// and into every shard afterwards.
func (c *cluster) retryUntilTableKnown(err error, payload []byte) error {
	if err == nil || rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		return err
	}
	for len(payload) > 0 {
		s, _, rest, perr := wire.ParseSegment(payload)
		if perr != nil || !c.named(s.Table) {
			return err
		}
		payload = rest
	}
	return rowraft.Errorf(rowraft.CodeStarting, "the shard does not have every table of the cluster map yet: %w", err)
}

// named reports whether the cluster map has the table.
func (c *cluster) named(id rowraft.TableID) bool {
	for _, s := range c.Load().Tables {
		if s.ID == id {
			return true
		}
	}
	return false
}
