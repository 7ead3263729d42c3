package trainer

import (
	"context"

	"github.com/rowraft/rowraft"
)

// Segment is the part of a call for one table.
type Segment struct {
	Table  rowraft.TableID
	Dim    int
	Keys   []rowraft.Key // strictly ascending
	Values []float32     // len(Keys) × Dim, row-major: weights or gradients
	LR     float32       // Push: learning rate, 0 for the table's own
}

// Tables is the table service that the loop needs. Implementations are safe for concurrent use and keep none of the
// slices in their arguments.
type Tables interface {
	// EnsureTable returns the table of this name and shape with its ID, and creates it if it does not exist.
	// Errors: CodeTableExists if the name has another shape.
	EnsureTable(ctx context.Context, s rowraft.Schema) (rowraft.Schema, error)
	// Pull fills Values. A key that was never pushed reads as the table's initializer.
	Pull(ctx context.Context, segs []Segment) error
	// Push applies gradients exactly once and returns when they are durable.
	Push(ctx context.Context, segs []Segment) error
	// KeyPerShard returns, strictly ascending, one key of a sparse table for each shard: the audit rows.
	KeyPerShard(ctx context.Context, table rowraft.TableID) ([]rowraft.Key, error)
}
