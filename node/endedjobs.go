package node

import (
	"math"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// maxEndedJobs bounds the jobs of which a leader knows that they were ended.
const maxEndedJobs = 1024

// endedJobs are those that this leader has ended of late, and up to which generation. A call that drives
// a membership and comes when its job was ended, late on the network or because it waited for a step, finds no job in
// the machine, and would bring it back, in a place that nobody frees. Soft: the next leader knows none, and is sent
// such a call only by who took it for the leader before.
type endedJobs struct {
	upTo  map[rowraft.JobID]rowraft.Generation
	order []rowraft.JobID // oldest first
}

// endUpTo notes that a job is ended up to a generation; 0: for good.
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

// mayBegin refuses a membership of a job that was ended since.
func (s *steps) mayBegin(w *wire.Membership) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if upTo, known := s.ended.upTo[w.Job]; known && w.Generation <= upTo {
		return rowraft.Errorf(rowraft.CodeStaleGeneration, "shard %d: job %x was ended, and generation %d with it: the call comes too late", s.r.shard, w.Job[:4], w.Generation)
	}
	return nil
}
