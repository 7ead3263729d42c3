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
)

// StateMachine is what a group replicates.
//
// Apply, Snapshot and Restore are called one at a time, Apply in log order with
// the raft index of the entry; indices have gaps where raft stored entries of
// its own. AppliedIndex is called from any goroutine.
type StateMachine interface {
	// Apply applies one entry, which is valid during the call only. What it
	// returns reaches the Future of the proposal, on the node that proposed it.
	// A panic stops the group for good, as does a returned *FatalError.
	Apply(index rowraft.Index, entry []byte) any

	// AppliedIndex is the index of the last entry that reads may see, 0 if none.
	AppliedIndex() rowraft.Index

	// Snapshot fixes the state at AppliedIndex. It must return quickly: no entry
	// is applied meanwhile.
	Snapshot() (Snapshot, error)

	// Restore replaces the state by what Snapshot.WriteTo wrote. It builds aside,
	// verifies and then swaps: after an error the old state is still whole.
	Restore(r io.Reader) error
}

// Snapshot is the state of a machine at one index. WriteTo runs beside Apply.
// Release is called exactly once, also when WriteTo failed or was never called.
type Snapshot interface {
	WriteTo(w io.Writer) (int64, error)
	Release()
}

// FatalError, returned by StateMachine.Apply, stops the group: the machine found
// that it must not go on (unknown entry version, digest mismatch …).
type FatalError struct{ Err error }

func (e *FatalError) Error() string { return e.Err.Error() }
func (e *FatalError) Unwrap() error { return e.Err }

// Profile is a set of Raft timers.
type Profile struct {
	Heartbeat   time.Duration // also the election timeout
	LeaderLease time.Duration // how long a leader whom no majority answers goes on
	Commit      time.Duration // bounds how stale an idle follower is
}

// The profiles that were measured, by the number of replicas on a node.
var (
	ProfileFast    = Profile{250 * time.Millisecond, 200 * time.Millisecond, 10 * time.Millisecond}   // ≤ 24, on cores of their own
	ProfileDefault = Profile{500 * time.Millisecond, 400 * time.Millisecond, 20 * time.Millisecond}   // ≤ 100
	ProfileDense   = Profile{1000 * time.Millisecond, 800 * time.Millisecond, 200 * time.Millisecond} // above
)

// Options configure the store of one node. Zero values mean the defaults named.
type Options struct {
	Dir     string // everything of this store lives below
	FS      vfs.FS // the disk that Dir is on; nil: the operating system's
	Cluster rowraft.ClusterID
	Node    rowraft.NodeID

	// Listener is the one peer port, plain or TLS. The store closes it.
	Listener net.Listener
	// DialTLS, called for each outgoing connection, encrypts it; nil means plain TCP.
	// An empty ServerName is set to the host that is dialled.
	DialTLS func() *tls.Config
	// Dial opens a connection to a peer's address, below TLS; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
	// Authorize decides, after the preamble, whether conn may speak for the node
	// it says it is. nil allows.
	Authorize func(conn net.Conn, from rowraft.NodeID) error
	// Resolve returns the current peer address of a node; called at each dial.
	Resolve func(rowraft.NodeID) (string, error)

	Backend string  // raftlog.Row
	Profile Profile // ProfileDefault

	SegmentSizeBytes int   // of a file of the log: 16 MiB
	EntryCacheBytes  int64 // recent entries of all groups kept in memory: 128 MiB
	TrailingLogBytes int64 // log kept behind a snapshot, per group: 64 MiB
	// SnapshotEveryBytes of log are applied until the next snapshot, per group. 0: as
	// many as the newest snapshot has, so that snapshots write no more than the log
	// does; at least 512 MiB and at most SnapshotMaxBytes.
	SnapshotEveryBytes int64
	SnapshotMaxBytes   int64 // bounds that; without effect if SnapshotEveryBytes is given: 4 GiB
	// SnapshotSendBytesPerSecond is how fast all groups together send snapshots to
	// followers that are too far behind: 64 MiB.
	SnapshotSendBytesPerSecond int64
	MaxEntryBytes              int   // larger entries are refused: rowraft.MaxEntryBytes
	MaxPendingBytes            int64 // proposed but not applied, per group: 16 MiB
	MaxBacklogBytes            int64 // committed but not applied on a follower, per group: 64 MiB
	MaxRPCBytes                int64 // entries in one AppendEntries: 8 MiB
	DiskReserveBytes           int64 // with less free disk proposals are refused: 256 MiB, and two segments a group; negative: off

	// DiskStallLimit is how long a leader's disk may hang before Fatal; a follower
	// is given ten times as much. Default: the larger of 500 ms and two heartbeats, which follow
	// a slow disk up to 5 s; set 2 s where tests share a noisy disk.
	DiskStallLimit time.Duration
	// WedgeTimeout is how long replication to a live follower may stand still while
	// the log grows before the group is restarted in place: 5 s.
	WedgeTimeout time.Duration
	// DialTimeout bounds a dial with its handshakes: 1 s.
	DialTimeout time.Duration

	// Fatal is called, at most once per group, when the group must not go on. A
	// server exits in it; the group is stopped whether it returns or not. It runs on
	// a goroutine of raft, so it must not wait for Close.
	Fatal  func(error)
	Logger *slog.Logger // slog.Default()

	hooks hooks // tests only
}

