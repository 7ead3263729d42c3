package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// unattendedLease bounds the lease of a worker whose job has not called Attend. Such a worker renews every second.
const unattendedLease = time.Minute

// jobTick is the interval between two checks of the leases.
const jobTick = 200 * time.Millisecond

// wakeJobs starts the next round of runJobs at once.
func (s *Scheduler) wakeJobs() {
	select {
	case s.jobKick <- struct{}{}:
	default:
	}
}

// runJobs is the control loop of jobs. While this member leads the metadata group, the loop removes silent workers from
// their jobs and sends each new generation to the shards.
func (s *Scheduler) runJobs(ctx context.Context) {
	tick := time.NewTicker(jobTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.jobKick:
		}
		if _, err := s.leadingInSync(ctx); err != nil {
			continue // another member leads, or this one has not applied all earlier entries yet
		}
		s.keepJobs(ctx)
	}
}

// keepJobs is one round of runJobs.
func (s *Scheduler) keepJobs(ctx context.Context) {
	_, term, err := s.leading()
	if err != nil {
		return
	}
	s.workers.startTerm(term)
	s.generations.startTerm(term)
	present := make(map[uint64]bool)
	for _, r := range s.machine.Runs() {
		for _, m := range r.GetMembers() {
			if !meta.IsTraining(m) {
				continue
			}
			present[m.GetIncarnation()] = true
			if err := s.checkLease(ctx, r, m); err != nil && ctx.Err() == nil {
				s.logger.Warn("a silent worker could not be taken out of its job", "job", r.GetJob(), "worker", m.GetWorker(), "err", err)
			}
		}
	}
	s.workers.keep(present)
	for _, r := range s.machine.Runs() { // read again: the checks above may have changed them
		if err := s.driveGeneration(ctx, r); err != nil && ctx.Err() == nil {
			s.logger.Warn("the members of a job are not known to all shards yet; trying again", "job", r.GetJob(), "generation", r.GetGeneration(), "err", err)
		}
	}
	for _, r := range s.machine.Runs() {
		if err := s.settleParts(ctx, r); err != nil && ctx.Err() == nil {
			s.logger.Warn("how far a worker was in its data is not known yet; trying again", "job", r.GetJob(), "err", err)
		}
	}
	for _, run := range s.machine.EndedRuns() {
		if err := s.endInShards(ctx, run); err != nil && ctx.Err() == nil {
			s.logger.Debug("a run that is over is not forgotten by all shards yet", "err", err)
			break // the remaining runs wait for the same shards, and the next check of the leases waits for this round
		}
	}
	s.restRuns(ctx)
	s.forgetIdleJobs(ctx)
	s.attendance.mu.Lock()
	s.attendance.changeLocked() // wakes each call, which then checks for a message to its trainer
	s.attendance.mu.Unlock()
}

// checkLease removes a member from its job if the member's lease has expired.
func (s *Scheduler) checkLease(ctx context.Context, r *rowraftv1.MetaRun, m *rowraftv1.RunMember) error {
	lease := time.Duration(r.GetLeaseNs())
	if !r.GetAttended() {
		lease = min(lease, unattendedLease)
	}
	s.feelPulse()
	silence, beat := s.workers.silent(m.GetIncarnation())
	if silence < lease {
		return nil
	}
	reason := fmt.Sprintf("it was silent for %v, and its lease is %v", silence.Round(100*time.Millisecond), lease)
	id := &rowraftv1.JobIdentity{Job: r.GetJob(), Run: r.GetRun(), Rank: m.GetRank(), Incarnation: m.GetIncarnation()}
	return s.leave(ctx, id, rowraftv1.MemberState_MEMBER_STATE_LOST, reason, beat.GetParts())
}

// generation is a set of members that workers may learn of.
type generation struct {
	number    uint64
	ranks     []uint32
	firstStep uint64
}

// generations holds, by run, the newest generation that every shard has received. It is soft state: a new leader sends
// the generations again, which changes nothing in a shard that has them.
type generations struct {
	mu   sync.Mutex
	term rowraft.Term
	list map[string]generation
	// drive sends a generation to every shard and returns its first step. It returns 0 if no shard needs the
	// generation.
	drive func(ctx context.Context, r *rowraftv1.MetaRun) (firstStep uint64, err error)
	// positions asks every shard for the positions in a run's data.
	positions func(ctx context.Context, run []byte) ([]meta.ShardPositions, error)
	// end lets every shard forget a run.
	end func(ctx context.Context, run []byte) error
	// rest lets every shard forget a run in which no worker trains, until a worker enters it again.
	rest   func(ctx context.Context, r *rowraftv1.MetaRun) error
	rested map[string]uint64 // by run: the generation that rest was called for
}

func (g *generations) startTerm(term rowraft.Term) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.term != term || g.list == nil {
		g.term, g.list, g.rested = term, make(map[string]generation), make(map[string]uint64)
	}
}

func (g *generations) of(run []byte) generation {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.list[string(run)]
}

// endInShards lets the shards forget a run and then logs that none of them knows it.
func (s *Scheduler) endInShards(ctx context.Context, run []byte) error {
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if err := s.generations.end(ctx, run); err != nil {
		return err
	}
	return s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetRun{ForgetRun: &rowraftv1.MetaForgetRun{Run: run}}})
}

