package node

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

// refusals returns functions that refuse calls of the table service before their bodies are read.
// Under overload a server refuses most calls, and reading a batch takes longer than refusing it.
func (n *Node) refusals() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{"Write": n.refuseWrite}
}

// refuseWrite refuses a write that announced its size if admission would refuse it now. A write that passes
// goes through admission again with its true size, after its body is read.
func (n *Node) refuseWrite(ctx context.Context) error {
	said, ok := rpc.PartSizeOf(ctx)
	if !ok {
		return nil
	}
	shard := rowraft.ShardID(said.Shard)
	if r := n.replica(shard); r == nil || r.leading.Load() == 0 {
		return nil // replica.push names the leader, which may have room
	}
	if !said.Delete {
		if err := n.admission.RoomForRows(); err != nil {
			return err
		}
	}
	return n.admission.Early(ctx, shard, wire.PartHeaderSize+said.Bytes)
}
