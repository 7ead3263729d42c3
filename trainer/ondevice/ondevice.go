// Package ondevice keeps copies of embedding rows in the memory of the device that computes the model.
//
//	ToPull ── pull these rows ── Send ──► device: overwrite, gather, model, sum ──► Step: gradients of the batch's rows
//
// Package cache decides on the host which rows are where, and how old they are: no row of a batch is older than the
// bound that the caller gives. Only rows that are new to the device or too old are uploaded, and only one gradient for
// each row of a batch is downloaded. Send of a batch may run while Step computes the one before.
package ondevice

import (
	"math"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/internal/elapsed"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/pool"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Rows are the copies of a model's rows. Batches pass ToPull, Send and Step in one order. One goroutine calls ToPull
// and Send, and one Step.
type Rows struct {
	backend *accel.Backend
	c       models.DLRMGraphConfig
	bytes   int64

	// open sets these when the first batch comes.
	places *cache.Places
	model  *models.DLRMRows
	clock  *elapsed.Clock // measures the ages of copies

	copies atomic.Pointer[cache.Places] // places, for any goroutine
}

// Batch is the rows of one batch. Its memory is reused from batch to batch.
type Batch struct {
	keys    []rowraft.Key // to pull, ascending
	values  []float32     // the rows of keys, which the pull fills in
	missing []int32       // which of the batch's keys they are
	index   []int32       // [batch, features]: which of the batch's keys a value is
	asOf    uint64
	rows    models.RowBatch
	// notFinite: a pulled row is not. The batch is skipped.
	notFinite bool
}

// Job is what a job trains.
type Job struct {
	Kind    string // kind of the model
	Threads int
	Bytes   int64 // memory for the copies
	Shape   data.Shape
	Tables  int // number of tables of embeddings
	Model   models.DLRMGraphConfig
}

// New returns copies for a job. They take memory when the first batch comes: of the device, Bytes and a row for each
// value of a batch; of the host, 28 bytes for each row.
//
// Errors: CodeInvalidArgument if the job's model or data is not for copies on the device.
func New(backend *accel.Backend, j Job) (*Rows, error) {
	switch {
	case j.Kind != "dlrm" || j.Shape.Labels > 1 || j.Shape.Numbers:
		return nil, invalid("it is for models of kind dlrm with one label of 0 or 1")
	case j.Tables != 1 || j.Shape.Weighted:
		return nil, invalid("it is for features that share one table and have values without weights; the job has %d tables",
			j.Tables)
	case j.Threads > 1:
		return nil, invalid("the device computes a batch as a whole, and threads is %d: want 1", j.Threads)
	case j.Bytes/int64(4*j.Model.Dim) > math.MaxInt32/2:
		return nil, invalid("%d bytes have more than %d rows, the limit", j.Bytes, math.MaxInt32/2)
	}
	return &Rows{backend: backend, c: j.Model, bytes: j.Bytes}, nil
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "cache: on device: "+format, args...)
}

// open makes the copies, if there are none yet.
func (r *Rows) open() (err error) {
	if r.model != nil {
		return nil
	}
	r.clock = elapsed.NewClock(elapsed.BootTime)
	r.places = cache.NewPlaces(max(int(r.bytes/int64(4*r.c.Dim)), 1))
	r.copies.Store(r.places)
	r.model, err = models.NewDLRMRows(r.backend.Backend, r.c, r.places.Rows(r.c.Batch*r.c.Categorical))
	return err
}

// ToPull returns the segments of the rows of p to pull: those that the device lacks, or has older than reuse allows. A
// nil r returns all, and the copies of a client may answer them.
func (r *Rows) ToPull(b *Batch, p *pool.Rows, f *pool.Fields, reuse cache.Reuse) ([]tables.Segment, error) {
	if r == nil {
		segs := p.Segments(f, nil, p.Weights)
		for i := range segs {
			segs[i].Reuse = reuse
		}
		return segs, nil
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	if r.missing(b, p.Keys(), reuse); len(b.keys) == 0 {
		return nil, nil
	}
	t := &f.Tables[0]
	return []tables.Segment{{Table: t.ID, Dim: t.Dim, Keys: b.keys, Values: b.values}}, nil
}

// missing sets b.keys to those of keys whose rows the device lacks, or has older than reuse allows, and makes room in
// b.values. keys are ascending and different.
func (r *Rows) missing(b *Batch, keys []rowraft.Key, reuse cache.Reuse) {
	now, since := reuse.Limits(r.clock.Now)
	if now == 0 { // no copies
		now = r.clock.Now()
		since = now
	}
	b.asOf = now
	b.missing = r.places.Old(keys, now, since)
	b.keys = b.keys[:0]
	for _, i := range b.missing {
		b.keys = append(b.keys, keys[i])
	}
	b.values = pool.Grow(b.values, len(b.keys)*r.c.Dim)
}

// Send copies the rows of p, after the pull of those that ToPull returned, to the device. A nil r does nothing.
//
// Errors: CodeInvalidArgument if a feature has several values.
func (r *Rows) Send(b *Batch, p *pool.Rows, f *pool.Fields, d *data.Batch) error {
	if r == nil {
		return nil
	}
	b.index = pool.Grow(b.index, r.c.Batch*r.c.Categorical)
	if !p.Index(f, d, b.index) {
		return invalid("it is for features with one value, and one has several")
	}
	return r.send(b, p.Keys(), b.index)
}

// send is Send for keys. index has for each example and feature which of keys its value is; len(keys) if it has none.
func (r *Rows) send(b *Batch, keys []rowraft.Key, index []int32) error {
	rows := &b.rows
	rows.Places = pool.Grow(rows.Places, len(keys))
	r.places.Assign(keys, b.missing, b.asOf, rows.Places)
	rows.New, rows.Rows = rows.New[:0], append(rows.Rows[:0], b.values...)
	b.notFinite = false
	for i, k := range b.missing {
		rows.New = append(rows.New, rows.Places[k])
		if row := rows.Rows[i*r.c.Dim : (i+1)*r.c.Dim]; !finite(row) {
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

// Run computes a batch that was sent, and sets out and the gradients of the rows of p. A nil r computes it with m, and
// the rows on the host.
func (r *Rows) Run(m models.Model, b *Batch, p *pool.Rows, f *pool.Fields, d *data.Batch, batch *models.Batch,
	params []float32, out *models.Result) error {
	if r != nil {
		return r.Step(b, batch, params, out, p.GrowGrads())
	}
	p.Gather(f, d, batch.Fields)
	if err := m.Step(batch, params, out); err != nil {
		return err
	}
	p.Scatter(f, d, out.FieldGrads)
	return nil
}

// Copies counts the rows of all batches. Safe for concurrent use.
func (r *Rows) Copies() cache.Stats {
	if p := r.copies.Load(); p != nil {
		return p.Stats()
	}
	return cache.Stats{}
}

func finite(row []float32) bool {
	for _, v := range row {
		if v-v != 0 { // infinite or NaN
			return false
		}
	}
	return true
}
