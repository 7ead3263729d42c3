package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/registry"
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
	reg  registry.Content
	disk *vfs.Mem // with a copy of the data directory
	dir  string
}

// KeepShards copies the replicas in a data directory on disk that no process has open.
func KeepShards(disk vfs.FS, dataDir string) (*KeptShards, error) {
	reg, err := registry.Read(disk, filepath.Join(dataDir, "raft"))
	if err != nil {
		return nil, err
	}
	k := &KeptShards{reg, vfs.NewMem(), "/kept"}
	if err := copyTree(k.disk, rowsDir(k.dir), disk, rowsDir(dataDir)); err != nil {
		return nil, err
	}
	for _, group := range shardsOf(reg) {
		if err := copyTree(k.disk, groupDir(k.dir, group), disk, groupDir(dataDir, group)); err != nil {
			return nil, fmt.Errorf("copy %s: %w", group, err)
		}
	}
	return k, nil
}

// PutBack replaces the files and logs of the replicas that are still there, and returns which these are.
func (k *KeptShards) PutBack(disk vfs.FS, dataDir string) (replicas []string, err error) {
	now, err := registry.Read(disk, filepath.Join(dataDir, "raft"))
	if err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	kept, err := raftlog.ReadShared(k.disk, rowsDir(k.dir), now.Cluster, now.Node, quiet)
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	rows, err := raftlog.OpenShared(disk, rowsDir(dataDir), now.Cluster, now.Node, 1<<20, quiet)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for _, group := range shardsOf(now) {
		rec := now.Groups[group]
		if k.reg.Groups[group].Replica != rec.Replica {
			continue
		}
		replicas = append(replicas, string(rec.Replica))
		dir := groupDir(dataDir, group)
		if err := vfs.RemoveAll(disk, dir); err != nil {
			return replicas, err
		}
		if rec.Backend == raftlog.Row {
			owner := raftlog.Owner{Cluster: now.Cluster, Node: now.Node, Group: group, Replica: rec.Replica}
			if err := rows.Replace(owner, kept); err != nil {
				return replicas, err
			}
		}
		if err := copyTree(disk, dir, k.disk, groupDir(k.dir, group)); err != nil {
			return replicas, err
		}
	}
	return replicas, nil
}

func rowsDir(dataDir string) string { return filepath.Join(dataDir, "raft", "log") }

func groupDir(dataDir, group string) string { return filepath.Join(dataDir, "raft", "groups", group) }

// shardsOf returns the shards whose replicas run in a data directory.
func shardsOf(reg registry.Content) []string {
	return slices.DeleteFunc(reg.Active(), func(group string) bool { return !strings.HasPrefix(group, "shard-") })
}

// copyTree copies the files below a directory, which may be missing.
func copyTree(to vfs.FS, toDir string, from vfs.FS, fromDir string) error {
	entries, err := from.ReadDir(fromDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = vfs.MkdirAll(to, toDir)
	}
	for _, e := range entries {
		if err != nil {
			break
		}
		source, target := filepath.Join(fromDir, e.Name()), filepath.Join(toDir, e.Name())
		if e.IsDir() {
			err = copyTree(to, target, from, source)
			continue
		}
		var b []byte
		if b, err = vfs.ReadFile(from, source); err == nil {
			err = vfs.WriteFile(to, target, b)
		}
	}
	return err
}
