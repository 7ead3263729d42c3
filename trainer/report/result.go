package report

import "time"

// Copies counts what a cache has done for the batches of a run (docs/caching.md). The zero Copies is that of a run
// without one.
type Copies struct {
	RowsReused int64 `json:"rows_reused,omitempty"` // rows of embeddings that came from copies
	RowsPulled int64 `json:"rows_pulled,omitempty"` // others: there was no copy, or it was too old
	BytesSaved int64 `json:"bytes_saved,omitempty"` // keys and weights of the reused rows, on the wire
	Evicted    int64 `json:"copies_evicted,omitempty"`

	// How old the reused rows were on average, by the unit of the bound.
	ReusedSteps   Number `json:"reused_rows_age_steps,omitempty"`
	ReusedSeconds Number `json:"reused_rows_age_seconds,omitempty"`
}

// Result is the result of a run. Its JSON form is a contract: later versions may add fields, but rename none.
type Result struct {
	Job      string `json:"job"`
	Mode     string `json:"mode"`
	Data     string `json:"data"`
	Rank     int    `json:"rank"`
	Trainers int    `json:"trainers"`
	Device   string `json:"device"`

	Steps             int64  `json:"steps"`           // of all processes, those before a resume included
	ResumedAtStep     int64  `json:"resumed_at_step"` // 0: the run began at step 1
	Examples          int64  `json:"examples"`
	Seconds           Number `json:"seconds"`
	ExamplesPerSecond Number `json:"examples_per_second"`
	TrainingLoss      Number `json:"training_loss"` // mean of the last batches, nats
	TrainingAUC       Number `json:"training_auc"`  // of the last batches, predicted before the update

	FirstLoss        Number `json:"first_loss"`        // the loss of the first batch of this process
	TrainingAccuracy Number `json:"training_accuracy"` // also of the last batches; null without classes

	// The held-out examples; null if they were not scored.
	HeldExamples int    `json:"held_examples"`
	AUC          Number `json:"auc"`
	LogLoss      Number `json:"log_loss"`
	Accuracy     Number `json:"accuracy"` // null without classes
	RMSE         Number `json:"rmse"`     // root of the mean squared error; null unless labels are numbers
	// The score of the true probabilities; null if they are unknown.
	BestAUC     Number `json:"best_auc"`
	BestLogLoss Number `json:"best_log_loss"`
	// Calibration of the predictions; nil if they were not scored, or are classes.
	Calibration *Calibration `json:"calibration,omitempty"`

	// BestScore is the best score during the training, of any trainer of the job; nil if none was compared. If no
	// checkpoint was made of it, SavedScore is the last one with a checkpoint.
	BestScore  *BestScore `json:"best_score,omitempty"`
	SavedScore *BestScore `json:"saved_score,omitempty"`

	PushesSent         int64 `json:"pushes_sent"`
	PushesAcknowledged int64 `json:"pushes_acknowledged"`
	PushesUnknown      int64 `json:"pushes_unknown"` // sent, with unknown outcome
	BatchesSkipped     int64 `json:"batches_skipped"`
	BatchesLate        int64 `json:"batches_late"` // mode sync: the job continued without them
	JobSteps           int64 `json:"job_steps"`    // mode sync: closed steps

	Copies

	// Examples of the job's data that a trainer read again after another trainer; null if the scheduler did not
	// divide the data, or the run did not end.
	ReadAgainAtLeast *int64 `json:"read_again_at_least"`
	ReadAgainAtMost  *int64 `json:"read_again_at_most"`

	// AuditTable has the number of this trainer's applied pushes in dimension Rank of each of AuditKeys; "" without
	// audit.
	AuditTable string   `json:"audit_table,omitempty"`
	AuditKeys  []string `json:"audit_keys,omitempty"` // decimal: JSON numbers end at 2^53

	ResumedFrom string `json:"resumed_from,omitempty"` // checkpoint, DESTINATION/NAME
	Checkpoint  string `json:"checkpoint,omitempty"`   // checkpoint made at the end or on stop

	Interrupted bool      `json:"interrupted"`
	Stopped     bool      `json:"stopped,omitempty"`     // with its job
	StopReason  string    `json:"stop_reason,omitempty"` // why the job stopped; "": rowraft job stop
	FinishedAt  time.Time `json:"finished_at"`
}

// BestScore is a score of the held-out examples during the training, and the checkpoint that was made after it.
type BestScore struct {
	Metric     string `json:"metric"` // auc, log_loss or rmse
	Value      Number `json:"value"`
	Step       int64  `json:"step"`                 // batches of the trainer that scored
	Checkpoint string `json:"checkpoint,omitempty"` // DESTINATION/NAME
	Restore    string `json:"restore,omitempty"`    // the command that puts its rows in place
}
