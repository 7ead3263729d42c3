package scheduler

import (
	"context"
	"errors"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore"
)

// groupLog makes a raftstore.Group a Log.
type groupLog struct{ group *raftstore.Group }

// NewGroupLog returns the Log of the metadata group g.
func NewGroupLog(g *raftstore.Group) Log { return groupLog{g} }

func (l groupLog) Propose(ctx context.Context, entry []byte) (any, error) {
	result, _, err := l.group.Propose(entry).Wait(ctx)
	if err == nil {
		return result, nil
	}
	// The group counts as shard 0 in its own errors, which would mislead.
	if hint, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
		return nil, &notLeader{msg: fmt.Sprintf("this server no longer leads the metadata group (node %q may)", hint.Leader), hint: *hint}
	}
	return nil, fmt.Errorf("metadata group: %w", err)
}

func (l groupLog) Leader() (rowraft.NodeID, rowraft.Term, bool) { return l.group.Leader() }
