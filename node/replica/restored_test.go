package replica

import (
	"errors"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/node/steps"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// A caller that began before a restore gets an error that says so, for every call.
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
	head, id := wire.EntryHeader{Version: wire.FirstVersion, Epoch: machine.Epoch()}, wire.RestoreID{1}
	for i, entry := range [][]byte{
		wire.RestoreBeginEntry(head, &wire.RestoreBegin{ID: id, Epoch: 5}),
		wire.RestoreCloseEntry(head, &wire.RestoreClose{ID: id, Epoch: 5}),
	} {
		if a, ok := machine.Apply(rowraft.Index(i+1), entry).(*shard.Applied); !ok || a.Parts[0].Err != nil {
			t.Fatalf("entry %d: %+v", i+1, a)
		}
	}
	h := New(Options{})
	h.replicas[0] = &replica{machine: machine}
	h.cluster.Store(m)
	_, _, err = h.replicaOfJob(0, 4, make([]byte, 16))
	if e, ok := errors.AsType[*rowraft.RestoredError](err); !ok || *e != (rowraft.RestoredError{Have: 4, Want: 5}) {
		t.Errorf("a call of epoch 4: %v, want a RestoredError", err)
	}
	for _, epoch := range []uint64{0, 5} {
		if _, _, err := h.replicaOfJob(0, epoch, make([]byte, 16)); err != nil {
			t.Errorf("a call of epoch %d: %v", epoch, err)
		}
	}
	if _, _, err := h.replicaOfJob(0, 6, make([]byte, 16)); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("a call of the epoch that is to come: %v, want CodeStarting", err)
	}
}

// watched is a replica without a group, as its machine's entries see it.
func watched(t *testing.T) (*replica, stateMachine) {
	t.Helper()
	machine, err := shard.New(shard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { machine.Close() })
	r := &replica{machine: machine, fenced: make(chan struct{})}
	r.steps = steps.New(0, machine, stepLeader{r})
	return r, stateMachine{machine, r}
}

// TestAReplicaThatCouldNotCloseARestoreIsFenced: its staged rows differed from those of the log, so it kept
// its tables when the other replicas took the new ones. It would refuse every entry that they accept,
// forever, and be no replica of anything.
func TestAReplicaThatCouldNotCloseARestoreIsFenced(t *testing.T) {
	h, id := wire.EntryHeader{Version: wire.FirstVersion, Epoch: 1}, wire.RestoreID{1}
	next := wire.EntryHeader{Version: wire.FirstVersion, Epoch: 2}
	for name, tc := range map[string]struct {
		rows   uint64 // that it should have staged
		never  bool   // no restore: the entry's caller is ahead of the shard
		fenced bool
	}{"whole": {0, false, false}, "damaged": {1, false, true}, "ahead": {0, true, false}} {
		r, m := watched(t)
		for i, entry := range [][]byte{
			wire.RestoreBeginEntry(h, &wire.RestoreBegin{ID: id, Epoch: 2}),
			wire.RestoreCloseEntry(h, &wire.RestoreClose{ID: id, Epoch: 2, Rows: tc.rows}),
		} {
			if !tc.never {
				m.Apply(rowraft.Index(i+1), entry)
			}
		}
		if e := r.machine.Fenced(); e != nil {
			t.Errorf("%s: fenced before others were seen to go on: %v", name, e)
		}
		m.Apply(3, wire.OpenSessionEntry(next, wire.Opening{Client: rowraft.ClientID{1}, Incarnation: 1}))
		woken := false
		select {
		case <-r.fenced:
			woken = true
		default:
		}
		if e := r.machine.Fenced(); (e != nil) != tc.fenced || woken != tc.fenced {
			t.Errorf("%s: fenced: %v (%v), want %v", name, woken, e, tc.fenced)
		}
	}
}

// TestADividedShardTakesNoSnapshot: a snapshot would not record that the shard is divided. A replica that
// restarts from one would serve rows that may be wrong.
func TestADividedShardTakesNoSnapshot(t *testing.T) {
	h := wire.EntryHeader{Version: 1, Epoch: 1}
	r, m := watched(t)
	proof := func(index rowraft.Index, p wire.Proof) { m.Apply(index, wire.ProofEntry(h, &p)) }
	proof(1, wire.Proof{Step: wire.ProofMark})
	proof(2, wire.Proof{Step: wire.ProofDivided, Mark: 1})
	if s, err := m.Snapshot(); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a snapshot while divided: %v, %v; want Corrupt", s, err)
	}
	proof(3, wire.Proof{Step: wire.ProofMark})
	noted, _ := r.machine.Rounds.At(3)
	proof(4, wire.Proof{Step: wire.ProofAgreed, Mark: 3, Rows: noted.Rows, Digest: noted.Sum})
	s, err := m.Snapshot()
	if err != nil {
		t.Fatalf("a snapshot once they agree: %v", err)
	}
	s.Release()
}
