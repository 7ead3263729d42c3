package raftstore

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

// A log lives on through any number of crashes, each at a moment by chance: what the
// lives before left on the disk comes to no later one's harm.
func TestLogsLiveThroughManyCrashes(t *testing.T) {
	for _, backend := range []string{BackendWAL, BackendRow} {
		t.Run(backend, func(t *testing.T) {
			for seed := range uint64(60) {
				r := rand.New(rand.NewPCG(seed, 0x6c69766573))
				disk, acked := vfs.NewMem(), logLife{}
				acked.done = logModel{terms: map[uint64]uint64{}, vote: map[string]string{}}
				acked.pending = acked.done
				for term := range uint64(12) {
					next, err := logOfChance(disk, backend, &acked, term+1, r)
					if err != nil {
						t.Fatalf("seed %d, life %d: %v", seed, term, err)
					}
					disk = next
				}
			}
		})
	}
}

// logOfChance opens the log, checks it, and does what r says until the disk goes down.
// It returns what is left of the disk.
func logOfChance(mem *vfs.Mem, backend string, acked *logLife, term uint64, r *rand.Rand) (next *vfs.Mem, err error) {
	last, kill, seed := 1+r.IntN(80), r.IntN(2) == 0, r.Uint64()
	crash := func() {
		if next = mem.Crash(seed); kill {
			next = mem.Kill()
		}
	}
	disk := vfs.NewFaulty(mem)
	disk.OnStep(func(s vfs.Step) {
		if s.N == last {
			crash()
		}
	})
	b, err := openCrashLog(disk, backend)
	if err == nil {
		var found logModel
		if found, err = readLog(b, *acked); err == nil {
			*acked = logLife{found, found}
		}
		for err == nil && next == nil {
			err = logWriter{b, acked}.chance(term, r)
		}
		b.Close()
	}
	if next == nil {
		return nil, err
	}
	return next, nil // err is of a disk that is down
}

// chance does one thing to the log.
func (w logWriter) chance(term uint64, r *rand.Rand) error {
	m := w.life.done
	inside := m.first + r.Uint64N(m.last-m.first+1)
	switch k := r.IntN(10); {
	case m.first == 0 || k < 5:
		return w.append(term, 1+r.Uint64N(5))
	case k < 6:
		return w.set("CurrentTerm", fmt.Sprint(r.IntN(1000)))
	case inside == m.first || inside == m.last:
		return w.append(term, 1)
	case k < 9:
		return w.cutHead(inside)
	}
	return w.cutTail(inside)
}
