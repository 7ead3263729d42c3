package replica

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/node/hot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// heatOf returns the sketch of the accesses to a shard on this server.
func (h *Host) heatOf(shard rowraft.ShardID) *hot.Sketch {
	s, ok := h.heat.Load(shard)
	if !ok {
		s, _ = h.heat.LoadOrStore(shard, hot.NewSketch(h.shards))
	}
	return s.(*hot.Sketch)
}

// shards returns the number of shards in the cluster; 0: it is not known yet.
func (h *Host) shards() int {
	if m := h.cluster.Load(); m != nil {
		return len(m.Shards)
	}
	return 0
}

// countWrite adds the keys of a batch that will be logged.
func (r *replica) countWrite(p *wire.Part) {
	segments := p.Payload
	if p.Op == wire.OpClocked {
		_, segments, _ = wire.ParseClock(segments)
	}
	r.heat.Add(segments, true)
}

// maxHotKeys is the most keys of a shard in one reply: those of a sketch.
const maxHotKeys = 1024

// HotKeys returns the keys that are pulled and pushed most here.
func (s *replicaService) HotKeys(_ context.Context, req *rowraftv1.HotKeysRequest) (*rowraftv1.HotKeysReply, error) {
	reply := &rowraftv1.HotKeysReply{}
	s.h.heat.Range(func(id, sketch any) bool {
		shard := id.(rowraft.ShardID)
		v := sketch.(*hot.Sketch).View(rowraft.TableID(req.Table), int(min(req.Limit, maxHotKeys)))
		r := s.h.replica(shard)
		out := &rowraftv1.ShardHeat{Shard: uint32(shard), Leader: r != nil && r.leading.Load() != 0,
			OverNs: uint64(max(v.Over, time.Nanosecond)), Floor: v.Floor}
		for _, t := range v.Tables {
			samples := 0.0
			if t.Weights > 0 {
				samples = (t.Pulled + t.Pushed) * (t.Pulled + t.Pushed) / t.Weights
			}
			out.Tables = append(out.Tables, &rowraftv1.TableHeat{Table: uint64(t.Table), Pulled: t.Pulled, Pushed: t.Pushed,
				Samples: samples})
		}
		for _, k := range v.Keys {
			out.Keys = append(out.Keys, &rowraftv1.HotKey{Table: uint64(k.Table), Key: uint64(k.Key), Count: k.Count,
				Error: k.Error})
		}
		reply.Shards = append(reply.Shards, out)
		return true
	})
	slices.SortFunc(reply.Shards, func(a, b *rowraftv1.ShardHeat) int { return cmp.Compare(a.Shard, b.Shard) })
	return reply, nil
}
