package trainer

import (
	"math"
	"sync"
	"time"
)

// meter measures how a run goes, beside what it learns. Safe for concurrent use.
type meter struct {
	mu     sync.Mutex
	waited time.Duration // in which the model had nothing to compute
	since  time.Time     // when that began, zero while the model computes
	ended  int64         // batches of this process that are pushed, or skipped
	steps  float64       // staleness of recent batches, and
	weight float64       // how much they weigh: decay times as much as the one after it
}

// stand says that the model has nothing to compute: it waits for data, rows,
// acknowledgements or other workers.
func (m *meter) stand() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() {
		m.since = time.Now()
	}
}

// move ends what stand began.
func (m *meter) move() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waited, m.since = m.waitedLocked(time.Now()), time.Time{}
}

// waiting is how long the model has had nothing to compute, up to now.
func (m *meter) waiting(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waitedLocked(now)
}

// REQUIRES: m.mu is held.
func (m *meter) waitedLocked(now time.Time) time.Duration {
	if m.since.IsZero() {
		return m.waited
	}
	return m.waited + max(now.Sub(m.since), 0)
}

// end counts a batch whose gradients are pushed, or that has none.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended++
}

// behind is how many of the first batches of this process have not ended.
func (m *meter) behind(first int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(first-m.ended, 0)
}

// saw counts the staleness of a batch: how many steps the weights that it was computed
// with lag, at most.
func (m *meter) saw(steps int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steps, m.weight = m.steps*decay+float64(steps), m.weight*decay+1
}

// staleness is the mean of recent batches, NaN before the first.
func (m *meter) staleness() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.weight == 0 {
		return math.NaN()
	}
	return m.steps / m.weight
}
