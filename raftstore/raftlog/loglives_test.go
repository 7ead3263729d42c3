package raftlog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

// A log lives on through any number of crashes, each at a moment by chance: what the
// lives before left on the disk comes to no later one's harm.
func TestLogsLiveThroughManyCrashes(t *testing.T) {
	for seed := range uint64(120) {
		r := rand.New(rand.NewPCG(seed, 0x6c69766573))
		disk, acked := vfs.NewMem(), crashLives{}
		for term := range uint64(12) {
			next, err := logsOfChance(disk, &acked, term+1, r)
			if err != nil {
				t.Fatalf("seed %d, life %d: %v", seed, term, err)
			}
			disk = next
		}
	}
}

// mortal is a disk that goes down at one of its steps, or on which a sync fails.
type mortal struct {
	*vfs.Faulty
	failed bool   // a sync failed
	end    func() // ends the process after that

	mu   sync.Mutex
	next *vfs.Mem // what is left of it; nil while it lives
}

// left returns what is left of the disk, nil while it lives.
func (m *mortal) left() *vfs.Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next
}

func newMortal(mem *vfs.Mem, r *rand.Rand) *mortal {
	m := &mortal{Faulty: vfs.NewFaulty(mem)}
	last, ending, seed := 1+r.IntN(80), r.IntN(3), r.Uint64()
	end := func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.next = mem.Crash(seed); ending > 0 {
			m.next = mem.Kill()
		}
	}
	if ending == 2 { // a sync fails, and the process ends
		m.OnDone(func(vfs.DiskFault, vfs.Op, string) { m.failed = true })
		if err := m.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, After: last / 3, Times: 1, Err: "EIO"}); err != nil {
			panic(err)
		}
		m.end = end
		return m
	}
	m.OnStep(func(s vfs.Step) {
		if s.N == last {
			end()
		}
	})
	return m
}

// logsOfChance opens the logs, checks them, and makes random operations of r until the disk fails.
// It returns what is left of the disk.
func logsOfChance(mem *vfs.Mem, acked *crashLives, term uint64, r *rand.Rand) (*vfs.Mem, error) {
	disk := newMortal(mem, r)
	c, err := openCrashLogs(disk, acked)
	if err == nil {
		err = c.read()
		for err == nil && disk.left() == nil {
			switch k := r.IntN(20); {
			case k == 0:
				err = c.shared.Compact(nil)
			case k == 1:
				if err = errors.Join(c.groups[1].Close(), c.remove(1)); err == nil {
					err = c.open(1)
				}
			case k < 8:
				err = c.together(term, 1+r.Uint64N(3), 1+r.IntN(len(acked)))
			default:
				err = c.groups[r.IntN(len(acked))].chance(term, r)
			}
		}
		c.Close()
	}
	if disk.failed && err != nil {
		disk.end()
	}
	if left := disk.left(); left != nil {
		return left, nil // err is of a disk that is down
	}
	return nil, err
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
