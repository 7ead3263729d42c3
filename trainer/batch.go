package trainer

import (
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/ondevice"
	"github.com/rowraft/rowraft/trainer/pool"
)

// work is one batch on its way through the loop. The loop reuses its buffers; the goroutine that took it from a
// channel owns it.
type work struct {
	mode.Batch
	after  position // position in the data behind this batch
	data   *data.Batch
	batch  models.Batch // shares data's labels and dense features
	pooled pool.Rows    // of embeddings
	delta  []float32    // rows of the dense table: the delta of each dense weight
	flat   []float32    // dense weights, initial values included

	onDevice ondevice.Batch // with copies of rows on the device

	result     models.Result
	denseGrads []float32  // rows of the dense table
	pushes     [1]float32 // count of the job's pushes when the rows were pulled
}

func (j *Job) newWork() *work {
	w := &work{
		data:       data.NewBatch(j.cfg.Batch, j.shape),
		delta:      make([]float32, j.layout.Rows*dense.Width),
		denseGrads: make([]float32, j.layout.Rows*dense.Width),
		flat:       make([]float32, len(j.layout.Initial)),
	}
	w.batch.Fields = make([]float32, j.cfg.Batch*j.fields.Width)
	return w
}

// prepare finds the unique keys of w.data.
func (w *work) prepare(f *pool.Fields) {
	w.batch.N, w.batch.Labels, w.batch.Dense = w.data.N, w.data.Labels, w.data.Dense
	w.pooled.Prepare(f, w.data)
}
