package ramp

import (
	"slices"
	"sync/atomic"
)

// Ramp limits how many batches of the job are under way, from their pull to the end of their push. The gradients of a
// batch miss the pushes of all others that are under way. The first batches of a job move rows most: an adaptive
// optimizer has seen few gradients, and its steps are long. Several such steps from one state of the rows go too far,
// and the model may not recover. So a job begins with one batch at a time, and one more may be under way after every
// BatchesPerStep batches. The trainers get their places in turn: first one batch each, by rank, then more. When a
// trainer joins or leaves the job, the places are divided again.
//
// Trainers that wait for each other (modes sync and ssp, averaged weights), and those with a fixed share of the data,
// all begin at once: there the limit is at least one batch per trainer. In mode geo a trainer reads its own copy, and
// the mode begins with short rounds instead. A model that only sleeps learns nothing and has no ramp.
type Ramp struct {
	Rule
	begun   atomic.Bool  // this trainer has had its turn to begin
	batches atomic.Int64 // batches of the job, as far as this trainer knows
	turn    atomic.Pointer[turn]
}

// turn is the place of a trainer among the trainers of its job. Immutable.
type turn struct {
	place    int // number of trainers with a lower rank
	trainers int
}

// BatchesPerStep is how many batches a job trains before one more may be under way. docs/training.md has
// the measured quality of others.
const BatchesPerStep = 100

// Rule is how the number of batches under way rises.
type Rule struct {
	Every    int64 // batches of the job after which one more may be under way; 0: there is no ramp
	Steps    bool  // a step of all trainers counts as one batch of the job
	Together bool  // all trainers begin at once
	Most     int64 // batches of all trainers that may be under way at the end; 0: as many as each trainer may have
	Each     int64 // with Most: batches that each trainer may have, even if these are more than Most
}

// New returns the ramp of the trainer with a rank among trainers.
func New(rank, trainers int, rule Rule) *Ramp {
	r := &Ramp{Rule: rule}
	r.turn.Store(&turn{rank, trainers})
	return r
}

// Members records the ranks that train in the job, ascending; rank is that of this trainer.
func (r *Ramp) Members(ranks []int, rank int) {
	if place := slices.Index(ranks, rank); place >= 0 {
		r.turn.Store(&turn{place, len(ranks)})
	}
}

// Trainers returns how many trainers train in the job, as far as this one knows.
func (r *Ramp) Trainers() int { return r.turn.Load().trainers }

// Alone reports whether no other trainer trains in the job.
func (r *Ramp) Alone() bool { return r.turn.Load().trainers == 1 }

// Leads reports whether this trainer has the lowest rank of those that train in the job.
func (r *Ramp) Leads() bool { return r.turn.Load().place == 0 }

// Reached records that the job has trained so many batches.
func (r *Ramp) Reached(batches int64) {
	for {
		was := r.batches.Load()
		if batches <= was || r.batches.CompareAndSwap(was, batches) {
			return
		}
	}
}

// Limit returns how many batches of this trainer may be under way, at most most.
func (r *Ramp) Limit(most int) int {
	if r.Every <= 0 {
		return most
	}
	mine := 1 + r.batches.Load()/r.Every
	if now := r.turn.Load(); !r.Steps {
		all, trainers := mine, int64(now.trainers)
		if r.Most > 0 {
			all = min(all, max(r.Most, r.Each*trainers))
		}
		mine = all / trainers
		if int64(now.place) < all%trainers {
			mine++
		}
	}
	if r.Together || r.begun.Load() {
		mine = max(mine, 1)
	}
	return int(min(mine, int64(most)))
}

// Stale returns the bound of copies of rows, in batches of this trainer: it rises to most like the number of batches
// under way.
func (r *Ramp) Stale(most int64) int64 {
	if r.Every <= 0 {
		return most
	}
	steps := r.batches.Load() / r.Every
	if !r.Together { // each trainer misses that many batches of each of the others
		steps /= int64(r.turn.Load().trainers)
	}
	return min(steps, most)
}

// InTurn reports whether a trainer may have to wait until the job has trained enough batches.
func (r *Ramp) InTurn() bool { return r.Every > 0 && !r.Together }

// Begin records that this trainer has had its turn to begin.
func (r *Ramp) Begin() { r.begun.Store(true) }

// Begun reports whether this trainer has had its turn to begin.
func (r *Ramp) Begun() bool { return r.begun.Load() }

// FirstBatch returns the batch of the job after which this trainer begins.
func (r *Ramp) FirstBatch() int64 { return int64(r.turn.Load().place) * r.Every }
