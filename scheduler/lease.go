package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// unattendedLease bounds the lease of a worker whose job has had no call of Attend: it renews it every second.
const unattendedLease = time.Minute

// jobTick is how often leases are looked at.
const jobTick = 200 * time.Millisecond

// wakeJobs has the members of jobs looked at now.
func (s *Scheduler) wakeJobs() {
	select {
	case s.jobKick <- struct{}{}:
	default:
	}
}

// runJobs takes silent workers out of their jobs and makes the members of each
// generation known, while this member leads the metadata group.
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
			continue // another member's work, or not all that was logged is known
		}
		s.keepJobs(ctx)
	}
}

// keepJobs is one turn of runJobs.
func (s *Scheduler) keepJobs(ctx context.Context) {
	_, term, err := s.leading()
	if err != nil {
		return
	}
	s.workers.startTerm(term)
	s.generations.startTerm(term)
	present := make(map[uint64]bool)
	for _, r := range s.machine.allRuns() {
		for _, m := range r.GetMembers() {
			if !training(m) {
				continue
			}
			present[m.GetIncarnation()] = true
			if err := s.checkLease(ctx, r, m); err != nil && ctx.Err() == nil {
				s.logger.Warn("a silent worker could not be taken out of its job", "job", r.GetJob(), "worker", m.GetWorker(), "err", err)
			}
		}
	}
	s.workers.keep(present)
	for _, r := range s.machine.allRuns() { // as they are now
		if err := s.driveGeneration(ctx, r); err != nil && ctx.Err() == nil {
			s.logger.Warn("the members of a job are not known to all shards yet; trying again", "job", r.GetJob(), "generation", r.GetGeneration(), "err", err)
		}
	}
	for _, r := range s.machine.allRuns() {
		if err := s.settleParts(ctx, r); err != nil && ctx.Err() == nil {
			s.logger.Warn("how far a worker was in its data is not known yet; trying again", "job", r.GetJob(), "err", err)
		}
	}
	for _, run := range s.machine.endedRuns() {
		if err := s.endInShards(ctx, run); err != nil && ctx.Err() == nil {
			s.logger.Debug("a run that is over is not forgotten by all shards yet", "err", err)
			break // the others wait for the same shards, and leases for this turn
		}
	}
	s.restRuns(ctx)
	s.forgetIdleJobs(ctx)
	s.attendance.mu.Lock()
	s.attendance.changeLocked() // each call looks whether it has to tell its trainer
	s.attendance.mu.Unlock()
}

// checkLease takes a member out of the job whose lease has run out.
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

// generation is one that may be told to workers.
type generation struct {
	number    uint64
	ranks     []uint32
	firstStep uint64
}

// generations are those that all shards have that need it, by run. Soft: a new leader
// drives them again, which changes nothing where it was done.
type generations struct {
	mu   sync.Mutex
	term rowraft.Term
	list map[string]generation
	// drive makes a generation known to every shard and returns its first step; nil
	// where no shard needs it.
	drive func(ctx context.Context, r *rowraftv1.MetaRun) (firstStep uint64, err error)
	// positions asks every shard how far a run's data was read.
	positions func(ctx context.Context, run []byte) ([]shardRead, error)
	// end has every shard forget a run.
	end func(ctx context.Context, run []byte) error
	// rest has every shard forget a run that nobody trains in, for now.
	rest   func(ctx context.Context, r *rowraftv1.MetaRun) error
	rested map[string]uint64 // generation that is at rest, by run
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

// endInShards has the shards forget a run, and forgets it then.
func (s *Scheduler) endInShards(ctx context.Context, run []byte) error {
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if err := s.generations.end(ctx, run); err != nil {
		return err
	}
	return s.proposeCommand(ctx, &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetRun{ForgetRun: &rowraftv1.MetaForgetRun{Run: run}}})
}

// restsAtOnce is how many runs are put to rest in a turn, which leases wait for.
const restsAtOnce = 8

// restRuns has the shards forget runs that nobody trains in.
func (s *Scheduler) restRuns(ctx context.Context) {
	n := 0
	for _, r := range s.machine.allRuns() {
		if !r.GetInShards() || r.GetGeneration() == 0 || r.GetState() == rowraftv1.JobState_JOB_STATE_DONE || len(trainingRanks(r)) > 0 || unsettled(r) || s.generations.rests(r) {
			continue
		}
		if n++; n > restsAtOnce {
			return
		}
		if err := s.rest(ctx, r); err != nil {
			if ctx.Err() == nil {
				s.logger.Debug("a run that nobody trains in is not forgotten by all shards yet", "job", r.GetJob(), "err", err)
			}
			return // the others wait for the same shards
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

// roomInShards refuses a job that the shards could not take in: they keep those that
// somebody trains in.
func (s *Scheduler) roomInShards(job string) error {
	others := 0
	for _, r := range s.machine.allRuns() {
		if r.GetJob() == job && len(trainingRanks(r)) > 0 {
			return nil
		}
		if r.GetInShards() && len(trainingRanks(r)) > 0 {
			others++
		}
	}
	if others < checkpoint.MaxJobs {
		return nil
	}
	return rowraft.Errorf(rowraft.CodePrecondition, "job %s: %d jobs train in step or with clocks, as many as the shards keep: stop one with `rowraft job stop`, or wait until one ends (`rowraft job list` shows them)", job, others)
}

// driveGeneration makes the present generation of a run known: first to the shards,
// then to whoever asks for it.
func (s *Scheduler) driveGeneration(ctx context.Context, r *rowraftv1.MetaRun) error {
	g := generation{number: r.GetGeneration(), ranks: trainingRanks(r)}
	toSettle := len(g.ranks) == 0 && unsettled(r)
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

// workers is what the leader knows of those who train, by incarnation. Soft: a new
// leader gives everybody a fresh lease.
type workers struct {
	mu   sync.Mutex
	term rowraft.Term
	list map[uint64]heardOf
}

type heardOf struct {
	heard time.Time
	beat  *rowraftv1.WorkerBeat // nil: none yet
	spoke time.Time             // when it came
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

// startTerm forgets what was said to an earlier leader.
func (w *workers) startTerm(term rowraft.Term) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.term != term {
		w.term, w.list = term, nil
	}
}

// silent returns how long a member has been silent, and its last beat. One that was
// never heard of in this term counts as heard now.
func (w *workers) silent(incarnation uint64) (time.Duration, *rowraftv1.WorkerBeat) {
	if one, known := w.get(incarnation); known {
		return time.Since(one.heard), one.beat
	}
	w.heard(incarnation, nil)
	return 0, nil
}

// stoodStill takes a time in which this process heard nobody off the silence of all.
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

// keep drops those that are not in present.
func (w *workers) keep(present map[uint64]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for incarnation := range w.list {
		if !present[incarnation] {
			delete(w.list, incarnation)
		}
	}
}
