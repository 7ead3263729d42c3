package jobs

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/client"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Policy defines checkpoints that the cluster makes by itself.
type Policy struct {
	Name        string
	Destination string
	Every       time.Duration
	Keep        int           // number of checkpoints to keep, at least 1
	KeepWithin  time.Duration // also keep checkpoints younger than this
	Job         string        // make checkpoints only while this job trains, with all its trainers; "": always
	SkipAbsent  bool
	FullEvery   int  // one of this many checkpoints is full, the others are deltas; 0 or 1: all are full
	UntilDone   bool // the cluster deletes the policy, not its checkpoints, when a run of the job is done
}

// SetPolicy creates the policy p.Name, or changes it if it exists.
func SetPolicy(ctx context.Context, c *client.Client, p Policy) error {
	req := &rowraftv1.SetPolicyRequest{Policy: &rowraftv1.CheckpointPolicy{
		Name: p.Name, Destination: p.Destination, EveryNs: uint64(max(p.Every, 0)), Keep: uint32(max(p.Keep, 0)),
		KeepWithinNs: uint64(max(p.KeepWithin, 0)),
		Job:          p.Job, SkipAbsent: p.SkipAbsent, FullEvery: uint32(max(p.FullEvery, 0)),
		UntilDone: p.UntilDone,
	}}
	return c.Control().Call(ctx, fmt.Sprintf("set checkpoint policy %s", p.Name),
		func(ctx context.Context, conn grpc.ClientConnInterface) error {
			_, err := rowraftv1.NewCheckpointsClient(conn).SetPolicy(ctx, req)
			return err
		})
}