// restsAtOnce bounds the runs that one round puts to rest, because the check of the leases waits for the round.
const restsAtOnce = 8

// restRuns lets the shards forget the runs in which no worker trains.
func (s *Scheduler) restRuns(ctx context.Context) {
	n := 0
	for _, r := range s.machine.Runs() {
		if !r.GetInShards() || r.GetGeneration() == 0 || r.GetState() == rowraftv1.JobState_JOB_STATE_DONE || len(meta.TrainingRanks(r)) > 0 || meta.HasUnsettled(r) || s.generations.rests(r) {
			continue
		}
		if n++; n > restsAtOnce {
			return
		}
		if err := s.rest(ctx, r); err != nil {
			if ctx.Err() == nil {
				s.logger.Debug("a run that nobody trains in is not forgotten by all shards yet", "job", r.GetJob(), "err", err)
			}
			return // the remaining runs wait for the same shards
		}
	}
}

func (g *generations) rests(r *rowraftv1.MetaRun) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rested[string(r.GetRun())] == r.GetGeneration()
}

func (s *Scheduler) rest(ctx context.Context, r *rowraftv1.MetaRun) error {
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if err := s.generations.rest(ctx, r); err != nil {
		return err
	}
	s.generations.mu.Lock()
	defer s.generations.mu.Unlock()
	s.generations.rested[string(r.GetRun())] = r.GetGeneration()
	return nil
}

// roomInShards refuses a job if the shards already hold MaxJobs other jobs with training workers.
func (s *Scheduler) roomInShards(job string) error {
	others := 0
	for _, r := range s.machine.Runs() {
		if r.GetJob() == job && len(meta.TrainingRanks(r)) > 0 {
			return nil
		}
		if r.GetInShards() && len(meta.TrainingRanks(r)) > 0 {
			others++
		}
	}
	if others < checkpoint.MaxJobs {
		return nil
	}
	return rowraft.Errorf(rowraft.CodePrecondition, "job %s: %d jobs train in step or with clocks, as many as the shards keep: stop one with `rowraft job stop`, or wait until one ends (`rowraft job list` shows them)", job, others)
}

// driveGeneration sends the current generation of a run first to the shards. Only then do workers learn of it, so that
// no worker pushes with members that a shard does not know.
func (s *Scheduler) driveGeneration(ctx context.Context, r *rowraftv1.MetaRun) error {
	g := generation{number: r.GetGeneration(), ranks: meta.TrainingRanks(r)}
	toSettle := len(g.ranks) == 0 && meta.HasUnsettled(r)
	if g.number == 0 || r.GetGathering() && !toSettle || s.generations.of(r.GetRun()).number >= g.number {
		return nil
	}
	if r.GetInShards() && (len(g.ranks) > 0 || toSettle) {
		ctx, cancel := context.WithTimeout(ctx, repairTimeout)
		defer cancel()
		var err error
		if g.firstStep, err = s.generations.drive(ctx, r); err != nil {
			return err
		}
	}
	s.generations.mu.Lock()
	defer s.generations.mu.Unlock()
	s.generations.list[string(r.GetRun())] = g
	return nil
}

// workers holds when this leader last heard from each training worker, by incarnation. It is soft state: a new leader
// gives every worker a fresh lease.
type workers struct {
	mu   sync.Mutex
	term rowraft.Term
	list map[uint64]heardOf
}

type heardOf struct {
	heard time.Time
	beat  *rowraftv1.WorkerBeat // nil: none yet
	spoke time.Time             // when beat arrived
}

func (w *workers) get(incarnation uint64) (heardOf, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, known := w.list[incarnation]
	return one, known
}

func (w *workers) renew(id *rowraftv1.JobIdentity) { w.heard(id.GetIncarnation(), nil) }

func (w *workers) heard(incarnation uint64, beat *rowraftv1.WorkerBeat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.list == nil {
		w.list = make(map[uint64]heardOf)
	}
	one := w.list[incarnation]
	one.heard = time.Now()
	if beat != nil {
		one.beat, one.spoke = beat, one.heard
	}
	w.list[incarnation] = one
}

// startTerm clears the list at the first call of a new term.
func (w *workers) startTerm(term rowraft.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.term != term {
		w.term, w.list = term, nil
	}
}

// silent returns how long a member has been silent, and its last beat. A member that this leader has not heard from
// counts as heard now.
func (w *workers) silent(incarnation uint64) (time.Duration, *rowraftv1.WorkerBeat) {
	if one, known := w.get(incarnation); known {
		return time.Since(one.heard), one.beat
	}
	w.heard(incarnation, nil)
	return 0, nil
}

// stoodStill subtracts the time for which this process was suspended from the silence of every worker.
func (w *workers) stoodStill(lost time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for incarnation, one := range w.list {
		if one.heard = one.heard.Add(lost); one.heard.After(now) {
			one.heard = now
		}
		w.list[incarnation] = one
	}
}

// keep deletes the workers that are not in present.
func (w *workers) keep(present map[uint64]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for incarnation := range w.list {
		if !present[incarnation] {
			delete(w.list, incarnation)
		}
	}
}
