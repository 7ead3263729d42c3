package client

import (
	"cmp"
	"maps"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Read says which replicas may answer a pull, and how old the rows may be.
type Read struct {
	Mode ReadMode

	// MaxAge and MaxLag are for Bounded. The rows have every push that anybody had been
	// told of so long before the replica answered; and the replica may lack so many log
	// entries of those that it knows of (0: any number).
	MaxAge time.Duration
	MaxLag uint64

	// AtLeast is what the rows must have in any case, in all modes. The zero Position is
	// nothing.
	AtLeast Position
}

// ReadMode is one of the modes of Read.
type ReadMode int

const (
	// Leader reads are answered by the shard's leader, and never older than this client's
	// own acknowledged pushes.
	Leader ReadMode = iota
	// Linearizable reads see every push that anybody had been told of before the call:
	// the leader proves that it leads, at the price of a round to a majority.
	Linearizable
	// Bounded reads are answered by any replica that proves that it is new enough. They go on
	// while a shard has no leader, until the bound cannot be met any more.
	Bounded
)

func (m ReadMode) proto() rowraftv1.ReadMode {
	switch m {
	case Linearizable:
		return rowraftv1.ReadMode_READ_MODE_LINEARIZABLE
	case Bounded:
		return rowraftv1.ReadMode_READ_MODE_BOUNDED
	}
	return rowraftv1.ReadMode_READ_MODE_LEADER
}

func (r *Read) check() error {
	switch {
	case r.Mode < Leader || r.Mode > Bounded:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "read mode %d: want Leader, Linearizable or Bounded", r.Mode)
	case r.Mode == Bounded && r.MaxAge <= 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a bounded read with a maximum age of %v: want more than 0", r.MaxAge)
	case r.Mode != Bounded && (r.MaxAge != 0 || r.MaxLag != 0):
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a maximum age or lag is for bounded reads: leader and linearizable reads have none")
	}
	return nil
}

// Position is a place in the logs of shards: what a reader must see, told by whoever
// pushed, perhaps in another process. A restore makes older positions useless: reads at
// them end with CodeSessionExpired. So does a new cluster, restored from a checkpoint.
type Position struct {
	Cluster rowraft.ClusterID                 `json:"cluster,omitempty"`
	Epoch   rowraft.TableEpoch                `json:"epoch"`
	Shards  map[rowraft.ShardID]rowraft.Index `json:"shards"`
}

// current reports that p is of before a restore, for a client whose session is of later
// tables: indices go on, so its shards would be found to be there.
func (c *Client) current(p *Position) error {
	if p.Cluster != "" && len(p.Shards) > 0 {
		if err := c.replaced(p.Cluster); err != nil {
			return err
		}
	}
	now := rowraft.TableEpoch(c.session.epoch.Load())
	for shard := range p.Shards {
		if p.Epoch != 0 && p.Epoch < now {
			return &rowraft.RestoredError{Shard: shard, Have: p.Epoch, Want: now}
		}
	}
	return nil
}

// Position returns where this client's acknowledged pushes are: a read with AtLeast set
// to it sees them all.
func (c *Client) Position() Position {
	c.endpoints.RLock()
	defer c.endpoints.RUnlock()
	p := Position{Cluster: c.cluster.Load().Cluster, Epoch: rowraft.TableEpoch(c.session.epoch.Load()), Shards: make(map[rowraft.ShardID]rowraft.Index)}
	for s := range c.acked {
		if i := c.acked[s].Load(); i > 0 {
			p.Shards[rowraft.ShardID(s)] = rowraft.Index(i)
		}
	}
	return p
}

// Join returns what a reader must see to see both p and q. Of two epochs the later counts, of
// two clusters that of q.
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

// Freshness is what a bounded read met: the largest over its shards. In the other modes it
// is zero.
type Freshness struct {
	Age time.Duration // of the rows, when their replica answered
	Lag uint64        // log entries that the replica knew of and lacked
}

func (f *Freshness) join(g Freshness) {
	f.Age, f.Lag = max(f.Age, g.Age), max(f.Lag, g.Lag)
}

// askFor fills in what req asks for beside the rows.
func (c *Client) askFor(req *rowraftv1.PullRequest, how *Read, shard rowraft.ShardID) {
	req.Mode = how.Mode.proto()
	req.TableEpoch = max(c.session.epoch.Load(), uint64(how.AtLeast.Epoch)) // that the index is of
	req.MinIndex = uint64(how.AtLeast.Shards[shard])
	if how.Mode == Bounded {
		req.MaxAgeNs, req.MaxLag = uint64(how.MaxAge), how.MaxLag
		return
	}
	req.MinIndex = max(req.MinIndex, c.acked[shard].Load())
}
