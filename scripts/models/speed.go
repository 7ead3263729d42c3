package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rowraft/rowraft/scripts/internal/torch"
	"github.com/rowraft/rowraft/trainer/models"
)

// steps of one round and the examples of a step.
const (
	steps = 5
	batch = 512
)

// measured is a model whose step is measured.
type measured struct {
	Kind     string `json:"kind"`
	Dense    int    `json:"dense"`
	Features int    `json:"features"`
	network

	step        func() error
	ours, peers []time.Duration
}

// measure prints the CPU time of a step, forward and backward, of each model on one thread, the minimum of the rounds,
// in turn here and in PyTorch.
func measure(python string, rounds int, table, progress io.Writer) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all []*measured
	add := func(kind string, dense, features int, hidden ...int) {
		all = append(all, &measured{Kind: kind, Dense: dense, Features: features,
			network: network{Dim: 16, Hidden: hidden, Cross: cross}})
	}
	add("dlrm", 4, 8, 64, 32)
	for _, kind := range []string{"dlrm", "dcn", "deepfm", "wide-deep", "fm", "lr"} {
		add(kind, 13, 26, 64, 32)
	}
	for _, m := range all {
		if err := m.open(); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "rowraft-models-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	asks, answers, err := torch.Start(python, compare, dir, map[string]any{"speed": true, "batch": batch, "steps": steps,
		"models": all}, progress)
	if err != nil {
		return err
	}
	defer asks.Close()
	lines := bufio.NewScanner(answers)
	for range rounds {
		for i, m := range all {
			start := cpuTime()
			for range steps {
				if err := m.step(); err != nil {
					return err
				}
			}
			m.ours = append(m.ours, (cpuTime()-start)/steps)
			if _, err := fmt.Fprintln(asks, i); err != nil {
				return err
			}
			var seconds float64
			if !lines.Scan() {
				return fmt.Errorf("no answer of Python: %w", lines.Err())
			}
			if _, err := fmt.Sscan(lines.Text(), &seconds); err != nil {
				return err
			}
			m.peers = append(m.peers, time.Duration(seconds*float64(time.Second)))
		}
	}
	fmt.Fprintf(table, "batch %d, CPU time of a step on one thread, minimum and median of %d rounds of %d steps\n\n",
		batch, rounds, steps)
	fmt.Fprintln(table, "| model | dense, features | ms | ms in PyTorch | ratio of the minima |\n|---|---|---|---|---|")
	for _, m := range all {
		slices.Sort(m.ours)
		slices.Sort(m.peers)
		ms := func(d []time.Duration) string {
			return fmt.Sprintf("%.2f, %.2f", 1e3*d[0].Seconds(), 1e3*d[len(d)/2].Seconds())
		}
		fmt.Fprintf(table, "| `%s` | %d, %d | %s | %s | %.2f |\n", m.Kind, m.Dense, m.Features, ms(m.ours), ms(m.peers),
			m.ours[0].Seconds()/m.peers[0].Seconds())
	}
	return nil
}

// open builds the model with a batch of random numbers.
func (m *measured) open() error {
	kind, _ := models.Find(m.Kind)
	width := kind.RowWidth(m.Dim)
	model, err := kind.New(nil, &models.Config{Batch: batch, Dense: m.Dense, Dim: m.Dim,
		Widths: slices.Repeat([]int{width}, m.Features), Bottom: m.Hidden, Top: m.Hidden, Cross: m.Cross})
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		s := make([]float32, n)
		for i := range s {
			s[i] = float32(r.NormFloat64())
		}
		return s
	}
	b := &models.Batch{N: batch, Labels: make([]float32, batch), Dense: normal(batch * m.Dense),
		Fields: normal(batch * m.Features * width)}
	for i := range b.Labels {
		b.Labels[i] = float32(r.IntN(2))
	}
	params := make([]float32, models.TotalSize(model.Params()))
	models.Initial(params, model.Params(), 1)
	var out models.Result
	m.step = func() error { return model.Step(b, params, &out) }
	return m.step() // the first one allocates
}

// cpuTime returns the CPU time of this thread.
func cpuTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // impossible: the clock is a constant
	}
	return time.Duration(t.Nano())
}
