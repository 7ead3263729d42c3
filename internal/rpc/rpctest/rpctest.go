// Package rpctest serves fakes of the services for the tests of their callers.
package rpctest

import (
	"net"
	"testing"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/rpc"
)

// Listen returns a listener on a loopback port that the kernel chose. It closes when the test ends.
func Listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	return l
}

// Serve serves on l what register registers, without certificates, until the test ends.
func Serve(tb testing.TB, l net.Listener, register func(*grpc.Server)) {
	tb.Helper()
	g := grpc.NewServer(rpc.ServerOptions(nil)...)
	register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	tb.Cleanup(func() { g.Stop(); <-done })
}
