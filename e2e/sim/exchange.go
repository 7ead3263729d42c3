package sim

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/rowraft/rowraft/internal/vfs"
)

// ExchangeLogs exchanges the log and snapshots of the scheduler with those of one shard on the
// disk of a server that does not run; a second call restores them.
func (c *Cluster) ExchangeLogs(name string, pick uint64) (bool, error) {
	s := c.server(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	groups := filepath.Join(dataDir, "raft", "groups")
	entries, err := s.disk.ReadDir(groups)
	if err != nil {
		return false, err
	}
	var shards []string
	meta := false
	for _, e := range entries {
		meta = meta || e.Name() == "meta"
		if strings.HasPrefix(e.Name(), "shard-") {
			shards = append(shards, filepath.Join(groups, e.Name()))
		}
	}
	if !meta || len(shards) == 0 {
		return false, nil
	}
	return true, exchange(s.disk, filepath.Join(groups, "meta"), shards[pick%uint64(len(shards))])
}

// exchange gives two directories in one directory each other's names.
func exchange(disk *vfs.Mem, a, b string) error {
	aside := filepath.Join(filepath.Dir(a), "exchanged")
	if _, err := disk.Stat(aside); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fs.ErrExist, err)
	}
	return errors.Join(disk.Rename(a, aside), disk.Rename(b, a), disk.Rename(aside, b), disk.SyncDir(filepath.Dir(a)))
}

// StartRefused starts a server that must not serve. It ends the server if it does.
func (c *Cluster) StartRefused(ctx context.Context, name string) (serves bool, said string) {
	s := c.server(name)
	s.mu.Lock()
	s.refused = true
	s.mu.Unlock()
	err := s.start(ctx)
	s.cut(false, killed)
	s.mu.Lock()
	s.refused = false
	s.mu.Unlock()
	if err != nil {
		return false, err.Error()
	}
	return true, ""
}
