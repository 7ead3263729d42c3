package jobs

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/peer"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// lastRanks holds the ranks that workers had, by job and worker, in this leader's memory. It is needed for the log line
// of logRank only: the first worker of a new run removes the members of the last one from the state.
type lastRanks struct {
	mu    sync.Mutex
	ranks map[string]map[string]int
}

// before returns the rank that a worker had in a job, -1 if none. Call it before the worker enters.
func (l *lastRanks) before(jobs []*rowraftv1.JobStatus, job, worker string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ranks == nil || len(l.ranks) > meta.MaxJobs {
		l.ranks = make(map[string]map[string]int)
	}
	known := l.ranks[job]
	if known == nil || len(known) > 2*meta.MaxWorkers {
		known = make(map[string]int)
		l.ranks[job] = known
	}
	for _, j := range jobs {
		if j.GetJob() != job {
			continue
		}
		for rank, name := range j.GetMembers() {
			if name != "" {
				known[name] = rank
			}
		}
	}
	if rank, found := known[worker]; found {
		return rank
	}
	return -1
}

// logRank logs the rank of a worker.
func (s *Service) logRank(ctx context.Context, worker string, before, rank int) {
	host := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		host = p.Addr.String()
		if ip, _, err := net.SplitHostPort(host); err == nil {
			host = ip
		}
	}
	s.logger.Info(
		//tidy:allow words programs read this line of MindSpore's
		fmt.Sprintf("Assign rank id of node id: %s, role: MS_WORKER, with host ip: %s, old rank id: %d, new rank id: %d",
			worker, host, before, rank))
}
