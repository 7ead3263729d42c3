package sim

import (
	"slices"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// KeepShards copies the shards of a server that does not run, as they are on its disk. putBack
// puts them in the place of what is there later, while the server does not run, and returns how many it did.
func (c *Cluster) KeepShards(name string) (putBack func() (int, error), err error) {
	s := c.server(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	k, err := cluster.KeepShards(s.disk, dataDir)
	if err != nil {
		return nil, err
	}
	return func() (int, error) {
		s.mu.Lock()
		back, err := k.PutBack(s.disk, dataDir)
		s.mu.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.rolledBack = append(c.rolledBack, back...)
		return len(back), err
	}, nil
}

// WronglyRefused lists the replicas that were refused because of their disk though no fault rolled it
// back, by the logs of the servers. Call it when the servers have ended.
func (c *Cluster) WronglyRefused() (out []string, err error) {
	c.mu.Lock()
	rolledBack := slices.Clone(c.rolledBack)
	c.mu.Unlock()
	for _, s := range c.servers {
		lines, err := cluster.WronglyRefused(s.logFile(), rolledBack)
		if err != nil {
			return nil, err
		}
		out = append(out, lines...)
	}
	return out, nil
}
