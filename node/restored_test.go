package node

import (
	"errors"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// Who began before a restore is told so, whatever it calls for.
func TestARestoreIsToldToThoseFromBefore(t *testing.T) {
	m, err := clustermap.New(clustermap.Map{Version: 2, SlotsVersion: 1, Shards: []clustermap.Shard{{}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	machine, err := shard.New(shard.Config{Slots: m.SlotsOf(0)})
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	h, id := wire.EntryHeader{Version: wire.PlainEntryVersion, Epoch: machine.Epoch()}, wire.RestoreID{1}
	for i, entry := range [][]byte{
		wire.RestoreBeginEntry(h, &wire.RestoreBegin{ID: id, Epoch: 5}),
		wire.RestoreCloseEntry(h, &wire.RestoreClose{ID: id, Epoch: 5}),
	} {
		if a, ok := machine.Apply(rowraft.Index(i+1), entry).(*shard.Applied); !ok || a.Parts[0].Err != nil {
			t.Fatalf("entry %d: %+v", i+1, a)
		}
	}
	n := &Node{replicas: map[rowraft.ShardID]*replica{0: {machine: machine}}}
	n.cluster.Store(m)
	_, _, err = n.replicaOfJob(0, 4, testJob[:])
	if e, ok := errors.AsType[*rowraft.RestoredError](err); !ok || *e != (rowraft.RestoredError{Have: 4, Want: 5}) {
		t.Errorf("a call of epoch 4: %v, want a RestoredError", err)
	}
	for _, epoch := range []uint64{0, 5} {
		if _, _, err := n.replicaOfJob(0, epoch, testJob[:]); err != nil {
			t.Errorf("a call of epoch %d: %v", epoch, err)
		}
	}
	if _, _, err := n.replicaOfJob(0, 6, testJob[:]); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("a call of the epoch that is to come: %v, want CodeStarting", err)
	}
}
