package rowstore

import (
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// growthRounds is how many tables of each sort grow at most: 10 M rows take seconds.
const growthRounds = 3

// firstRows make the first pages of a table, above all those of the slots, and are
// counted by themselves.
const firstRows = rowraft.DefaultSlots

// growth creates rows in chunks of 64 and of 1024 (what one hold of a shard's
// lock changes) and reports the CPU time of a chunk: the rows of a sparse table, in
// all slots, and those of one dense tensor, all in one slot.
//
// Growth stops for the same rows in each round, the machine for others. So the time
// of a chunk is the median of its rounds, and the pause is the longest of these
// beyond the median chunk; but the first rows are told apart. Next to them are the figures of single rounds, of chunks
// and of as many stretches of arithmetic, as long as the median chunk, that are run
// in between: what the machine itself stops for.
func growth(c config, report func(figures.Figure)) error {
	if err := newMemory(report); err != nil {
		return err
	}
	for _, kind := range []rowraft.TableKind{rowraft.Sparse, rowraft.Dense} {
		for _, chunk := range []int{64, 1024} {
			var rounds []grown
			for range min(c.rounds, growthRounds) {
				g, err := grow(kind, c.rows, chunk)
				if err != nil {
					return err
				}
				rounds = append(rounds, g)
			}
			reportGrowth(fmt.Sprintf("growth/%s/chunk=%d/", kind, chunk), rounds, chunk, report)
		}
	}
	return nil
}

// grown is how long the chunks of one table took.
type grown struct {
	chunks times // that made rows
	again  times // that changed them
	noise  times // arithmetic
	waits  int64 // of the thread, for something else than a processor, while it made rows
}

// grow makes one table, a tenth of the rows at a time. After each it lets the
// arithmetic run.
func grow(kind rowraft.TableKind, rows, chunk int) (g grown, err error) {
	t, err := rowstore.New(rowstore.Options{Schema: schema(kind, 16)})
	if err != nil {
		return g, err
	}
	defer t.Close()
	n := rows/chunk + 1
	g = grown{chunks: make(times, 0, n), again: make(times, 0, n), noise: make(times, 0, n)}
	for done := 0; done < rows; {
		next := min(rows, done+(rows/10+chunk-1)/chunk*chunk)
		before, waits := len(g.chunks), threadWaits()
		if err := fill(t, done, next, chunk, g.chunks.add); err != nil {
			return g, err
		}
		g.waits += threadWaits() - waits
		g.noise.addArithmetic(len(g.chunks)-before, g.chunks[before:].median())
		done = next
	}
	err = fill(t, 0, rows/2, chunk, g.again.add)
	return g, err
}

func reportGrowth(name string, rounds []grown, chunk int, report func(figures.Figure)) {
	medianOf := func(of func(g *grown) time.Duration) time.Duration {
		v := make(times, len(rounds))
		for i := range rounds {
			v[i] = of(&rounds[i])
		}
		return v.median()
	}
	for _, f := range []struct {
		name string
		of   func(g *grown) time.Duration
	}{
		{"median", func(g *grown) time.Duration { return g.chunks.median() }},
		{"p99.9", func(g *grown) time.Duration { return g.chunks.quantile(0.999) }},
		{"p99.9-arithmetic", func(g *grown) time.Duration { return g.noise.quantile(0.999) }},
		{"p99.99", func(g *grown) time.Duration { return g.chunks.quantile(0.9999) }},
		{"p99.99-arithmetic", func(g *grown) time.Duration { return g.noise.quantile(0.9999) }},
		{"longest", func(g *grown) time.Duration { return g.chunks.quantile(1) }},
		{"longest-arithmetic", func(g *grown) time.Duration { return g.noise.quantile(1) }},
		{"longest-without-growth", func(g *grown) time.Duration { return g.again.quantile(1) }},
	} {
		report(figures.Free(name+f.name, float64(medianOf(f.of))/1e6, "ms"))
	}
	waits := medianOf(func(g *grown) time.Duration { return time.Duration(g.waits) })
	report(figures.Free(name+"waits", float64(waits), "times"))
	first, longest, at := pause(rounds, firstRows/chunk)
	report(figures.Free(name+"first-rows", float64(first)/1e6, "ms"))
	report(figures.Free(name+"pause-at-chunk", float64(at), ""))
	report(figures.AtMost(name+"pause", float64(longest)/1e6, "ms", 1))
}

// pause returns the longest time beyond the median of one of the first n chunks, and
// that of a later one, and which it was.
func pause(rounds []grown, n int) (first, longest time.Duration, at int) {
	chunks := make(times, len(rounds[0].chunks))
	round := make(times, len(rounds))
	for i := range chunks {
		for r := range rounds {
			round[r] = rounds[r].chunks[i]
		}
		chunks[i] = round.median()
	}
	first, longest = chunks[:n].quantile(1), chunks[n:].quantile(1)
	return first - chunks.median(), longest - chunks.median(), n + slices.Index(chunks[n:], longest)
}

// times are those of stretches of work.
type times []time.Duration

// add does work and notes the CPU time of it.
func (t *times) add(work func() error) error {
	begin := threadTime()
	err := work()
	*t = append(*t, threadTime()-begin)
	return err
}

// addArithmetic notes what n stretches of arithmetic took that should take d each.
func (t *times) addArithmetic(n int, d time.Duration) {
	const some = 1 << 12
	x := uint64(1)
	compute := func(n int) {
		for range n {
			x = x*6364136223846793005 + 1442695040888963407
		}
	}
	var one times
	for range 99 {
		_ = one.add(func() error { compute(some); return nil })
	}
	work := func() error { compute(int(some * d / one.median())); return nil }
	for range n {
		_ = t.add(work)
	}
	if x == 0 {
		panic("the compiler must not know that this never happens")
	}
}

// quantile returns the time that a share q of all do not exceed.
func (t times) quantile(q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(t))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func (t times) median() time.Duration { return t.quantile(0.5) }

// bytesPerRow looks for the worst ratio of memory to numbers over a doubling of
// the rows.
func bytesPerRow(c config, report func(figures.Figure)) error {
	for _, w := range []struct {
		dim, rows int
		bar       float64
	}{{16, c.rows, 1.4}, {64, c.rows / 5, 1.15}} {
		s := schema(rowraft.Sparse, w.dim)
		t, err := filled(s, w.rows/2, 1024, nil)
		if err != nil {
			return err
		}
		keys := make([]rowraft.Key, 1024)
		grads := floatBytes(someGradients(1024 * w.dim))
		ratio, worst := 0.0, 0.0
		for t.Rows() < w.rows {
			from := t.Rows()
			for i := range keys {
				keys[i] = rowraft.Key(from + i)
			}
			if err := t.Update(keys, grads, rowraft.Float32, 0.01); err != nil {
				return err
			}
			ratio = float64(t.Bytes()) / float64(t.Rows()) / float64(8*w.dim)
			worst = max(worst, ratio)
		}
		report(figures.AtMost(fmt.Sprintf("bytes/adagrad/dim=%d/worst", w.dim), worst, "× raw", w.bar))
		report(figures.Free(fmt.Sprintf("bytes/adagrad/dim=%d/rows=%d", w.dim, t.Rows()), ratio*float64(8*w.dim), "bytes"))
		if err := t.Close(); err != nil {
			return err
		}
	}
	return nil
}
