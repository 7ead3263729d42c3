package trainer

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
	return r.in.Present(ctx, tables.Segment{Table: r.table, Dim: denseWidth, Keys: keys, Values: rows}, present)
}

func (r *initialRows) Assign(ctx context.Context, keys []rowraft.Key, rows []float32) error {
	return r.write.Assign(ctx, []tables.Segment{{Table: r.table, Dim: denseWidth, Keys: keys, Values: rows}})
}

func (r *initialRows) Push(context.Context, []rowraft.Key, []float32) error {
	return invalid("initial weights are assigned, not pushed")
}

// lookEvery is how often a trainer checks for initial weights that another one writes.
const lookEvery = 200 * time.Millisecond

// initializer writes the dense weights that a trainer initializes, or waits for them.
type initializer struct {
	layout   *denseLayout
	tables   tables.Tables
	job      string
	writes   bool // otherwise it waits for the trainer that does
	seed     uint64
	patience time.Duration
	note     func(format string, args ...any)
}

// run makes sure that the weights which a trainer initializes exist. Trainer 0 writes them unless every row exists, and
// so does a trainer that entered a job in which no other trained: trainer 0 may be gone. If only some exist, an earlier
// one died while it wrote, and no trainer has trained on them, because all wait for the last row. The claim fences that
// earlier one, so all rows come from one trainer and none is written late. A fenced one that lives waits for the other.
func (n *initializer) run(ctx context.Context) error {
	l := n.layout
	var wanted []int
	for i, conf := range l.configs {
		if conf.Init == InitWorker && conf.Placement == PlaceServers {
			wanted = append(wanted, i)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	in, ok := n.tables.(tables.Initializer)
	if !ok {
		return invalid("parameters: a trainer cannot write these tables: set init to %s or %s", InitSeed, InitServer)
	}
	look := &initialRows{in: in, table: l.tables[0].schema.ID}
	if n.writes {
		if err := n.fill(ctx, in, look, wanted); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
			return err
		}
	}
	return n.await(ctx, look, wanted)
}

// fill writes the weights, unless every row exists.
//
// Errors: CodeSessionExpired if another trainer writes them.
func (n *initializer) fill(ctx context.Context, in tables.Initializer, look *initialRows, wanted []int) error {
	l := n.layout
	if done, err := l.complete(ctx, look, wanted); err != nil || done {
		return err
	}
	write, err := in.Claim(ctx, n.job+tables.DenseSuffix)
	if err != nil {
		return fmt.Errorf("first weights: %w", err)
	}
	defer write.Close()
	// An earlier trainer may have written until the claim.
	if done, err := l.complete(ctx, look, wanted); err != nil || done {
		return err
	}
	values := make([]float32, len(l.initial))
	models.Initial(values, l.params, n.seed)
	to := &initialRows{in: in, write: write, table: look.table}
	for _, p := range wanted {
		mine := values[l.places[p]:][:l.sizes[p]]
		fill := func(from int64, dst []float32) { copy(dst, mine[from:]) }
		if err := l.tensors[p].Fill(ctx, to, fill); err != nil {
			return fmt.Errorf("first weights: %w", err)
		}
	}
	return nil
}

// complete reports whether every row of some parameters exists.
func (l *denseLayout) complete(ctx context.Context, r tensor.Rows, params []int) (bool, error) {
	for _, p := range params {
		if done, err := l.tensors[p].Complete(ctx, r); err != nil || !done {
			return false, err
		}
	}
	return true, nil
}

// await waits until another trainer has written all of them. Restarted after that one has died, this trainer writes
// them.
func (n *initializer) await(ctx context.Context, look tensor.Rows, wanted []int) error {
	ctx, cancel := context.WithTimeout(ctx, n.patience)
	defer cancel()
	for first := true; ; first = false {
		done, err := n.layout.complete(ctx, look, wanted)
		if err != nil || done {
			return err
		}
		if first {
			n.note("waiting for trainer 0, or the first that started, which initializes the dense weights")
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return rowraft.Errorf(rowraft.CodeDeadline, "trainer 0 has not initialized the dense weights within %v; if it "+
				"has ended, start this trainer again: %w", n.patience, ctx.Err())
		}
	}
}
