package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Usage is what a server takes of the machine.
type Usage struct {
	Goroutines int   `json:"goroutines"`
	Threads    int   `json:"threads"`
	Files      int   `json:"files"` // and sockets
	RSSBytes   int64 `json:"rss_bytes"`
	DataBytes  int64 `json:"data_bytes"` // of its data directory, as stored
}

// Usage measures a running server.
func (c *Cluster) Usage(ctx context.Context, name string) (u Usage, err error) {
	s := c.Server(name)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	reply, err := rowraftv1.NewReplicasClient(c.Admins[name]).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	if err != nil {
		return u, fmt.Errorf("status of server %s: %w", name, err)
	}
	u.Goroutines = int(reply.Goroutines)
	proc := fmt.Sprintf("/proc/%d", s.Pid())
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return u, err
	}
	u.Files = len(fds)
	status, err := os.ReadFile(filepath.Join(proc, "status"))
	if err != nil {
		return u, err
	}
	u.Threads = int(statusField(status, "Threads:"))
	u.RSSBytes = statusField(status, "VmRSS:") << 10
	u.DataBytes, err = storedBytes(s.DataDir)
	return u, err
}

// statusField returns the number after a name in /proc/PID/status, 0 if it is not there.
func statusField(status []byte, name string) int64 {
	for line := range bytes.Lines(status) {
		if f := bytes.Fields(line); len(f) > 1 && string(f[0]) == name {
			n, err := strconv.ParseInt(string(f[1]), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// storedBytes sums the sizes of the files below dir. Files that go away meanwhile
// count or do not.
func storedBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	return sum, err
}

// Leftovers lists what should be gone after Close: processes that have dir in their
// command line, and listening sockets of this process.
func Leftovers(dir string) ([]string, error) {
	var out []string
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	self := strconv.Itoa(os.Getpid())
	for _, p := range procs {
		pid := filepath.Base(filepath.Dir(p))
		if b, err := os.ReadFile(p); err == nil && pid != self && bytes.Contains(b, []byte(dir+"/")) {
			out = append(out, fmt.Sprintf("process %s: %s", pid, bytes.ReplaceAll(bytes.TrimRight(b, "\x00"), []byte{0},
				[]byte{' '})))
		}
	}
	listening, err := listeningSockets()
	if err != nil {
		return nil, err
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && listening[to] != "" {
			out = append(out, "this process still listens on "+listening[to])
		}
	}
	return out, nil
}

// listeningSockets returns the addresses of all listening TCP sockets, by what a
// descriptor links to.
func listeningSockets() (map[string]string, error) {
	const listen = "0A"
	out := make(map[string]string)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
			if f := strings.Fields(line); len(f) > 9 && f[3] == listen {
				out["socket:["+f[9]+"]"] = f[1]
			}
		}
	}
	return out, nil
}
