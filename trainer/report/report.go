package report

import (
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft/trainer/mode"
)

// Report counts what a run does, keeps its first error, and sends its events. It implements [mode.Run]. Safe for
// concurrent use.
type Report struct {
	runMetrics
	rank int // immutable

	// mu guards what follows. The observer runs under it, so that it gets one event at a time, and must not call the
	// job.
	mu       sync.Mutex
	observe  Observer
	counts   Counts
	failure  error // first failed push
	progress Event // the progress of Run's goroutine, as it last reported it
	board    *EventFile
}

// Counts are the numbers of batches by their fate.
type Counts struct {
	Sent, Acknowledged, Unknown, Skipped int64
	Late                                 int64 // pushed without effect
	JobStep                              int64 // last closed step of the job
}

var _ mode.Run = (*Report)(nil)

// NewReport returns the report of the trainer of a rank, which sends its events to observe.
func NewReport(rank int, observe Observer) *Report { return &Report{rank: rank, observe: observe} }

// Emit sends an event with the present counters. progress is what Run's goroutine has reached; nil in an event of
// another goroutine, which repeats the last progress.
func (r *Report) Emit(kind string, progress *Event, change func(*Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if progress != nil {
		r.progress = *progress
	}
	r.emitLocked(kind, change)
}

// emitLocked sends an event with the last progress.
// REQUIRES: r.mu is held.
func (r *Report) emitLocked(kind string, change func(*Event)) {
	e := r.nowLocked()
	e.Event = kind
	if change != nil {
		change(&e)
	}
	r.observe(e)
	if err := r.board.observe(e); err != nil {
		e.Event, e.Message = EventNote, fmt.Sprintf("the event file for TensorBoard ends here: %v", err)
		r.observe(e)
	}
}

// Note sends a text for people.
func (r *Report) Note(format string, args ...any) {
	r.Emit(EventNote, nil, func(e *Event) { e.Message = fmt.Sprintf(format, args...) })
}

// Now returns the present counters, in an event without a kind.
func (r *Report) Now() Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nowLocked()
}

// REQUIRES: r.mu is held.
func (r *Report) nowLocked() Event {
	e := r.progress
	e.Time, e.Rank = time.Now(), r.rank
	c := r.counts
	e.PushesSent, e.PushesAcknowledged, e.BatchesSkipped = c.Sent, c.Acknowledged, c.Skipped
	e.BatchesLate, e.JobStep = c.Late, c.JobStep
	e.InFlight = c.Sent - c.Acknowledged - c.Unknown - c.Late
	mean, most := r.staleness()
	e.StalenessSteps, e.StalenessMax, e.WaitingSeconds = Number(mean), most, Number(r.Waiting(e.Time).Seconds())
	return e
}

// Counted returns the counters.
func (r *Report) Counted() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// Resume sets the counters of the processes before this one.
func (r *Report) Resume(acknowledged, skipped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Sent, r.counts.Acknowledged, r.counts.Skipped = acknowledged, acknowledged, skipped
}

// SetFile makes b get the events, too.
func (r *Report) SetFile(b *EventFile) {
	r.mu.Lock() // other goroutines may already send notes
	defer r.mu.Unlock()
	r.board = b
}

// EndFile closes the event file with the score of a result.
func (r *Report) EndFile(result *Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.board.End(result)
}

// Skipped counts a batch that is not finite.
func (r *Report) Skipped() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Skipped++
}

// PushBegan implements [mode.Run].
func (r *Report) PushBegan(batches int64) (sent time.Time) {
	sent = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.Sent += batches
	return sent
}

// PushEnded implements [mode.Run].
func (r *Report) PushEnded(sent time.Time, batches int64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.counts.Unknown += batches
		r.failLocked(err)
		return err
	}
	r.counts.Acknowledged += batches
	r.emitLocked(EventAck, func(e *Event) { e.Sent = &sent })
	return nil
}

// Late implements [mode.Run].
func (r *Report) Late(b *mode.Batch, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !b.Empty {
		r.counts.Late++
	}
	r.emitLocked(EventLate, func(e *Event) { e.Message = fmt.Sprintf("batch %d is lost: %s", b.Step, why) })
}

// JobReached implements [mode.Run].
func (r *Report) JobReached(step int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.JobStep = max(r.counts.JobStep, step)
}

// Fail implements [mode.Run].
func (r *Report) Fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(err)
	return err
}

// REQUIRES: r.mu is held.
func (r *Report) failLocked(err error) {
	if r.failure == nil {
		r.failure = err
	}
}

// Failed implements [mode.Run].
func (r *Report) Failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}
