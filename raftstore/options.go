package raftstore

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// StateMachine is the state that a group replicates.
//
// Apply, Snapshot and Restore are called one at a time, Apply in log order with the raft index of the entry. Indices
// have gaps where raft stored entries of its own. Any goroutine may call AppliedIndex.
type StateMachine interface {
	// Apply applies one entry, which is valid only during the call. The Future of the proposal gets the result, on the
	// node that proposed it. A panic or a returned *FatalError stops the group forever.
	Apply(index rowraft.Index, entry []byte) any

	// AppliedIndex returns the index of the last entry that reads may see, 0 if none.
	AppliedIndex() rowraft.Index

	// Snapshot fixes the state at AppliedIndex. It must return quickly: no entry is applied during the call.
	Snapshot() (Snapshot, error)

	// Restore replaces the state with the one that Snapshot.WriteTo wrote, or GroupConfig.Expand made of it. It builds
	// the new state separately, verifies it and then swaps: after an error the old state is unchanged.
	Restore(r io.Reader) error
}

// Snapshot is the state of a machine at one index. WriteTo runs concurrently with Apply. Release is called exactly
// once, also after WriteTo failed or was never called.
type Snapshot interface {
	WriteTo(w io.Writer) (int64, error)
	Release()
}

// LocalSnapshot is a Snapshot whose bytes may refer to files of the machine, so that only this replica can restore
// them.
type LocalSnapshot interface {
	Snapshot
	// FullBytes returns, after WriteTo, how many bytes GroupConfig.Expand will make of what was written; 0 if that refers
	// to no file.
	FullBytes() int64
	// Keep is called before Release if the snapshot has its name on the disk: the machine must keep what it refers to.
	// With sure, it is durable, and what earlier snapshots refer to may go. Otherwise the newest one after a crash may be
	// this one or the one before.
	Keep(sure bool)
}

// FatalError, returned by StateMachine.Apply, stops the group: the machine must not continue (unknown entry version,
// digest mismatch …).
type FatalError struct{ Err error }

func (e *FatalError) Error() string { return e.Err.Error() }
func (e *FatalError) Unwrap() error { return e.Err }

// Options configure the store of one node. A zero value means the default in the comment.
type Options struct {
	Dir     string // all files of the store are below it
	FS      vfs.FS // the disk of Dir; nil: the operating system's
	Cluster rowraft.ClusterID
	Node    rowraft.NodeID

	// Listener is the peer port, plain or TLS. The store closes it.
	Listener net.Listener
	// DialTLS returns the TLS configuration for an outgoing connection; nil means plain TCP. An empty ServerName is set
	// to the host that is dialled.
	DialTLS func() *tls.Config
	// Dial opens a TCP connection to a peer's address, below TLS; nil: net.Dialer.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Resolve returns the current peer address of a node. It is called for each dial.
	Resolve func(rowraft.NodeID) (string, error)

	Backend string         // raftlog.Row
	Profile timers.Profile // timers.Default

	SegmentSizeBytes int   // of a file of the shared log: 64 MiB
	EntryCacheBytes  int64 // recent entries of all groups kept in memory: 32 MiB. The heap grows to twice what it has
	TrailingLogBytes int64 // log kept before a snapshot, per group: 64 MiB
	// SnapshotEveryBytes of log are applied between two snapshots, per group. 0: the size of the newest snapshot, so
	// that snapshots write no more than the log does, but at least 512 MiB and at most SnapshotMaxBytes.
	SnapshotEveryBytes int64
	SnapshotMaxBytes   int64 // upper limit if SnapshotEveryBytes is 0: 4 GiB
	// SnapshotSendBytesPerSecond is the rate at which all groups together send snapshots to followers: 64 MiB.
	SnapshotSendBytesPerSecond int64
	MaxEntryBytes              int   // larger entries are refused: rowraft.MaxEntryBytes
	MaxPendingBytes            int64 // proposed but not applied, per group: 16 MiB
	MaxBacklogBytes            int64 // committed but not applied on a follower, per group: 64 MiB
	MaxRPCBytes                int64 // entries in one AppendEntries: 8 MiB
	// proposals need this much free space: 256 MiB, at least two segments and MaxPendingBytes per
	// group; negative: off
	DiskReserveBytes int64

	// DiskStallLimit is how long a write to the log may hang before a leader gives its lead up; after ten times as long
	// Fatal is called. Default: the larger of 500 ms and two heartbeats. Heartbeats follow a slow disk, but this limit
	// only up to 5 s.
	DiskStallLimit time.Duration
	// WedgeTimeout is how long replication to a live follower may make no progress while the log grows. Then the group
	// is restarted in place: 5 s.
	WedgeTimeout time.Duration
	// DialTimeout bounds a dial including its handshakes: 1 s.
	DialTimeout time.Duration

	// Fatal is called, at most once per group, when the group must not continue. A server exits in it. The group is
	// stopped whether Fatal returns or not. It runs on a goroutine of raft, so it must not wait for Close.
	Fatal  func(error)
	Logger *slog.Logger // slog.Default()

	hooks hooks // tests only
}

// hooks are extension points for the tests of this package.
type hooks struct {
	wrapLog       func(group string, s raftlog.Log) raftlog.Log
	wrapTransport func(group string, t raft.Transport) raft.Transport
	tick          time.Duration
	steady        bool // the timers do not follow the disk and the CPU
}

// minSendRate is four times the rate that raft's transport expects for a snapshot.
const minSendRate = 1 << 20

