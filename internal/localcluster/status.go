package localcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/rowraft/rowraft/internal/rpc"

	"github.com/rowraft/rowraft"
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
		return "", rowraft.Errorf(rowraft.CodeNotFound, "%s is neither in %s nor in PATH: run `make build`", name, filepath.Dir(self))
	}
	return path, nil
}

// AwaitStatus asks a server that runs until it answers, or ctx ends: on a busy machine it may stand
// still for seconds.
func AwaitStatus(ctx context.Context, addr string) (*rowraftv1.NodeStatusReply, error) {
	for {
		st, err := Status(ctx, addr)
		if err == nil || ctx.Err() != nil {
			return st, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Status asks a server of this machine, without TLS, for its state.
func Status(ctx context.Context, addr string) (*rowraftv1.NodeStatusReply, error) {
	conn, err := rpc.Dial(addr, nil, nil)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	st, err := rowraftv1.NewAdminClient(conn).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("status of server %s: %w", addr, err)
	}
	return st, nil
}
