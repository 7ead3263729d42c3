package dense

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
	"github.com/rowraft/rowraft/trainer/tensor"
)

// initialRows is a dense table for package tensor, during initialization.
type initialRows struct {
	in    tables.Initializer
	write tables.Assigner // nil: read only
	table rowraft.TableID
}

func (r *initialRows) Pull(ctx context.Context, keys []rowraft.Key, rows []float32, present []bool) error {
	return r.in.Present(ctx, tables.Segment{Table: r.table, Dim: Width, Keys: keys, Values: rows}, present)
}

func (r *initialRows) Assign(ctx context.Context, keys []rowraft.Key, rows []float32) error {
	return r.write.Assign(ctx, []tables.Segment{{Table: r.table, Dim: Width, Keys: keys, Values: rows}})
}

func (r *initialRows) Push(context.Context, []rowraft.Key, []float32) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "initial weights are assigned, not pushed")
}

// lookEvery is how often a trainer checks for initial weights that another one writes.
const lookEvery = 200 * time.Millisecond

// Initializer writes the initial values of the Written parameters, or waits for them.
type Initializer struct {
	Layout   *Layout
	Tables   tables.Tables
	Table    string // name of the job's dense table
	Writes   bool   // otherwise it waits for the trainer that does
	Seed     uint64
	Patience time.Duration
	Note     func(format string, args ...any)
}

// Run makes sure that the weights which a trainer initializes exist. Trainer 0 writes them unless every row exists, and
// so does a trainer that entered a job in which no other trained: trainer 0 may be gone. If only some exist, an earlier
// one died while it wrote, and no trainer has trained on them, because all wait for the last row. The claim fences that
// earlier one, so all rows come from one trainer and none is written late. A fenced one that lives waits for the other.
func (n *Initializer) Run(ctx context.Context) error {
	l := n.Layout
	var wanted []int
	for i, place := range l.Places {
		if place == Written {
			wanted = append(wanted, i)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	in, ok := n.Tables.(tables.Initializer)
	if !ok {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "parameters: a trainer cannot write these tables: set init to "+
			"seed or server")
	}
	look := &initialRows{in: in, table: l.tables[0].schema.ID}
	if n.Writes {
		if err := n.fill(ctx, in, look, wanted); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
			return err
		}
	}
	return n.await(ctx, look, wanted)
}

// fill writes the weights, unless every row exists.
//
// Errors: CodeSessionExpired if another trainer writes them.
func (n *Initializer) fill(ctx context.Context, in tables.Initializer, look *initialRows, wanted []int) error {
	l := n.Layout
	if done, err := l.complete(ctx, look, wanted); err != nil || done {
		return err
	}
	write, err := in.Claim(ctx, n.Table)
	if err != nil {
		return fmt.Errorf("first weights: %w", err)
	}
	defer write.Close()
	// An earlier trainer may have written until the claim.
	if done, err := l.complete(ctx, look, wanted); err != nil || done {
		return err
	}
	values := make([]float32, len(l.Initial))
	models.Initial(values, l.Params, n.Seed)
	to := &initialRows{in: in, write: write, table: look.table}
	for _, p := range wanted {
		mine := values[l.Offsets[p]:][:l.Params[p].Size()]
		fill := func(from int64, dst []float32) { copy(dst, mine[from:]) }
		if err := l.tensors[p].Fill(ctx, to, fill); err != nil {
			return fmt.Errorf("first weights: %w", err)
		}
	}
	return nil
}

// complete reports whether every row of some parameters exists.
func (l *Layout) complete(ctx context.Context, r tensor.Rows, params []int) (bool, error) {
	for _, p := range params {
		if done, err := l.tensors[p].Complete(ctx, r); err != nil || !done {
			return false, err
		}
	}
	return true, nil
}

// await waits until another trainer has written all of them. Restarted after that one has died, this trainer writes
// them.
func (n *Initializer) await(ctx context.Context, look tensor.Rows, wanted []int) error {
	ctx, cancel := context.WithTimeout(ctx, n.Patience)
	defer cancel()
	for first := true; ; first = false {
		done, err := n.Layout.complete(ctx, look, wanted)
		if err != nil || done {
			return err
		}
		if first {
			n.Note("waiting for trainer 0, or the first that started, which initializes the dense weights")
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return rowraft.Errorf(rowraft.CodeDeadline, "trainer 0 has not initialized the dense weights within %v; if it "+
				"has ended, start this trainer again: %w", n.Patience, ctx.Err())
		}
	}
}
