package client

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestAClientEntersUntilItPushes: a worker can enter its job again while it waits for the others,
// but not after a shard knows its session.
func TestAClientEntersUntilItPushes(t *testing.T) {
	c := newClient(Options{}, nil)
	c.cluster.Store(&clustermap.Map{Cluster: "c"})
	for i := range rowraft.Incarnation(3) {
		id, as := &rowraftv1.JobIdentity{Incarnation: uint64(i) + 1}, rowraft.ClientID{byte(i)}
		if err := c.Control().Adopt(t.Context(), as, id); err != nil || c.sessions.inc != i+1 || c.sessions.client != as {
			t.Fatalf("entry %d: %v; incarnation %d of %x", i+1, err, c.sessions.inc, c.sessions.client)
		}
	}
	c.sessions.shards.at(7).session.Store(&shardSession{})
	if err := c.Control().Adopt(t.Context(), rowraft.ClientID{}, &rowraftv1.JobIdentity{Incarnation: 9}); err == nil ||
		c.sessions.inc != 3 {
		t.Errorf("after a push: %v, incarnation %d", err, c.sessions.inc)
	}
}

// Call bounds an attempt, so that a server that hangs is left for another one; CallLong does not, because a checkpoint
// may take minutes.
func TestLimitOfACall(t *testing.T) {
	s := &fakeServer{}
	s.serve(t, 1)
	c, _ := s.dial(t, nil)
	for name, tc := range map[string]struct {
		call func(context.Context, string, func(context.Context, grpc.ClientConnInterface) error) error
		want bool
	}{"Call": {c.Control().Call, true}, "CallLong": {c.Control().CallLong, false}} {
		err := tc.call(t.Context(), "ask", func(ctx context.Context, _ grpc.ClientConnInterface) error {
			if _, has := ctx.Deadline(); has != tc.want {
				t.Errorf("%s: the attempt has a deadline: %v", name, has)
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
