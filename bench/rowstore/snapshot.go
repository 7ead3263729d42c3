package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// Bars of issue 4.
const (
	beginBar  = 50.0 // µs
	pushesBar = 0.85 // of those without a snapshot
	imagesBar = 0.15 // of the state
)

// snapshot measures what a shard's snapshot costs those who push: the time in
// which nothing is applied at its begin, how much less is applied while it is
// written to a file and synced, and the memory that the old images of rows take.
func snapshot(c config, report func(figure)) error {
	for _, b := range []struct {
		name                   string
		rows, tables, sessions int
	}{
		{"1-table", machineRows, 1, 1}, {"8-tables", machineRows, 8, 1}, {"1000-sessions", machineRows, 1, 1000}, {"1-table/all-rows", c.rows, 1, 1},
	} {
		us, err := beginTime(b.rows, b.tables, b.sessions)
		if err != nil {
			return err
		}
		report(atMost(fmt.Sprintf("snapshot/begin/%s/rows=%d", b.name, b.rows), us, "µs", beginBar))
	}
	m, err := newBenchMachine(64, machineRows, 1)
	if err != nil {
		return err
	}
	defer m.Close()
	f, err := os.CreateTemp("", "rowraft-bench-")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		os.Remove(f.Name())
	}()
	for _, to := range []struct {
		name string
		w    io.Writer
	}{{"memory", io.Discard}, {"disk", f}} {
		var ratios, images, seconds []float64
		for range c.rounds {
			r, i, s, err := m.beside(to.w)
			if err != nil {
				return err
			}
			ratios, images, seconds = append(ratios, r), append(images, i), append(seconds, s)
		}
		report(atLeast("snapshot/pushes/dim=64/uniform/to-"+to.name, median(ratios), "×", pushesBar))
		report(atMost("snapshot/images/dim=64/uniform/to-"+to.name, median(images), "×", imagesBar))
		report(free("snapshot/write/dim=64/to-"+to.name, median(seconds), "s"))
	}
	return nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

// beginTime is the median of many begins, each after some rows and sessions changed.
func beginTime(rows, tables, sessions int) (us float64, err error) {
	m, err := newBenchMachine(16, rows, tables)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	h := wire.EntryHeader{Version: 1, LogTime: 1, Epoch: 1}
	for i := range sessions - 1 {
		if err := m.apply(wire.OpenSessionEntry(h, rowraft.ClientID{2, byte(i), byte(i >> 8)}, 1)); err != nil {
			return 0, err
		}
	}
	var times []float64
	for i := range 101 {
		if err := m.push(m.entries[i%len(m.entries)]); err != nil {
			return 0, err
		}
		begin := time.Now()
		s, err := m.Snapshot()
		times = append(times, float64(time.Since(begin).Nanoseconds())/1e3)
		if err != nil {
			return 0, err
		}
		s.Release()
	}
	return median(times), nil
}

// beside applies flat out while a snapshot is written to w, and for as long before
// and after without one. It returns the ratio of the rates, the peak of the images
// over the state, and how long the snapshot took.
func (b *benchMachine) beside(w io.Writer) (ratio, images, seconds float64, err error) {
	alone, took := 0.0, 300*time.Millisecond
	for range 2 {
		before, err := b.run(0, true, took)
		if err != nil {
			return 0, 0, 0, err
		}
		alone += before.byClock / 2
		if ratio != 0 {
			break
		}
		if ratio, images, took, err = b.during(w); err != nil {
			return 0, 0, 0, err
		}
	}
	return ratio / alone, images, took.Seconds(), nil
}

// during returns the rate of applying while a snapshot is written.
func (b *benchMachine) during(w io.Writer) (applied, images float64, took time.Duration, err error) {
	s, err := b.Snapshot()
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.Release()
	done := make(chan error, 1)
	begin := time.Now()
	go func() {
		if f, ok := w.(*os.File); ok {
			done <- writeSynced(f, s)
			return
		}
		_, err := s.WriteTo(w)
		done <- err
	}()
	for i := 0; ; i++ {
		select {
		case err := <-done:
			took = time.Since(begin)
			return float64(i*partKeys) / took.Seconds() / 1e6, float64(s.ImageBytes()) / float64(s.Bytes()), took, err
		default:
		}
		if err := b.pushUniform(i); err != nil {
			return 0, 0, 0, errors.Join(err, <-done)
		}
	}
}

func writeSynced(f *os.File, s io.WriterTo) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 256<<10)
	_, err := s.WriteTo(w)
	return errors.Join(err, w.Flush(), f.Sync())
}
