package scaffold

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Servers are the own servers of a measurement.
type Servers struct {
	Binary  string // rowraft; "": found by localcluster
	Number  int
	Shards  int
	Backend string // of the log
	Profile string // of the timers
}

// Start starts the servers within patience. with, unless it is nil, changes their options. The caller stops the servers
// and removes dir.
func (s *Servers) Start(ctx context.Context, patience time.Duration,
	with func(dir string, o *localcluster.Options)) (c *localcluster.Cluster, dir string, err error) {
	binary, err := localcluster.FindBinary("rowraft", s.Binary)
	if err != nil {
		return nil, "", err
	}
	if dir, err = os.MkdirTemp("", "rowraft-bench-"); err != nil {
		return nil, "", err
	}
	o := localcluster.Options{Binary: binary, Dir: dir, Servers: s.Number, Shards: s.Shards, Backend: s.Backend,
		Profile: s.Profile}
	if with != nil {
		with(dir, &o)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if c, err = localcluster.Start(ctx, o); err != nil {
		return nil, "", errors.Join(err, os.RemoveAll(dir))
	}
	return c, dir, nil
}

// HighestOf asks servers for a number of each of their replicas, and returns the highest number
// of each shard.
func HighestOf(ctx context.Context, servers []*localcluster.Server,
	ask func(context.Context, string) (*rowraftv1.NodeStatusReply, error),
	of func(*rowraftv1.ReplicaStatus) uint64) (map[uint32]uint64, error) {
	out := make(map[uint32]uint64)
	for _, s := range servers {
		st, err := ask(ctx, s.Addr)
		if err != nil {
			return nil, err
		}
		for _, rep := range st.Replicas {
			out[rep.Shard] = max(out[rep.Shard], of(rep))
		}
	}
	return out, nil
}

// AppliedOf returns the highest applied index of each shard's replicas on servers.
func AppliedOf(ctx context.Context, servers []*localcluster.Server) (map[uint32]uint64, error) {
	return HighestOf(ctx, servers, localcluster.Status, (*rowraftv1.ReplicaStatus).GetAppliedIndex)
}

// PauseFor waits for d, or until ctx ends; then it returns why.
func PauseFor(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
