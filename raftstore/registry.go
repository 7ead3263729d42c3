package raftstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

const (
	registryMagic   = "rowraftG"
	registryVersion = 1
)

// groupState is the life of a group's directory.
type groupState string

const (
	// stateCreating: raft never ran on the directory, which may be incomplete and
	// is started over.
	stateCreating groupState = "creating"
	// stateActive: raft may have voted and acknowledged; the directory must be whole.
	stateActive groupState = "active"
	// stateRemoved: the replica left for good, its ID must not come back.
	stateRemoved groupState = "removed"
)

type groupRecord struct {
	Replica rowraft.ReplicaID `json:"replica"`
	Backend string            `json:"backend"`
	State   groupState        `json:"state"`
	// Founded says that the group was bootstrapped here: its log is never empty.
	Founded bool `json:"founded"`
	// Removed lists the replicas of the group that left this node for good.
	Removed []rowraft.ReplicaID `json:"removed,omitempty"`
}

func (r *groupRecord) removed(id rowraft.ReplicaID) bool {
	return slices.Contains(r.Removed, id) || r.State == stateRemoved && r.Replica == id
}

// registry is the durable list of the groups that ever existed in a store. It
// lives outside their directories, so that one that vanished is noticed.
type registry struct {
	disk vfs.FS
	path string
	file registryFile
}

type registryFile struct {
	Cluster rowraft.ClusterID      `json:"cluster"`
	Node    rowraft.NodeID         `json:"node"`
	Groups  map[string]groupRecord `json:"groups"`
}

// openRegistry reads the registry of dir, whose entries are durable, or writes the first one when dir holds
// no groups.
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
			return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s is missing but %d groups have directories beside it: part of the data was lost; restore the file, or give the node a new identity and an empty directory", r.path, len(groups))
		}
		return r, r.write()
	}
	if err != nil {
		return nil, err
	}
	body, err := openFrame(b, registryMagic, registryVersion)
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
	r.file = f
	return r, nil
}

// set records group durably.
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
	return vfs.ReplaceFile(r.disk, r.path+".tmp", r.path, sealFrame(registryMagic, registryVersion, body))
}

// lockDir keeps a second process out of dir until the lock is closed.
func lockDir(disk vfs.FS, dir string) (io.Closer, error) {
	lock, err := disk.Lock(filepath.Join(dir, "LOCK"))
	if _, taken := errors.AsType[*vfs.LockedError](err); taken {
		return nil, rowraft.Errorf(rowraft.CodeIdentity, "%s is in use: %w", dir, err)
	}
	return lock, err
}
