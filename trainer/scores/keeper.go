package scores

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/report"
)

// Book stores the scores of a run. [jobs.Member] keeps them in the scheduler's log.
type Book interface {
	ReportScore(ctx context.Context, s jobs.Score, lower bool, minDelta float64) (jobs.Scores, error)
	Scores(ctx context.Context) (jobs.Scores, error)
}

// Memory is the Book of a job without a cluster.
type Memory struct{ all jobs.Scores }

// ReportScore implements Book.
func (m *Memory) ReportScore(_ context.Context, s jobs.Score, lower bool, minDelta float64) (jobs.Scores, error) {
	if b := m.all.Best; b == nil || isBetter(s.Value, b.Value, lower, minDelta) {
		m.all.Best, m.all.SinceBest = &s, 0
	} else {
		m.all.SinceBest++
	}
	return m.all, nil
}

// isBetter reports whether a is better than b by more than minDelta; lower: the lower value is better.
func isBetter(a, b float64, lower bool, minDelta float64) bool {
	if lower {
		a, b = b, a
	}
	return a-b > minDelta
}

// Scores implements Book.
func (m *Memory) Scores(context.Context) (jobs.Scores, error) { return m.all, nil }

// bookPatience bounds how long training waits for the Book.
const bookPatience = 10 * time.Second

// Keeper compares the scores of a job, has checkpoints of the best ones made, and finds out when to stop.
//
// The goroutine that trains calls Report; any goroutine may call Saving and Wait. A goroutine of its own makes the
// checkpoint.
type Keeper struct {
	Book Book
	Stop EarlyStop
	// Save makes a checkpoint and returns its place; saved is that of the previous one, "": there is none. nil: no
	// checkpoints are made.
	Save func(saved string) (string, error)
	Note func(format string, args ...any)

	mu      sync.Mutex
	running bool  // a goroutine makes a checkpoint
	next    *save // the one that it makes after that; nil: none
	newest  *save // nil: none was begun
	made    string
}

// save is a checkpoint of a score.
type save struct {
	score jobs.Score
	best  bool // no earlier score was better
	lower bool
	saved string        // the previous one, as the Book knew it
	done  chan struct{} // closed when it is made, has failed, or a better score needs one
}

// Verdict is what follows from a score.
type Verdict struct {
	Best bool
	Stop string // why the job must stop; "": it need not
}

// Report compares a score with the earlier ones of the run, and begins a checkpoint if it is the best one. If the best
// one has no checkpoint, and this Keeper makes none of it, a score gets one that is better than the last one that has,
// and than one that is getting one. A score that is not defined counts for nothing.
func (k *Keeper) Report(ctx context.Context, h *report.Held) (v Verdict) {
	metric, value, lower := h.Metric()
	if math.IsNaN(value) || math.IsInf(value, 0) {
		k.Note("the score after step %d is not compared: its %s is not defined", h.Step, report.MetricName(metric))
		return v
	}
	s := jobs.Score{Metric: metric, Value: value, Step: h.Step}
	pending := k.pending() // before the call: the answer has the checkpoints that were made before it
	all, err := k.book(ctx, s, lower)
	if err != nil {
		k.Note("the score after step %d is not compared with the earlier ones: %v", h.Step, err)
		return v
	}
	v.Best = all.SinceBest == 0
	better := all.Saved == nil || isBetter(value, all.Saved.Value, lower, 0)
	if pending != nil {
		better = better && !pending.best && isBetter(value, pending.score.Value, lower, 0)
	}
	if k.Save != nil && (v.Best || all.Best.Checkpoint == "" && better) {
		k.beginSave(&save{score: s, best: v.Best, lower: lower}, all.Saved)
	}
	if k.Stop.Patience > 0 && all.SinceBest >= k.Stop.Patience {
		v.Stop = fmt.Sprintf("early stop: %d scores were not better than %s %.4f after step %d", all.SinceBest,
			report.MetricName(all.Best.Metric), all.Best.Value, all.Best.Step)
		if k.Stop.MinDelta > 0 {
			v.Stop += fmt.Sprintf(" by more than %v", k.Stop.MinDelta)
		}
	}
	return v
}

func (k *Keeper) book(ctx context.Context, s jobs.Score, lower bool) (jobs.Scores, error) {
	ctx, cancel := context.WithTimeout(ctx, bookPatience)
	defer cancel()
	return k.Book.ReportScore(ctx, s, lower, k.Stop.MinDelta)
}

// beginSave has a checkpoint made of a score, after the one that is being made. A better score takes the place of one
// that waits.
func (k *Keeper) beginSave(one *save, saved *jobs.Score) {
	one.done = make(chan struct{})
	if saved != nil {
		one.saved = saved.Checkpoint
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.newest = one
	if k.running {
		if k.next != nil {
			close(k.next.done)
		}
		k.next = one
		return
	}
	k.running = true
	go func() { // Wait waits for it
		for one := one; one != nil; one = k.nextSave() {
			k.makeSave(one)
			close(one.done)
		}
	}()
}

// nextSave returns the checkpoint that waits, nil if none does.
func (k *Keeper) nextSave() *save {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.next
	k.next, k.running = nil, one != nil
	return one
}

// makeSave makes a checkpoint. One goroutine at a time calls it.
func (k *Keeper) makeSave(one *save) {
	s := &one.score
	made, err := k.Save(cmp.Or(k.made, one.saved))
	if err == nil {
		k.made, s.Checkpoint = made, made
		_, err = k.book(context.Background(), *s, one.lower)
	}
	if err != nil {
		k.Note("the score after step %d has no checkpoint: %v", s.Step, err)
		return
	}
	k.Note("made checkpoint %s of the best score, %s %.4f after step %d", made, report.MetricName(s.Metric), s.Value,
		s.Step)
}

// pending returns the newest checkpoint if it is not complete, else nil.
func (k *Keeper) pending() *save {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.newest == nil {
		return nil
	}
	select {
	case <-k.newest.done:
		return nil
	default:
		return k.newest
	}
}

// Saving returns a channel that is closed when the newest checkpoint is complete; nil if it is, or there is none.
func (k *Keeper) Saving() <-chan struct{} {
	if k == nil {
		return nil
	}
	if one := k.pending(); one != nil {
		return one.done
	}
	return nil
}

// Wait returns when no checkpoint is being made, after the last Report.
func (k *Keeper) Wait() {
	if saving := k.Saving(); saving != nil {
		<-saving
	}
}

// Fill sets the best score in r. restore returns the command that puts the rows of a checkpoint in place.
func (k *Keeper) Fill(ctx context.Context, r *report.Result, restore func(path string) string) error {
	all, err := k.Book.Scores(ctx)
	result := func(s *jobs.Score) *report.BestScore {
		if s == nil {
			return nil
		}
		b := &report.BestScore{Metric: s.Metric, Value: report.Number(s.Value), Step: s.Step, Checkpoint: s.Checkpoint}
		if s.Checkpoint != "" {
			b.Restore = restore(s.Checkpoint)
		}
		return b
	}
	if r.BestScore = result(all.Best); all.Best != nil && all.Best.Checkpoint == "" {
		r.SavedScore = result(all.Saved)
	}
	return err
}
