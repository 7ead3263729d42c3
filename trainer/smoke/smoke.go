// Package smoke compares what a device computes with the CPU, and measures how long a training step takes on it.
package smoke

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/models"
)

// MaxDifference is the largest difference of a loss, and of a gradient relative to the largest of its kind, that Run
// accepts. Products in TF32 differ by 1e-3.
const MaxDifference = 1e-4

// Report is what Run found.
type Report struct {
	Parity []Parity `json:"parity"`
	Steps  []Step   `json:"steps"`
}

// OK reports whether all models computed the same as on the CPU.
func (r *Report) OK() bool {
	return !slices.ContainsFunc(r.Parity, func(p Parity) bool { return !p.OK })
}

// Parity compares one step of a model with the same step on the CPU.
type Parity struct {
	Model   string `json:"model"`
	Against string `json:"against"` // what computes it on the CPU
	// Loss and CPULoss are the losses of the step, Gradients the largest difference of a gradient, relative to the largest
	// gradient of its kind: of the fields, and of the dense weights.
	Loss      float64 `json:"loss"`
	CPULoss   float64 `json:"cpu_loss"`
	Gradients float64 `json:"gradients"`
	OK        bool    `json:"ok"`
}

// Step is the time of a training step of a DLRM.
type Step struct {
	Batch  int     `json:"batch"`
	Rows   string  `json:"rows"`         // where the embeddings are: host, or device: uploaded before, in ondevice.Rows
	Millis float64 `json:"milliseconds"` // median
	Rounds int     `json:"rounds"`
	// FirstMillis is the time of the first step, in which the graph is compiled.
	FirstMillis float64 `json:"first_milliseconds"`
}

// ExamplesPerSecond is that of the median step.
func (s *Step) ExamplesPerSecond() float64 { return float64(s.Batch) / s.Millis * 1000 }

// Sizes of the DLRM: 13 dense numbers and 26 embeddings of 16, as Criteo's logs have them.
const (
	dense    = 13
	features = 26
	dim      = 16
)

var (
	bottom = []int{512, 256}
	top    = []int{512, 256}
)

func dlrm(batch int) models.DLRMGraphConfig {
	return models.DLRMGraphConfig{Batch: batch, Dense: dense, Categorical: features, Dim: dim, Bottom: bottom, Top: top}
}

// Run compares the models that have a graph on b with the CPU, and times batches of these sizes for at least the given
// time each.
func Run(b *accel.Backend, batches []int, atLeast time.Duration) (*Report, error) {
	r := new(Report)
	p, err := dlrmParity(b, 256)
	if err != nil {
		return nil, err
	}
	r.Parity = append(r.Parity, p)
	if p, err = rowsParity(b, 256); err != nil {
		return nil, err
	}
	r.Parity = append(r.Parity, p)
	if b.Device != accel.CPU { // there it is the same graph
		if p, err = lenetParity(b, 64); err != nil {
			return nil, err
		}
		r.Parity = append(r.Parity, p)
	}
	for _, batch := range batches {
		s, err := timeHost(b, batch, atLeast)
		if err != nil {
			return nil, err
		}
		r.Steps = append(r.Steps, s)
		if s, err = timeDevice(b, batch, atLeast); err != nil {
			return nil, err
		}
		r.Steps = append(r.Steps, s)
	}
	return r, nil
}

// example is a random batch with the rows that it uses, and dense weights.
type example struct {
	batch  models.Batch
	params []float32
	rows   []float32 // [unique, dim]
	index  []int32   // [batch, features]: which of rows
}

func newExample(m models.Model, batch int) *example {
	r := rand.New(rand.NewPCG(1, uint64(batch)))
	normal := func(n int, scale float64) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(r.NormFloat64() * scale)
		}
		return s
	}
	e := &example{params: make([]float32, models.TotalSize(m.Params())), index: make([]int32, batch*features)}
	models.Initial(e.params, m.Params(), 1)
	e.rows = normal(batch*features/4*dim, 0.1)
	e.batch = models.Batch{N: batch, Labels: make([]float32, batch), Dense: normal(batch*dense, 1),
		Fields: make([]float32, batch*features*dim)}
	for i := range e.batch.Labels {
		e.batch.Labels[i] = float32(r.IntN(2))
	}
	for i := range e.index {
		row := r.IntN(len(e.rows) / dim)
		e.index[i] = int32(row)
		copy(e.batch.Fields[i*dim:], e.rows[row*dim:(row+1)*dim])
	}
	return e
}

// rowGrads sums the gradients of the fields for each row.
func (e *example) rowGrads(fields []float32) []float32 {
	grads := make([]float32, len(e.rows))
	for i, row := range e.index {
		for k := range dim {
			grads[int(row)*dim+k] += fields[i*dim+k]
		}
	}
	return grads
}

// onKernels is a DLRM of the trainer's own layers on the CPU.
func onKernels(batch int) (models.Model, error) {
	kind, _ := models.Find("dlrm")
	return kind.New(nil, &models.Config{Batch: batch, Dense: dense, Widths: slices.Repeat([]int{dim}, features), Dim: dim,
		Bottom: bottom, Top: top})
}

func compare(model, against string, got, want *models.Result, gotRows, wantRows []float32) Parity {
	p := Parity{Model: model, Against: against, Loss: got.Loss, CPULoss: want.Loss}
	p.Gradients = max(difference(got.ParamGrads, want.ParamGrads), difference(gotRows, wantRows))
	p.OK = math.Abs(got.Loss-want.Loss) <= MaxDifference && p.Gradients <= MaxDifference
	return p
}

