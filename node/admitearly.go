package node

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/wire"
)

// refusals refuse calls of the table service before their bodies are read: under overload
// most of what a server does is to refuse, and a part takes longer to read than to refuse.
func (n *Node) refusals() map[string]func(context.Context) error {
	rows := func(ctx context.Context) error { return n.refusePart(ctx, true) }
	return map[string]func(context.Context) error{
		"Push": rows, "Assign": rows,
		"Delete": func(ctx context.Context) error { return n.refusePart(ctx, false) },
	}
}

// refusePart refuses a part of which the caller has said how large it is, if admission would
// refuse it now. What passes is put to admission when it is there, by its true size.
func (n *Node) refusePart(ctx context.Context, makesRows bool) error {
	said, ok := rpc.PartSizeOf(ctx)
	if !ok {
		return nil
	}
	shard := rowraft.ShardID(said.Shard)
	if r := n.replica(shard); r == nil || r.leading.Load() == 0 {
		return nil // who leads may have room: the caller must hear who that is
	}
	if makesRows {
		if err := n.admission.roomForRows(); err != nil {
			return err
		}
	}
	return n.admission.early(ctx, shard, wire.PartHeaderSize+said.Bytes)
}
