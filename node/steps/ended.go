package steps

import (
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// maxEndedJobs limits the number of ended jobs that a leader remembers.
const maxEndedJobs = 1024

// endedJobs are the jobs that this leader has ended recently, each with the highest ended generation.
//
// A call that sets a membership may arrive after its job was ended: the network delayed it, or it waited for a step.
// The machine has no such job any more, so the call would create the job again, and no later call would end it. This
// state is soft: the next leader does not have it. Only a call that was sent to the next leader before the job ended
// can create the job again there.
type endedJobs struct {
	upTo  map[rowraft.JobID]rowraft.Generation
	order []rowraft.JobID // oldest first
}

// MarkEnded records that a job is ended up to a generation; 0: forever. The caller proposes the end in ChangeMembers.
func (s *Aggregator) MarkEnded(job rowraft.JobID, generation rowraft.Generation) {
	if generation == 0 {
		generation = math.MaxUint64
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &s.ended
	if e.upTo == nil {
		e.upTo = make(map[rowraft.JobID]rowraft.Generation)
	}
	have, known := e.upTo[job]
	if !known {
		e.order = append(e.order, job)
	}
	e.upTo[job] = max(have, generation)
	if len(e.order) > maxEndedJobs {
		delete(e.upTo, e.order[0])
		e.order = e.order[1:]
	}
}

// CheckNotEnded refuses a membership of a job that has ended.
func (s *Aggregator) CheckNotEnded(w *wire.Membership) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if upTo, known := s.ended.upTo[w.Job]; known && w.Generation <= upTo {
		return rowraft.Errorf(rowraft.CodeStaleGeneration,
			"shard %d: job %x was ended, and generation %d with it: this call is older", s.shard, w.Job[:4], w.Generation)
	}
	return nil
}
