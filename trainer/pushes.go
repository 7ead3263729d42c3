package trainer

import (
	"context"

	"github.com/rowraft/rowraft/trainer/tables"
)

// push hands the gradients of w to the job's mode.
func (j *Job) push(ctx context.Context, w *work) error {
	defer j.report.batchEnded()
	if w.Empty {
		w.Segs = w.Segs[:0]
		return j.mode.Push(ctx, &w.Batch)
	}
	w.Segs = j.layout.segments(j.rowSegments(w, w.result.RowGrads), w.denseGrads)
	if j.cfg.Audit {
		w.Segs = append(w.Segs, tables.Segment{Table: j.audit.ID, Dim: j.audit.Dim, Keys: j.auditKeys,
			Values: j.auditGrads})
	}
	j.setRates(w.Segs, w.Step)
	return j.mode.Push(ctx, &w.Batch)
}
