package scheduler

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/peer"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// putNode logs a server. With Options.Exact it refuses a server beyond Options.Servers.
func (s *Scheduler) putNode(ctx context.Context, n *rowraftv1.Node) error {
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{Node: n}}}
	if err := s.registering.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("waiting for another call: %w", err)
	}
	defer s.registering.Release(1)
	if !s.opts.Exact || n.GetNoShards() {
		return s.proposeCommand(ctx, c)
	}
	if _, err := s.leadingInSync(ctx); err != nil {
		return err
	}
	if m := s.view.Map(); m != nil {
		if _, known := m.Node(rowraft.NodeID(n.GetId())); !known && len(m.Servers()) >= s.opts.Servers {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "the server at %s is one too many: the cluster was started for %d, and has them", n.GetAddr(), s.opts.Servers)
		}
	}
	return s.proposeCommand(ctx, c)
}

// tellConnected logs the number of servers and workers if it changed.
func (s *Scheduler) tellConnected() {
	m := s.view.Map()
	if m == nil {
		return
	}
	servers, workers := len(m.Servers()), 0
	for _, r := range s.machine.Runs() {
		for _, w := range r.GetMembers() {
			if w.GetState() == rowraftv1.MemberState_MEMBER_STATE_TRAINING {
				workers++
			}
		}
	}
	now := uint64(servers)<<32 | uint64(workers)
	if s.connected.Swap(now) != now {
		s.logger.Info(fmt.Sprintf("the scheduler is connected to %d workers and %d servers", workers, servers))
	}
}

// lastRanks holds the ranks that workers had, by job and worker, in this leader's memory. It is needed for the log line
// of tellRank only: the first worker of a new run removes the members of the last one from the state.
type lastRanks struct {
	mu    sync.Mutex
	ranks map[string]map[string]int
}

// before returns the rank that a worker had in a job, −1 if none. Call it before the worker enters.
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

// expects refuses a worker that expects another number of workers than the scheduler was started with.
func (s *Scheduler) expects(job, worker string, workers uint32) error {
	if n := uint32(s.opts.Workers); n > 0 && workers != n {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "worker %s of job %s expects %d workers, the scheduler was started for %d", worker, job, workers, n)
	}
	return nil
}

// tellRank logs the rank of a worker.
func (s *Scheduler) tellRank(ctx context.Context, worker string, before, rank int) {
	host := "unknown"
	if p, ok := peer.FromContext(ctx); ok {
		host = p.Addr.String()
		if ip, _, err := net.SplitHostPort(host); err == nil {
			host = ip
		}
	}
	s.logger.Info(fmt.Sprintf("Assign rank id of node id: %s, role: MS_WORKER, with host ip: %s, old rank id: %d, new rank id: %d", worker, host, before, rank))
}

// WaitingFor describes, for messages, what a cluster that has not started waits for.
func (s *Scheduler) WaitingFor() string {
	if s.opts.Identity.Identity().Cluster == "" {
		if w := s.waiting.Load(); w != nil {
			return "it waits for " + *w
		}
		return "it has just begun"
	}
	if _, _, err := s.leading(); err != nil {
		if s.opts.Self.Scheduler {
			return err.Error()
		}
		return "it waits for the scheduler to make the shards"
	}
	return s.waitingFor()
}
