package report

import (
	"math"
	"sync"
	"time"
)

// runMetrics measures waiting time and staleness of a run. Safe for concurrent use.
type runMetrics struct {
	mu     sync.Mutex
	waited time.Duration // time during which the model had nothing to compute
	since  time.Time     // when the present wait began; zero while the model computes
	ended  int64         // batches of this process that are pushed or skipped
	steps  float64       // decayed sum of the staleness of recent batches
	most   int64         // the greatest staleness
	weight float64       // decayed number of them: each weighs decay times as much as the next one
}

// BeginWait marks that the model has nothing to compute: it waits for data, rows, acknowledgements or other
// trainers.
func (m *runMetrics) BeginWait() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() {
		m.since = time.Now()
	}
}

// EndWait ends the wait that BeginWait began.
func (m *runMetrics) EndWait() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waited, m.since = m.waitedLocked(time.Now()), time.Time{}
}

// Waiting returns how long the model has had nothing to compute, up to now.
func (m *runMetrics) Waiting(now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waitedLocked(now)
}

// REQUIRES: m.mu is held.
func (m *runMetrics) waitedLocked(now time.Time) time.Duration {
	if m.since.IsZero() {
		return m.waited
	}
	return m.waited + max(now.Sub(m.since), 0)
}

// BatchEnded counts a batch that is pushed or that has no gradients.
func (m *runMetrics) BatchEnded() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended++
}

// Unfinished implements [mode.Run].
func (m *runMetrics) Unfinished(first int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(first-m.ended, 0)
}

// AddStaleness counts the staleness of a batch: how many other pushes its weights miss.
func (m *runMetrics) AddStaleness(steps int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.most = max(m.most, steps)
	m.steps, m.weight = m.steps*decay+float64(steps), m.weight*decay+1
}

// staleness returns the mean of recent batches, NaN before the first, and the maximum of the run.
func (m *runMetrics) staleness() (mean float64, most int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.weight == 0 {
		return math.NaN(), 0
	}
	return m.steps / m.weight, m.most
}
