package scheduler

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// putNode logs a server. With Options.Exact it refuses a server beyond Options.Servers.
func (s *Scheduler) putNode(ctx context.Context, n *rowraftv1.Node) error {
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{Node: n}}}
	if err := s.registering.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("waiting for another call: %w", err)
	}
	defer s.registering.Release(1)
	if !s.opts.Exact || n.GetNoShards() {
		_, err := s.propose(ctx, c)
		return err
	}
	if _, err := s.leadingInSync(ctx); err != nil {
		return err
	}
	// The count and the entry happen under one semaphore: two servers that register at once could otherwise both be the
	// last one.
	if m := s.view.Map(); m != nil {
		if _, known := m.Node(rowraft.NodeID(n.GetId())); !known && len(m.Servers()) >= s.opts.Servers {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"the server at %s is one too many: the cluster was started for %d, and has them", n.GetAddr(), s.opts.Servers)
		}
	}
	_, err := s.propose(ctx, c)
	return err
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
