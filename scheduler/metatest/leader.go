// Package metatest has a scheduler's group of one member for tests of the packages that use the group.
package metatest

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
	"github.com/rowraft/rowraft/wire"
)

// Leader leads a scheduler's group of one member without a log: it applies each command at once. It implements the
// common part of checkpoints.Leader and jobs.Leader.
type Leader struct {
	Machine *meta.Machine
	View    *meta.View
	Conn    *grpc.ClientConn // to the leader of every shard; nil: the shards have no leader

	mu    sync.Mutex
	index rowraft.Index
	term  rowraft.Term
	lost  bool
}

// NewLeader returns the leader of a new cluster. With shards above 0 the cluster has one server, at addr.
func NewLeader(t *testing.T, shards int, addr string) *Leader {
	t.Helper()
	view := meta.NewView()
	l := &Leader{Machine: meta.New(view), View: view, term: 7}
	commands := []*rowraftv1.MetaCommand{{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: "c"}}}}
	if shards > 0 {
		a := clustermap.Node{ID: "a"}
		commands = append(commands,
			&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_PutNode{
				PutNode: &rowraftv1.MetaPutNode{Node: &rowraftv1.Node{Id: "a", Name: "a", Addr: addr, PeerAddr: addr}}}},
			&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{
				Shards: meta.ShardsToProto(placement.NewShards([]clustermap.Node{a}, shards, func() string { return "r" })),
				Slots:  rpc.SlotsToProto(clustermap.EvenSlots(shards, rowraft.DefaultSlots)),
			}}})
	}
	for _, c := range commands {
		if err := l.Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// Leading returns the term, or an error while another member leads.
func (l *Leader) Leading() (rowraft.Term, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return 0, rowraft.Errorf(rowraft.CodeNoLeader, "another member leads")
	}
	return l.term, nil
}

// Elect begins a new term. self is false if another member leads in it.
func (l *Leader) Elect(self bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term++
	l.lost = !self
}

// Entries returns the number of commands that were logged.
func (l *Leader) Entries() rowraft.Index {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.index
}

// InSync returns the error of Leading.
func (l *Leader) InSync(context.Context) error {
	_, err := l.Leading()
	return err
}

// Propose applies a command.
func (l *Leader) Propose(ctx context.Context, c *rowraftv1.MetaCommand) error {
	_, err := l.ProposeResult(ctx, c)
	return err
}

// ProposeResult is Propose for a command with a result. A command without a time gets the present one.
func (l *Leader) ProposeResult(_ context.Context, c *rowraftv1.MetaCommand) (any, error) {
	if _, err := l.Leading(); err != nil {
		return nil, err
	}
	if c.AtNs == 0 {
		c.AtNs = uint64(time.Now().UnixNano())
	}
	entry, err := meta.EncodeEntry(wire.FirstVersion, c)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index++
	result := l.Machine.Apply(l.index, entry)
	if refused, ok := result.(error); ok {
		return nil, refused
	}
	return result, nil
}

// OnLeader calls fn with Conn.
func (l *Leader) OnLeader(_ context.Context, _ clustermap.Shard, _ time.Duration,
	fn func(*grpc.ClientConn) error) error {
	if l.Conn == nil {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the shard has no leader")
	}
	return fn(l.Conn)
}

// EditState changes the state of the scheduler's group without a command, by way of a snapshot
// (docs/formats/metadata.md).
func (l *Leader) EditState(t *testing.T, change func(*rowraftv1.MetaState)) {
	t.Helper()
	snapshot, err := l.Machine.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := snapshot.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	var p rowraftv1.MetaState
	if err := proto.Unmarshal(b.Bytes()[16:], &p); err != nil {
		t.Fatal(err)
	}
	change(&p)
	payload, err := proto.Marshal(&p)
	if err != nil {
		t.Fatal(err)
	}
	head := b.Bytes()[:12:12]
	binary.LittleEndian.PutUint32(head[8:], uint32(len(payload)))
	sum := crc32.Checksum(append(bytes.Clone(head), payload...), crc32.MakeTable(crc32.Castagnoli))
	frame := append(binary.LittleEndian.AppendUint32(head, sum), payload...)
	if err := l.Machine.Restore(bytes.NewReader(frame)); err != nil {
		t.Fatal(err)
	}
}
