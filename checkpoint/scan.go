package checkpoint

import (
	"context"
	"slices"

	"github.com/rowraft/rowraft"
)

// Scan calls rows with every row of some tables of the newest checkpoint, one shard file after the other, merged with
// what it stands on. It checks all files that contain these rows. The slices belong to Scan, which overwrites them
// after rows returns. Memory: as ReadShard, and one block of rows.
//
// Errors: CodeCorrupt, also if a table has another number of rows than the manifest names; those of ReadShard.
func (c Chain) Scan(ctx context.Context, tables []rowraft.TableID,
	rows func(t *TableSum, keys []rowraft.Key, weights []float32) error) error {
	m := c.Manifest()
	wanted := make(map[rowraft.TableID]*TableSum)
	for i := range m.Tables {
		if slices.Contains(tables, m.Tables[i].Schema.ID) {
			wanted[m.Tables[i].Schema.ID] = &m.Tables[i]
		}
	}
	var keys []rowraft.Key
	var weights []float32
	found := make(TableRows)
	for i := range m.Shards {
		_, err := c.ReadShard(ctx, i, nil, func(b *Block) error {
			t := wanted[b.Table]
			if t == nil || b.Rows == 0 {
				return nil
			}
			dim := t.Schema.Dim
			keys = keys[:0]
			weights = slices.Grow(weights[:0], b.Rows*dim)[:b.Rows*dim]
			for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
				keys = append(keys, Weights(&t.Schema, rec, weights[len(keys)*dim:]))
			}
			found[b.Table] += uint64(len(keys))
			return rows(t, keys, weights)
		})
		if err != nil {
			return err
		}
	}
	for _, t := range wanted {
		if found[t.Schema.ID] != t.Rows {
			return rowraft.Errorf(rowraft.CodeCorrupt, "its shard files hold %d rows of table %s, the manifest names %d",
				found[t.Schema.ID], t.Schema.Name, t.Rows)
		}
	}
	return nil
}
