package client

import (
	"context"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func TestReadModes(t *testing.T) {
	var modes []rowraftv1.ReadMode
	s := fakeServer{pull: func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		modes = append(modes, req.Mode)
		return zeros(req)
	}}
	s.serve(t, 1)
	c, table := s.dial(t, nil)
	ctx := patience(t)
	seg := Segment{
		Table: table, Keys: []rowraft.Key{1}, Values: make([]float32, 2),
		Applied: map[rowraft.ShardID]rowraft.Index{0: 9, 3: 9},
	}
	if err := c.Pull(ctx, seg); err != nil {
		t.Fatal(err)
	}
	if len(seg.Applied) != 1 || seg.Applied[0] != 1 {
		t.Errorf("Applied = %v after a reply of shard 0 at index 1", seg.Applied)
	}
	if err := c.PullLinearizable(ctx, seg); err != nil {
		t.Fatal(err)
	}
	want := []rowraftv1.ReadMode{rowraftv1.ReadMode_READ_MODE_LEADER, rowraftv1.ReadMode_READ_MODE_LINEARIZABLE}
	if !slices.Equal(modes, want) {
		t.Errorf("Pull and PullLinearizable ask in modes %v, want %v", modes, want)
	}
}

// A shard refuses a slot and names no newer map. A retry cannot help: it would continue until the caller's
// context ends.
func TestAWrongShardThatNoMapExplainsIsAnError(t *testing.T) {
	s := fakeServer{pull: func(context.Context, *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		return nil, rowraft.Errorf(rowraft.CodeWrongShard, "slot 7 is not held here")
	}}
	s.serve(t, 1)
	_, table := s.dial(t, nil)
	ctx := patience(t)
	err := table.Pull(ctx, []rowraft.Key{1}, make([]float32, 2))
	if rowraft.CodeOf(err) != rowraft.CodeWrongShard || ctx.Err() != nil {
		t.Errorf("%v (context: %v), want CodeWrongShard at once", err, ctx.Err())
	}
}
