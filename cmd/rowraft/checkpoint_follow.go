package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// progress is one message of a server that makes or restores a checkpoint.
type progress interface {
	GetPhase() string // the last is "done"
	GetBytes() uint64
	GetBytesTotal() uint64
}

type receiver[R progress] interface{ Recv() (R, error) }

// follow starts a call at the leader of the metadata group, shows its progress, and returns its last message. what
// names the first phase. hint is added to an error that no server returned.
func follow[R progress](g *globals, cmd *cobra.Command, what, hint string, start func(context.Context, rowraftv1.CheckpointsClient) (receiver[R], error)) (done R, err error) {
	c, err := g.connect()
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	conn, err := g.leaderConn(cmd, c)
	if err != nil {
		return done, err
	}
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	stream, err := start(ctx, rowraftv1.NewCheckpointsClient(conn))
	if err != nil {
		return done, rpc.FromStatus(err)
	}
	bar := g.newMeter(cmd, what)
	defer bar.done()
	for ended := false; ; {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && ended:
			return done, nil
		case errors.Is(err, io.EOF):
			return done, rowraft.Errorf(rowraft.CodeInternal, "the server ended the call without a result")
		case err != nil:
			return done, lost(rpc.FromStatus(err), hint)
		}
		switch reply.GetPhase() {
		case "done":
			done, ended = reply, true
			bar.set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
		case what:
			bar.set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
		default:
			bar.phase(reply.GetPhase())
		}
	}
}

// lost adds hint to an error of a call that no server returned.
func lost(err error, hint string) error {
	if rpc.Broken(err) || rowraft.CodeOf(err) == rowraft.CodeLeadershipLost {
		return cli.Hint(err, hint)
	}
	return err
}
