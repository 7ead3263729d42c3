package route

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// member is a server with a fixed idea of the cluster.
type member struct {
	rowraftv1.UnimplementedClusterServer
	hello *rowraftv1.HelloReply
	m     *rowraftv1.GetMapReply
}

func (s *member) Hello(context.Context, *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	return s.hello, nil
}

func (s *member) GetMap(context.Context, *rowraftv1.GetMapRequest) (*rowraftv1.GetMapReply, error) {
	return s.m, nil
}

func (s *member) serve(t *testing.T) (addr string) {
	t.Helper()
	l := rpctest.Listen(t)
	rpctest.Serve(t, l, func(g *grpc.Server) { rowraftv1.RegisterClusterServer(g, s) })
	return l.Addr().String()
}

// unused is an address at which nothing listens.
func unused(t *testing.T) string {
	t.Helper()
	l := rpctest.Listen(t)
	l.Close()
	return l.Addr().String()
}

func newCluster(t *testing.T, endpoints ...string) *Cluster {
	c := &Cluster{Pool: NewPool(nil, nil, 1), Endpoints: endpoints, AskLimit: time.Minute}
	t.Cleanup(func() { c.Pool.Close() })
	return c
}

// A server that is no member of the scheduler names the members, and one of these the
// leader.
func TestTheLeaderIsFoundThroughAnyServer(t *testing.T) {
	leader := &member{hello: &rowraftv1.HelloReply{}}
	addr := leader.serve(t)
	leader.hello.SchedulerLeader = addr
	other := (&member{hello: &rowraftv1.HelloReply{Schedulers: []string{addr}}}).serve(t)
	c := newCluster(t, unused(t), other)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if got, err := c.AwaitLeader(ctx); got != addr || err != nil {
		t.Fatalf("the leader is %s, %v; want %s", got, err, addr)
	}
	for _, tc := range []struct {
		name    string
		layer   Layer
		answers []rowraft.Code
		want    rowraft.Code // the code of the call's error; Unknown: the call succeeds
		tries   int
	}{
		{"errors that pass", Control, []rowraft.Code{rowraft.CodeNoLeader, rowraft.CodeLeadershipLost}, 0, 3},
		{"an error that stays", Control, []rowraft.Code{rowraft.CodeStarting, rowraft.CodeDenied}, rowraft.CodeDenied, 2},
		{"a call that may have taken effect", Once, []rowraft.Code{rowraft.CodeNoLeader, rowraft.CodeLeadershipLost},
			rowraft.CodeLeadershipLost, 2},
	} {
		tries := 0
		err := c.Call(ctx, tc.layer, func(context.Context, *grpc.ClientConn) error {
			if tries++; tries <= len(tc.answers) {
				return rowraft.Errorf(tc.answers[tries-1], "refused")
			}
			return nil
		})
		if tries != tc.tries || (err != nil) != (tc.want != 0) || err != nil && rowraft.CodeOf(err) != tc.want {
			t.Errorf("%s: %d tries, %v; want %d and %s", tc.name, tries, err, tc.tries, tc.want)
		}
	}
}

// If nothing listens at any address, a call ends at once: it does not use up its time.
func TestServersThatAllRefuseEndACall(t *testing.T) {
	c := newCluster(t, unused(t), unused(t))
	_, err := c.AwaitLeader(t.Context())
	silent, ok := errors.AsType[*SilentError](err)
	if !ok || rowraft.CodeOf(err) != rowraft.CodeNoLeader || len(silent.failed) != 2 {
		t.Errorf("AwaitLeader: %v, want a SilentError of two servers", err)
	}
	if _, err := c.OnShard(t.Context(), 0, time.Minute, nil); !Refused(err) {
		t.Errorf("OnShard: %v, want an error that each server refused", err)
	}
}

func TestACallFollowsTheLeaderOfAShard(t *testing.T) {
	s := &member{}
	addr := s.serve(t)
	s.m = &rowraftv1.GetMapReply{
		Map: &rowraftv1.Map{
			Version: 1, Nodes: []*rowraftv1.Node{{Id: "a", Addr: "a:1"}, {Id: "b", Addr: "b:1"}},
			Shards: []*rowraftv1.Shard{{Replicas: []*rowraftv1.Replica{{Id: "ra", Node: "a"}, {Id: "rb", Node: "b"}}}},
		},
		Leaders: []*rowraftv1.LeaderHint{{Node: "b"}},
	}
	c := newCluster(t, addr)
	asked := ""
	_, err := c.OnShard(t.Context(), 0, time.Minute, func(_ context.Context, conn *grpc.ClientConn) error {
		switch asked += conn.Target(); len(asked) {
		case len(conn.Target()):
			return &rowraft.NotLeaderError{Leader: "a"}
		case 2 * len(conn.Target()):
			return rowraft.Errorf(rowraft.CodeNoLeader, "electing")
		}
		return nil
	})
	if want := "passthrough:///b:1passthrough:///a:1passthrough:///a:1"; err != nil || asked != want {
		t.Errorf("asked %s, %v; want %s", asked, err, want)
	}
	if _, err := c.OnShard(t.Context(), 1, time.Minute, nil); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a shard that does not exist: %v, want CodeInvalidArgument", err)
	}
}

// TestFailuresAreNamedOnce: three servers with one cause are one text.
func TestFailuresAreNamedOnce(t *testing.T) {
	got := failures{{"n1:1", "another CA"}, {"n2:1", "refused"}, {"n3:1", "another CA"}}.String()
	if want := "n1:1, n3:1 (another CA); n2:1 (refused)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
