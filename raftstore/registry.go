package raftstore

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
)

const (
	registryMagic   = "rowraftG"
	registryVersion = 1
)

// groupState is the state of a group's directory.
type groupState string

const (
	// stateCreating: raft never ran in the directory. It may be incomplete and is created again.
	stateCreating groupState = "creating"
	// stateActive: raft may have voted and acknowledged entries. The directory must be complete.
	stateActive groupState = "active"
	// stateRemoved: the replica left the group. Its ID must not be used again.
	stateRemoved groupState = "removed"
)

type groupRecord struct {
	Replica rowraft.ReplicaID `json:"replica"`
	Backend string            `json:"backend"`
	State   groupState        `json:"state"`
	// Founded means that the group was bootstrapped here: its log is never empty.
	Founded bool `json:"founded"`
	// Removed lists the replicas of the group that left this node. They must not return.
	Removed []rowraft.ReplicaID `json:"removed,omitempty"`
	// RolledBack is the reason why the replica must not run any more: its disk is older than it was before. "": it may
	// run.
	RolledBack string `json:"rolled_back,omitempty"`
}

func (r *groupRecord) removed(id rowraft.ReplicaID) bool {
	return slices.Contains(r.Removed, id) || r.State == stateRemoved && r.Replica == id
}

// registry is the durable list of all groups that ever existed in a store. It is outside of their directories, so that
// a directory that vanished is noticed.
type registry struct {
	disk vfs.FS
	path string
	file registryFile
}

type registryFile struct {
	Cluster rowraft.ClusterID      `json:"cluster"`
	Node    rowraft.NodeID         `json:"node"`
	Groups  map[string]groupRecord `json:"groups"`
	// Start counts the processes that opened the store. Nonces has those of the last processes, the running one last.
	Start  uint64   `json:"start"`
	Nonces []uint64 `json:"nonces"`
}

// check refuses a file with an impossible number of nonces.
func (f *registryFile) check(path string) error {
	if n := uint64(len(f.Nonces)); n > min(f.Start, keptNonces) || n == 0 && f.Start > 0 {
		return rowraft.Errorf(rowraft.CodeCorrupt, "%s has %d nonces of %d starts", path, len(f.Nonces), f.Start)
	}
	return nil
}

// keptNonces is the number of starts that a registry keeps. A peer that saw none of the last 64 starts cannot prove
// that a copy of the directory was started.
const keptNonces = 64

// begin counts a start durably.
func (r *registry) begin() error {
	r.file.Start++
	r.file.Nonces = append(r.file.Nonces, rand.Uint64())
	r.file.Nonces = r.file.Nonces[max(0, len(r.file.Nonces)-keptNonces):]
	return r.write()
}

// beginAfter continues the count of starts after a start of another copy of the directory, and marks all replicas that
// both copies may have as rolled back. The registry is durable when it returns.
func (r *registry) beginAfter(other process, why string) error {
	groups := maps.Clone(r.file.Groups)
	for id, rec := range groups {
		if rec.State != stateRemoved {
			rec.RolledBack = why
			groups[id] = rec
		}
	}
	old := r.file
	r.file.Groups, r.file.Start, r.file.Nonces = groups, other.start+1, []uint64{rand.Uint64()}
	err := r.write()
	if err != nil {
		r.file = old
	}
	return err
}

// starts are the last starts of the directory, up to the running one. Immutable.
type starts struct {
	last   uint64
	nonces []uint64 // the last one belongs to last
}

func (r *registry) starts() *starts { return &starts{r.file.Start, slices.Clone(r.file.Nonces)} }

// process returns the running process.
func (s *starts) process() process { return process{s.last, s.nonces[len(s.nonces)-1]} }

// contradicts returns why a process that another server remembers of this node cannot have run on this directory; "" if
// it can have. It knows nothing about starts that are older than its list.
func (s *starts) contradicts(p process) string {
	now := s.last
	switch first := now - uint64(len(s.nonces)) + 1; {
	case p.start > now:
		return fmt.Sprintf("this is start %d of the data directory, and there was start %d", now, p.start)
	case p.start >= max(first, 1) && s.nonces[p.start-first] != p.nonce:
		return fmt.Sprintf("this is start %d of the data directory, and start %d was on another copy of it", now, p.start)
	}
	return ""
}

// openRegistry reads the registry of dir, or writes the first one if dir has no groups. The entries of dir must be
// durable.
func openRegistry(disk vfs.FS, dir string, cluster rowraft.ClusterID, node rowraft.NodeID) (*registry, error) {
	r := &registry{
		disk: disk,
		path: filepath.Join(dir, "registry"),
		file: registryFile{Cluster: cluster, Node: node, Groups: map[string]groupRecord{}},
	}
	b, err := vfs.ReadFile(disk, r.path)
	if errors.Is(err, fs.ErrNotExist) {
		groups, err := disk.ReadDir(filepath.Join(dir, "groups"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if len(groups) > 0 {
			return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s is missing but %d groups have directories: part of the data was lost; start the server with an empty data directory, it comes back as a new node", r.path, len(groups))
		}
		return r, r.write()
	}
	if err != nil {
		return nil, err
	}
	body, err := frame.Open(b, registryMagic, registryVersion)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.path, err)
	}
	var f registryFile
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "%s: %w", r.path, err)
	}
	if f.Cluster != cluster || f.Node != node {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s belongs to node %s of cluster %s, not to node %s of cluster %s", dir, f.Node, f.Cluster, node, cluster)
	}
	if f.Groups == nil {
		f.Groups = map[string]groupRecord{}
	}
	if err := f.check(r.path); err != nil {
		return nil, err
	}
	r.file = f
	return r, nil
}

// set records a group durably.
func (r *registry) set(group string, rec groupRecord) error {
	old, had := r.file.Groups[group]
	r.file.Groups[group] = rec
	err := r.write()
	if err != nil {
		if had {
			r.file.Groups[group] = old
		} else {
			delete(r.file.Groups, group)
		}
	}
	return err
}

func (r *registry) write() error {
	body, err := json.MarshalIndent(&r.file, "", " ")
	if err != nil {
		return err
	}
	return vfs.ReplaceFile(r.disk, r.path+".tmp", r.path, frame.Seal(registryMagic, registryVersion, body))
}

// lockDir locks dir against a second process until the lock is closed.
func lockDir(disk vfs.FS, dir string) (io.Closer, error) {
	lock, err := disk.Lock(filepath.Join(dir, "LOCK"))
	if _, taken := errors.AsType[*vfs.LockedError](err); taken {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s is in use: %w", dir, err)
	}
	return lock, err
}
