package cluster

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// ExchangeLogs exchanges the scheduler's log and that of one shard of a server
// that does not run; a second call restores them.
func (c *Cluster) ExchangeLogs(name string, pick uint64) (bool, error) {
	dir := c.Server(name).DataDir
	groups := filepath.Join(dir, "raft", "groups")
	shards, err := filepath.Glob(filepath.Join(groups, "shard-*", "log"))
	meta := filepath.Join(groups, "meta", "log")
	if _, serr := os.Stat(meta); err != nil || serr != nil || len(shards) == 0 {
		return false, err
	}
	shard, aside := shards[pick%uint64(len(shards))], filepath.Join(dir, "exchanged")
	return true, errors.Join(os.Rename(meta, aside), os.Rename(shard, meta), os.Rename(aside, shard))
}

// StartRefused starts a server that must not serve. It ends the server if it does.
func (c *Cluster) StartRefused(ctx context.Context, name string) (serves bool, said string) {
	s := c.Server(name)
	c.setRefused(name, true)
	err := c.Restart(ctx, s)
	if err != nil {
		said = err.Error()
	}
	if err := s.Kill(); err != nil && s.Running() {
		said += "; it cannot be killed: " + err.Error()
	}
	c.mu.Lock()
	c.killed[name] = s.LastPid()
	c.mu.Unlock()
	c.setRefused(name, false)
	return err == nil, strings.TrimSpace(said)
}

func (c *Cluster) setRefused(name string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused[name] = on
}
