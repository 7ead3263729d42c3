package sim

import "github.com/rowraft/rowraft/e2e/cluster"

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
		defer s.mu.Unlock()
		return k.PutBack(s.disk, dataDir)
	}, nil
}
