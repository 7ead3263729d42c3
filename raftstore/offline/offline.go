package offline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/registry"
	"github.com/rowraft/rowraft/raftstore/snapstore"
)

// Store reads the store of a node that is not running. It holds the store's lock, so that no server starts on the
// directory. It changes nothing there: it opens META and the log of backend Bolt on copies, because opening them
// writes. Not safe for concurrent use.
type Store struct {
	disk    vfs.FS
	dir     string
	lock    io.Closer
	reg     registry.Content
	scratch string // copies of META and of logs of backend Bolt, removed by Close
	rows    *raftlog.Shared
	groups  []*Group
}

// Open opens the store in dir of disk. These are Options.Dir and Options.FS of the raftstore that wrote it.
//
// Errors: CodeIdentity if a server runs on it; CodeNotFound if dir holds no store;
// CodeCorrupt; CodeVersionTooNew.
func Open(disk vfs.FS, dir string) (*Store, error) {
	lock, err := lockForReading(disk, dir)
	if err != nil {
		return nil, err
	}
	o := &Store{disk: disk, dir: dir, lock: lock}
	if o.reg, err = registry.Read(disk, dir); err == nil {
		o.scratch, err = os.MkdirTemp("", "rowraft-log-")
	}
	if err == nil {
		o.rows, err = raftlog.ReadShared(disk, filepath.Join(dir, "log"), o.reg.Cluster, o.reg.Node,
			slog.New(slog.DiscardHandler))
	}
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// lockForReading prevents a server from starting. On the operating system's disk it writes nothing and permits other
// readers.
func lockForReading(disk vfs.FS, dir string) (io.Closer, error) {
	name := filepath.Join(dir, "LOCK")
	if _, err := disk.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "%s holds no logs: it has no LOCK file", dir)
	}
	if disk != vfs.OS {
		return disk.Lock(name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, rowraft.Errorf(rowraft.CodeIdentity,
			"%s is in use by a running server: stop it first, or read a copy of its data directory (%w)", dir, err)
	}
	return f, nil
}

// Close releases the directory.
func (o *Store) Close() error {
	var errs []error
	for _, g := range o.groups {
		errs = append(errs, g.log.Close())
	}
	if o.rows != nil {
		errs = append(errs, o.rows.Close())
	}
	if o.scratch != "" {
		errs = append(errs, os.RemoveAll(o.scratch))
	}
	return errors.Join(append(errs, o.lock.Close())...)
}

// Cluster and Node return the identity of the store.
func (o *Store) Cluster() rowraft.ClusterID { return o.reg.Cluster }
func (o *Store) Node() rowraft.NodeID       { return o.reg.Node }

// GroupIDs returns the groups whose raft has run here and that were not removed.
func (o *Store) GroupIDs() []string {
	return o.reg.Active()
}

// Group is the log and the snapshots of one replica. It is valid until its Store is closed.
type Group struct {
	ID          string
	Replica     rowraft.ReplicaID
	Backend     string
	Term        rowraft.Term  // the replica's current term
	First, Last rowraft.Index // of the log; 0 if it is empty
	Snapshots   []Snapshot
	// Bad has the errors of the damaged snapshots, which are not in Snapshots.
	Bad []error
	// Voters are the voters of the newest configuration in the log or snapshots, committed or not.
	Voters []rowraft.ReplicaID

	log   raftlog.Log
	store *snapstore.Store
}

// Snapshot is a retained snapshot. Lists have the newest one first.
type Snapshot struct {
	ID    string
	Index rowraft.Index // of the log: everything up to it is in the snapshot
	Term  rowraft.Term
	Bytes int64
}

// Entry is one entry of a log.
type Entry struct {
	Index rowraft.Index
	Term  rowraft.Term
	// Kind is "command" for an entry that the state machine applies, otherwise raft's "noop", "barrier" or
	// "configuration".
	Kind string
	Data []byte
}

// Equal reports whether two entries are equal.
func (e Entry) Equal(o Entry) bool {
	return e.Index == o.Index && e.Term == o.Term && e.Kind == o.Kind && bytes.Equal(e.Data, o.Data)
}

// KindCommand is the Kind of an entry that the state machine applies.
const KindCommand = "command"

var entryKinds = map[raft.LogType]string{
	raft.LogCommand: KindCommand, raft.LogNoop: "noop", raft.LogBarrier: "barrier", raft.LogConfiguration: "configuration",
}

