package jobs

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// tellPatience bounds how long a message to a trainer waits until the trainer has read the messages before it.
const tellPatience = 5 * time.Second

// registry holds the trainers that are connected to this leader. The log holds the members whose state checkpoints need
// (meta/attend.go).
type registry struct {
	mu        sync.Mutex
	trainers  map[meta.TrainerID]*trainer
	endings   map[string]*ending      // by job: the newest checkpoint of leaving trainers
	stops     map[string]*stopRequest // by job: the newest stop request
	claimed   map[string]bool         // jobs whose trainers are paused by a round
	changed   chan struct{}           // closed and replaced at each change
	lastPause uint64                  // id of the newest pauseRound
}

func newRegistry() *registry {
	return &registry{
		trainers: make(map[meta.TrainerID]*trainer), endings: make(map[string]*ending), stops: make(map[string]*stopRequest),
		claimed: make(map[string]bool), changed: make(chan struct{}),
	}
}

// trainer is one connected trainer: one call of Attend.
type trainer struct {
	id        meta.TrainerID
	member    *rowraftv1.JobIdentity
	trainers  uint32 // number of trainers of its job
	announces bool   // the trainer agrees on a common boundary with the others of its job
	caller    *rpc.Caller
	gone      chan struct{} // closed when the call ends
	replaced  chan struct{} // closed when another call of a trainer with this rank begins

	send struct {
		mutex  *semaphore.Weighted // of 1, held while a message is sent; its waiters honour their context
		stream grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]
	}
	pause atomic.Pointer[pausedTrainer] // the current pause, which receives the trainer's answers

	// The fields below are guarded by registry.mu.
	park     *rowraftv1.AttendPark // nil while the trainer trains
	parkedAt time.Time
	answered bool                      // it reached a boundary at the last pause; false also if it was never paused
	ignored  bool                      // it did not answer the last pause in time
	took     time.Duration             // duration of the last pause, until the trainer stopped or the scheduler gave up
	sending  map[uint64]*pausedTrainer // pauses to which the trainer still sends its state, by pause id

	toldToStop atomic.Bool

	// Only the goroutine of Trainers.serve uses the fields below.
	told   uint64    // last generation sent to the trainer
	absent time.Time // since when othersReconnect has missed other trainers of its job; zero: none is missing
}

// tell sends a message to the trainer. It waits at most tellPatience for a trainer that does not read; the caller then
// ends the call.
func (a *trainer) tell(r *rowraftv1.AttendReply) error {
	ctx, cancel := context.WithTimeout(context.Background(), tellPatience)
	defer cancel()
	if a.send.mutex.Acquire(ctx, 1) != nil {
		return rowraft.Errorf(rowraft.CodeDeadline, "%s has read nothing for %v", a.id, tellPatience)
	}
	// Send has no context. On a goroutine of its own it can outlive this call without holding it; the semaphore keeps
	// later messages behind it, because a stream permits one Send at a time.
	sent := make(chan error, 1)
	go func() { // ends with the call at the latest
		defer a.send.mutex.Release(1)
		sent <- a.send.stream.Send(r)
	}()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return rowraft.Errorf(rowraft.CodeDeadline, "%s has read nothing for %v", a.id, tellPatience)
	}
}

// watch returns a channel that is closed at the next change. Call it before you read the state, or you miss a change.
func (t *registry) watch() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// wake closes the channel of watch.
func (t *registry) wake() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changeLocked()
}

// changeLocked is wake. REQUIRES: mu is held.
func (t *registry) changeLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// add puts a trainer on the list. It ends the call of the trainer that had the rank before.
func (t *registry) add(a *trainer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.trainers[a.id]; old != nil {
		// The process was restarted or reconnects, and its old call may still look alive for the time of a TCP timeout.
		close(old.replaced)
	}
	t.trainers[a.id] = a
	t.changeLocked()
}

// remove deletes the trainer from the list. A second call does nothing.
func (t *registry) remove(a *trainer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-a.gone:
		return
	default:
		close(a.gone)
	}
	// A newer call of the same rank may have taken the place.
	if t.trainers[a.id] == a {
		delete(t.trainers, a.id)
		t.changeLocked()
	}
}

// find returns the connected trainer of a member, nil if there is none.
func (t *registry) find(member *rowraftv1.JobIdentity) *trainer {
	t.mu.Lock()
	defer t.mu.Unlock()
	// The id of the run is the secret here: an incarnation can be guessed.
	a := t.trainers[meta.TrainerID{Job: member.GetJob(), Rank: member.GetRank()}]
	if a != nil && a.member.GetIncarnation() == member.GetIncarnation() &&
		bytes.Equal(a.member.GetRun(), member.GetRun()) {
		return a
	}
	return nil
}

// has reports whether a trainer is connected.
func (t *registry) has(id meta.TrainerID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.trainers[id] != nil
}

// claim reserves the trainers of a job for one round, because a trainer answers one pause at a time. It returns false
// if another round has them.
func (t *registry) claim(job string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.claimed[job] {
		return false
	}
	t.claimed[job] = true
	return true
}

// unclaim releases a claim.
func (t *registry) unclaim(job string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.claimed, job)
	t.changeLocked()
}

// allClaimed returns the jobs with a claim.
func (t *registry) allClaimed() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.claimed)
}

// list returns the connected trainers, ordered by job and rank.
func (t *registry) list() (out []*trainer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.trainers {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b *trainer) int { return a.id.Compare(b.id) })
	return out
}

// stop tells the trainer, at most once, that its job is stopped.
func (a *trainer) stop(reason string) error {
	if a.toldToStop.Swap(true) {
		return nil
	}
	return a.tell(&rowraftv1.AttendReply{Step: &rowraftv1.AttendReply_Stop{Stop: &rowraftv1.AttendStop{Reason: reason}}})
}
