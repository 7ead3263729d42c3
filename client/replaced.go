package client

import (
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// A client belongs to the cluster that its endpoints belong to. After a lost majority, the servers behind
// the endpoints form a new cluster with a new id and the data of a checkpoint. The client moves to that
// cluster when more than half of the endpoints belong to it and it has shards. The client takes nothing
// with it: no session, no index that reads ask for, no leader hint, no table handle.
//
// Each call names its cluster in a header, and servers of another cluster refuse it. So a batch that the
// network delayed, or a pull with an old table id, never reaches the rows of another cluster.

// endpoints records which endpoints belong to another cluster, by their last answer.
type endpoints struct {
	sync.RWMutex // held for reading by inCluster, for writing while the client changes its cluster
	foreign      map[string]rowraft.ClusterID
}

// heard records that addr belongs to the client's own cluster.
func (c *Client) heard(addr string) {
	c.endpoints.RLock()
	_, was := c.endpoints.foreign[addr]
	c.endpoints.RUnlock()
	if was {
		c.endpoints.Lock()
		delete(c.endpoints.foreign, addr)
		c.endpoints.Unlock()
	}
}

// heardOther records that addr belongs to another cluster, whose map is m. If more than half of the
// endpoints belong to that cluster, the client moves to it. It returns whether the client moved.
func (c *Client) heardOther(addr string, m *clustermap.Map) bool {
	c.endpoints.Lock()
	defer c.endpoints.Unlock()
	if c.endpoints.foreign == nil {
		c.endpoints.foreign = make(map[string]rowraft.ClusterID)
	}
	given := slices.Clone(c.opts.Endpoints)
	slices.Sort(given)
	given = slices.Compact(given)
	if !slices.Contains(given, addr) {
		return false
	}
	c.endpoints.foreign[addr] = m.Cluster
	votes := 0
	for _, other := range c.endpoints.foreign {
		if other == m.Cluster {
			votes++
		}
	}
	old := c.cluster.Load()
	if 2*votes <= len(given) || len(m.Shards) == 0 || old.Cluster == m.Cluster {
		return false
	}
	c.log.Warn("the endpoints belong to a new cluster: sessions, read positions and table handles of the old one end", "old", string(old.Cluster), "new", string(m.Cluster))
	c.leaveLocked()
	c.cluster.Store(m)
	return true
}

// leaveLocked drops the client's state of its cluster. Batches in progress end when they next look for a
// server; Flush still waits for them, so their sessions move to session.left. REQUIRES: c.endpoints is held
// for writing.
func (c *Client) leaveLocked() {
	clear(c.endpoints.foreign)
	for _, st := range c.shards.all() {
		st.leader.Store(nil)
		st.relay.Store(nil)
		st.acked.Store(0)
		if ss := st.session.Swap(nil); ss != nil {
			c.session.left = append(c.session.left, ss)
		}
	}
	c.session.epoch.Store(0)
	c.tables.Lock()
	clear(c.tables.byID)
	c.tables.Unlock()
}

// inCluster runs f, which changes state of cluster id, if the client still belongs to that cluster. It
// returns whether it ran f. The read lock keeps the client in the cluster while f runs.
func (c *Client) inCluster(id rowraft.ClusterID, f func()) bool {
	c.endpoints.RLock()
	defer c.endpoints.RUnlock()
	if m := c.cluster.Load(); m == nil || m.Cluster != id {
		return false
	}
	f()
	return true
}

// replaced returns the error of a call that began in cluster id; nil while the client belongs to that
// cluster.
func (c *Client) replaced(id rowraft.ClusterID) error {
	now := c.cluster.Load().Cluster
	if now == id {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeSessionExpired, "the servers form a new cluster %s now, and this began in cluster %s: what was not acknowledged there stays unknown; begin again, with table handles of Client.Table", now, id)
}

// ofCluster refuses segments whose table handles belong to another cluster than m.
func ofCluster(m *clustermap.Map, segs []Segment) error {
	for i := range segs {
		if t := segs[i].Table; t.cluster != m.Cluster {
			return rowraft.Errorf(rowraft.CodePrecondition, "table %s: the handle is of cluster %s, and the servers form a new cluster %s now: nothing was sent, get a new handle with Client.Table", t.schema.Name, t.cluster, m.Cluster)
		}
	}
	return nil
}