// Group opens a group.
//
// Errors: CodeNotFound; CodeCorrupt if its log cannot be opened.
func (o *Store) Group(id string) (*Group, error) {
	rec, ok := o.reg.Groups[id]
	if !ok || rec.State != registry.Active {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "%s has no group %q: it has %s", o.dir, id,
			strings.Join(o.GroupIDs(), ", "))
	}
	for _, g := range o.groups {
		if g.ID == id {
			return g, nil
		}
	}
	dir := filepath.Join(o.dir, "groups", id)
	g := &Group{ID: id, Replica: rec.Replica, Backend: rec.Backend}
	scratch := filepath.Join(o.scratch, id)
	if err := copyDir(o.disk, filepath.Join(dir, "log"), scratch); err != nil {
		return nil, fmt.Errorf("group %s: copy the log: %w", id, err)
	}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	if g.log, err = raftlog.Open(vfs.OS, rec.Backend, scratch, raftlog.Owner{Cluster: o.reg.Cluster, Node: o.reg.Node,
		Group: id, Replica: rec.Replica}, o.rows, quiet); err != nil {
		if rowraft.CodeOf(err) == rowraft.CodeIdentity {
			return nil, fmt.Errorf("group %s: %w", id, err)
		}
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "group %s: %w", id, err)
	}
	o.groups = append(o.groups, g)
	g.store = snapstore.OpenForReading(o.disk, filepath.Join(dir, "snapshots"), quiet, func(_ string, err error) {
		g.Bad = append(g.Bad, err)
	})
	if err := g.read(); err != nil {
		return nil, fmt.Errorf("group %s: %w", id, err)
	}
	return g, nil
}

// read sets the fields of g.
func (g *Group) read() error {
	first, err1 := g.log.FirstIndex()
	last, err2 := g.log.LastIndex()
	term, err3 := g.log.GetUint64([]byte("CurrentTerm")) // 0 if the replica never voted
	metas, err4 := g.store.List()
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	g.First, g.Last, g.Term = rowraft.Index(first), rowraft.Index(last), rowraft.Term(term)
	for _, m := range metas {
		g.Snapshots = append(g.Snapshots, Snapshot{m.ID, rowraft.Index(m.Index), rowraft.Term(m.Term), m.Size})
	}
	if len(metas) > 0 {
		g.setVoters(metas[0].Configuration)
	}
	for i := last; i >= first && i > 0; i-- {
		var l raft.Log
		if err := g.log.GetLog(i, &l); err != nil {
			return nil // Entry reports the error
		}
		if entry.Check(&l) != nil {
			return nil // raft's decoder of configurations would panic; Entry reports the error
		}
		if l.Type == raft.LogConfiguration {
			g.setVoters(raft.DecodeConfiguration(l.Data))
			break
		}
	}
	return nil
}

func (g *Group) setVoters(c raft.Configuration) {
	g.Voters = nil
	for _, s := range c.Servers {
		if s.Suffrage == raft.Voter {
			g.Voters = append(g.Voters, rowraft.ReplicaID(s.ID))
		}
	}
}

// Entry reads entry i, from First to Last. With CodeCorrupt for a wrong checksum it also returns the entry as far as it
// could be read.
func (g *Group) Entry(i rowraft.Index) (Entry, error) {
	var l raft.Log
	if err := g.log.GetLog(uint64(i), &l); err != nil {
		return Entry{Index: i}, rowraft.Errorf(rowraft.CodeCorrupt, "read entry %d: %w", i, err)
	}
	e := Entry{Index: rowraft.Index(l.Index), Term: rowraft.Term(l.Term), Kind: entryKinds[l.Type], Data: l.Data}
	if e.Kind == "" {
		e.Kind = fmt.Sprintf("type %d", l.Type)
	}
	if e.Index != i {
		return e, rowraft.Errorf(rowraft.CodeCorrupt, "the log has entry %d at the place of entry %d", e.Index, i)
	}
	return e, entry.Check(&l)
}

// State returns the bytes that the state machine wrote into a snapshot, and the machine's applied index. All chunks
// have been checked when it returns.
func (g *Group) State(id string) (applied rowraft.Index, state []byte, err error) {
	_, rc, err := g.store.Open(id)
	if err != nil {
		return 0, nil, err
	}
	defer rc.Close()
	if applied, err = snapstore.ReadStateHeader(rc, id); err != nil {
		return 0, nil, err
	}
	state, err = io.ReadAll(rc)
	return applied, state, err
}

// copyDir copies the files of a log. Zeros become holes.
func copyDir(disk vfs.FS, from, to string) error {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	entries, err := disk.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := copySparse(disk, filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copySparse(disk vfs.FS, from, to string) error {
	in, err := disk.OpenFile(from, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	size, err := writeSparse(out, in)
	if err == nil {
		err = out.Truncate(size)
	}
	return errors.Join(err, out.Close())
}

func writeSparse(out *os.File, in io.Reader) (size int64, err error) {
	buf, zeros := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(in, buf)
		if n > 0 && !bytes.Equal(buf[:n], zeros[:n]) {
			if _, err := out.WriteAt(buf[:n], size); err != nil {
				return size, err
			}
		}
		size += int64(n)
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return size, nil
		}
		if err != nil {
			return size, err
		}
	}
}
