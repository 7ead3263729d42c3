package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Kinds of events.
const (
	EventStart   = "start"   // the tables exist, the first batch is next
	EventStep    = "step"    // a batch went through the model
	EventAck     = "ack"     // a push was acknowledged, sent at Sent and acknowledged at Time
	EventLate    = "late"    // the job continued without a batch; Message names it
	EventSkipped = "skipped" // a batch was not finite; Message names it
	EventHeld    = "held"    // Job scores the held-out examples; Step of Steps batches are done
	// EventValidation is a score of the held-out examples during the training: Held, and Message for people.
	EventValidation = "validation"

	EventDone   = "done"   // training ended; Message is the error, "" if there is none
	EventNote   = "note"   // Message is a text for people
	EventWindow = "window" // a window of a followed stream ended: Window, and Message for people
)

// Event is one thing that happened in a run. `rowraft-trainer train --progress=json` prints events as JSON, one per
// line; later versions may add fields. Every event carries the present value of all counters.
type Event struct {
	Event              string    `json:"event"`
	Time               time.Time `json:"time"`
	Rank               int       `json:"rank"`
	Step               int64     `json:"step"`
	Steps              int64     `json:"steps"`    // 0: unknown
	Epoch              int64     `json:"epoch"`    // finished passes over the data
	Loss               Number    `json:"loss"`     // mean of recent batches, nats
	AUC                Number    `json:"auc"`      // of recent batches, predicted before the update
	Accuracy           Number    `json:"accuracy"` // of recent batches, before the update; null without classes
	Examples           int64     `json:"examples"`
	ExamplesPerSecond  Number    `json:"examples_per_second"` // since the start
	StepsPerSecond     Number    `json:"steps_per_second"`    // also since the start
	PushesSent         int64     `json:"pushes_sent"`
	PushesAcknowledged int64     `json:"pushes_acknowledged"`
	BatchesSkipped     int64     `json:"batches_skipped"`
	// StalenessSteps is the mean of how many pushes the weights of recent batches missed: pushes of any trainer of the
	// job that were applied between the pull and the push of a batch. Mode async with several trainers measures it on
	// every eighth batch, with float32 on the wire. Otherwise it is an upper bound: the unacknowledged pushes of
	// this trainer; in mode ssp also its lead over the slowest trainer, in mode geo the batches since it last read the
	// others' changes. Either is without the staleness of copies (docs/caching.md).
	StalenessSteps Number `json:"staleness_steps"`
	StalenessMax   int64  `json:"staleness_max"`          // highest of any batch of this run
	WaitingSeconds Number `json:"waiting_seconds"`        // time during which the model had nothing to compute
	InFlight       int64  `json:"in_flight"`              // pushes without a result yet
	BatchesLate    int64  `json:"batches_late,omitempty"` // mode sync: batches that the job continued without
	JobStep        int64  `json:"job_step,omitempty"`     // mode sync: the last closed step of the job
	Copies
	// Sent is when the acknowledged push began (EventAck).
	Sent    *time.Time `json:"sent,omitempty"`
	Message string     `json:"message,omitempty"`
	Skipped *Skipped   `json:"skipped,omitempty"` // EventSkipped
	Window  *Window    `json:"window,omitempty"`
	Held    *Held      `json:"held,omitempty"` // the last score of the held-out examples during the training
}

// Held is a score of the held-out examples during the training.
type Held struct {
	Step     int64  `json:"step"` // after which they were scored
	Examples int    `json:"examples"`
	AUC      Number `json:"auc"`
	LogLoss  Number `json:"log_loss"`
	Accuracy Number `json:"accuracy"` // null without classes
	RMSE     Number `json:"rmse"`     // null unless labels are numbers
	// Calibration and CalibrationError are Ratio and Error of [Calibration]; null without one.
	Calibration      Number `json:"calibration"`
	CalibrationError Number `json:"calibration_error"`
	Seconds          Number `json:"seconds"` // the scoring took so long, in which this trainer did not train
	Best             bool   `json:"best"`    // no earlier score of the run was as good
}

// NewHeld returns the score in r, which was computed after a step.
func NewHeld(step int64, r *Result) *Held {
	nan := Number(math.NaN())
	h := &Held{Step: step, Examples: r.HeldExamples, AUC: r.AUC, LogLoss: r.LogLoss, Accuracy: r.Accuracy, RMSE: r.RMSE,
		Calibration: nan, CalibrationError: nan}
	if r.Calibration != nil {
		h.Calibration, h.CalibrationError = r.Calibration.Ratio, r.Calibration.Error
	}
	return h
}

// Names of metrics.
const (
	MetricAUC     = "auc"
	MetricLogLoss = "log_loss"
	MetricRMSE    = "rmse"
)

// Metric returns the number by which scores are compared: the RMSE where labels are numbers, the log loss where they
// are classes, otherwise the AUC. lower: a smaller number is better.
func (h *Held) Metric() (name string, value float64, lower bool) {
	switch {
	case h.RMSE == h.RMSE:
		return MetricRMSE, float64(h.RMSE), true
	case h.Accuracy == h.Accuracy:
		return MetricLogLoss, float64(h.LogLoss), true
	}
	return MetricAUC, float64(h.AUC), false
}

// MetricName returns the name of a metric for people.
func MetricName(metric string) string {
	switch metric {
	case MetricAUC:
		return "AUC"
	case MetricRMSE:
		return "RMSE"
	}
	return strings.ReplaceAll(metric, "_", " ")
}

// String describes the score for people.
func (h *Held) String() string {
	s := fmt.Sprintf("AUC %.4f, log loss %.4f", h.AUC, h.LogLoss)
	switch {
	case h.RMSE == h.RMSE:
		s = fmt.Sprintf("RMSE %.4f", h.RMSE)
	case h.Accuracy == h.Accuracy:
		s = fmt.Sprintf("accuracy %.4f, log loss %.4f", h.Accuracy, h.LogLoss)
	}
	if h.Calibration == h.Calibration {
		s += fmt.Sprintf(", calibration %.3f", h.Calibration)
	}
	return s
}

// Observer receives events, one at a time. It must return quickly: steps wait for it.
type Observer func(Event)

func jsonFloat(f float64) []byte { return strconv.AppendFloat(nil, f, 'g', 9, 64) }

// Skipped names a skipped batch, and counts the numbers in it that were not finite.
type Skipped struct {
	Epoch    int64 `json:"epoch"`
	Split    int64 `json:"split"`    // split of the data; this trainer's rank if it reads a fixed share
	Offset   int64 `json:"offset"`   // examples before it in the split
	Examples int   `json:"examples"` // examples in the batch
	First    int64 `json:"first"`    // number of its first example in the data
	Loss     bool  `json:"loss"`     // the loss was not finite
	Rows     int   `json:"rows"`     // gradients of embeddings that were not finite, in numbers
	Dense    int   `json:"dense"`    // gradients of dense weights that were not finite
}

// Describe names the numbers that were not finite, with the totals.
func (s *Skipped) Describe(rows, dense int) string {
	var parts []string
	if s.Loss {
		parts = append(parts, "the loss")
	}
	if s.Rows > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d gradients of embeddings", s.Rows, rows))
	}
	if s.Dense > 0 {
		parts = append(parts, fmt.Sprintf("%d of %d gradients of dense weights", s.Dense, dense))
	}
	verb := " are"
	if len(parts) == 1 && s.Rows+s.Dense <= 1 {
		verb = " is"
	}
	return strings.Join(parts, ", ") + verb
}
