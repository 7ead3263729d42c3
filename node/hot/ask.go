package hot

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// A server that answers bounded reads of a shard from copies asks the shard's leader for its hottest rows at intervals,
// before reads ask for them again. The leader chooses the rows, by its sketch. The server asks, and the leader does not
// send by itself, because the age of a copy counts from the question: a row that comes unasked has no proof of its age.

const (
	// wantFor is how long a server asks after the last bounded read.
	wantFor = 30 * time.Second
	// A server asks four times within the bound of the reads, so that hot rows never become too old.
	minAskPause = 20 * time.Millisecond
	maxAskPause = 2500 * time.Millisecond
)

// demand is what reads of a shard ask for.
type demand struct {
	maxAge  time.Duration // the shortest
	askedAt time.Time     // the last read with maxAge
}

// want records a read of a shard without a replica here, and starts to ask for hot rows of the shard.
func (c *Reader) want(id rowraft.ShardID, maxAge time.Duration) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	d, asking := c.wanted[id]
	if !asking || maxAge <= d.maxAge || now.Sub(d.askedAt) > wantFor {
		d = demand{maxAge, now}
	}
	if asking {
		c.wanted[id] = d
	} else if !c.closed {
		c.wanted[id] = d
		c.asking.Go(func() { c.follow(id) })
	}
}

// Close ends the goroutines of the reader.
func (c *Reader) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.asking.Wait()
}

// demandOf returns the demand for a shard; false, and forgets it, if the last read was long ago.
func (c *Reader) demandOf(id rowraft.ShardID) (demand, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.wanted[id]
	if c.ctx.Err() != nil || time.Since(d.askedAt) > wantFor || c.opts.Held(id) {
		delete(c.wanted, id)
		return d, false
	}
	return d, true
}

// follow asks for the hot rows of a shard while there are reads.
func (c *Reader) follow(id rowraft.ShardID) {
	leader := rowraft.NodeID("")
	for {
		d, on := c.demandOf(id)
		if !on {
			return
		}
		every := min(max(d.maxAge/4, minAskPause), maxAskPause)
		leader = c.askHot(id, leader, d.maxAge, every)
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-c.ctx.Done():
		}
		t.Stop()
	}
}

// askHot asks the leader of a shard once for its hot rows, and returns the leader; "" if it is not known. While there
// is none, reads get their rows from the other replicas.
func (c *Reader) askHot(id rowraft.ShardID, leader rowraft.NodeID, maxAge, every time.Duration) rowraft.NodeID {
	m := c.opts.Map()
	if m == nil || int(id) >= len(m.Shards) {
		return ""
	}
	nodes := c.sources(m, id)
	if leader != "" {
		nodes = slices.Insert(nodes, 0, leader)
	}
	for i := 0; i < len(nodes); i++ {
		err := c.hotFrom(nodes[i], id, maxAge, every)
		if err == nil {
			return nodes[i]
		}
		nl, elsewhere := errors.AsType[*rowraft.NotLeaderError](err)
		if elsewhere && nl.Leader != "" && !slices.Contains(nodes[:i+1], nl.Leader) {
			nodes = slices.Insert(nodes, i+1, nl.Leader)
		}
		if c.ctx.Err() != nil {
			break
		}
	}
	return ""
}

// hotFrom asks one server, and keeps copies of the rows of its answer.
func (c *Reader) hotFrom(node rowraft.NodeID, id rowraft.ShardID, maxAge, every time.Duration) error {
	conn, err := c.opts.Conn(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(rpc.WithCluster(c.ctx, c.opts.Cluster()), fetchTimeout)
	defer cancel()
	tables := c.rows.Rows().Tables()
	sent := c.rows.Now() // before the request, as in fetchFrom
	reply, err := rowraftv1.NewReplicasClient(conn).HotRows(ctx, &rowraftv1.HotRowsRequest{Shard: uint32(id),
		MaxAgeNs: uint64(maxAge), EveryNs: uint64(every), Tables: tables})
	if err != nil {
		return rpc.FromStatus(err)
	}
	defer rpc.Pool.Release(reply.Payload)
	epoch := rowraft.TableEpoch(reply.TableEpoch)
	c.rows.Saw(id, rowraft.Index(reply.AppliedIndex))
	c.rows.Begin(epoch)
	asOf := sent - min(reply.AgeNs, uint64(maxMaxAge))
	m := c.opts.Map()
	for rest := reply.Payload; len(rest) > 0; {
		seg, body, next, err := wire.ParseSegment(rest)
		if err != nil {
			return err
		}
		rest = next
		if tableOf(m, seg.Table) == nil || !slices.Contains(tables, uint64(seg.Table)) || seg.Flags != 0 {
			continue
		}
		rows := make([]float32, seg.N*seg.Dim)
		wire.GetFloats(rows, seg.DType, body.Values)
		c.rows.Put(seg.Table, seg.Dim, wire.Keys(make([]rowraft.Key, seg.N), body.Keys), asOf, rows, epoch)
		c.sent.Add(uint64(seg.N))
	}
	return nil
}
