package main

import (
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
)

// growth creates rows in chunks of 64 and of 1024 (what one hold of a shard's
// lock changes) and reports how long they took: the rows of a sparse table, in
// all slots, and those of one dense tensor, all in one slot.
func growth(c config, report func(figure)) error {
	for _, kind := range []rowraft.TableKind{rowraft.Sparse, rowraft.Dense} {
		for _, chunk := range []int{64, 1024} {
			var h, again histogram
			t, err := filled(schema(kind, 16), c.rows, chunk, h.add)
			if err != nil {
				return err
			}
			if err := fill(t, c.rows/2, chunk, again.add); err != nil {
				return err
			}
			if err := t.Close(); err != nil {
				return err
			}
			name := fmt.Sprintf("growth/%s/chunk=%d/", kind, chunk)
			for i, n := range h.counts {
				if n > 0 {
					report(free(fmt.Sprintf("%sunder-%v", name, h.bound(i)), float64(n), "chunks"))
				}
			}
			report(atMost(name+"longest", float64(h.longest)/1e6, "ms", 1))
			report(free(name+"longest-without-growth", float64(again.longest)/1e6, "ms"))
		}
	}
	return nil
}

// histogram counts times by powers of two of microseconds.
type histogram struct {
	counts  [24]int
	longest time.Duration
}

func (h *histogram) add(d time.Duration) {
	i := 0
	for i < len(h.counts)-1 && d >= h.bound(i) {
		i++
	}
	h.counts[i]++
	h.longest = max(h.longest, d)
}

func (h *histogram) bound(i int) time.Duration { return time.Microsecond << i }

// bytesPerRow looks for the worst ratio of memory to numbers over a doubling of
// the rows.
func bytesPerRow(c config, report func(figure)) error {
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
		report(atMost(fmt.Sprintf("bytes/adagrad/dim=%d/worst", w.dim), worst, "× raw", w.bar))
		report(free(fmt.Sprintf("bytes/adagrad/dim=%d/rows=%d", w.dim, t.Rows()), ratio*float64(8*w.dim), "bytes"))
		if err := t.Close(); err != nil {
			return err
		}
	}
	return nil
}
