package main

import (
	"encoding/json"
	"math"
	"time"
)

// trainerEvent is what this program reads of the events that `rowraft-trainer
// train --progress=json` prints.
type trainerEvent struct {
	Event              string     `json:"event"`
	Time               time.Time  `json:"time"`
	Rank               int        `json:"-"` // of the process that said it
	Step               int64      `json:"step"`
	Steps              int64      `json:"steps"`
	Loss               number     `json:"loss"`
	AUC                number     `json:"auc"`
	Examples           int64      `json:"examples"`
	ExamplesPerSecond  number     `json:"examples_per_second"`
	PushesAcknowledged int64      `json:"pushes_acknowledged"`
	JobStep            int64      `json:"job_step"`
	Sent               *time.Time `json:"sent"`
	Message            string     `json:"message"`
}

// Kinds of events.
const (
	eventStep    = "step"
	eventAck     = "ack"
	eventSkipped = "skipped"
	eventLate    = "late"
)

// trainerResult is what this program reads of a trainer's --json file.
type trainerResult struct {
	ExamplesPerSecond  number `json:"examples_per_second"`
	AUC                number `json:"auc"`
	LogLoss            number `json:"log_loss"`
	BestAUC            number `json:"best_auc"`
	PushesSent         int64  `json:"pushes_sent"`
	PushesAcknowledged int64  `json:"pushes_acknowledged"`
	PushesUnknown      int64  `json:"pushes_unknown"`
	BatchesSkipped     int64  `json:"batches_skipped"`
}

// number is a float64 whose JSON is null when it is not finite.
type number float64

var unknown = number(math.NaN())

func (n number) known() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

func (n number) MarshalJSON() ([]byte, error) {
	if !n.known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

func (n *number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = unknown
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}

// between is the time from one moment to another in seconds, unknown if either
// never came.
func between(from, to time.Time) number {
	if from.IsZero() || to.IsZero() {
		return unknown
	}
	return number(to.Sub(from).Seconds())
}
