// Package ondevice keeps copies of embedding rows in the memory of the device that computes the model.
//
//	Missing ── pull these rows ── Send ──► device: overwrite, gather, model, sum ──► Step: gradients of the batch's rows
//
// Package cache decides on the host which rows are where, and how old they are: no row of a batch is older than the
// bound that the caller gives. Only rows that are new to the device or too old are uploaded, and only one gradient for
// each row of a batch is downloaded. Send of a batch may run while Step computes the one before.
package ondevice

import (
	"math"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/models"
)

// Rows are the copies of a model's rows. Batches pass Missing, Send and Step in one order. One goroutine calls Missing
// and Send, and one Step.
type Rows struct {
	places   *cache.Places
	model    *models.DLRMRows
	dim      int
	features int
	started  time.Time
}

// Batch is the rows of one batch. Its memory is reused from batch to batch.
type Batch struct {
	Keys   []rowraft.Key // to pull, ascending
	Values []float32     // of Keys, to fill in

	missing   []int32
	asOf      uint64
	rows      models.RowBatch
	notFinite bool // a pulled row is not
}

// New returns an empty cache of bytes, for a DLRM on backend. The memory of the device also has a row for each value of
// a batch.
//
// Errors: CodeInvalidArgument if c makes no model, or bytes no cache.
func New(backend *accel.Backend, c models.DLRMGraphConfig, bytes int64) (*Rows, error) {
	if err := cache.CheckBytes(bytes); err != nil {
		return nil, err
	}
	n := bytes / int64(4*c.Dim)
	if n > math.MaxInt32/2 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a cache of %d rows on the device: want at most %d", n,
			math.MaxInt32/2)
	}
	places := cache.NewPlaces(int(n))
	model, err := models.NewDLRMRows(backend.Backend, c, places.Rows(c.Batch*c.Categorical))
	if err != nil {
		return nil, err
	}
	return &Rows{places: places, model: model, dim: c.Dim, features: c.Categorical, started: time.Now()}, nil
}

// Missing sets b.Keys to those of keys whose rows the device lacks, or has older than reuse allows, and makes room in
// b.Values. keys are ascending and different.
func (r *Rows) Missing(b *Batch, keys []rowraft.Key, reuse cache.Reuse) {
	clock := func() uint64 { return uint64(time.Since(r.started)) + 1 }
	now, since := reuse.Limits(clock)
	if now == 0 { // no copies
		now = clock()
		since = now
	}
	b.asOf = now
	b.missing = r.places.Old(keys, now, since)
	b.Keys = b.Keys[:0]
	for _, i := range b.missing {
		b.Keys = append(b.Keys, keys[i])
	}
	b.Values = resize(b.Values, len(b.Keys)*r.dim)
}

// Send copies b, whose values are filled in, to the device. keys are those of Missing. index has for each example and
// feature which of keys its value is; len(keys) if it has none.
func (r *Rows) Send(b *Batch, keys []rowraft.Key, index []int32) error {
	rows := &b.rows
	rows.Places = resize(rows.Places, len(keys))
	r.places.Assign(keys, b.missing, b.asOf, rows.Places)
	rows.New, rows.Rows = rows.New[:0], append(rows.Rows[:0], b.Values...)
	b.notFinite = false
	for i, k := range b.missing {
		rows.New = append(rows.New, rows.Places[k])
		if row := rows.Rows[i*r.dim : (i+1)*r.dim]; !finite(row) {
			// The device adds and subtracts, so that it could never overwrite such a row. The batch is skipped.
			clear(row)
			r.places.Forget(keys[k])
			b.notFinite = true
		}
	}
	rows.Index = index
	return r.model.Send(rows)
}

// Step runs the model on a batch that was sent, and sets grads to the gradients of the rows of its keys. out.Loss is
// NaN if a row is not finite.
func (r *Rows) Step(b *Batch, batch *models.Batch, params []float32, out *models.Result, grads []float32) error {
	err := r.model.Step(batch, &b.rows, params, out, grads)
	if b.notFinite {
		out.Loss = math.NaN()
	}
	return err
}

// Copies counts the rows of all batches.
func (r *Rows) Copies() cache.Stats { return r.places.Stats() }

func finite(row []float32) bool {
	for _, v := range row {
		if v-v != 0 { // infinite or NaN
			return false
		}
	}
	return true
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
