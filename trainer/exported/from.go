package exported

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/tables"
)

// FromCluster returns the export of a model whose tables are in the cluster of c. Training may continue: each row is
// whole, and different rows are of different moments. The export has all pushes that were acknowledged before it began.
func FromCluster(c *client.Client, m *trainer.Model) *Export {
	id := string(c.Map().Cluster)
	return &Export{Model: m, Source: Source{From: "cluster " + id, ID: id},
		Scan: func(ctx context.Context, schemas []rowraft.Schema,
			rows func(table int, keys []rowraft.Key, weights []float32) error) error {
			for i, s := range schemas {
				t, err := c.Table(ctx, s.Name)
				if err != nil {
					return err
				}
				err = t.Scan(ctx, func(keys []rowraft.Key, weights []float32) error { return rows(i, keys, weights) })
				if err != nil {
					return err
				}
			}
			return nil
		}}
}

// FromLocal returns the export of a model whose tables are in this process, and do not change.
func FromLocal(from *tables.Local, m *trainer.Model) *Export {
	return &Export{Model: m, Source: Source{From: "this process", OneMoment: true},
		Scan: func(_ context.Context, schemas []rowraft.Schema,
			rows func(table int, keys []rowraft.Key, weights []float32) error) error {
			for i, s := range schemas {
				err := from.Scan(s.ID, func(keys []rowraft.Key, weights []float32) error { return rows(i, keys, weights) })
				if err != nil {
					return fmt.Errorf("table %s: %w", s.Name, err)
				}
			}
			return nil
		}}
}
