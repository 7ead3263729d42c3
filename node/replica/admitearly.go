package replica

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/traffic"
	"github.com/rowraft/rowraft/wire"
)

// refusals returns functions that refuse calls of the table service before their bodies are read.
// Under overload a server refuses most calls, and reading a batch takes longer than refusing it.
func (h *Host) refusals() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{"Write": h.refuseWrite, "WriteMany": h.refuseWrite}
}

// refuseWrite refuses a call that announced the sizes of its batches if admission would refuse each of them
// now. The batches of a call that passes go through admission again with their true sizes, after the body is
// read.
func (h *Host) refuseWrite(ctx context.Context) error {
	err := h.wouldRefuse(ctx)
	if err != nil {
		call := h.traffic.BeginTable(traffic.Push, 0)
		call.End(err)
	}
	return err
}

func (h *Host) wouldRefuse(ctx context.Context) (refused error) {
	for _, batch := range rpc.BatchSizesOf(ctx) {
		shard := rowraft.ShardID(batch.Shard)
		if r := h.replica(shard); r == nil || r.leading.Load() == 0 {
			return nil // replica.write names the leader, which may have memory
		}
		refused = nil
		if !batch.Delete {
			refused = h.opts.Admission.CheckMemory()
		}
		if refused == nil {
			refused = h.opts.Admission.Early(ctx, shard, wire.PartHeaderSize+batch.Bytes)
		}
		if refused == nil {
			return nil
		}
	}
	return refused
}
