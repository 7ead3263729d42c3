package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
	"github.com/rowraft/rowraft/raftstore/marks"
)

const (
	name    = "registry" // of the file
	magic   = "rowraftG"
	version = 1
)

// State is the state of a group's directory.
type State string

const (
	// Creating: raft never ran in the directory. It may be incomplete and is created again.
	Creating State = "creating"
	// Active: raft may have voted and acknowledged entries. The directory must be complete.
	Active State = "active"
	// Removed: the replica left the group. Its ID must not be used again.
	Removed State = "removed"
)

// Record is what a registry knows of one group.
type Record struct {
	Replica rowraft.ReplicaID `json:"replica"`
	Backend string            `json:"backend"`
	State   State             `json:"state"`
	// Founded means that the group was bootstrapped here: its log is never empty.
	Founded bool `json:"founded"`
	// Removed lists the replicas of the group that left this node. They must not return.
	Removed []rowraft.ReplicaID `json:"removed,omitempty"`
	// RolledBack is the reason why the replica must not run any more: its disk is older than it was before. "": it may
	// run.
	RolledBack string `json:"rolled_back,omitempty"`
}

// HasRemoved reports whether replica id has left this node.
func (r *Record) HasRemoved(id rowraft.ReplicaID) bool {
	return slices.Contains(r.Removed, id) || r.State == Removed && r.Replica == id
}

// Registry is the durable list of all groups that ever existed in a store. Its owner serializes the calls.
type Registry struct {
	disk    vfs.FS
	path    string
	content Content
}

// Content is the content of the file.
type Content struct {
	Cluster rowraft.ClusterID `json:"cluster"`
	Node    rowraft.NodeID    `json:"node"`
	Groups  map[string]Record `json:"groups"`
	// Start counts the processes that opened the store. Nonces has those of the last processes, the running one last.
	Start  uint64   `json:"start"`
	Nonces []uint64 `json:"nonces"`
}

// check refuses a file with an impossible number of nonces.
func (f *Content) check(path string) error {
	if n := uint64(len(f.Nonces)); n > min(f.Start, keptStarts) || n == 0 && f.Start > 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%s has %d nonces of %d starts", path, len(f.Nonces), f.Start)
	}
	return nil
}

// keptStarts is the number of starts that a registry keeps. A peer that saw none of the last 64 starts cannot prove
// that a copy of the directory was started.
const keptStarts = 64

// Begin counts a start durably.
func (r *Registry) Begin() error {
	r.content.Start++
	r.content.Nonces = append(r.content.Nonces, rand.Uint64())
	r.content.Nonces = r.content.Nonces[max(0, len(r.content.Nonces)-keptStarts):]
	return r.write()
}

// BeginAfter continues the count of starts after a start of another copy of the directory, and marks all replicas that
// both copies may have as rolled back, for the reason why. The registry is durable when it returns.
func (r *Registry) BeginAfter(other marks.Process, why string) error {
	groups := maps.Clone(r.content.Groups)
	for id, rec := range groups {
		if rec.State != Removed {
			rec.RolledBack = why
			groups[id] = rec
		}
	}
	old := r.content
	r.content.Groups, r.content.Start, r.content.Nonces = groups, other.Start+1, []uint64{rand.Uint64()}
	err := r.write()
	if err != nil {
		r.content = old
	}
	return err
}

// Starts are the last starts of the directory, up to the running one. Immutable.
type Starts struct {
	last   uint64
	nonces []uint64 // the last one belongs to last
}

// Starts returns the last starts of the directory.
func (r *Registry) Starts() *Starts { return &Starts{r.content.Start, slices.Clone(r.content.Nonces)} }

// Process returns the running process.
func (s *Starts) Process() marks.Process {
	return marks.Process{Start: s.last, Nonce: s.nonces[len(s.nonces)-1]}
}

