package models

import "sync"

// Threads computes a batch on several goroutines: each has a model for a slice of the examples, and the gradients
// are summed in the order of the slices. They equal those of one model over the whole batch, but for rounding; the
// bits depend only on the number of threads.
type Threads struct {
	parts []threadPart
	size  int // examples of a slice
}

// threadPart is the state of one goroutine.
type threadPart struct {
	model  Model
	batch  Batch
	result Result
	err    error
}

// NewThreads returns the model that open makes for a whole batch if threads is 1, otherwise a model of this number
// of threads. Errors: CodeInvalidArgument unless threads divides batch; those of open.
func NewThreads(threads, batch int, open func(batch int) (Model, error)) (Model, error) {
	if threads < 1 || batch%threads != 0 {
		return nil, invalid("%d threads for batches of %d examples: want a number that divides the batch", threads, batch)
	}
	if threads == 1 {
		return open(batch)
	}
	m := &Threads{parts: make([]threadPart, threads), size: batch / threads}
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
func (m *Threads) Step(b *Batch, params []float32, out *Result) error {
	out.FieldGrads = grow(out.FieldGrads, len(b.Fields))
	used, err := m.each(b, func(p *threadPart) error { return p.model.Step(&p.batch, params, &p.result) })
	if err != nil {
		return err
	}
	m.scores(used, b.N, out)
	out.ParamGrads = grow(out.ParamGrads, len(params))
	clear(out.ParamGrads)
	at := 0
	for i := range used {
		p := &m.parts[i]
		share := float32(p.batch.N) / float32(b.N)
		for k, g := range p.result.ParamGrads {
			out.ParamGrads[k] += float32(share * g)
		}
		for _, g := range p.result.FieldGrads {
			out.FieldGrads[at] = share * g
			at++
		}
	}
	return nil
}

// Predict implements [Model].
func (m *Threads) Predict(b *Batch, params []float32, out *Result) error {
	used, err := m.each(b, func(p *threadPart) error { return p.model.Predict(&p.batch, params, &p.result) })
	if err == nil {
		m.scores(used, b.N, out)
	}
	return err
}

// each runs f concurrently for the slices that have examples, and returns their number.
func (m *Threads) each(b *Batch, f func(*threadPart) error) (used int, err error) {
	used = (b.N + m.size - 1) / m.size
	if used < 1 || used > len(m.parts) {
		return 0, invalid("%d examples: want 1 to %d", b.N, m.size*len(m.parts))
	}
	var all sync.WaitGroup
	for i := range used {
		p := &m.parts[i]
		slice := func(s []float32) []float32 { return s[i*len(s)/len(m.parts) : (i+1)*len(s)/len(m.parts)] }
		p.batch = Batch{N: min(m.size, b.N-i*m.size), Labels: slice(b.Labels), Dense: slice(b.Dense),
			Fields: slice(b.Fields)}
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
