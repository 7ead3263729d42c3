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
	// Rows is the number of rows that the leaders of the shards last reported, about a second ago. A shard that has no
	// leader now counts as 0.
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
	rows := make(map[uint64]uint64)
	for _, l := range rpc.Leaders(reply) {
		for _, t := range l.Replica.GetTables() {
			rows[t.GetTable()] += t.GetRows()
		}
	}
	for _, t := range reply.GetMap().GetTables() {
		tables = append(tables, TableInfo{rpc.SchemaFromProto(t), rows[t.GetId()]})
	}
	return tables, nil
}
