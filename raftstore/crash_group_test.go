package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// noListener is a peer port without connections.
type noListener struct {
	once   sync.Once
	closed chan struct{}
}

func (l *noListener) Accept() (net.Conn, error) { <-l.closed; return nil, net.ErrClosed }
func (l *noListener) Close() error              { l.once.Do(func() { close(l.closed) }); return nil }
func (l *noListener) Addr() net.Addr            { return &net.TCPAddr{} }

// groupLife has what a store of two groups reported as durable.
type groupLife struct {
	entries []string // of shard-0, acknowledged, in order
	pending string   // proposed, answer unknown
	removed bool     // RemoveReplica of shard-1 returned
	tried   bool     // it was called
}

func crashOptions(disk vfs.FS) Options {
	return Options{
		FS: disk, Dir: "/node/raft", Cluster: testCluID, Node: "n1", Listener: &noListener{closed: make(chan struct{})},
		Resolve: func(rowraft.NodeID) (string, error) { return "", errors.New("alone") },
		Profile: timers.Fast, SegmentSizeBytes: raftlog.MinSegmentBytes, DiskReserveBytes: -1, DiskStallLimit: time.Hour,
		Fatal: func(error) {}, Logger: slog.New(slog.DiscardHandler),
	}
}

// live opens the store, starts both groups, checks their state, and proposes more.
func (l *groupLife) live(disk vfs.FS, entries int, last bool) (err error) {
	if err := vfs.MkdirAll(disk, "/node"); err != nil {
		return err
	}
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
	if err := l.propose(g, "look"); err != nil {
		return err
	}
	if err := l.compare(m.list()); err != nil {
		return err
	}
	for i := range entries {
		if err := l.propose(g, fmt.Sprint("entry ", i)); err != nil {
			return err
		}
		if i == entries/2 {
			if err := g.Snapshot(); err != nil {
				return err
			}
		}
	}
	return l.second(s, last)
}

func crashGroup(id string, m StateMachine) GroupConfig {
	return GroupConfig{ID: id, Replica: rowraft.ReplicaID("r-" + id), Machine: m,
		Bootstrap: []Member{{rowraft.ReplicaID("r-" + id), "n1"}}}
}

// second starts another group and, if last, removes it.
func (l *groupLife) second(s *Store, last bool) error {
	_, err := s.StartGroup(crashGroup("shard-1", &listMachine{}))
	switch {
	case l.removed && err == nil:
		return errors.New("a removed replica came back")
	case l.tried && rowraft.CodeOf(err) == rowraft.CodeIdentity:
		l.removed = true
		return nil
	case err != nil:
		return err
	case !last:
		return nil
	}
	l.tried = true
	if err := s.RemoveReplica("shard-1", "r-shard-1"); err != nil {
		return err
	}
	l.removed = true
	return nil
}

func (l *groupLife) propose(g *Group, entry string) error {
	entry = fmt.Sprintf("%s %d", entry, len(l.entries))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		l.pending = entry
		_, _, err := g.Propose([]byte(entry)).Wait(ctx)
		switch {
		case err == nil:
			l.entries, l.pending = append(slices.Clone(l.entries), entry), ""
			return nil
		case g.Err() != nil:
			return g.Err()
		case rowraft.CodeOf(err) != rowraft.CodeNoLeader && rowraft.CodeOf(err) != rowraft.CodeNotLeader:
			return err
		}
		time.Sleep(50 * time.Millisecond) //tidy:allow sleep virtual time
	}
}

// compare fails unless the machine has all acknowledged entries in order, and at most the pending one in addition.
func (l *groupLife) compare(found []string) error {
	want := l.entries[:len(l.entries)-1] // the last is this life's own
	rest := found
	for _, w := range want {
		if i := slices.Index(rest, w); i < 0 {
			return fmt.Errorf("%q was acknowledged and is lost; found %q", w, found)
		} else {
			rest = rest[i+1:]
		}
	}
	if len(found) > len(l.entries)+1 {
		return fmt.Errorf("found %q, acknowledged %q", found, l.entries)
	}
	return nil
}

func groupScript(t *testing.T) vfstest.Script[groupLife] {
	inBubble := func(f func() error) error {
		var err error
		synctest.Test(t, func(*testing.T) { err = f() })
		return err
	}
	return vfstest.Script[groupLife]{
		Seeds:   3, // nothing, all, some
		Shallow: true,
		Run: func(disk vfs.FS, acked *groupLife) error {
			return inBubble(func() error { return acked.live(disk, 4, true) })
		},
		Check: func(disk vfs.FS, acked groupLife) (groupLife, error) {
			err := inBubble(func() error { return acked.live(disk, 0, false) })
			return acked, err
		},
	}
}

func TestCrashAtEachStepOfAGroup(t *testing.T) {
	const log, twice = "TestCrashAtEachStepOfTheLog has it",
		"snapstore.Open and the registry sync the same directory once more"
	vfstest.Crashes(t, groupScript(t), map[string]string{
		"raftstore/raftlog.(*Shared)":             log,
		"raftstore/raftlog.OpenShared":            "MkdirAll of the groups syncs it too",
		"raftstore.Open: syncdir node":            "OpenShared syncs it too",
		"raftstore/raftlog.(*metaStore)":          log,
		"raftstore/snapstore.(*sink)":             "TestCrashAtEachStepOfSnapshots has it",
		"raftstore/snapstore.Open":                "TestCrashAtEachStepOfSnapshots has it",
		"raftstore.(*Store).claimLocked: syncdir": twice,
		"raftstore.Open: syncdir raft":            twice,
		"raftstore.(*groupLife)":                  "Open syncs it too",
		"raftstore.Open: syncdir /":               "the data directory is durable before; it comes with MkdirAll",
	})
}
