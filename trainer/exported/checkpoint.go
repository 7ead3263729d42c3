package exported

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/tables"
	"github.com/rowraft/rowraft/wire"
)

// Checkpoint is the tables of a checkpoint, for [trainer.OpenModel] and an Export. Rows of dense tables are there after
// Scan. One goroutine uses it.
type Checkpoint struct {
	path  string
	dtype rowraft.DType
	chain checkpoint.Chain
	// dense has the rows of the dense tables that EnsureTable has opened.
	dense map[rowraft.TableID]map[rowraft.Key][]float32
}

var (
	_ tables.Tables      = (*Checkpoint)(nil)
	_ tables.Initializer = (*Checkpoint)(nil)
)

// OpenCheckpoint opens the checkpoint at path, DESTINATION/NAME. Dense weights are rounded to dtype, as a client with
// numbers of that type on the wire rounds them.
//
// Errors: CodeNotFound, CodeCorrupt; those of the destination.
func OpenCheckpoint(ctx context.Context, path string, dtype rowraft.DType) (*Checkpoint, error) {
	url, name, err := depot.Split(path)
	if err != nil {
		return nil, err
	}
	d, err := depot.Open(url)
	if err != nil {
		return nil, err
	}
	chain, err := depot.Chain(ctx, d, name)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return &Checkpoint{path: path, dtype: dtype, chain: chain,
		dense: make(map[rowraft.TableID]map[rowraft.Key][]float32)}, nil
}

// Export returns the export of a model of these tables. It reads the state of a trainer of the job, if there is one.
//
// Errors: CodeCorrupt; those of the destination.
func (c *Checkpoint) Export(ctx context.Context, m *trainer.Model) (*Export, error) {
	e := &Export{Model: m, Scan: c.scan,
		Source: Source{From: "checkpoint " + c.path, ID: c.chain.Manifest().ID, OneMoment: true}}
	saved, err := member.ReadSaved(ctx, c.path, m.Config().Job, 0)
	if err == nil {
		e.Saved = saved.State
	} else if rowraft.CodeOf(err) != rowraft.CodeNotFound {
		return nil, err
	}
	return e, nil
}

func (c *Checkpoint) scan(ctx context.Context, schemas []rowraft.Schema,
	rows func(table int, keys []rowraft.Key, weights []float32) error) error {
	number := make(map[rowraft.TableID]int)
	var all []rowraft.TableID
	for i, s := range schemas {
		number[s.ID] = i
		all = append(all, s.ID)
	}
	for id := range c.dense {
		all = append(all, id)
	}
	err := c.chain.Scan(ctx, all, func(t *checkpoint.TableSum, keys []rowraft.Key, weights []float32) error {
		into, dim := c.dense[t.Schema.ID], t.Schema.Dim
		if into == nil {
			return rows(number[t.Schema.ID], keys, weights)
		}
		for i, k := range keys {
			into[k] = append([]float32(nil), weights[i*dim:(i+1)*dim]...)
		}
		return ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.path, err)
	}
	return nil
}

// EnsureTable implements [tables.Tables]: it finds a table by its name.
//
// Errors: CodeTableNotFound; CodeTableExists if its rows have another width.
func (c *Checkpoint) EnsureTable(_ context.Context, s rowraft.Schema) (rowraft.Schema, error) {
	for i := range c.chain.Manifest().Tables {
		have := &c.chain.Manifest().Tables[i].Schema
		switch {
		case have.Name != s.Name:
		case have.Dim != s.Dim || have.Kind != s.Kind:
			return s, rowraft.Errorf(rowraft.CodeTableExists, "checkpoint %s: table %s is %s with rows of %d numbers: want %s "+
				"and %d", c.path, s.Name, have.Kind, have.Dim, s.Kind, s.Dim)
		default:
			if have.Kind == rowraft.Dense {
				c.dense[have.ID] = make(map[rowraft.Key][]float32)
			}
			return *have, nil
		}
	}
	return s, rowraft.Errorf(rowraft.CodeTableNotFound, "checkpoint %s has no table %s", c.path, s.Name)
}

// Pull implements [tables.Tables] for dense tables.
func (c *Checkpoint) Pull(_ context.Context, segs []tables.Segment) error {
	for i := range segs {
		s := &segs[i]
		var schema *rowraft.Schema
		for i := range c.chain.Manifest().Tables {
			if t := &c.chain.Manifest().Tables[i].Schema; t.ID == s.Table && c.dense[t.ID] != nil {
				schema = t
			}
		}
		if schema == nil {
			return rowraft.Errorf(rowraft.CodeTableNotFound, "checkpoint %s: table %d was not opened", c.path, s.Table)
		}
		for k, key := range s.Keys {
			dst := s.Values[k*s.Dim : (k+1)*s.Dim]
			if row, ok := c.dense[s.Table][key]; ok {
				copy(dst, row)
			} else {
				optim.Init(schema.Initializer, key, dst)
				wire.RoundTo(schema.StorageType(), dst)
			}
			wire.RoundTo(c.dtype, dst)
		}
	}
	return nil
}

// Present implements [tables.Initializer]. Before Scan it cannot know the rows: it reports all as there.
func (c *Checkpoint) Present(_ context.Context, _ tables.Segment, present []bool) error {
	for i := range present {
		present[i] = true
	}
	return nil
}

// Claim implements [tables.Initializer]: it returns CodePrecondition.
func (c *Checkpoint) Claim(context.Context, string) (tables.Assigner, error) { return nil, errReadOnly }

// Push implements [tables.Tables]: it returns CodePrecondition.
func (c *Checkpoint) Push(context.Context, []tables.Segment) error { return errReadOnly }

// Copies implements [tables.Tables]: there are none.
func (c *Checkpoint) Copies() client.Copies { return client.Copies{} }

// KeyPerShard implements [tables.Tables]: it returns CodePrecondition.
func (c *Checkpoint) KeyPerShard(context.Context, rowraft.TableID) ([]rowraft.Key, error) {
	return nil, errReadOnly
}
