package localcluster

import (
	"encoding/json"
	"math"
	"time"
)

// TrainerEvent is the part of the events of `rowraft-trainer train --progress=json` that callers use.
type TrainerEvent struct {
	Event              string     `json:"event"`
	Time               time.Time  `json:"time"`
	Rank               int        `json:"-"` // rank of the process that wrote the event
	Step               int64      `json:"step"`
	Steps              int64      `json:"steps"`
	Loss               Number     `json:"loss"`
	AUC                Number     `json:"auc"`
	Examples           int64      `json:"examples"`
	ExamplesPerSecond  Number     `json:"examples_per_second"`
	PushesAcknowledged int64      `json:"pushes_acknowledged"`
	JobStep            int64      `json:"job_step"`
	Sent               *time.Time `json:"sent"`
	Message            string     `json:"message"`
}

// Kinds of events.
const (
	EventStep    = "step"
	EventAck     = "ack"
	EventSkipped = "skipped"
	EventLate    = "late"
)

// TrainerResult is the part of a trainer's --json file that callers use.
type TrainerResult struct {
	ExamplesPerSecond  Number `json:"examples_per_second"`
	AUC                Number `json:"auc"`
	LogLoss            Number `json:"log_loss"`
	BestAUC            Number `json:"best_auc"`
	PushesSent         int64  `json:"pushes_sent"`
	PushesAcknowledged int64  `json:"pushes_acknowledged"`
	PushesUnknown      int64  `json:"pushes_unknown"`
	BatchesSkipped     int64  `json:"batches_skipped"`
	RowsReused         int64  `json:"rows_reused"`
	RowsPulled         int64  `json:"rows_pulled"`
	BytesSaved         int64  `json:"bytes_saved"`
}

// Number is a float64 that is null in JSON if it is not finite.
type Number float64

var Unknown = Number(math.NaN())

func (n Number) Known() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Known() {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*n = Unknown
		return nil
	}
	return json.Unmarshal(b, (*float64)(n))
}