// hooks let the tests of this package reach between the layers.
type hooks struct {
	wrapLog       func(group string, s raftlog.Log) raftlog.Log
	wrapTransport func(group string, t raft.Transport) raft.Transport
	verified      func() // in a read round, once a majority answered
	tick          time.Duration
	steady        bool // the timers do not follow the disk and the CPU
}

// minSendRate is four times what raft's transport expects of a snapshot.
const minSendRate = 1 << 20

// Bounds of SegmentSizeBytes.
const minSegment = raftlog.MinSegmentBytes

func (o *Options) setDefaults() {
	o.FS = vfs.OrOS(o.FS)
	setDefault(&o.Backend, raftlog.Row)
	setDefault(&o.Profile, ProfileDefault)
	setDefault(&o.SegmentSizeBytes, 16<<20)
	setDefault(&o.EntryCacheBytes, 128<<20)
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
	if err := o.Profile.validate(); err != nil {
		return err
	}
	switch {
	case o.Dir == "":
		return bad("Dir is empty")
	case o.Cluster == "" || len(o.Cluster) > maxNameBytes:
		return bad("Cluster %q: want 1 to %d bytes", o.Cluster, maxNameBytes)
	case o.Node == "" || len(o.Node) > maxNameBytes:
		return bad("Node %q: want 1 to %d bytes", o.Node, maxNameBytes)
	case o.Listener == nil:
		return bad("Listener is nil")
	case o.Resolve == nil:
		return bad("Resolve is nil")
	case o.Fatal == nil:
		return bad("Fatal is nil: nobody would stop the process when the log fails")
	case o.MaxEntryBytes < 1 || o.MaxEntryBytes > 32<<20:
		return bad("MaxEntryBytes %d: want 1 to 32 MiB", o.MaxEntryBytes)
	case o.MaxPendingBytes < int64(o.MaxEntryBytes):
		return bad("MaxPendingBytes %d is less than MaxEntryBytes %d: the largest entry could never be proposed", o.MaxPendingBytes, o.MaxEntryBytes)
	case o.SnapshotEveryBytes < 0 || o.SnapshotMaxBytes < 1 || o.TrailingLogBytes < 1 || o.MaxRPCBytes < 1 || o.MaxBacklogBytes < 1 || o.EntryCacheBytes < 0:
		return bad("byte limits must be positive")
	case o.SnapshotSendBytesPerSecond < minSendRate:
		return bad("SnapshotSendBytesPerSecond %d: want at least %d, or sending times out", o.SnapshotSendBytesPerSecond, minSendRate)
	case o.DiskStallLimit != 0 && o.DiskStallLimit < 2*time.Millisecond || o.WedgeTimeout < time.Millisecond || o.DialTimeout < time.Millisecond:
		return bad("time limits must be positive")
	}
	return raftlog.Check(o.FS, o.Backend, o.SegmentSizeBytes)
}

// Member is one replica of a group. A group's replicas are on distinct nodes.
type Member struct {
	Replica rowraft.ReplicaID
	Node    rowraft.NodeID
}

// GroupConfig starts one group.
type GroupConfig struct {
	ID      string // "meta", "shard-3": a letter, then letters, digits, '-', up to 64 bytes
	Replica rowraft.ReplicaID
	Machine StateMachine
	Backend string // "" is that of the store
	// SegmentSizeBytes of the files of this group's log; 0 is that of the store.
	// Larger ones are fewer to make: with 64 MiB instead of 16 a push of full
	// batches is 5 to 15 % faster.
	SegmentSizeBytes int

	// UsesReserve has the group's proposals taken while less than DiskReserveBytes are
	// free: they are few and small, and somebody must be able to help.
	UsesReserve bool

	// Bootstrap lists the founding members, the same on each of them, this replica
	// included. It is used only when the group never existed here. nil joins a
	// group that others will add this replica to.
	Bootstrap []Member

	// OnLeader, if set, is called on a goroutine of its own when this replica
	// becomes or stops being leader, never concurrently. Changes that follow each
	// other faster than it returns are merged: it may see term 5 true, then term 8
	// true, or the same true twice. What it is told may be over by then: Leader says
	// what holds. The last call before Close returns has leader false.
	OnLeader func(term rowraft.Term, leader bool)

	// OnRolledBack, if set, is called in the place of Options.Fatal when this replica finds
	// its disk older than what other replicas remember of it. The group has stopped; its
	// files stay as they are. It must not wait for Close.
	OnRolledBack func(err error)
}
