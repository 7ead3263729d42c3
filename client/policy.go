package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// CheckpointPolicy defines checkpoints that the cluster makes by itself.
type CheckpointPolicy struct {
	Name        string
	Destination string
	Every       time.Duration
	Keep        int           // number of checkpoints to keep, at least 1
	KeepWithin  time.Duration // also keep checkpoints younger than this
	Job         string        // make checkpoints only while this job trains, with all its trainers; "": always
	SkipAbsent  bool
	FullEvery   int // one of this many checkpoints is full, the others are deltas; 0 or 1: all are full
}

// SetCheckpointPolicy creates the policy p.Name, or changes it if it exists.
func (c *Client) SetCheckpointPolicy(ctx context.Context, p CheckpointPolicy) error {
	req := &rowraftv1.SetPolicyRequest{Policy: &rowraftv1.CheckpointPolicy{
		Name: p.Name, Destination: p.Destination, EveryNs: uint64(max(p.Every, 0)), Keep: uint32(max(p.Keep, 0)), KeepWithinNs: uint64(max(p.KeepWithin, 0)),
		Job: p.Job, SkipAbsent: p.SkipAbsent, FullEvery: uint32(max(p.FullEvery, 0)),
	}}
	return c.schedulerConn(ctx, fmt.Sprintf("set checkpoint policy %s", p.Name), func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := rowraftv1.NewCheckpointsClient(conn).SetPolicy(ctx, req)
		return err
	})
}

// DeleteCheckpointPolicy deletes a policy; its checkpoints stay.
func (c *Client) DeleteCheckpointPolicy(ctx context.Context, name string) error {
	return c.schedulerConn(ctx, fmt.Sprintf("delete checkpoint policy %s", name), func(ctx context.Context, conn grpc.ClientConnInterface) error {
		_, err := rowraftv1.NewCheckpointsClient(conn).DeletePolicy(ctx, &rowraftv1.DeletePolicyRequest{Name: name})
		return err
	})
}
