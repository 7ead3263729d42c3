package checkpoints

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
	"github.com/rowraft/rowraft/wire"
)

// soloLeader leads a metadata group of one member without a log: it applies each command at once.
type soloLeader struct {
	machine *meta.Machine
	conn    *grpc.ClientConn // to the leader of every shard

	mu     sync.Mutex
	index  rowraft.Index
	lost   bool // another member leads now
	staged []StagedRestore
}

const soloTerm = 7

func (l *soloLeader) Leading() (rowraft.Term, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return 0, rowraft.Errorf(rowraft.CodeNoLeader, "another member leads")
	}
	return soloTerm, nil
}

func (l *soloLeader) InSync(context.Context) error {
	_, err := l.Leading()
	return err
}

func (l *soloLeader) Propose(_ context.Context, c *rowraftv1.MetaCommand) error {
	if _, err := l.Leading(); err != nil {
		return err
	}
	entry, err := meta.EncodeEntry(wire.FirstVersion, c)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	if refused, ok := l.machine.Apply(l.index, entry).(error); ok {
		return refused
	}
	return nil
}

func (l *soloLeader) OnLeader(_ context.Context, _ clustermap.Shard, _ time.Duration, fn func(*grpc.ClientConn) error) error {
	if l.conn == nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the shard has no leader")
	}
	return fn(l.conn)
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

func (l *soloLeader) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
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
	view := meta.NewView()
	l, trainers := &soloLeader{machine: meta.New(view)}, &noTrainers{callers: make(map[string][]*rpc.Caller)}
	c := New(Options{Leader: l, Trainers: trainers, Machine: l.machine, View: view, Logger: slog.New(slog.DiscardHandler)})
	commands := []*rowraftv1.MetaCommand{{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: "c"}}}}
	if shards > 0 {
		a := clustermap.Node{ID: "a"}
		commands = append(commands,
			&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{PutNode: &rowraftv1.MetaPutNode{Node: &rowraftv1.Node{Id: "a", Name: "a", Addr: "a:1", PeerAddr: "a:2"}}}},
			&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{
				Shards: meta.ShardsToProto(placement.NewShards([]clustermap.Node{a}, shards, func() string { return "r" })), Slots: rpc.SlotsToProto(clustermap.EvenSlots(shards, rowraft.DefaultSlots)),
			}}})
	}
	for _, command := range commands {
		if err := l.Propose(t.Context(), command); err != nil {
			t.Fatal(err)
		}
	}
	if register != nil {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		g := grpc.NewServer(rpc.ServerOptions(nil)...)
		register(g)
		done := make(chan error, 1)
		go func() { done <- g.Serve(lis) }()
		t.Cleanup(func() { g.Stop(); <-done })
		if l.conn, err = rpc.Dial(lis.Addr().String(), nil, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.conn.Close() })
	}
	return c, l, trainers
}

// wantRefusal checks the code of an error and that its text has the words.
func wantRefusal(t *testing.T, err error, code rowraft.Code, words ...string) {
	t.Helper()
	if rowraft.CodeOf(err) != code {
		t.Fatalf("error %v has code %v, want %v", err, rowraft.CodeOf(err), code)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

// openStream is the call of a restore whose caller waits until its context ends.
type openStream struct {
	grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]
	ctx context.Context
}

func (s openStream) Context() context.Context { return s.ctx }
