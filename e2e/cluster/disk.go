package cluster

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/vfs"
)

// diskFaultsEnv is what a server built with the tag rowraft_faults reads.
const diskFaultsEnv = "ROWRAFT_DISK_FAULTS"

// What such a server logs.
const (
	logFaultsSet = `"msg":"disk faults are set"`
	logFault     = `"msg":"disk fault"`
	logNewLife   = `"msg":"Server listening`
)

// WithDiskFaults makes the servers of opts follow SetDisk, if their binary can.
func WithDiskFaults(opts *localcluster.Options) {
	opts.Env = append(opts.Env, diskFaultsEnv+"="+localcluster.PerServer(opts.Dir, diskFile))
}

const diskFile = ".disk.json"

// CanDisk reports whether the servers' disks can be told to fail.
func (c *Cluster) CanDisk() bool {
	for _, s := range c.list() {
		b, err := os.ReadFile(s.LogFile)
		if err != nil || !bytes.Contains(b, []byte(logFaultsSet)) {
			return false
		}
	}
	return true
}

// SetDisk says what is wrong with a server's disk from now on; nothing, without faults.
func (c *Cluster) SetDisk(name string, faults ...vfs.DiskFault) error {
	if faults == nil {
		faults = []vfs.DiskFault{}
	}
	raw, err := json.Marshal(faults)
	if err != nil {
		return err
	}
	s := c.Server(name)
	path := filepath.Join(filepath.Dir(s.LogFile), name+diskFile)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// DiskFaults counts the operations that met a fault, over all lives of a server.
func (c *Cluster) DiskFaults(name string) int {
	b, err := os.ReadFile(c.Server(name).LogFile)
	if err != nil {
		return 0
	}
	return bytes.Count(b, []byte(logFault))
}

// MayEnd says that the present life of a server may end by itself.
func (c *Cluster) MayEnd(name string) {
	pid := c.Server(name).Pid()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.killed[name] = pid
}

// ExitCode returns that of a server's last life, −1 if it runs or was killed.
func (c *Cluster) ExitCode(name string) int { return c.Server(name).ExitCode() }
