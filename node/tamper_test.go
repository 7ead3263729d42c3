package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/replica"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// applier is a replica of a shard that applies an entry.
type applier struct {
	node    string
	shard   string
	machine raftstore.StateMachine
	group   atomic.Pointer[raftstore.Group] // nil until the group has started
}

// tamper lets change replace the entries that the shards of a server apply.
func (c *Config) tamper(change func(at *applier, entry []byte) []byte) {
	name := c.Name
	c.wrapStore = func(s replica.Store) replica.Store { return tamperedStore{s, name, change} }
}

type tamperedStore struct {
	replica.Store
	node   string
	change func(at *applier, entry []byte) []byte
}

func (s tamperedStore) StartGroup(cfg raftstore.GroupConfig) (*raftstore.Group, error) {
	at := &applier{node: s.node, shard: cfg.ID, machine: cfg.Machine}
	cfg.Machine = tampered{cfg.Machine, at, s.change}
	g, err := s.Store.StartGroup(cfg)
	at.group.Store(g)
	return g, err
}

type tampered struct {
	raftstore.StateMachine
	at     *applier
	change func(at *applier, entry []byte) []byte
}

func (m tampered) Apply(index rowraft.Index, entry []byte) any {
	return m.StateMachine.Apply(index, m.change(m.at, entry))
}

// leads reports whether the replica is the leader of its group.
func (a *applier) leads() bool {
	g := a.group.Load()
	if g == nil {
		return false
	}
	_, _, me := g.Leader()
	return me
}

// propose logs the entry that build makes with the header of a new entry.
func (a *applier) propose(ctx context.Context, build func(wire.EntryHeader) []byte) error {
	m := a.machine.(interface {
		LogTime() uint64
		Epoch() rowraft.TableEpoch
	})
	header := wire.EntryHeader{Version: wire.FirstVersion, LogTime: m.LogTime(), Epoch: m.Epoch()}
	result, _, err := a.group.Load().Propose(build(header)).Wait(ctx)
	if err != nil {
		return err
	}
	if err, failed := result.(error); failed {
		return err
	}
	return result.(*shard.Applied).Parts[0].Err
}

const holdLease = 5 * time.Second // the longest that a server grants

// hold holds the pushes to a shard, which server 0 leads, for holdLease or until release is called, as a checkpoint in
// dir does.
func (c *testCluster) hold(id uint32, dir string) (release func()) {
	c.t.Helper()
	ctx, release := context.WithCancel(testutil.Context(c.t))
	file, err := c.admin(0).WriteShardFile(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, step := range []*rowraftv1.WriteShardFileRequest{
		{Step: &rowraftv1.WriteShardFileRequest_Prepare{Prepare: &rowraftv1.WriteShardFilePrepare{
			Shard: id, Mark: make([]byte, wire.MarkSize), Destination: dir, Name: "hold",
		}}},
		{Step: &rowraftv1.WriteShardFileRequest_Hold{Hold: &rowraftv1.WriteShardFileHold{LeaseNs: uint64(holdLease)}}},
	} {
		if err = file.Send(step); err == nil {
			_, err = file.Recv()
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
	return release
}
