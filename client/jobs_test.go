package client

import (
	"bytes"
	"context"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// registry replies to calls that enter a job.
type registry struct {
	rowraftv1.UnimplementedJobsServer
	asked  [][]byte // instances
	refuse int      // number of calls that it refuses as too late
}

func (r *registry) Enter(_ context.Context, q *rowraftv1.EnterRequest) (*rowraftv1.EnterReply, error) {
	r.asked = append(r.asked, bytes.Clone(q.Instance))
	if len(r.asked) <= r.refuse {
		return nil, rowraft.Errorf(rowraft.CodeSessionExpired, "this process has left: the call comes too late")
	}
	return &rowraftv1.EnterReply{Identity: &rowraftv1.JobIdentity{Job: q.Job, Run: make([]byte, 16), Incarnation: 7}}, nil
}

// TestAWorkerThatWasLostOnItsWayEntersOnceMore: the first try succeeds, its answer is lost, and the lease
// ends before the next try. The worker then enters as another process, a bounded number of times.
func TestAWorkerThatWasLostOnItsWayEntersOnceMore(t *testing.T) {
	for _, tc := range []struct{ refuse, calls int }{{0, 1}, {1, 2}, {99, maxEnters + 1}} {
		r := &registry{refuse: tc.refuse}
		s := &fakeServer{jobs: r}
		s.serve(t, 1)
		c, _ := s.dial(t, nil)
		m, err := c.EnterJob(patience(t), Entry{Job: "ctr", Worker: "w", Workers: 1})
		if len(r.asked) != tc.calls || (err == nil) != (tc.refuse < tc.calls) || err == nil && (m.Incarnation() != 7 || !bytes.Equal(m.instance[:], r.asked[tc.refuse])) {
			t.Errorf("refused %d times: %d calls, member %+v, %v", tc.refuse, len(r.asked), m, err)
		}
		for i := 1; i < len(r.asked); i++ {
			if bytes.Equal(r.asked[i], r.asked[i-1]) {
				t.Errorf("call %d has the instance of the one before", i)
			}
		}
	}
}

// TestAClientEntersUntilItPushes: a worker can enter its job again while it waits for the others, but not
// after a shard knows its session.
func TestAClientEntersUntilItPushes(t *testing.T) {
	c := &Client{ctx: t.Context()}
	c.session.naming = make(ctxMutex, 1)
	c.cluster.Store(&clustermap.Map{Cluster: "c"})
	for inc := range rowraft.Incarnation(3) {
		id := &rowraftv1.JobIdentity{Run: []byte{byte(inc)}, Incarnation: uint64(inc) + 1}
		if err := c.adopt(t.Context(), id); err != nil || c.session.inc != inc+1 || c.opts.ClientID != memberClient(id) {
			t.Fatalf("entry %d: %v; incarnation %d of %x", inc+1, err, c.session.inc, c.opts.ClientID)
		}
	}
	c.shards.at(7).session.Store(&shardSession{})
	if err := c.adopt(t.Context(), &rowraftv1.JobIdentity{Incarnation: 9}); err == nil || c.session.inc != 3 {
		t.Errorf("after a push: %v, incarnation %d", err, c.session.inc)
	}
}
