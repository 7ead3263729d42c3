package serving

import (
	"context"
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/pool"
	"github.com/rowraft/rowraft/trainer/tables"
)

// worker computes one batch at a time. Its goroutine owns its memory, which is reused.
type worker struct {
	s      *Scorer
	model  models.Model
	data   *data.Batch
	pooled pool.Rows
	batch  models.Batch // shares the dense features of data
	result models.Result
	chunks []chunk
	segs   []tables.Segment
	rows   []float32 // the dense tables' rows, if each batch pulls them
	flat   []float32
}

func (s *Scorer) newWorker() (*worker, error) {
	m := &s.model
	model, err := m.New()
	if err != nil {
		return nil, err
	}
	w := &worker{s: s, model: model, data: data.NewBatch(m.Batch, m.Shape)}
	w.batch = models.Batch{Labels: w.data.Labels, Dense: w.data.Dense, Fields: make([]float32, m.Batch*m.Fields.Width)}
	if s.pulledEach() {
		w.rows, w.flat = make([]float32, m.Dense.Rows*dense.Width), make([]float32, len(m.Dense.Initial))
	}
	return w, nil
}

func (w *worker) run() {
	alone := func() bool { return w.s.away.Load() != nil }
	for {
		var ok bool
		if w.chunks, ok = w.s.queue.take(w.chunks[:0], w.s.model.Batch, alone); !ok {
			return
		}
		w.answer(w.chunks)
	}
}

// answer computes chunks and ends them. If rows do not come soon, it computes those that need only rows of which there
// are copies, which may be older than those that are used at other times: a request for a row that no server returns
// holds up no other. Then it waits for the rest.
func (w *worker) answer(chunks []chunk) {
	patience := w.patience(chunks)
	begun := time.Now()
	if w.s.away.Load() == nil {
		first := soon
		if len(w.s.late) > 0 { // some rows do not come
			first = awayPatience
		}
		err := w.score(chunks, w.s.opt.copyAge()/2, min(patience, first))
		if err == nil || !rowraft.CodeOf(err).Retryable() {
			finish(chunks, err)
			return
		}
		w.s.askToRenew()
	}
	var err error
	left, each := chunks[:0], awayPatience
	for i := range chunks {
		one := []chunk{chunks[i]}
		switch oneErr := w.score(one, w.s.opt.copyAge()-min(awayPatience, w.s.opt.copyAge()/8), min(patience, each)); {
		case oneErr == nil || !rowraft.CodeOf(oneErr).Retryable():
			finish(one, oneErr)
		default:
			left, err = append(left, chunks[i]), oneErr
			each = max(each/2, awayPatience/16) // all chunks wait 0.2 s and 6 ms each, at most
		}
	}
	patience -= time.Since(begun)
	if len(left) > 0 && patience > 0 && w.s.away.Load() == nil {
		select {
		case w.s.late <- struct{}{}:
			err = w.score(left, w.s.opt.copyAge()/2, patience)
			<-w.s.late
		default: // the other workers are for requests whose rows come
		}
	}
	finish(left, err)
}

// finish ends the chunks with a result that is in their calls, or with an error.
func finish(chunks []chunk, err error) {
	for i := range chunks {
		c := &chunks[i]
		c.call.finish(c.to-c.from, err)
	}
}

const (
	soon         = time.Second            // rows of a cluster that works come in a small part of it
	awayPatience = 100 * time.Millisecond // for rows that did not come soon
	// reserve is how long before its deadline a batch stops to wait for rows, so that it can report why.
	reserve = time.Second / 4
)

// patience returns how long a batch may wait for its rows.
func (w *worker) patience(chunks []chunk) (longest time.Duration) {
	for i := range chunks {
		deadline, _ := chunks[i].call.ctx.Deadline()
		longest = max(longest, time.Until(deadline))
	}
	return longest - min(reserve, longest/4)
}

// score writes the scores of chunks to their calls. Copies of rows may have copyAge.
func (w *worker) score(chunks []chunk, copyAge, patience time.Duration) error {
	m := &w.s.model
	done := Batch{Requests: len(chunks)}
	w.data.Reset()
	for i := range chunks {
		c := &chunks[i]
		for k := c.from; k < c.to; k++ {
			w.data.CopyFrom(c.call.batch, k, m.Shape)
		}
	}
	w.pooled.Prepare(m.Fields, w.data)
	begun := time.Now()
	flat, err := w.pull(copyAge, patience, &done)
	if err != nil {
		return err
	}
	done.Pull = time.Since(begun)

	w.s.compute <- struct{}{}
	defer func() { <-w.s.compute }()
	begun = time.Now()
	w.batch.N = w.data.N
	w.pooled.Gather(m.Fields, w.data, w.batch.Fields[:w.data.N*m.Fields.Width])
	if err := w.model.Predict(&w.batch, flat, &w.result); err != nil {
		return err
	}
	at := 0
	for i := range chunks {
		c := &chunks[i]
		n := (c.to - c.from) * w.s.tasks
		copy(c.call.scores[c.from*w.s.tasks:], w.result.Predictions[at:at+n])
		at += n
	}
	if w.s.opt.OnBatch != nil {
		done.Examples, done.Compute = w.data.N, time.Since(begun)
		w.s.opt.OnBatch(done)
	}
	return nil
}

// pull gets the rows of the batch and returns the dense weights.
func (w *worker) pull(copyAge, patience time.Duration, done *Batch) (flat []float32, err error) {
	m := &w.s.model
	w.segs = w.pooled.Segments(m.Fields, w.segs[:0], w.pooled.Weights)
	done.Rows = tables.CountRows(w.segs)
	each := w.s.pulledEach()
	if each {
		w.segs = m.Dense.Segments(w.segs, w.rows)
	} else {
		for i := range w.segs {
			w.segs[i].Reuse = client.Reuse{MaxAge: copyAge}
		}
		if !w.s.still { // what is there at the beginning ages during the wait for the rest
			patience = min(patience, w.s.opt.copyAge()-copyAge)
		}
	}
	if len(w.segs) > 0 {
		ctx, cancel := context.WithTimeout(w.s.ctx, patience)
		age, err := w.s.rows.PullAged(ctx, w.segs)
		cancel()
		if err != nil {
			return nil, pullError(err, done.Rows, patience, w.s.why())
		}
		done.Age = age
	}
	if each {
		m.Dense.Weights(w.flat, w.rows)
		return w.flat, nil
	}
	d, age, err := w.s.current() // after the wait for rows
	if err != nil {
		return nil, err
	}
	done.Age = age
	return d.flat, nil
}

// pullError describes a pull that failed. If rows did not come in a time in which they come, or no server answered
// before, the cluster is not there for them.
func pullError(err error, rows int, patience time.Duration, why string) error {
	switch code := rowraft.CodeOf(err); {
	case code == rowraft.CodeUnknown, code == rowraft.CodeDeadline && (patience >= soon || why != ""):
		return rowraft.Errorf(rowraft.CodeNoLeader, "the cluster does not answer: pull %d rows: %w", rows, err)
	}
	return fmt.Errorf("pull %d rows: %w", rows, err)
}
