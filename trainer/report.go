package trainer

import (
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft/trainer/mode"
)

// report counts what a run does, keeps its first error, and sends its events. It implements [mode.Run]. Safe for
// concurrent use.
type report struct {
	runMetrics
	rank int // immutable

	// mu guards what follows. The observer runs under it, so that it gets one event at a time, and must not call the
	// job.
	mu       sync.Mutex
	observe  Observer
	counts   counts
	failure  error // first failed push
	progress Event // the progress of Run's goroutine, as it last reported it
	board    *tensorboardLog
}

// counts are the numbers of batches by their fate.
type counts struct {
	sent, acknowledged, unknown, skipped int64
	late                                 int64 // pushed without effect
	jobStep                              int64 // last closed step of the job
}

var _ mode.Run = (*report)(nil)

// emit sends an event with the present counters. progress is what Run's goroutine has reached; nil in an event of
// another goroutine, which repeats the last progress.
func (r *report) emit(kind string, progress *Event, change func(*Event)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if progress != nil {
		r.progress = *progress
	}
	r.emitLocked(kind, change)
}

// emitLocked sends an event with the last progress.
// REQUIRES: r.mu is held.
func (r *report) emitLocked(kind string, change func(*Event)) {
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

// note sends a text for people.
func (r *report) note(format string, args ...any) {
	r.emit(EventNote, nil, func(e *Event) { e.Message = fmt.Sprintf(format, args...) })
}

// now returns the present counters, in an event without a kind.
func (r *report) now() Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nowLocked()
}

// REQUIRES: r.mu is held.
func (r *report) nowLocked() Event {
	e := r.progress
	e.Time, e.Rank = time.Now(), r.rank
	c := r.counts
	e.PushesSent, e.PushesAcknowledged, e.BatchesSkipped = c.sent, c.acknowledged, c.skipped
	e.BatchesLate, e.JobStep = c.late, c.jobStep
	e.InFlight = c.sent - c.acknowledged - c.unknown - c.late
	e.StalenessSteps, e.WaitingSeconds = Number(r.staleness()), Number(r.waiting(e.Time).Seconds())
	return e
}

// counted returns the counters.
func (r *report) counted() counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts
}

// resume sets the counters of the processes before this one.
func (r *report) resume(acknowledged, skipped int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.sent, r.counts.acknowledged, r.counts.skipped = acknowledged, acknowledged, skipped
}

// watch makes b get the events, too.
func (r *report) watch(b *tensorboardLog) {
	r.mu.Lock() // other goroutines may already send notes
	defer r.mu.Unlock()
	r.board = b
}

// endBoard closes the event file with the score of a result.
func (r *report) endBoard(result *Result) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.board.end(result)
}

// skipped counts a batch that is not finite.
func (r *report) skipped() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.skipped++
}

// PushBegan implements [mode.Run].
func (r *report) PushBegan(batches int64) (sent time.Time) {
	sent = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.sent += batches
	return sent
}

// PushEnded implements [mode.Run].
func (r *report) PushEnded(sent time.Time, batches int64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.counts.unknown += batches
		r.failLocked(err)
		return err
	}
	r.counts.acknowledged += batches
	r.emitLocked(EventAck, func(e *Event) { e.Sent = &sent })
	return nil
}

// Late implements [mode.Run].
func (r *report) Late(b *mode.Batch, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !b.Empty {
		r.counts.late++
	}
	r.emitLocked(EventLate, func(e *Event) { e.Message = fmt.Sprintf("batch %d is lost: %s", b.Step, why) })
}

// JobReached implements [mode.Run].
func (r *report) JobReached(step int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts.jobStep = max(r.counts.jobStep, step)
}

// Fail implements [mode.Run].
func (r *report) Fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(err)
	return err
}

// REQUIRES: r.mu is held.
func (r *report) failLocked(err error) {
	if r.failure == nil {
		r.failure = err
	}
}

// Failed implements [mode.Run].
func (r *report) Failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}
