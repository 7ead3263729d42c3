package models

import "sync"

// Threads computes a batch on several goroutines: each has a model for a slice of the examples, and the gradients
// are summed in the order of the slices. They equal those of one model over the whole batch, but for rounding; the
// bits depend only on the number of threads.
type Threads struct {
	parts []threadPart
	size  int // examples of a slice
	dim   int // of a row
}

// threadPart is the state of one goroutine.
type threadPart struct {
	model  Model
	batch  Batch
	result Result
	err    error

	// The slice's own list of rows, in the order of first appearance.
	rows   []float32
	global []int32 // which of the batch's rows each one is
	local  []int32 // by row of the batch: 1 + position in global, 0 if the slice lacks the row
	index  []int32
}

// NewThreads returns the model that open makes for a whole batch if threads is 1, otherwise a model of this number
// of threads; dim is that of its rows. Errors: CodeInvalidArgument unless threads divides batch; those of open.
func NewThreads(threads, batch, dim int, open func(batch int) (Model, error)) (Model, error) {
	if threads < 1 || dim < 1 || batch%threads != 0 {
		return nil, invalid("%d threads for batches of %d examples of rows of %d: want a number that divides the batch, "+
			"and rows", threads, batch, dim)
	}
	if threads == 1 {
		return open(batch)
	}
	m := &Threads{parts: make([]threadPart, threads), size: batch / threads, dim: dim}
	for i := range m.parts {
		var err error
		if m.parts[i].model, err = open(m.size); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Params returns the dense weights.
func (m *Threads) Params() []Param { return m.parts[0].model.Params() }

// Step implements [Model].
func (m *Threads) Step(b *Batch, rows, params []float32, out *Result) error {
	used, err := m.each(b, rows, func(p *threadPart) error {
		return p.model.Step(&p.batch, p.rows, params, &p.result)
	})
	if err != nil {
		return err
	}
	m.scores(used, b.N, out)
	out.RowGrads = grow(out.RowGrads, len(rows))
	out.ParamGrads = grow(out.ParamGrads, len(params))
	clear(out.RowGrads)
	clear(out.ParamGrads)
	for i := range used {
		p := &m.parts[i]
		share := float32(p.batch.N) / float32(b.N)
		for k, g := range p.result.ParamGrads {
			out.ParamGrads[k] += float32(share * g)
		}
		for k, row := range p.global {
			dst := out.RowGrads[int(row)*m.dim:][:m.dim]
			for d, g := range p.result.RowGrads[k*m.dim:][:m.dim] {
				dst[d] += float32(share * g)
			}
		}
	}
	return nil
}

// Predict implements [Model].
func (m *Threads) Predict(b *Batch, rows, params []float32, out *Result) error {
	used, err := m.each(b, rows, func(p *threadPart) error {
		return p.model.Predict(&p.batch, p.rows, params, &p.result)
	})
	if err == nil {
		m.scores(used, b.N, out)
	}
	return err
}

// each runs f concurrently for the slices that have examples, and returns their number.
func (m *Threads) each(b *Batch, rows []float32, f func(*threadPart) error) (used int, err error) {
	used = (b.N + m.size - 1) / m.size
	if used < 1 || used > len(m.parts) {
		return 0, invalid("%d examples: want 1 to %d", b.N, m.size*len(m.parts))
	}
	unique := int32(len(rows) / m.dim)
	for i, x := range b.Index {
		if x < 0 || x >= unique {
			return 0, invalid("index %d at position %d: there are %d rows", x, i, unique)
		}
	}
	var all sync.WaitGroup
	for i := range used {
		p := &m.parts[i]
		p.take(b, rows, i, m.size, m.dim)
		all.Go(func() { p.err = f(p) })
	}
	all.Wait()
	for i := range used {
		if m.parts[i].err != nil {
			return 0, m.parts[i].err
		}
	}
	return used, nil
}

// take copies the i-th slice of size examples from b, with the rows that it uses.
func (p *threadPart) take(b *Batch, rows []float32, i, size, dim int) {
	whole := len(b.Labels)
	slice := func(s []float32) []float32 { return s[i*size*len(s)/whole : (i+1)*size*len(s)/whole] }
	p.batch = Batch{N: min(size, b.N-i*size), Labels: slice(b.Labels), Dense: slice(b.Dense)}
	index := b.Index[i*size*len(b.Index)/whole : (i+1)*size*len(b.Index)/whole]
	p.index = growIndex(p.index, len(index))
	p.local = growIndex(p.local, len(rows)/dim)
	clear(p.local)
	p.global, p.rows = p.global[:0], p.rows[:0]
	for k, row := range index {
		if p.local[row] == 0 {
			p.global = append(p.global, row)
			p.rows = append(p.rows, rows[int(row)*dim:][:dim]...)
			p.local[row] = int32(len(p.global))
		}
		p.index[k] = p.local[row] - 1
	}
	p.batch.Index = p.index
}

func growIndex(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// scores joins the results of the slices.
func (m *Threads) scores(used, n int, out *Result) {
	out.Loss, out.Predictions, out.Classes = 0, grow(out.Predictions, n)[:0], out.Classes[:0]
	for i := range used {
		p := &m.parts[i]
		out.Loss += p.result.Loss * float64(p.batch.N) / float64(n)
		out.Predictions = append(out.Predictions, p.result.Predictions...)
		out.Classes = append(out.Classes, p.result.Classes...)
	}
}
