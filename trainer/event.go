package trainer

import (
	"strconv"
	"time"
)

// Kinds of events.
const (
	EventStart   = "start"   // tables are there, the first batch is next
	EventStep    = "step"    // a batch went through the model
	EventAck     = "ack"     // a push was acknowledged; Sent and Time tell when
	EventLate    = "late"    // others went on without a batch; Message says which
	EventSkipped = "skipped" // a batch was not finite; Message says which
	EventHeld    = "held"    // the held-out part is being scored; Step of Steps batches
	EventDone    = "done"    // training ended; Message is the error, "" if none
	EventNote    = "note"    // Message is for people
	EventWindow  = "window"  // a window of a followed stream is over: Window, and Message for people
)

// Event is one thing that happened in a run. As JSON, one per line, it is what
// `rowraft-trainer train --progress=json` prints; fields may be added. Every
// event carries all counters as they are then.
type Event struct {
	Event              string    `json:"event"`
	Time               time.Time `json:"time"`
	Rank               int       `json:"rank"`
	Step               int64     `json:"step"`
	Steps              int64     `json:"steps"`    // 0: not known
	Epoch              int64     `json:"epoch"`    // passes over the data that are finished
	Loss               Number    `json:"loss"`     // mean of recent batches, nats
	AUC                Number    `json:"auc"`      // of recent batches, predicted before the update
	Accuracy           Number    `json:"accuracy"` // of recent batches, before the update; null but for classes
	Examples           int64     `json:"examples"`
	ExamplesPerSecond  Number    `json:"examples_per_second"` // since the start
	StepsPerSecond     Number    `json:"steps_per_second"`    // likewise
	PushesSent         int64     `json:"pushes_sent"`
	PushesAcknowledged int64     `json:"pushes_acknowledged"`
	BatchesSkipped     int64     `json:"batches_skipped"`
	// StalenessSteps is how many steps the weights lagged that recent batches were computed with, at most:
	// pushes of this trainer that were not acknowledged; in mode ssp also how far it was ahead of the
	// slowest, in mode geo how many batches ago it heard of the others.
	StalenessSteps Number `json:"staleness_steps"`
	WaitingSeconds Number `json:"waiting_seconds"`        // in which the model had nothing to compute
	InFlight       int64  `json:"in_flight"`              // pushes without an answer yet
	BatchesLate    int64  `json:"batches_late,omitempty"` // mode sync: others went on without them
	JobStep        int64  `json:"job_step,omitempty"`     // mode sync: last step of the job that is closed
	// Sent is when the acknowledged push was sent (EventAck).
	Sent    *time.Time `json:"sent,omitempty"`
	Message string     `json:"message,omitempty"`
	Skipped *Skipped   `json:"skipped,omitempty"` // EventSkipped
	Window  *Window    `json:"window,omitempty"`
}

// Observer takes events, one at a time. It must not block for long: steps wait
// for it.
type Observer func(Event)

func jsonFloat(f float64) []byte { return strconv.AppendFloat(nil, f, 'g', 9, 64) }
