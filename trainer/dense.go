package trainer

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/models"
)

// denseLayout maps the dense weights, one flat slice, to rows of the dense
// table: each tensor is cut into rows of denseWidth, the last one padded with
// zeros that no gradient ever touches. Immutable once the run has begun.
type denseLayout struct {
	params  []models.Param
	keys    []rowraft.Key // of all rows, strictly ascending
	initial []float32     // flat; Resume puts others in their place
	sizes   []int         // weights of each tensor
}

func newDenseLayout(params []models.Param, seed uint64) *denseLayout {
	l := &denseLayout{params: params, initial: make([]float32, models.TotalSize(params))}
	models.Initial(l.initial, params, seed)
	for t, p := range params {
		l.sizes = append(l.sizes, p.Size())
		for row := range (p.Size() + denseWidth - 1) / denseWidth {
			l.keys = append(l.keys, rowraft.DenseKey(uint32(t), uint64(row)))
		}
	}
	return l
}

// weights writes initial + delta to flat. rows is as pulled.
func (l *denseLayout) weights(flat, rows []float32) {
	at := 0
	for _, n := range l.sizes {
		for i := range n {
			flat[at+i] = l.initial[at+i] + rows[i]
		}
		at += n
		rows = rows[padded(n):]
	}
}

// gradients writes the gradients of the flat weights to rows.
func (l *denseLayout) gradients(rows, flat []float32) {
	for _, n := range l.sizes {
		copy(rows, flat[:n])
		clear(rows[n:padded(n)])
		flat, rows = flat[n:], rows[padded(n):]
	}
}

func padded(n int) int { return (n + denseWidth - 1) / denseWidth * denseWidth }
