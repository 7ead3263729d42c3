package runs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rowraft/rowraft/trainer/report"
)

// touchEvery is how often a running process changes the time of its file. Readers on another host, where the lock may
// be unknown, take a file that is older than staleAfter for one of a process that was killed.
const (
	touchEvery = 20 * time.Second
	staleAfter = 2 * time.Minute
)

// Recorder writes the file of one process. The nil Recorder records nothing. Safe for concurrent use.
//
// Its own goroutine writes the file, so that a slow disk does not delay the run. The process holds a lock on the file
// while it runs: so readers know a process that was killed.
type Recorder struct {
	head   Head // immutable
	path   string
	onLost func(error)

	wake chan struct{} // a value: there are lines to write; closed by End
	done chan struct{} // closed when the goroutine has ended

	mu struct {
		sync.Mutex
		kept
		pending []byte // lines that are not in the file yet
		rewrite bool   // points were thinned out: write everything again
		ended   bool
	}

	file *os.File // owned by the goroutine, which begins with it
}

// kept is what a file contains after the head.
type kept struct {
	points []Point
	stride int64 // steps between two points
	held   []Held
	apart  int // scores between two kept ones
	scores int // scores so far
	notes  []Note
	end    *End
}

// Begin begins the record of a process in dir: it creates the folder of the run h.Run, or a new one if h.Run is empty,
// and the file. Begin sets Version, Run, Host, PID and Started of the head. onLost, which may be nil, gets the first
// error of a later write, once, from another goroutine; the run continues without a record.
func Begin(dir string, h Head, onLost func(error)) (*Recorder, error) {
	if h.Run == "" {
		id := make([]byte, 4)
		rand.Read(id)
		h.Run = Name(h.Job, hex.EncodeToString(id))
	}
	h.Version, h.PID, h.Started = Version, os.Getpid(), time.Now().Round(time.Millisecond)
	h.Host, _ = os.Hostname()
	r := &Recorder{head: h, onLost: onLost, wake: make(chan struct{}, 1), done: make(chan struct{})}
	r.mu.stride, r.mu.apart = 1, 1
	folder := filepath.Join(dir, h.Run)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	text, err := json.Marshal(line{Head: &h})
	if err != nil {
		return nil, err
	}
	for n := 1; r.file == nil; n++ {
		r.path = filepath.Join(folder, fileName(h.Rank, n))
		r.file, err = create(r.path, append(text, '\n'))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
	}
	go r.write()
	return r, nil
}

// Name returns the name of the run of a job with an id. Characters that have a meaning in a path become underscores.
func Name(job, id string) string {
	job = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-.", c) {
			return c
		}
		return '_'
	}, job)
	job = strings.TrimLeft(job[:min(len(job), 80)], ".-")
	return job + "-" + id
}

// fileName returns the name of the file of the n-th process of a rank, from 1.
func fileName(rank, n int) string {
	if n == 1 {
		return fmt.Sprintf("trainer-%d.jsonl", rank)
	}
	return fmt.Sprintf("trainer-%d-%d.jsonl", rank, n)
}

// create creates a locked file with a text, which is on disk when it returns. The error is os.ErrExist if the file is
// there already.
func create(path string, text []byte) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	_ = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // without locks, readers go by the file's age
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync()); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// Run returns the name of the run, "" of the nil Recorder.
func (r *Recorder) Run() string {
	if r == nil {
		return ""
	}
	return r.head.Run
}

// Observe records an event. It implements [report.Observer].
func (r *Recorder) Observe(e report.Event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.ended {
		return
	}
	t := report.Number(math.Round(1e3*e.Time.Sub(r.head.Started).Seconds()) / 1e3)
	p := Point{Seconds: t, Step: e.Step, Examples: e.Examples, Loss: e.Loss, AUC: e.AUC, Accuracy: e.Accuracy,
		Stale: e.StalenessSteps, Waiting: e.WaitingSeconds}
	switch e.Event {
	case report.EventStart:
		r.addPointLocked(p, true)
	case report.EventStep:
		r.addPointLocked(p, false)
	case report.EventValidation:
		if e.Held != nil {
			r.addHeldLocked(Held{t, *e.Held})
		}
	case report.EventDone:
		r.addPointLocked(p, true)
		if e.Message != "" {
			r.addNoteLocked(Note{t, e.Message})
		}
	case report.EventNote, report.EventSkipped:
		r.addNoteLocked(Note{t, e.Message})
	}
}

// addPointLocked records a point: one of so many steps, and always if the run begins or ends.
// REQUIRES: r.mu is held.
func (r *Recorder) addPointLocked(p Point, always bool) {
	k := &r.mu.kept
	last := len(k.points) - 1
	switch {
	case last >= 0 && p.Step == k.points[last].Step && always: // it was recorded already
		return
	case !always && last >= 0 && p.Step < k.points[last].Step+k.stride:
		return
	}
	k.points = append(k.points, p)
	if len(k.points) >= maxPoints { // the first one stays
		k.points, k.stride, r.mu.rewrite = everySecond(k.points), 2*k.stride, true
	}
	kept := p // so that only a point that is kept is allocated
	r.appendLocked(line{Point: &kept})
}

