package replica

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
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
func (h *Host) refuseWrite(ctx context.Context) (refused error) {
	for _, batch := range rpc.PartSizesOf(ctx) {
		if refused = h.refuseBatch(ctx, batch); refused == nil {
			return nil
		}
	}
	return refused
}

// refuseBatch returns the error with which admission would refuse a batch now; nil if it would not.
func (h *Host) refuseBatch(ctx context.Context, said rpc.PartSize) error {
	shard := rowraft.ShardID(said.Shard)
	if r := h.replica(shard); r == nil || r.leading.Load() == 0 {
		return nil // replica.push names the leader, which may have room
	}
	if !said.Delete {
		if err := h.opts.Admission.RoomForRows(); err != nil {
			return err
		}
	}
	return h.opts.Admission.Early(ctx, shard, wire.PartHeaderSize+said.Bytes)
}
