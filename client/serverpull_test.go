package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/wave"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Pulls of one call end each with a code of its own: those that may be tried again are, alone, and the others are not.
func TestPullsOfOneCallAreTriedAgainAlone(t *testing.T) {
	for _, last := range []error{nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard 3")} {
		codes := map[uint32]error{
			0: &rowraft.NotLeaderError{Shard: 0, Term: 2, Leader: "n"},
			1: &rowraft.OverloadedError{What: "shard 1", RetryAfter: time.Millisecond},
			2: rowraft.Errorf(rowraft.CodeTableNotFound, "shard 2"), // the map has the table: it is being created
			3: last,
		}
		var tries sent
		s := fakeServer{pull: func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
			if err := codes[req.Shard]; tries.add(req.Shard, 0) == 1 && err != nil {
				return nil, err
			}
			return zeros(req)
		}}
		s.serve(t, 5)
		c, table := s.dial(t, nil)
		values := slices.Repeat([]float32{7}, 10)
		err := c.Pull(patience(t), Segment{Table: table, Keys: s.oneKeyPerShard(table), Values: values})
		want := map[uint32]int{0: 2, 1: 2, 2: 2, 3: 1, 4: 1}
		if rowraft.CodeOf(err) != rowraft.CodeOf(last) || !maps.Equal(tries.counts(), want) || s.shared.Load() != 1 {
			t.Errorf("the pull ends with %v after the tries %v and %d shared calls, want %v, %v and 1", err, tries.counts(),
				s.shared.Load(), last, want)
		}
		if last == nil && slices.Contains(values, 7) {
			t.Errorf("the rows are %v, want those of all shards", values)
		}
	}
}

// A call that ends without some of its answers: their pulls are sent again alone.
func TestACallThatBreaksIsMadeAgainByShard(t *testing.T) {
	var tries sent
	s := fakeServer{pull: func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		tries.add(req.Shard, 0)
		return zeros(req)
	}}
	s.table = brokenServer{&s}
	s.serve(t, 3)
	c, table := s.dial(t, nil)
	if err := c.Pull(patience(t), Segment{Table: table, Keys: s.oneKeyPerShard(table),
		Values: make([]float32, 6)}); err != nil {
		t.Error(err)
	}
	if want := map[uint32]int{1: 1, 2: 1}; !maps.Equal(tries.counts(), want) {
		t.Errorf("shards were asked again alone: %v, want %v", tries.counts(), want)
	}
}

// brokenServer answers the first pull of a request and then ends the stream.
type brokenServer struct{ *fakeServer }

func (s brokenServer) PullMany(stream rowraftv1.Table_PullManyServer) error {
	req, err := stream.Recv()
	if err != nil {
		return err
	}
	reply, err := zeros(req.Batches[0])
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&rpc.Answers{Number: req.Number, Answers: []rpc.Counted{{Reply: reply}}}); err != nil {
		return err
	}
	return rpc.ToStatus(rowraft.Errorf(rowraft.CodeUnknown, "the connection broke"))
}

// A caller that leaves ends its call, and the server stops.
func TestACallerThatLeavesEndsItsPulls(t *testing.T) {
	var answered atomic.Int64
	arrived, ended := make(chan struct{}), make(chan struct{})
	s := fakeServer{pull: func(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
		if req.Shard != 1 {
			answered.Add(1)
			return zeros(req)
		}
		close(arrived)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}}
	s.serve(t, 3)
	c, table := s.dial(t, nil)
	why := errors.New("the caller has left")
	ctx, leave := context.WithCancelCause(patience(t))
	go func() { <-arrived; leave(why) }()
	err := c.Pull(ctx, Segment{Table: table, Keys: s.oneKeyPerShard(table), Values: make([]float32, 6)})
	if rowraft.CodeOf(err) != rowraft.CodeDeadline || !errors.Is(err, why) {
		t.Errorf("a pull whose caller left ends with %v, want CodeDeadline and the cause", err)
	}
	<-ended
}

// A pull of more than one request can carry makes several.
func TestLargePullsMakeSeveralRequests(t *testing.T) {
	for _, tc := range []struct {
		shards, keys int // keys of each shard
		shared       int64
	}{
		{3, 1, 1},
		{129, 1, 3},
		{3, wave.SharedBytes/8/2 - 1000, 2},
		{3, wave.SharedBytes / 8, 3},
	} {
		var tries sent
		s := fakeServer{pull: func(_ context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
			tries.add(req.Shard, 0)
			return zeros(req)
		}}
		s.serve(t, tc.shards)
		c, table := s.dial(t, nil)
		keys := slices.Repeat(s.oneKeyPerShard(table), tc.keys)
		values := slices.Repeat([]float32{7}, 2*len(keys))
		if err := c.Pull(patience(t), Segment{Table: table, Keys: keys, Values: values}); err != nil {
			t.Error(err)
		}
		if s.shared.Load() != tc.shared || slices.Contains(values, 7) || len(tries.counts()) != tc.shards {
			t.Errorf("%d keys of %d shards: %d requests to %d shards, want %d to all, and all rows", len(keys), tc.shards,
				s.shared.Load(), len(tries.counts()), tc.shared)
		}
	}
}
