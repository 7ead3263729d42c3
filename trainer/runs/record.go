package runs

import (
	"time"

	"github.com/rowraft/rowraft/trainer/report"
)

// Version is the version of the files that this package writes, and the newest that it reads.
const Version = 1

// Limits of a file.
const (
	maxPoints = 2048
	maxHeld   = 512
	maxNotes  = 100
	maxText   = 1000     // bytes of a note, or of an error
	maxLine   = 1 << 20  // bytes of a line; a reader skips longer ones
	maxBroken = 5000     // lines that a reader skips; it refuses a file with more
	maxFile   = 16 << 20 // bytes of a file; a reader refuses larger ones
)

// line is one line of a file: exactly one field is set. docs/formats/run-record.md describes them.
type line struct {
	Head  *Head  `json:"run,omitempty"`
	Point *Point `json:"point,omitempty"`
	Held  *Held  `json:"held,omitempty"`
	Note  *Note  `json:"note,omitempty"`
	End   *End   `json:"end,omitempty"`
}

// Head describes a run and the process that records it.
type Head struct {
	Version     int    `json:"version"`
	Run         string `json:"id"` // name of the run's folder
	Job         string `json:"job"`
	Rank        int    `json:"rank"`
	Trainers    int    `json:"trainers"`
	Worker      string `json:"worker,omitempty"`
	Local       bool   `json:"local,omitempty"` // the tables were in the process
	Host        string `json:"host"`
	PID         int    `json:"pid"`
	Binary      string `json:"binary"` // version of the program
	Fingerprint string `json:"fingerprint"`
	// Set has the settings that the command line changed (--set), by their names in the job's file.
	Set      map[string]string `json:"set,omitempty"`
	Started  time.Time         `json:"started"`
	Settings map[string]any    `json:"settings"` // the job's, as in its file
}

// Point is the progress of a trainer. Counters are since the begin of the job, waiting is since that of the process.
type Point struct {
	Seconds  report.Number `json:"t"` // since Head.Started
	Step     int64         `json:"step"`
	Examples int64         `json:"examples"`
	Loss     report.Number `json:"loss"`
	AUC      report.Number `json:"auc"`
	Accuracy report.Number `json:"accuracy"`
	Stale    report.Number `json:"stale"`   // pushes that the weights missed, a mean
	Waiting  report.Number `json:"waiting"` // seconds without a batch to compute
}

// Held is a score of the held-out examples during the training.
type Held struct {
	Seconds report.Number `json:"t"`
	report.Held
}

// Note is a message of the run.
type Note struct {
	Seconds report.Number `json:"t"`
	Text    string        `json:"text"`
}

// End is the end of a process that could report it.
type End struct {
	Seconds report.Number  `json:"t"`
	State   State          `json:"state"`
	Error   string         `json:"error,omitempty"`
	Result  *report.Result `json:"result,omitempty"`
}

// State is the state of a run, or of one of its processes.
type State string

// States. A reader finds Running and Killed; the others are in the file.
const (
	Running     State = "running"
	Finished    State = "finished"
	Failed      State = "failed"
	Interrupted State = "interrupted" // by a signal or `rowraft job stop`
	Killed      State = "killed"      // the process ended without writing it
	Unreadable  State = "unreadable"  // no file of the run can be read
)
