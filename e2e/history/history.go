package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Kind says what an Op is.
type Kind string

const (
	Push   Kind = "push"   // client Client added 1 to its dimension of Rows, or more: see Delete
	Delete Kind = "delete" // client Client removed Rows; none but itself changes them
	Pull   Kind = "pull"   // Values is what Rows held
	Fault  Kind = "fault"  // the nemesis did Fault to Target
	Phase  Kind = "phase"  // Fault names the phase that begins
)

// Outcome is what the caller knows.
type Outcome string

const (
	OK      Outcome = "ok"      // acknowledged, or read
	Refused Outcome = "refused" // had no effect
	Unknown Outcome = "unknown" // may have had an effect
)

// Op is one call of a client, or one act of the nemesis.
type Op struct {
	Kind Kind `json:"kind"`
	// −1 for the nemesis and for onlookers, who never push; others make one call at a time
	Client  int     `json:"client"`
	Call    int64   `json:"call_ns"`        // since the recorder's start
	Return  int64   `json:"return_ns"`      // ≥ Call
	Outcome Outcome `json:"outcome"`        //
	Rows    []int   `json:"rows,omitempty"` // numbers of the rows touched, ascending

	// Values of a pull: Values[i][c] is row Rows[i] in dimension c, in counts.
	Values [][]int64 `json:"values,omitempty"`
	Mode   string    `json:"mode,omitempty"` // of a pull: "leader", "linearizable" or "bounded"

	// Of a bounded pull: the age and lag that were claimed and that were allowed (0: any lag),
	// and whether it asked for all that its client had been told of its own pushes.
	Age    int64  `json:"age_ns,omitempty"`
	MaxAge int64  `json:"max_age_ns,omitempty"`
	Lag    uint64 `json:"lag,omitempty"`
	MaxLag uint64 `json:"max_lag,omitempty"`
	Own    bool   `json:"own,omitempty"`

	// Index is, by shard, the applied index that a pull shows or at which an
	// acknowledged push is visible.
	Index map[int]uint64 `json:"index,omitempty"`

	Fault    string `json:"fault,omitempty"`
	Target   string `json:"target,omitempty"`
	Observed string `json:"observed,omitempty"` // what shows that the fault had an effect
	Error    string `json:"error,omitempty"`
}

// Recorder writes a history. Safe for concurrent use.
type Recorder struct {
	start time.Time

	mu  sync.Mutex
	w   *bufio.Writer
	f   *os.File
	enc *json.Encoder
	err error
}

// Create starts a history in a new file.
func Create(path string) (*Recorder, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	return &Recorder{start: time.Now(), w: w, f: f, enc: json.NewEncoder(w)}, nil
}

// Now is the time on the history's clock.
func (r *Recorder) Now() int64 { return int64(time.Since(r.start)) }

// Add appends an op whose Return has been set. An error shows in Close.
func (r *Recorder) Add(op Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enc.Encode(op); err != nil && r.err == nil {
		r.err = err
	}
}

// Close writes what is buffered.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.w.Flush(); err != nil && r.err == nil {
		r.err = err
	}
	if err := r.f.Close(); err != nil && r.err == nil {
		r.err = err
	}
	return r.err
}

// Read returns the ops of a history file.
func Read(path string) ([]Op, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Decode(f)
}

// Decode reads ops until r ends.
func Decode(r io.Reader) ([]Op, error) {
	dec := json.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	var out []Op
	for {
		var op Op
		err := dec.Decode(&op)
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("history: op %d: %w", len(out)+1, err)
		}
		out = append(out, op)
	}
}
