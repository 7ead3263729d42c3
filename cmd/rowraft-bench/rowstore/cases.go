package rowstore

import (
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// schema has a table with Adagrad, as the targets name it.
func schema(kind rowraft.TableKind, dim int) rowraft.Schema {
	return rowraft.Schema{
		ID: 0x5EED5EED5EED, Name: "bench", Kind: kind, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 7, A: -0.1, B: 0.1},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.01, InitialAccumulator: 0.1, Epsilon: 1e-8},
	}
}

// floatBytes is v as it lies in a payload.
func floatBytes(v []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), 4*len(v))
}

// filled returns a table with rows 0 … n-1; see fill.
func filled(s rowraft.Schema, n, chunk int, around func(func() error) error) (*rowstore.Table, error) {
	t, err := rowstore.New(rowstore.Options{Schema: s})
	if err != nil {
		return nil, err
	}
	if err := fill(t, 0, n, chunk, around); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// fill pushes rows from … to-1 in chunks. around, unless nil, is called to push each
// of them, and may look at the clock.
func fill(t *rowstore.Table, from, to, chunk int, around func(push func() error) error) error {
	if around == nil {
		around = func(push func() error) error { return push() }
	}
	dim := t.Schema().Dim
	keys := make([]rowraft.Key, chunk)
	grads := floatBytes(someGradients(chunk * dim))
	var part []rowraft.Key
	push := func() error { return t.Update(part, grads[:len(part)*dim*4], rowraft.Float32, 0.01) }
	for k := from; k < to; k += chunk {
		part = keys[:min(chunk, to-k)]
		for i := range part {
			part[i] = rowraft.Key(k + i)
		}
		if err := around(push); err != nil {
			return err
		}
	}
	return nil
}

// contender is one thing that is measured in turns with others.
type contender struct {
	name string
	bar  float64 // 0: none
	do   func(batch int) error
	cpu  []time.Duration
}

// takeTurns runs each contender for batches calls a round, and reports rows per
// second of CPU time.
func takeTurns(rounds, batches int, cs []*contender, report func(figures.Figure)) error {
	for round := -1; round < rounds; round++ { // the first one warms up
		for _, c := range cs {
			begin := threadTime()
			for i := range batches {
				if err := c.do(i); err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
			}
			if round >= 0 {
				c.cpu = append(c.cpu, threadTime()-begin)
			}
		}
	}
	for _, c := range cs {
		slices.Sort(c.cpu)
		rate := float64(batches*batchKeys) / c.cpu[len(c.cpu)/2].Seconds() / 1e6
		if c.bar > 0 {
			report(figures.AtLeast(c.name, rate, "Mrows/s", c.bar))
		} else {
			report(figures.Free(c.name, rate, "Mrows/s"))
		}
	}
	return nil
}

const roundBatches = 48

// gather copies rows of dim 16 out of a table, and out of Go maps of the same
// keys.
func gather(c config, report func(figures.Figure)) error {
	t, err := filled(schema(rowraft.Sparse, 16), c.rows, 1024, nil)
	if err != nil {
		return err
	}
	defer t.Close()
	pointers := make(map[rowraft.Key]*[16]float32, c.rows)
	numbers := make([][16]float32, c.rows)
	for k := range c.rows {
		pointers[rowraft.Key(k)] = &numbers[k]
	}
	dst := make([]byte, batchKeys*16*4)
	out := unsafe.Slice((*[16]float32)(unsafe.Pointer(&dst[0])), batchKeys)
	var cs []*contender
	add := func(name string, bar float64, keys [][]rowraft.Key, do func(keys []rowraft.Key) error) {
		cs = append(cs, &contender{name: "gather/" + name, bar: bar, do: func(i int) error { return do(keys[i]) }})
	}
	table := func(dt rowraft.DType) func([]rowraft.Key) error {
		return func(keys []rowraft.Key) error { return pull(t, keys, dst, dt) }
	}
	for _, w := range []struct {
		name, dist string
		unique     bool
		bar        float64
	}{{"zipf", "zipf", false, 15}, {"zipf-unique", "zipf", true, 15}, {"uniform", "uniform", false, 6}} {
		keys := batches(w.dist, c.rows, roundBatches, w.unique)
		add("table/dim=16/"+w.name, w.bar, keys, table(rowraft.Float32))
		add("table/dim=16/"+w.name+"/bfloat16", 0, keys, table(rowraft.BFloat16))
		add("gomap-pointers/dim=16/"+w.name, 0, keys, func(keys []rowraft.Key) error {
			for j, k := range keys {
				out[j] = *pointers[k]
			}
			return nil
		})
	}
	if err := takeTurns(c.rounds, roundBatches, cs, report); err != nil {
		return err
	}
	clear(pointers)
	return gatherIndexed(c, numbers, out, report)
}

// gatherIndexed is gather from a Go map without pointers in it.
func gatherIndexed(c config, numbers [][16]float32, out [][16]float32, report func(figures.Figure)) error {
	places := make(map[rowraft.Key]uint32, c.rows)
	for k := range c.rows {
		places[rowraft.Key(k)] = uint32(k)
	}
	var cs []*contender
	for _, dist := range []string{"zipf", "uniform"} {
		keys := batches(dist, c.rows, roundBatches, false)
		cs = append(cs, &contender{name: "gather/gomap-places/dim=16/" + dist, do: func(i int) error {
			for j, k := range keys[i] {
				out[j] = numbers[places[k]]
			}
			return nil
		}})
	}
	return takeTurns(c.rounds, roundBatches, cs, report)
}

// pull is Table.Pull in the chunks of a shard.
func pull(t *rowstore.Table, keys []rowraft.Key, dst []byte, dt rowraft.DType) error {
	rowBytes := t.Schema().Dim * dt.Size()
	for from := 0; from < len(keys); from += 1024 {
		to := min(from+1024, len(keys))
		if err := t.Pull(keys[from:to], dst[from*rowBytes:to*rowBytes], dt, nil); err != nil {
			return err
		}
	}
	return nil
}

// apply runs Adagrad on rows that are there.
func apply(c config, report func(figures.Figure)) error {
	for _, w := range []struct {
		dim, rows int
		bar       float64
	}{{16, c.rows, 5}, {64, c.rows / 5, 2}} {
		t, err := filled(schema(rowraft.Sparse, w.dim), w.rows, 1024, nil)
		if err != nil {
			return err
		}
		grads := floatBytes(someGradients(1024 * w.dim))
		var cs []*contender
		for _, dist := range []string{"zipf", "uniform"} {
			keys := batches(dist, w.rows, roundBatches, true)
			cs = append(cs, &contender{
				name: fmt.Sprintf("apply/adagrad/dim=%d/%s", w.dim, dist), bar: w.bar,
				do: func(i int) error {
					for part := range slices.Chunk(keys[i], 1024) {
						if err := t.Update(part, grads, rowraft.Float32, 0.001); err != nil {
							return err
						}
					}
					return nil
				},
			})
		}
		if err := takeTurns(c.rounds, roundBatches, cs, report); err != nil {
			return err
		}
		if err := t.Close(); err != nil {
			return err
		}
	}
	return nil
}

// create pushes keys that have no row.
func create(c config, report func(figures.Figure)) error {
	n := c.rows / 10
	var cpu time.Duration
	t, err := filled(schema(rowraft.Sparse, 16), n, 1024, func(push func() error) error {
		begin := threadTime()
		err := push()
		cpu += threadTime() - begin
		return err
	})
	if err != nil {
		return err
	}
	report(figures.Free("create/adagrad/dim=16", float64(n)/cpu.Seconds()/1e6, "Mrows/s"))
	return t.Close()
}
