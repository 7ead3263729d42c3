package client

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TableInfo is a table with its size.
type TableInfo struct {
	Schema rowraft.Schema
	// Rows is the number of rows that the servers last reported, about a second ago: of each shard the replica with
	// the most.
	Rows uint64
}

// Tables returns the tables of the cluster, the oldest first.
func (c *Client) Tables(ctx context.Context) (tables []TableInfo, err error) {
	var reply *rowraftv1.StatusReply
	err = c.control.callCluster(ctx, "list the tables",
		func(ctx context.Context, stub rowraftv1.ClusterClient) (err error) {
			reply, err = stub.Status(ctx, &rowraftv1.StatusRequest{})
			return err
		})
	if err != nil {
		return nil, err
	}
	type part struct {
		table uint64
		shard uint32
	}
	rows := make(map[part]uint64)
	for _, n := range reply.GetNodes() {
		for _, r := range n.GetReplicas() {
			for _, t := range r.GetTables() {
				p := part{t.GetTable(), r.GetShard()}
				rows[p] = max(rows[p], t.GetRows())
			}
		}
	}
	sums := make(map[uint64]uint64)
	for p, n := range rows {
		sums[p.table] += n
	}
	for _, t := range reply.GetMap().GetTables() {
		tables = append(tables, TableInfo{rpc.SchemaFromProto(t), sums[t.GetId()]})
	}
	return tables, nil
}
