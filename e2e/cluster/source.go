package cluster

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
)

// The parts of the preamble of docs/formats/peer.md that say who dials.
const (
	preambleMagic   = "RWPR"
	preambleHeader  = 8
	maxPreambleBody = 260
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
		return Client, head, nil // nobody of ours: let the server judge it
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

// dialler returns the second name of a preamble's body.
func dialler(body []byte) (rowraft.NodeID, error) {
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
// Client. On loopback the kernel tells: the socket's inode is in /proc/net/tcp and
// among the process's descriptors.
func (c *Cluster) ownerOf(in *net.TCPConn) string {
	addr, ok := in.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return Client
	}
	inode := socketInode(addr)
	if inode == "" {
		return Client
	}
	want := "socket:[" + inode + "]"
	for _, s := range c.list() {
		pid := s.Pid()
		if pid == 0 {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if got, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && got == want {
				return s.Name
			}
		}
	}
	return Client
}

// socketInode finds the socket bound to a local address in /proc/net/tcp.
func socketInode(addr *net.TCPAddr) string {
	ip := addr.IP.To4()
	b, err := os.ReadFile("/proc/net/tcp")
	if ip == nil || err != nil {
		return ""
	}
	local := fmt.Sprintf("%08X:%04X", binary.LittleEndian.Uint32(ip), addr.Port)
	for line := range strings.Lines(string(b)) {
		// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode …
		f := strings.Fields(line)
		if len(f) > 9 && f[1] == local {
			return f[9]
		}
	}
	return ""
}
