package node

import (
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// maxEndedJobs limits the number of ended jobs that a leader remembers.
const maxEndedJobs = 1024

// endedJobs are the jobs that this leader has ended recently, each with the highest ended generation.
//
// A call that sets a membership may arrive after its job was ended: the network delayed it, or it waited
// for a step. The machine has no such job any more, so the call would create the job again, and no later
// call would end it. This state is soft: the next leader does not have it. Only a caller that still took
// the next leader for the leader before can send it such a call.
type endedJobs struct {
	upTo  map[rowraft.JobID]rowraft.Generation
	order []rowraft.JobID // oldest first
}

// endUpTo records that a job is ended up to a generation; 0: for good.
func (s *steps) endUpTo(job rowraft.JobID, generation rowraft.Generation) {
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

// mayBegin refuses a membership of a job that has ended since.
func (s *steps) mayBegin(w *wire.Membership) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if upTo, known := s.ended.upTo[w.Job]; known && w.Generation <= upTo {
		return rowraft.Errorf(rowraft.CodeStaleGeneration, "shard %d: job %x was ended, and generation %d with it: the call comes too late", s.r.shard, w.Job[:4], w.Generation)
	}
	return nil
}
