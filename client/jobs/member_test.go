package jobs

import (
	"bytes"
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// registry replies to calls that enter a job. It is the control of a client, and its connection.
type registry struct {
	control
	grpc.ClientConnInterface
	t      *testing.T
	asked  [][]byte // instances
	refuse int      // number of calls that it refuses as too late
}

func (r *registry) Context() context.Context { return r.t.Context() }

func (r *registry) Go(func()) error { return nil }

func (r *registry) Adopt(context.Context, rowraft.ClientID, *rowraftv1.JobIdentity) error { return nil }

func (r *registry) Call(ctx context.Context, _ string,
	call func(context.Context, grpc.ClientConnInterface) error) error {
	return call(ctx, r)
}

func (r *registry) Invoke(_ context.Context, _ string, request, reply any, _ ...grpc.CallOption) error {
	q := request.(*rowraftv1.EnterRequest)
	r.asked = append(r.asked, bytes.Clone(q.Instance))
	if len(r.asked) <= r.refuse {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "this process has left: the call comes too late")
	}
	id := &rowraftv1.JobIdentity{Job: q.Job, Run: make([]byte, 16), Incarnation: 7}
	proto.Merge(reply.(proto.Message), &rowraftv1.EnterReply{Identity: id})
	return nil
}

// TestAWorkerThatWasLostOnItsWayEntersOnceMore: the first try succeeds, its answer is lost, and the lease
// ends before the next try. The worker then enters as another process, a bounded number of times.
func TestAWorkerThatWasLostOnItsWayEntersOnceMore(t *testing.T) {
	for _, tc := range []struct{ refuse, calls int }{{0, 1}, {1, 2}, {99, maxEnters + 1}} {
		r := &registry{t: t, refuse: tc.refuse}
		m, err := enter(t.Context(), r, Entry{Job: "ctr", Worker: "w", Workers: 1})
		if len(r.asked) != tc.calls || (err == nil) != (tc.refuse < tc.calls) || err == nil &&
			(m.Incarnation() != 7 || !bytes.Equal(m.instance[:], r.asked[tc.refuse])) {
			t.Errorf("refused %d times: %d calls, member %+v, %v", tc.refuse, len(r.asked), m, err)
		}
		for i := 1; i < len(r.asked); i++ {
			if bytes.Equal(r.asked[i], r.asked[i-1]) {
				t.Errorf("call %d has the instance of the one before", i)
			}
		}
	}
}
