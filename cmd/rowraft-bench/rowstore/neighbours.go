package rowstore

import (
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
)

// neighbours measures what pushes lose to the machine alone while its other core works,
// as long as a snapshot took: at arithmetic in registers, and at copying as many bytes
// as a snapshot has, row by row, out of memory that no other goroutine uses.
func neighbours(c config, m *benchMachine, took time.Duration, report func(figures.Figure)) error {
	s, err := m.Snapshot()
	if err != nil {
		return err
	}
	memory := make([]byte, s.Bytes())
	s.Release()
	for i := range memory { // or all of it would be one page of zeroes
		memory[i] = byte(i)
	}
	for _, n := range []struct {
		name string
		run  func() error
	}{
		{"arithmetic", func() error { spin(took); return nil }},
		{"copying", func() error { copyPaced(memory, took); return nil }},
	} {
		var pushes, cpu []float64
		for range c.rounds {
			r, err := m.slowedBy(func() (neighbour, error) { return neighbour{n.run, func() float64 { return 0 }}, nil })
			if err != nil {
				return err
			}
			pushes, cpu = append(pushes, r.byClock), append(cpu, r.applied)
		}
		report(figures.Free("snapshot/pushes/dim=64/uniform/with-"+n.name, median(pushes), "×"))
		report(figures.Free("snapshot/pushes-cpu/dim=64/uniform/with-"+n.name, median(cpu), "×"))
	}
	return nil
}

var spun uint64 // so that the arithmetic is done

func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
		for range 10_000 {
			spun = spun*6364136223846793005 + 1442695040888963407
		}
	}
}

// copyPaced copies the rows of memory, in no order of their addresses, within d.
func copyPaced(memory []byte, d time.Duration) {
	const row, some = 512, 512
	buf := make([]byte, some*row)
	begin, rows := time.Now(), len(memory)/row
	for i := range rows {
		copy(buf[i%some*row:][:row], memory[i*7919%rows*row:])
		for i%some == 0 && time.Since(begin) < time.Duration(float64(d)*float64(i)/float64(rows)) {
		}
	}
}