// difference returns the largest difference relative to the largest number of want; NaN if there is one.
func difference(got, want []float32) float64 {
	most, size := 0.0, 0.0
	for i, w := range want {
		most = max(most, math.Abs(float64(got[i]-w)))
		size = max(size, math.Abs(float64(w)))
	}
	if size == 0 {
		return most
	}
	return most / size
}

func dlrmParity(b *accel.Backend, batch int) (p Parity, err error) {
	g, err := models.NewDLRMGraph(b, dlrm(batch))
	if err != nil {
		return p, err
	}
	k, err := onKernels(batch)
	if err != nil {
		return p, err
	}
	e := newExample(k, batch)
	var got, want models.Result
	if err := g.Step(&e.batch, e.params, &got); err != nil {
		return p, err
	}
	if err := k.Step(&e.batch, e.params, &want); err != nil {
		return p, err
	}
	return compare("dlrm", "own kernels", &got, &want, got.FieldGrads, want.FieldGrads), nil
}

func rowsParity(b *accel.Backend, batch int) (p Parity, err error) {
	k, err := onKernels(batch)
	if err != nil {
		return p, err
	}
	e := newExample(k, batch)
	d, rows, err := onDevice(b, e)
	if err != nil {
		return p, err
	}
	var got, want models.Result
	grads := make([]float32, len(e.rows))
	for range 2 { // the second on rows that were overwritten
		if err := d.Send(rows); err != nil {
			return p, err
		}
		if err := d.Step(&e.batch, rows, e.params, &got, grads); err != nil {
			return p, err
		}
	}
	if err := k.Step(&e.batch, e.params, &want); err != nil {
		return p, err
	}
	return compare("dlrm, rows on the device", "own kernels", &got, &want, grads, e.rowGrads(want.FieldGrads)), nil
}

// onDevice returns a model with memory for the rows of e, and a batch that overwrites them.
func onDevice(b *accel.Backend, e *example) (*models.DLRMRows, *models.RowBatch, error) {
	n := len(e.rows) / dim
	d, err := models.NewDLRMRows(b.Backend, dlrm(e.batch.N), 1+2*n)
	if err != nil {
		return nil, nil, err
	}
	rows := &models.RowBatch{Index: e.index, Rows: slices.Clone(e.rows)}
	for i := range n {
		rows.Places = append(rows.Places, int32(2*n-2*i)) // none is at its index
	}
	rows.New = slices.Clone(rows.Places)
	return d, rows, nil
}

func lenetParity(b *accel.Backend, batch int) (p Parity, err error) {
	cpu, _, err := accel.Open(accel.CPU)
	if err != nil {
		return p, err
	}
	c := models.LeNetConfig{Batch: batch, Height: 28, Width: 28, Classes: 10}
	m, err := models.NewLeNet(b, c)
	if err != nil {
		return p, err
	}
	on, err := models.NewLeNet(cpu, c)
	if err != nil {
		return p, err
	}
	r := rand.New(rand.NewPCG(2, 2))
	params := make([]float32, models.TotalSize(m.Params()))
	models.Initial(params, m.Params(), 1)
	x := models.Batch{N: batch, Labels: make([]float32, batch), Dense: make([]float32, batch*c.Height*c.Width)}
	for i := range x.Dense {
		x.Dense[i] = r.Float32()
	}
	for i := range x.Labels {
		x.Labels[i] = float32(r.IntN(c.Classes))
	}
	var got, want models.Result
	if err := m.Step(&x, params, &got); err != nil {
		return p, err
	}
	if err := on.Step(&x, params, &want); err != nil {
		return p, err
	}
	return compare("lenet", "the library's CPU backend", &got, &want, nil, nil), nil
}

// timeSteps calls step until it has taken atLeast in all, at least 3 times after the first.
func timeSteps(batch int, rows string, atLeast time.Duration, step func() error) (Step, error) {
	s := Step{Batch: batch, Rows: rows}
	var all []float64
	for began := time.Now(); len(all) < 4 || time.Since(began) < atLeast; {
		start := time.Now()
		if err := step(); err != nil {
			return s, err
		}
		all = append(all, time.Since(start).Seconds()*1000)
	}
	s.FirstMillis, all = all[0], all[1:]
	slices.Sort(all)
	s.Millis, s.Rounds = all[len(all)/2], len(all)
	return s, nil
}

func timeHost(b *accel.Backend, batch int, atLeast time.Duration) (Step, error) {
	g, err := models.NewDLRMGraph(b, dlrm(batch))
	if err != nil {
		return Step{}, err
	}
	e := newExample(g, batch)
	var out models.Result
	return timeSteps(batch, "host", atLeast, func() error { return g.Step(&e.batch, e.params, &out) })
}

// timeDevice times steps whose rows are on the device, with a tenth of them uploaded.
func timeDevice(b *accel.Backend, batch int, atLeast time.Duration) (Step, error) {
	g, err := models.NewDLRMGraph(b, dlrm(batch)) // for its params
	if err != nil {
		return Step{}, err
	}
	e := newExample(g, batch)
	d, rows, err := onDevice(b, e)
	if err != nil {
		return Step{}, err
	}
	var out models.Result
	grads := make([]float32, len(e.rows))
	all, places := len(rows.New), slices.Clone(rows.Places)
	return timeSteps(batch, "device", atLeast, func() error {
		rows.Places = append(rows.Places[:0], places...)
		rows.New, rows.Rows = append(rows.New[:0], places[:all/10]...), append(rows.Rows[:0], e.rows[:all/10*dim]...)
		if err := d.Send(rows); err != nil {
			return err
		}
		return d.Step(&e.batch, rows, e.params, &out, grads)
	})
}
