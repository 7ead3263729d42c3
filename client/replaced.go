package client

import (
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// A client belongs to the cluster that its endpoints belong to. After a lost majority the
// servers behind them form a new cluster, with a new id and the data of a checkpoint. When
// more than half of the endpoints are of one other cluster that has shards, the client
// leaves the old cluster for that one. Nothing of the old one is taken along: no session,
// no index that reads ask for, no leader, no table handle.
//
// Each call names its cluster in a header, and servers of another cluster refuse it: a
// part that was delayed in the network, or a pull with an old table id, never meets the
// rows of another cluster.

// endpoints is what the endpoints said last of the cluster that they belong to.
type endpoints struct {
	sync.RWMutex // also held, for reading, by those who change the state of one cluster
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

// heardOther records that addr belongs to another cluster, whose map is m, and leaves for
// that cluster if more than half of the endpoints belong to it. It reports whether it did.
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

// leaveLocked drops what the client has of its cluster. Parts under way end when they look
// for a server again; Flush still waits for them.
// REQUIRES: c.endpoints is held for writing.
func (c *Client) leaveLocked() {
	clear(c.endpoints.foreign)
	for i := range c.leaders {
		c.leaders[i].Store(nil)
		c.relays[i].Store(nil)
		c.acked[i].Store(0)
		if ss := c.session.shards[i].Swap(nil); ss != nil {
			c.session.left = append(c.session.left, ss)
		}
	}
	c.session.epoch.Store(0)
	c.tables.Lock()
	clear(c.tables.byID)
	c.tables.Unlock()
}

// inCluster runs f, which changes what the client has of a cluster, if that is still the
// client's.
func (c *Client) inCluster(id rowraft.ClusterID, f func()) bool {
	c.endpoints.RLock()
	defer c.endpoints.RUnlock()
	if m := c.cluster.Load(); m == nil || m.Cluster != id {
		return false
	}
	f()
	return true
}

// replaced is the error of a call that began in cluster id; nil while the client belongs to it.
func (c *Client) replaced(id rowraft.ClusterID) error {
	now := c.cluster.Load().Cluster
	if now == id {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeSessionExpired, "the servers form a new cluster %s now, and this began in cluster %s: what was not acknowledged there stays unknown; begin again, with table handles of Client.Table", now, id)
}

// ofCluster refuses segments whose tables are of another cluster than m.
func ofCluster(m *clustermap.Map, segs []Segment) error {
	for i := range segs {
		if t := segs[i].Table; t.cluster != m.Cluster {
			return rowraft.Errorf(rowraft.CodePrecondition, "table %s: the handle is of cluster %s, and the servers form a new cluster %s now: nothing was sent, get a new handle with Client.Table", t.schema.Name, t.cluster, m.Cluster)
		}
	}
	return nil
}
