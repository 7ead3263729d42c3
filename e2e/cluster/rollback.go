package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore"
)

// KeepShards copies the shards of a server that does not run, as they are on its disk. putBack
// puts them in the place of what is there later, while the server does not run, and returns how many it did.
func (c *Cluster) KeepShards(name string) (putBack func() (int, error), err error) {
	k, err := KeepShards(vfs.OS, c.Server(name).DataDir)
	if err != nil {
		return nil, err
	}
	return func() (int, error) {
		back, err := k.PutBack(vfs.OS, c.Server(name).DataDir)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rolledBack = append(c.rolledBack, back...)
		return len(back), err
	}, nil
}

// WronglyRefused lists the replicas that were refused because of their disk though no fault rolled it
// back, by the logs of the servers.
func (c *Cluster) WronglyRefused() (out []string, err error) {
	c.mu.Lock()
	rolledBack := slices.Clone(c.rolledBack)
	c.mu.Unlock()
	for _, s := range c.list() {
		lines, err := WronglyRefused(s.LogFile, rolledBack)
		if err != nil {
			return nil, err
		}
		out = append(out, lines...)
	}
	return out, nil
}

// refusal matches what a server logs of a replica that it refuses because of its disk.
var refusal = regexp.MustCompile(`group (\S+), replica (\S+): (` + raftstore.RolledBack +
	`|two processes run as server|.*the disk of another replica was rolled back)`)

// WronglyRefused returns what the log of a server says about refused replicas that are not in rolledBack,
// once for each replica.
func WronglyRefused(logFile string, rolledBack []string) (out []string, err error) {
	b, err := os.ReadFile(logFile)
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, m := range refusal.FindAllSubmatch(b, -1) {
		if replica := string(m[2]); !seen[replica] && (string(m[3]) != raftstore.RolledBack ||
			!slices.ContainsFunc(rolledBack, func(id string) bool { return check.SameReplica(replica, id) })) {
			seen[replica] = true
			out = append(out, fmt.Sprintf("no fault rolled back the disk of replica %s, and %s has: %s", replica, logFile, m[0]))
		}
	}
	return out, nil
}

// KeptShards are the replicas of the shards of a server at one moment.
type KeptShards struct {
	replicas map[string]string            // group → replica
	files    map[string]map[string][]byte // group → path in its directory → content
}

// KeepShards copies the replicas in a data directory on disk that no process has open.
func KeepShards(disk vfs.FS, dataDir string) (*KeptShards, error) {
	replicas, err := shardReplicas(disk, dataDir)
	if err != nil {
		return nil, err
	}
	k := &KeptShards{replicas, make(map[string]map[string][]byte)}
	for group := range replicas {
		files := make(map[string][]byte)
		if err := readTree(disk, groupDir(dataDir, group), "", files); err != nil {
			return nil, fmt.Errorf("copy %s: %w", group, err)
		}
		k.files[group] = files
	}
	return k, nil
}

// PutBack replaces the files of the replicas that are still there, and returns which these are.
func (k *KeptShards) PutBack(disk vfs.FS, dataDir string) (replicas []string, err error) {
	now, err := shardReplicas(disk, dataDir)
	if err != nil {
		return nil, err
	}
	for group, replica := range now {
		if k.replicas[group] != replica {
			continue
		}
		replicas = append(replicas, replica)
		dir := groupDir(dataDir, group)
		if err := vfs.RemoveAll(disk, dir); err != nil {
			return replicas, err
		}
		for name, b := range k.files[group] {
			path := filepath.Join(dir, name)
			if b == nil {
				err = vfs.MkdirAll(disk, path)
			} else if err = vfs.MkdirAll(disk, filepath.Dir(path)); err == nil {
				err = vfs.WriteFile(disk, path, b)
			}
			if err != nil {
				return replicas, err
			}
		}
	}
	return replicas, nil
}

func groupDir(dataDir, group string) string { return filepath.Join(dataDir, "raft", "groups", group) }

// shardReplicas reads which replicas of shards run in a data directory (docs/formats/snapshot-store.md).
func shardReplicas(disk vfs.FS, dataDir string) (map[string]string, error) {
	const head, sum = 16, 4
	raw, err := vfs.ReadFile(disk, filepath.Join(dataDir, "raft", "registry"))
	if err != nil {
		return nil, err
	}
	if len(raw) < head+sum {
		return nil, errors.New("the registry is cut short")
	}
	var body struct {
		Groups map[string]struct{ Replica, State string } `json:"groups"`
	}
	if err := json.Unmarshal(raw[head:len(raw)-sum], &body); err != nil {
		return nil, err
	}
	out := make(map[string]string)
	for group, rec := range body.Groups {
		if strings.HasPrefix(group, "shard-") && rec.State == "active" {
			out[group] = rec.Replica
		}
	}
	return out, nil
}

// readTree reads the files below dir into files; a directory has nil.
func readTree(disk vfs.FS, dir, below string, files map[string][]byte) error {
	entries, err := disk.ReadDir(filepath.Join(dir, below))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(below, e.Name())
		if e.IsDir() {
			files[name] = nil
			if err := readTree(disk, dir, name, files); err != nil {
				return err
			}
			continue
		}
		b, err := vfs.ReadFile(disk, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		files[name] = append([]byte{}, b...)
	}
	return nil
}