// Contradicts returns why a process that another server remembers of this node cannot have run on this directory; "" if
// it can have. It knows nothing about starts that are older than its list.
func (s *Starts) Contradicts(p marks.Process) string {
	now := s.last
	switch first := now - uint64(len(s.nonces)) + 1; {
	case p.Start > now:
		return fmt.Sprintf("this is start %d of the data directory, and there was start %d", now, p.Start)
	case p.Start >= max(first, 1) && s.nonces[p.Start-first] != p.Nonce:
		return fmt.Sprintf("this is start %d of the data directory, and start %d was on another copy of it", now, p.Start)
	}
	return ""
}

// Open reads the registry of dir, or writes the first one if dir has no groups. The entries of dir must be
// durable.
//
// Errors: CodeIdentity if dir belongs to another node, or has groups and no registry; those of Read.
func Open(disk vfs.FS, dir string, cluster rowraft.ClusterID, node rowraft.NodeID) (*Registry, error) {
	r := &Registry{
		disk:    disk,
		path:    filepath.Join(dir, name),
		content: Content{Cluster: cluster, Node: node, Groups: map[string]Record{}},
	}
	f, err := Read(disk, dir)
	if rowraft.CodeOf(err) == rowraft.CodeNotFound {
		groups, err := disk.ReadDir(filepath.Join(dir, "groups"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if len(groups) > 0 {
			return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s is missing but %d groups have directories: part of the data "+
				"was lost; start the server with an empty data directory, it comes back as a new server", r.path, len(groups))
		}
		return r, r.write()
	}
	if err != nil {
		return nil, err
	}
	if f.Cluster != cluster || f.Node != node {
		return nil, rowraft.Errorf(rowraft.CodeIdentity,
			"%s belongs to server %s of cluster %s, not to server %s of cluster %s", dir, f.Node, f.Cluster, node, cluster)
	}
	r.content = f
	return r, nil
}

// Read reads the registry of dir and changes nothing.
//
// Errors: CodeNotFound if dir has none; CodeCorrupt; CodeVersionTooNew; errors of the disk.
func Read(disk vfs.FS, dir string) (Content, error) {
	path := filepath.Join(dir, name)
	b, err := vfs.ReadFile(disk, path)
	if errors.Is(err, fs.ErrNotExist) {
		return Content{}, rowraft.Errorf(rowraft.CodeNotFound, "%s is missing: no group ever ran here", path)
	}
	if err != nil {
		return Content{}, err
	}
	body, err := frame.Open(b, magic, version)
	if err != nil {
		return Content{}, fmt.Errorf("%s: %w", path, err)
	}
	f := Content{Groups: map[string]Record{}}
	if err := json.Unmarshal(body, &f); err != nil {
		return Content{}, rowraft.Errorf(rowraft.CodeCorrupt, "%s: %w", path, err)
	}
	if f.Groups == nil { // the JSON has null
		f.Groups = map[string]Record{}
	}
	return f, f.check(path)
}

// Group returns the record of a Group, and whether there is one.
func (r *Registry) Group(id string) (Record, bool) {
	rec, ok := r.content.Groups[id]
	return rec, ok
}

// Active returns the groups whose data are on this node, in the order of their names.
func (r *Registry) Active() []string { return r.content.Active() }

// Active returns the groups whose data are on this node, in the order of their names.
func (f *Content) Active() []string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(f.Groups)) {
		if f.Groups[id].State == Active {
			out = append(out, id)
		}
	}
	return out
}

// Set records a group durably.
func (r *Registry) Set(group string, rec Record) error {
	old, had := r.content.Groups[group]
	r.content.Groups[group] = rec
	err := r.write()
	if err != nil {
		if had {
			r.content.Groups[group] = old
		} else {
			delete(r.content.Groups, group)
		}
	}
	return err
}

func (r *Registry) write() error {
	body, err := json.MarshalIndent(&r.content, "", " ")
	if err != nil {
		return err
	}
	return vfs.ReplaceFile(r.disk, r.path+".tmp", r.path, frame.Seal(magic, version, body))
}

// Lock locks dir against a second process until the lock is closed.
func Lock(disk vfs.FS, dir string) (io.Closer, error) {
	lock, err := disk.Lock(filepath.Join(dir, "LOCK"))
	if _, taken := errors.AsType[*vfs.LockedError](err); taken {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s is in use: %w", dir, err)
	}
	return lock, err
}
