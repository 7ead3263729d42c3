package trainer

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/models"
)

// work is one batch on its way through the loop. The loop reuses its buffers; the goroutine that took it from a
// channel owns it.
type work struct {
	mode.Batch
	after  position // position in the data behind this batch
	data   *data.Batch
	batch  models.Batch // shares data's labels and dense features
	tables []tableRows  // one for each table of embeddings
	rows   []float32    // weights of the keys of all tables
	delta  []float32    // rows of the dense table: the delta of each dense weight
	flat   []float32    // dense weights, initial values included

	result     models.Result
	rowGrads   []float32  // of rows
	denseGrads []float32  // rows of the dense table
	pushes     [1]float32 // count of the job's pushes when the rows were pulled

	dedup dedup
}

func (j *Job) newWork() *work {
	w := &work{
		data:       data.NewBatch(j.cfg.Batch, j.shape),
		delta:      make([]float32, j.layout.rows*denseWidth),
		denseGrads: make([]float32, j.layout.rows*denseWidth),
		flat:       make([]float32, len(j.layout.initial)),
	}
	w.batch.Fields = make([]float32, j.cfg.Batch*j.fields.width)
	return w
}

func growTo[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// dedup finds the unique keys of a list. The zero value is ready; its memory is
// reused from call to call.
type dedup struct {
	cells []int32 // open addressing: 1 + index into found; 0 is empty
	found []keyAt
	rank  []int32
	keys  []rowraft.Key
}

type keyAt struct {
	key rowraft.Key
	at  int32 // position in keys
}

// unique returns the distinct keys of keys, ascending, and sets index[i] to the position of keys[i] among them. The
// result is valid until the next call.
func (d *dedup) unique(keys []rowraft.Key, index []int32) []rowraft.Key {
	size := 64
	for size < 2*len(keys) {
		size *= 2
	}
	if len(d.cells) < size {
		d.cells = make([]int32, size)
	} else {
		clear(d.cells)
	}
	mask := uint64(len(d.cells) - 1)
	d.found = d.found[:0]
	for i, k := range keys {
		h := (uint64(k) * 0x9e3779b97f4a7c15) >> 20 & mask
		for {
			c := d.cells[h]
			if c == 0 {
				d.found = append(d.found, keyAt{k, int32(len(d.found))})
				d.cells[h] = int32(len(d.found))
				index[i] = int32(len(d.found)) - 1
				break
			}
			if d.found[c-1].key == k {
				index[i] = c - 1
				break
			}
			h = (h + 1) & mask
		}
	}
	slices.SortFunc(d.found, func(a, b keyAt) int {
		if a.key < b.key {
			return -1
		}
		return 1 // keys are distinct
	})
	d.keys = d.keys[:0]
	if cap(d.rank) < len(d.found) {
		d.rank = make([]int32, len(d.found), 2*len(d.found))
	}
	d.rank = d.rank[:len(d.found)]
	for place, f := range d.found {
		d.keys = append(d.keys, f.key)
		d.rank[f.at] = int32(place)
	}
	for i := range index {
		index[i] = d.rank[index[i]]
	}
	return d.keys
}