// REQUIRES: r.mu is held.
func (r *Recorder) addHeldLocked(h Held) {
	k := &r.mu.kept
	if k.scores++; (k.scores-1)%k.apart != 0 {
		return
	}
	k.held = append(k.held, h)
	if len(k.held) >= maxHeld {
		k.held, k.apart, r.mu.rewrite = everySecond(k.held), 2*k.apart, true
	}
	r.appendLocked(line{Held: &h})
}

// REQUIRES: r.mu is held.
func (r *Recorder) addNoteLocked(n Note) {
	if len(r.mu.notes) < maxNotes {
		n.Text = cut(n.Text)
		r.mu.notes = append(r.mu.notes, n)
		r.appendLocked(line{Note: &n})
	}
}

// everySecond keeps the elements with an even index.
func everySecond[T any](all []T) []T {
	kept := all[:0]
	for i := 0; i < len(all); i += 2 {
		kept = append(kept, all[i])
	}
	return kept
}

// cut returns a text of at most maxText bytes.
func cut(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + " …"
	}
	return s
}

// appendLocked hands a line to the goroutine.
// REQUIRES: r.mu is held.
func (r *Recorder) appendLocked(l line) {
	if !r.mu.rewrite { // else the goroutine writes all that is kept
		text, err := json.Marshal(l)
		if err != nil {
			return // impossible: a report.Number is null if it is not finite
		}
		r.mu.pending = append(append(r.mu.pending, text...), '\n')
		if len(r.mu.pending) > maxLine { // the disk does not answer: what is kept is bounded, what is pending is not
			r.mu.pending, r.mu.rewrite = nil, true
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// End records the end of the process, writes what is not written yet, and closes the file. An interrupted run has a
// result with Interrupted; one that stopped early has finished. Later calls do nothing.
func (r *Recorder) End(result *report.Result, failure error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	if r.mu.ended {
		r.mu.Unlock()
		return
	}
	e := End{Seconds: report.Number(math.Round(1e3*time.Since(r.head.Started).Seconds()) / 1e3), State: Finished,
		Result: result}
	switch {
	case failure == context.Canceled: // a signal
		e.State = Interrupted
	case failure != nil:
		e.State, e.Error = Failed, cut(failure.Error())
	case result != nil && result.Interrupted && result.StopReason == "": // early stopping is an end
		e.State = Interrupted
	}
	r.mu.end = &e
	r.appendLocked(line{End: &e})
	r.mu.ended = true
	close(r.wake)
	r.mu.Unlock()
	<-r.done
}

// write is the goroutine that owns the file.
func (r *Recorder) write() {
	defer close(r.done)
	defer func() { r.file.Close() }()
	touch := time.NewTicker(touchEvery)
	defer touch.Stop()
	for open := true; open; {
		select {
		case _, open = <-r.wake:
		case now := <-touch.C:
			_ = os.Chtimes(r.path, now, now)
			continue
		}
		if err := r.flush(!open); err != nil {
			if r.onLost != nil {
				r.onLost(fmt.Errorf("the record of the run ends here: %w", err))
			}
			r.mu.Lock()
			r.mu.ended, r.mu.kept, r.mu.pending = true, kept{}, nil
			r.mu.Unlock()
			return
		}
	}
}

// flush writes the pending lines, or everything again if points were thinned out.
func (r *Recorder) flush(last bool) error {
	r.mu.Lock()
	text, rewrite := r.mu.pending, r.mu.rewrite
	r.mu.pending, r.mu.rewrite = nil, false
	if rewrite {
		text = r.mu.text(&r.head)
	}
	r.mu.Unlock()
	if rewrite {
		part := r.path + ".tmp"
		_ = os.Remove(part)
		f, err := create(part, text)
		if err != nil {
			return err
		}
		err = os.Rename(part, r.path) // before the lock of the old file ends
		r.file.Close()
		r.file = f
		return err
	}
	if _, err := r.file.Write(text); err != nil {
		return err
	}
	if last {
		return r.file.Sync()
	}
	return nil
}

// text returns the lines of a file.
func (k *kept) text(h *Head) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	_ = enc.Encode(line{Head: h}) // a buffer takes all, and Begin has encoded the head before
	for i := range k.points {
		_ = enc.Encode(line{Point: &k.points[i]})
	}
	for i := range k.held {
		_ = enc.Encode(line{Held: &k.held[i]})
	}
	for i := range k.notes {
		_ = enc.Encode(line{Note: &k.notes[i]})
	}
	if k.end != nil {
		_ = enc.Encode(line{End: k.end})
	}
	return b.Bytes()
}
