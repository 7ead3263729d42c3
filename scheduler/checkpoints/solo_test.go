package checkpoints

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest"
)

// soloLeader is a leader whose heartbeats report staged restores.
type soloLeader struct {
	*metatest.Leader

	mu     sync.Mutex
	staged []StagedRestore
}

func (l *soloLeader) Staged() []StagedRestore {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.staged
}

func (l *soloLeader) Now() time.Time { return time.Now() }

// report sets the stages that the heartbeats report.
func (l *soloLeader) report(staged ...StagedRestore) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.staged = staged
}

// noTrainers are jobs without connected trainers, but for what a test sets.
type noTrainers struct {
	Trainers
	callers map[string][]*rpc.Caller
	pause   error // of Pause
}

func (*noTrainers) Await(context.Context, string, bool, map[string]error) error { return nil }

func (*noTrainers) Prove(context.Context, string) {}

func (n *noTrainers) Pause(context.Context, string, bool, bool, map[string]error) (Pause, error) {
	return nil, n.pause
}

func (n *noTrainers) Trains(job string) bool { return len(n.callers[job]) > 0 }

func (n *noTrainers) Callers(job string) []*rpc.Caller { return n.callers[job] }

func (*noTrainers) CheckOwner(context.Context, string) error { return nil }

// newSolo returns the service on a leader of one member. Its shards are served by what register adds to a server.
func newSolo(t *testing.T, shards int, register func(*grpc.Server)) (*Service, *soloLeader, *noTrainers) {
	t.Helper()
	l, trainers := &soloLeader{Leader: metatest.NewLeader(t, shards, "a:1")},
		&noTrainers{callers: make(map[string][]*rpc.Caller)}
	c := New(Options{Leader: l, Trainers: trainers, Machine: l.Machine, View: l.View,
		Logger: slog.New(slog.DiscardHandler)})
	if register != nil {
		lis := rpctest.Listen(t)
		rpctest.Serve(t, lis, register)
		var err error
		if l.Conn, err = rpc.Dial(lis.Addr().String(), nil, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Conn.Close() })
	}
	return c, l, trainers
}

// openStream is the call of a restore whose caller waits until its context ends.
type openStream struct {
	grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]
	ctx context.Context
}

func (s openStream) Context() context.Context { return s.ctx }
