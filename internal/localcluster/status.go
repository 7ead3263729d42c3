package localcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// FindBinary returns the path of a binary of rowraft: the given one, or the one called name in
// the directory of this binary, or in PATH.
func FindBinary(name, given string) (string, error) {
	if given != "" {
		return given, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	neighbour := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(neighbour); err == nil {
		return neighbour, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", rowraft.Errorf(rowraft.CodeNotFound, "%s is neither in %s nor in PATH: run `make build`",
			name, filepath.Dir(self))
	}
	return path, nil
}

// AwaitStatus requests the status of a running server until it responds or ctx ends: on a busy machine a
// server may not respond for seconds.
func AwaitStatus(ctx context.Context, addr string) (*rowraftv1.NodeStatusReply, error) {
	for b := new(route.Backoff); ; {
		st, err := Status(ctx, addr)
		if err == nil || b.Wait(ctx, 0) != nil {
			return st, err
		}
	}
}

// Status requests the status of a server of this machine, without TLS.
func Status(ctx context.Context, addr string) (st *rowraftv1.NodeStatusReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = route.With(addr, nil, func(conn *grpc.ClientConn) error {
		st, err = rowraftv1.NewReplicasClient(conn).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("status of server %s: %w", addr, err)
	}
	return st, nil
}