func (o *Options) setDefaults() {
	o.FS = vfs.OrOS(o.FS)
	setDefault(&o.Backend, raftlog.Row)
	setDefault(&o.Profile, timers.Default)
	setDefault(&o.SegmentSizeBytes, 64<<20)
	setDefault(&o.EntryCacheBytes, 32<<20)
	setDefault(&o.TrailingLogBytes, 64<<20)
	setDefault(&o.SnapshotMaxBytes, 4<<30)
	setDefault(&o.SnapshotSendBytesPerSecond, 64<<20)
	setDefault(&o.MaxEntryBytes, rowraft.MaxEntryBytes)
	setDefault(&o.MaxPendingBytes, 16<<20)
	setDefault(&o.MaxBacklogBytes, 64<<20)
	setDefault(&o.MaxRPCBytes, 8<<20)
	setDefault(&o.DiskReserveBytes, 256<<20)
	setDefault(&o.WedgeTimeout, 5*time.Second)
	setDefault(&o.DialTimeout, time.Second)
	if o.Dial == nil {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	setDefault(&o.Logger, slog.Default())
	setDefault(&o.hooks.tick, 250*time.Millisecond)
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func invalidOptions(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "raftstore options: "+format, args...)
}

func (o *Options) validate() error {
	bad := invalidOptions
	if err := o.Profile.Validate(); err != nil {
		return err
	}
	switch {
	case o.Dir == "":
		return bad("Dir is empty")
	case o.Cluster == "" || len(o.Cluster) > raftlog.MaxNameBytes:
		return bad("Cluster %q: want 1 to %d bytes", o.Cluster, raftlog.MaxNameBytes)
	case o.Node == "" || len(o.Node) > raftlog.MaxNameBytes:
		//tidy:allow words Node is the field of the options
		return bad("Node %q: want 1 to %d bytes", o.Node, raftlog.MaxNameBytes)
	case o.Listener == nil:
		return bad("Listener is nil")
	case o.Resolve == nil:
		return bad("Resolve is nil")
	case o.Fatal == nil:
		return bad("Fatal is nil: a server must end its process when the log fails")
	case o.MaxEntryBytes < 1 || o.MaxEntryBytes > 32<<20:
		return bad("MaxEntryBytes %d: want 1 to 32 MiB", o.MaxEntryBytes)
	case o.MaxPendingBytes < int64(o.MaxEntryBytes):
		return bad("MaxPendingBytes %d is less than MaxEntryBytes %d: the largest entry could never be proposed",
			o.MaxPendingBytes, o.MaxEntryBytes)
	case o.SnapshotEveryBytes < 0 || o.SnapshotMaxBytes < 1 || o.TrailingLogBytes < 1 || o.MaxRPCBytes < 1 ||
		o.MaxBacklogBytes < 1 || o.EntryCacheBytes < 0:
		return bad("byte limits must be positive")
	case o.SnapshotSendBytesPerSecond < minSendRate:
		return bad("SnapshotSendBytesPerSecond %d: want at least %d, or sending times out", o.SnapshotSendBytesPerSecond,
			minSendRate)
	case o.SegmentSizeBytes < raftlog.MinSegmentBytes || o.SegmentSizeBytes > raftlog.MaxSegmentBytes:
		return bad("SegmentSizeBytes %d: want %d to %d", o.SegmentSizeBytes, raftlog.MinSegmentBytes,
			raftlog.MaxSegmentBytes)
	case o.DiskStallLimit != 0 && o.DiskStallLimit < 2*time.Millisecond || o.WedgeTimeout < time.Millisecond ||
		o.DialTimeout < time.Millisecond:
		return bad("time limits must be positive")
	}
	return raftlog.Check(o.FS, o.Backend)
}

// Member is one replica of a group. The replicas of a group are on distinct nodes.
type Member struct {
	Replica rowraft.ReplicaID
	Node    rowraft.NodeID
}

// GroupConfig configures one group.
type GroupConfig struct {
	ID      string // "meta", "shard-3": a letter, then letters, digits, '-', up to 64 bytes
	Replica rowraft.ReplicaID
	Machine StateMachine
	Backend string // "": that of the store

	// UsesReserve permits the group's proposals while less than DiskReserveBytes are free. The proposals of such a
	// group are few and small, and the cluster needs them to make room.
	UsesReserve bool

	// Expand, for a machine with LocalSnapshots, turns the bytes of such a snapshot into bytes that every replica can
	// restore: a follower gets these. It may be called at any time. The group closes the result.
	Expand func(local io.Reader) (io.ReadCloser, error)

	// WantsSnapshot, if set, reports whether the machine needs a snapshot although the log is short. It must not wait.
	WantsSnapshot func() bool

	// Stages, if set, counts the times of the group's own proposals by stage.
	Stages *StageTimes

	// Bootstrap lists the founding members, the same on each of them, including this replica. It is used only if the
	// group never existed here. nil: the replica waits until another member adds it.
	Bootstrap []Member

	// Check, if set, is called with each entry that Propose gets. If it returns an error, the group does not propose
	// the entry. Check must not wait, and must not keep the entry.
	Check func(entry []byte) error

	// OnLeader, if set, is called on its own goroutine when this replica becomes leader or stops being leader, never
	// concurrently. Changes that are faster than OnLeader are merged: it may see term 5 true and then term 8 true, or
	// the same true twice. The state may have changed again by then: Leader returns the current one. The last call
	// before Close returns has leader false.
	OnLeader func(term rowraft.Term, leader bool)

	// OnRolledBack, if set, is called instead of Options.Fatal if this replica finds that its disk is older than what
	// other replicas remember of it. The group has stopped; its files stay unchanged. OnRolledBack must not wait for
	// Close.
	OnRolledBack func(err error)
}
