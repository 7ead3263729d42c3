package cluster

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
)

// The parts of the preamble of docs/formats/peer.md that say who dials.
const (
	preambleMagic   = "RWPR"
	preambleHeader  = 8
	maxPreambleBody = 376
	sourceTimeout   = 2 * time.Second
)

// peerSource reads the preamble of a peer connection: the dialler's node id tells
// which server it is.
func (c *Cluster) peerSource(in *net.TCPConn) (from string, head []byte, err error) {
	in.SetReadDeadline(time.Now().Add(sourceTimeout))
	defer in.SetReadDeadline(time.Time{})
	head = make([]byte, preambleHeader, preambleHeader+maxPreambleBody+4)
	if _, err := io.ReadFull(in, head); err != nil {
		return "", nil, err
	}
	if string(head[:4]) != preambleMagic {
		return Client, head, nil // no client of the harness: let the server judge it
	}
	body := int(binary.LittleEndian.Uint16(head[6:]))
	if body > maxPreambleBody {
		return Client, head, nil
	}
	head = head[:preambleHeader+body+4]
	if _, err := io.ReadFull(in, head[preambleHeader:]); err != nil {
		return "", nil, err
	}
	id, err := dialler(head[preambleHeader : preambleHeader+body])
	if err != nil {
		return Client, head, nil
	}
	if s := c.byID(id); s != nil {
		return s.Name, head, nil
	}
	// Before the server has said its id for the first time.
	return c.ownerOf(in), head, nil
}

// dialler returns the second name of a preamble's body, which begins with the channel.
func dialler(body []byte) (rowraft.NodeID, error) {
	body = body[min(1, len(body)):]
	for i := 0; len(body) > 0 && int(body[0]) < len(body); i++ {
		name := body[1 : 1+body[0]]
		if i == 1 {
			return rowraft.NodeID(name), nil
		}
		body = body[1+body[0]:]
	}
	return "", fmt.Errorf("preamble without a dialler")
}

// socketSource names the owner of a connection to the gRPC port.
func (c *Cluster) socketSource(in *net.TCPConn) (from string, head []byte, err error) {
	return c.ownerOf(in), nil, nil
}

// ownerOf returns the server whose process holds the far end of a connection, or
// Client.
func (c *Cluster) ownerOf(in *net.TCPConn) string {
	addr, ok := in.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return Client
	}
	return c.owners.of(addr, c.pids)
}

// pids lists the processes of the servers that run.
func (c *Cluster) pids() map[string]int {
	out := make(map[string]int)
	for _, s := range c.list() {
		if pid := s.Pid(); pid != 0 {
			out[s.Name] = pid
		}
	}
	return out
}

// owners knows which server holds which local end of a connection. On loopback the
// kernel tells: the socket's inode is in /proc/net/tcp and among the descriptors of
// a process. Reading that takes milliseconds and a storm brings thousands of
// connections a second, so all that wait at one time share one reading.
type owners struct {
	mu     sync.Mutex
	began  time.Time         // of the reading
	byAddr map[string]string // hexadecimal address → server
}

// of returns the owner of addr, a local end that is connected already.
func (o *owners) of(addr *net.TCPAddr, pids func() map[string]int) string {
	connected := time.Now()
	ip := addr.IP.To4()
	if ip == nil {
		return Client
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.began.After(connected) {
		o.began = time.Now()
		o.byAddr = ownedAddrs(pids())
	}
	if name, ok := o.byAddr[fmt.Sprintf("%08X:%04X", binary.LittleEndian.Uint32(ip), addr.Port)]; ok {
		return name
	}
	return Client
}

// ownedAddrs lists the local ends of the connections of processes, by name.
func ownedAddrs(pids map[string]int) map[string]string {
	byInode := make(map[string]string)
	for name, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			to, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if inode, is := strings.CutPrefix(to, "socket:["); err == nil && is {
				byInode[strings.TrimSuffix(inode, "]")] = name
			}
		}
	}
	out := make(map[string]string)
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(b)) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
		if f := strings.Fields(line); len(f) > 9 {
			if name, ok := byInode[f[9]]; ok {
				out[f[1]] = name
			}
		}
	}
	return out
}
