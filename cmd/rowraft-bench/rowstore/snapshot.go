package rowstore

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
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
func snapshot(c config, report func(figures.Figure)) error {
	for _, b := range []struct {
		name                   string
		rows, tables, sessions int
	}{
		{"1-table", machineRows, 1, 1}, {"8-tables", machineRows, 8, 1}, {"1000-sessions", machineRows, 1, 1000},
		{"1-table/all-rows", c.rows, 1, 1},
	} {
		us, err := beginTime(b.rows, b.tables, b.sessions)
		if err != nil {
			return err
		}
		report(figures.AtMost(fmt.Sprintf("snapshot/begin/%s/rows=%d", b.name, b.rows), us, "µs", beginBar))
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
	var took time.Duration // the shortest of a snapshot
	for _, to := range []struct {
		name string
		w    io.Writer
	}{{"memory", io.Discard}, {"disk", f}} {
		var pushes, cpu, images, seconds []float64
		for range c.rounds {
			r, err := m.slowedBy(m.snapshotTo(to.w))
			if err != nil {
				return err
			}
			pushes, cpu = append(pushes, r.byClock), append(cpu, r.applied)
			images, seconds = append(images, r.images), append(seconds, r.took.Seconds())
		}
		if took == 0 {
			took = time.Duration(median(seconds) * float64(time.Second))
		}
		report(figures.AtLeast("snapshot/pushes/dim=64/uniform/to-"+to.name, median(pushes), "×", pushesBar))
		report(figures.Free("snapshot/pushes-cpu/dim=64/uniform/to-"+to.name, median(cpu), "×"))
		if name := "snapshot/images/dim=64/uniform/to-" + to.name; to.w == io.Discard {
			report(figures.AtMost(name, median(images), "×", imagesBar))
		} else {
			report(figures.Free(name, median(images), "×")) // no log could take as many pushes; through one acked has the bar
		}
		report(figures.Free("snapshot/write/dim=64/to-"+to.name, median(seconds), "s"))
	}
	return neighbours(c, m, took, report)
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
		if err := m.apply(wire.OpenSessionEntry(h, wire.Opening{Client: rowraft.ClientID{2, byte(i), byte(i >> 8)},
			Incarnation: 1})); err != nil {
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

// neighbour is work that runs concurrently with pushes.
type neighbour struct {
	run func() error
	end func() (images float64) // over the state; runs when the pushes were counted
}

// slowdown is the speed of pushes concurrently with a neighbour, over their speed alone.
type slowdown struct {
	byClock, applied float64 // rates of the clock, and of the applying thread's CPU time
	images           float64
	took             time.Duration
}

// slowedBy applies at full speed concurrently with a neighbour that start returns, and for as long before
// and after without it.
func (b *benchMachine) slowedBy(start func() (neighbour, error)) (r slowdown, err error) {
	before, err := b.run(0, true, 300*time.Millisecond)
	if err != nil {
		return r, err
	}
	n, err := start()
	if err != nil {
		return r, err
	}
	with, took, err := b.during(n.run)
	r.took, r.images = took, n.end()
	if err != nil {
		return r, err
	}
	after, err := b.run(0, true, took)
	r.byClock, r.applied = 2*with.byClock/(before.byClock+after.byClock), 2*with.applied/(before.applied+after.applied)
	return r, err
}

// during applies while do runs.
func (b *benchMachine) during(do func() error) (r rates, took time.Duration, err error) {
	done := make(chan error, 1)
	begin, cpu := time.Now(), threadTime()
	go func() { done <- do() }()
	for i := 0; ; i++ {
		select {
		case err := <-done:
			took, cpu = time.Since(begin), threadTime()-cpu
			rows := float64(i*partKeys) / 1e6
			return rates{byClock: rows / took.Seconds(), applied: rows / cpu.Seconds()}, took, err
		default:
		}
		if err := b.pushUniform(i); err != nil {
			return r, 0, errors.Join(err, <-done)
		}
	}
}

// snapshotTo is a snapshot that is written to w.
func (b *benchMachine) snapshotTo(w io.Writer) func() (neighbour, error) {
	return func() (neighbour, error) {
		s, err := b.Snapshot()
		if err != nil {
			return neighbour{}, err
		}
		write := func() error {
			if f, ok := w.(*os.File); ok {
				return writeSynced(f, s)
			}
			_, err := s.WriteTo(w)
			return err
		}
		return neighbour{write, func() float64 {
			defer s.Release()
			return float64(s.ImageBytes()) / float64(s.Bytes())
		}}, nil
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
