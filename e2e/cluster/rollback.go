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

	"github.com/hashicorp/raft"
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
	reg   registry.Content
	files map[string]map[string][]byte // group → path in its directory → content
	logs  map[string][]*raft.Log       // group → entries in the shared log
}

// KeepShards copies the replicas in a data directory on disk that no process has open.
func KeepShards(disk vfs.FS, dataDir string) (*KeptShards, error) {
	reg, err := registry.Read(disk, filepath.Join(dataDir, "raft"))
	if err != nil {
		return nil, err
	}
	k := &KeptShards{reg, make(map[string]map[string][]byte), make(map[string][]*raft.Log)}
	rows, err := raftlog.ReadShared(disk, rowsDir(dataDir), reg.Cluster, reg.Node, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for _, group := range shardsOf(reg) {
		files := make(map[string][]byte)
		if err := readTree(disk, groupDir(dataDir, group), "", files); err != nil {
			return nil, fmt.Errorf("copy %s: %w", group, err)
		}
		k.files[group] = files
		if reg.Groups[group].Backend != raftlog.Row {
			continue
		}
		err := withLog(disk, dataDir, reg, group, rows, func(l raftlog.Log) (err error) {
			k.logs[group], err = entriesOf(l)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("copy the log of %s: %w", group, err)
		}
	}
	return k, nil
}

func entriesOf(l raftlog.Log) (out []*raft.Log, err error) {
	first, err := l.FirstIndex()
	if err != nil {
		return nil, err
	}
	last, err := l.LastIndex()
	for i := first; err == nil && i > 0 && i <= last; i++ {
		e := &raft.Log{}
		err = l.GetLog(i, e)
		out = append(out, e)
	}
	return out, err
}

// withLog calls do with the log of a group.
func withLog(disk vfs.FS, dataDir string, reg registry.Content, group string, rows *raftlog.Shared,
	do func(raftlog.Log) error) error {
	l, err := raftlog.Open(disk, raftlog.Row, filepath.Join(groupDir(dataDir, group), "log"), raftlog.Owner{
		Cluster: reg.Cluster, Node: reg.Node, Group: group, Replica: reg.Groups[group].Replica}, rows,
		slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return errors.Join(do(l), l.Close())
}

// PutBack replaces the files and logs of the replicas that are still there, and returns which these are.
func (k *KeptShards) PutBack(disk vfs.FS, dataDir string) (replicas []string, err error) {
	now, err := registry.Read(disk, filepath.Join(dataDir, "raft"))
	if err != nil {
		return nil, err
	}
	rows, err := raftlog.OpenShared(disk, rowsDir(dataDir), now.Cluster, now.Node, 1<<20,
		slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for _, group := range shardsOf(now) {
		replica := now.Groups[group].Replica
		if k.reg.Groups[group].Replica != replica {
			continue
		}
		replicas = append(replicas, string(replica))
		dir := groupDir(dataDir, group)
		if err := vfs.RemoveAll(disk, dir); err != nil {
			return replicas, err
		}
		if err := vfs.MkdirAll(disk, filepath.Join(dir, "log")); err != nil {
			return replicas, err
		}
		if now.Groups[group].Backend == raftlog.Row {
			err := withLog(disk, dataDir, now, group, rows, func(l raftlog.Log) error { // without META the log is new
				return l.StoreLogs(k.logs[group])
			})
			if err != nil {
				return replicas, err
			}
		}
		if err := writeTree(disk, dir, k.files[group]); err != nil {
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

// writeTree writes what readTree has read.
func writeTree(disk vfs.FS, dir string, files map[string][]byte) error {
	for name, b := range files {
		path := filepath.Join(dir, name)
		var err error
		if b == nil {
			err = vfs.MkdirAll(disk, path)
		} else if err = vfs.MkdirAll(disk, filepath.Dir(path)); err == nil {
			err = vfs.WriteFile(disk, path, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
