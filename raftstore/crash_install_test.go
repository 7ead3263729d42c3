package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/snapstore"
)

// installLife is a replica that installs a snapshot of its leader.
type installLife struct {
	groupLife
	installed bool // the snapshot was acknowledged, or seen
}

const (
	installIndex = 1000
	installTerm  = 9
)

// install changes the files of shard-0 as raft does when its leader sends a snapshot far ahead of the log: term,
// snapshot, an empty log, the entry after the snapshot.
func (l *installLife) install(disk vfs.FS) (err error) {
	quiet := slog.New(slog.DiscardHandler)
	dir := "/node/raft/groups/shard-0"
	snaps, err := snapstore.Open(disk, dir+"/snapshots", raftlog.Owner{Cluster: testCluID, Node: "n1", Group: "shard-0",
		Replica: "r-shard-0"}.String(), quiet, func(string, error) {})
	if err != nil {
		return err
	}
	rows, err := raftlog.OpenShared(disk, "/node/raft/log", testCluID, "n1", raftlog.MinSegmentBytes, quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	b, err := raftlog.Open(disk, raftlog.Row, dir+"/log", raftlog.Owner{Cluster: testCluID, Node: "n1", Group: "shard-0",
		Replica: "r-shard-0"}, rows, quiet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := b.SetUint64([]byte("CurrentTerm"), installTerm); err != nil {
		return err
	}
	conf := raft.Configuration{Servers: []raft.Server{{ID: "r-shard-0", Address: "n1"}}}
	sink, err := snaps.Create(1, installIndex, installTerm, conf, 1, nil)
	if err != nil {
		return err
	}
	m := &listMachine{}
	m.Apply(installIndex, []byte("installed"))
	state, err := m.Snapshot()
	if err != nil {
		return err
	}
	defer state.Release()
	if err = snapstore.WriteStateHeader(sink, installIndex); err == nil {
		_, err = state.WriteTo(sink)
	}
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return err
	}
	l.installed, l.entries = true, nil
	first, err1 := b.FirstIndex()
	last, err2 := b.LastIndex()
	if err := errors.Join(err1, err2, b.DeleteRange(first, last)); err != nil {
		return err
	}
	next := &raft.Log{Index: installIndex + 1, Term: installTerm, Type: raft.LogNoop}
	return errors.Join(entry.Complete(next), b.StoreLogs([]*raft.Log{next}))
}

// restart starts the group on these files and checks its state.
func (l *installLife) restart(disk vfs.FS) (err error) {
	s, err := Open(crashOptions(disk))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	m := &listMachine{}
	g, err := s.StartGroup(crashGroup("shard-0", m))
	if err != nil {
		return err
	}
	before := l.entries
	if err := l.propose(g, "look"); err != nil {
		return err
	}
	found := m.list()
	if !slices.Contains(found, "installed") {
		if l.installed {
			return fmt.Errorf("the snapshot was acknowledged; found %q", found)
		}
		return l.compare(found)
	}
	if !l.installed { // the crash came after it was stored, and it replaces the earlier state
		l.entries = l.entries[len(before):]
	}
	l.installed = true
	if found[0] != "installed" {
		return fmt.Errorf("half a snapshot: %q", found)
	}
	return l.compare(found)
}

func TestCrashAtEachStepOfAnInstall(t *testing.T) {
	inBubble := func(f func() error) (err error) {
		synctest.Test(t, func(*testing.T) { err = f() })
		return err
	}
	formed := vfs.NewMem()
	var born installLife
	if err := inBubble(func() error { return born.live(formed, 2, false) }); err != nil {
		t.Fatal(err)
	}
	vfstest.Crashes(t, vfstest.Script[installLife]{
		Disk:    formed.Kill,
		Seeds:   4,
		Shallow: true,
		Run: func(disk vfs.FS, acked *installLife) error {
			*acked = born
			return inBubble(func() error { return acked.install(disk) })
		},
		Check: func(disk vfs.FS, acked installLife) (installLife, error) {
			err := inBubble(func() error { return acked.restart(disk) })
			return acked, err
		},
	}, map[string]string{"": "each place is in the tests of log, snapshots and group"})
}
