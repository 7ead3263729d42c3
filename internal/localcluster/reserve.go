package localcluster

import (
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Port is a loopback port that the kernel chose and that no other process gets until Release: a socket is
// bound to it and never listens. Without it, the port of a stopped server could become the source port of
// another connection, and the server could not restart.
type Port struct {
	Addr string // 127.0.0.1:port
	fd   int
}

// ReservePort reserves a free port of 127.0.0.1.
func ReservePort() (*Port, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	port, err := bindFree(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Port{Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), fd: fd}, nil
}

func bindFree(fd int) (port int, err error) {
	// Listen sets the same option. Two sockets may share a port if both have it and one of them does not listen.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	return sa.(*unix.SockaddrInet4).Port, nil
}

// Listen listens on the port. It may be called again after the last listener was closed.
func (p *Port) Listen() (*net.TCPListener, error) {
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// Release frees the port.
func (p *Port) Release() error { return unix.Close(p.fd) }
