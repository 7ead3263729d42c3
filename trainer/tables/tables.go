package tables

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// Segment is the part of a call for one table.
type Segment struct {
	Table  rowraft.TableID
	Dim    int
	Keys   []rowraft.Key // strictly ascending
	Values []float32     // len(Keys) × Dim, row-major: weights or gradients
	LR     float32       // Push: learning rate, 0 for the table's own
	Reuse  client.Reuse  // Pull: copies of earlier pulls that are new enough, where there are any
}

// Suffixes of the names of a job's tables, which begin with the name of the job.
const (
	EmbeddingsSuffix = ".embeddings"
	DenseSuffix      = ".dense" // of a parameter with a table of its own: .dense.NAME
	AuditSuffix      = ".audit"
	ProgressSuffix   = ".progress" // the count of the job's pushes
)

// CountRows returns the number of rows in segs.
func CountRows(segs []Segment) (n int) {
	for i := range segs {
		n += len(segs[i].Keys)
	}
	return n
}

// Tables is the table service that training needs. Implementations are safe for concurrent use and keep none of the
// slices in their arguments.
type Tables interface {
	// EnsureTable returns the table of this name and shape with its ID, and creates it if it does not exist.
	// Errors: CodeTableExists if the name has another shape.
	EnsureTable(ctx context.Context, s rowraft.Schema) (rowraft.Schema, error)
	// Pull fills Values. A key that was never pushed reads as the table's initializer.
	Pull(ctx context.Context, segs []Segment) error
	// Push applies gradients exactly once and returns when they are durable.
	Push(ctx context.Context, segs []Segment) error
	// Copies counts the rows of Pull with Reuse.
	Copies() client.Copies
	// KeyPerShard returns, strictly ascending, one key of a sparse table for each shard: the audit rows.
	KeyPerShard(ctx context.Context, table rowraft.TableID) ([]rowraft.Key, error)
}

// Weights is the extension of Tables that has the dense weights of a model as they are, initial values included, in
// place of rows of dense tables.
type Weights interface {
	// Weights returns the weights of a parameter, row-major. The caller must not change them.
	// Errors: CodeNotFound if there is no parameter of this name; CodeInvalidArgument if it has another shape.
	Weights(name string, shape []int) ([]float32, error)
}

// Initializer is the extension of Tables that lets a trainer write initial weights.
type Initializer interface {
	// Present fills seg.Values and reports which of its keys have a row. It sees every push and assign that was
	// acknowledged before the call.
	Present(ctx context.Context, seg Segment, present []bool) error
	// Claim makes the caller the only one that assigns under name: an assign of an earlier claimer takes effect
	// before Claim returns, or never. Close the result.
	Claim(ctx context.Context, name string) (Assigner, error)
}

// Assigner sets weights.
type Assigner interface {
	// Assign sets weights exactly once and returns when they are durable.
	Assign(ctx context.Context, segs []Segment) error
	Close() error
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}
