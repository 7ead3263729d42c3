package client

import (
	"cmp"
	"maps"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Read selects which replicas may answer a pull, and how old the rows may be.
type Read struct {
	Mode ReadMode

	// MaxAge and MaxLag apply to Bounded. MaxAge: the rows include every push that was acknowledged at
	// least MaxAge before the replica answered. MaxLag: the replica may lack at most this many of the log
	// entries that it knows of (0: any number).
	MaxAge time.Duration
	MaxLag uint64

	// AtLeast is the position that the rows must include, in all modes. The zero Position asks for nothing.
	AtLeast Position

	turn route.Turn // of a bounded pull: the servers that it asks, the same for all shards
}

// ReadMode is a mode of Read.
type ReadMode int

const (
	// Leader reads go to the shard's leader. They are never older than this client's own acknowledged
	// pushes.
	Leader ReadMode = iota
	// Linearizable reads see every push that was acknowledged, to any client, before the call. The leader
	// proves that it leads, which costs one round to a majority.
	Linearizable
	// Bounded reads go to any replica that proves that it is new enough. They continue to work while a
	// shard has no leader, until no replica can meet the bound.
	Bounded
)

func (r *Read) check() error {
	switch {
	case r.Mode < Leader || r.Mode > Bounded:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "read mode %d: want Leader, Linearizable or Bounded", r.Mode)
	case r.Mode == Bounded && r.MaxAge <= 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a bounded read with a maximum age of %v: want more than 0",
			r.MaxAge)
	case r.Mode != Bounded && (r.MaxAge != 0 || r.MaxLag != 0):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"a maximum age or lag is for bounded reads: leader and linearizable reads have none")
	}
	return nil
}

// Position is a place in the logs of shards: what a reader must see. The client that pushed provides it;
// the reader may be another process. A restore invalidates older positions: reads at them end with
// CodeSessionExpired. A new cluster, restored from a checkpoint, invalidates them too.
type Position struct {
	Cluster rowraft.ClusterID                 `json:"cluster,omitempty"`
	Epoch   rowraft.TableEpoch                `json:"epoch"`
	Shards  map[rowraft.ShardID]rowraft.Index `json:"shards"`
}

// current returns an error if p is older than a restore that this client's session knows of. The client
// checks this itself because log indices continue after a restore: a shard would find that it has the index
// of p.
func (c *Client) current(p *Position) error {
	if p.Cluster != "" && len(p.Shards) > 0 {
		if err := c.cluster.replaced(p.Cluster); err != nil {
			return err
		}
	}
	now := rowraft.TableEpoch(c.sessions.epoch.Load())
	for shard := range p.Shards {
		if p.Epoch != 0 && p.Epoch < now {
			return &rowraft.RestoredError{Shard: shard, Have: p.Epoch, Want: now}
		}
	}
	return nil
}

// Position returns the position of this client's acknowledged pushes. A read with AtLeast set to it sees
// them all.
func (c *Client) Position() Position {
	c.cluster.mu.RLock() // the client stays in its cluster meanwhile
	defer c.cluster.mu.RUnlock()
	p := Position{Cluster: c.cluster.Load().Cluster, Epoch: rowraft.TableEpoch(c.sessions.epoch.Load()),
		Shards: make(map[rowraft.ShardID]rowraft.Index)}
	for shard, index := range c.acked.all() {
		if i := index.Load(); i > 0 {
			p.Shards[shard] = rowraft.Index(i)
		}
	}
	return p
}

// Join returns the position that includes both p and q. If their epochs differ, the later epoch wins; if
// their clusters differ, q wins.
func (p Position) Join(q Position) Position {
	if p.Cluster != "" && q.Cluster != "" && p.Cluster != q.Cluster {
		return Position{Cluster: q.Cluster, Epoch: q.Epoch, Shards: maps.Clone(q.Shards)}
	}
	if p.Epoch < q.Epoch {
		p, q = q, p
	}
	out := Position{Cluster: cmp.Or(p.Cluster, q.Cluster), Epoch: p.Epoch, Shards: maps.Clone(p.Shards)}
	if p.Epoch != q.Epoch {
		return out
	}
	if out.Shards == nil {
		out.Shards = make(map[rowraft.ShardID]rowraft.Index)
	}
	for s, i := range q.Shards {
		out.Shards[s] = max(out.Shards[s], i)
	}
	return out
}

// Freshness is the largest age and lag of a bounded read over its shards. It is zero in the other modes.
type Freshness struct {
	Age time.Duration // age of the rows when their replica answered
	Lag uint64        // log entries that the replica knew of and had not applied
}

// askFor sets the fields of req that state which rows are new enough.
func (c *Client) askFor(req *rowraftv1.PullRequest, how *Read, shard rowraft.ShardID) {
	req.Mode = rowraftv1.ReadMode_READ_MODE_LEADER + rowraftv1.ReadMode(how.Mode) // both lists have one order
	req.TableEpoch = max(c.sessions.epoch.Load(), uint64(how.AtLeast.Epoch))      // epoch of the indices below
	req.MinIndex = uint64(how.AtLeast.Shards[shard])
	if how.Mode == Bounded {
		req.MaxAgeNs, req.MaxLag = uint64(how.MaxAge), how.MaxLag
		return
	}
	req.MinIndex = max(req.MinIndex, c.acked.at(shard).Load())
}
