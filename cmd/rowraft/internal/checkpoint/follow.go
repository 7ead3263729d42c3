package checkpoint

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
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
func follow[R progress](g *remote.Flags, cmd *cobra.Command, what, hint string,
	start func(context.Context, rowraftv1.CheckpointsClient) (receiver[R], error)) (done R, err error) {
	err = remote.CallLong(cmd.Context(), g, rowraftv1.NewCheckpointsClient,
		func(ctx context.Context, c rowraftv1.CheckpointsClient) error {
			stream, err := start(ctx, c)
			if err != nil {
				return rpc.FromStatus(err)
			}
			done, err = receive(stream, g.NewMeter(cmd, what), what, hint)
			return err
		})
	return done, err
}

// receive shows the progress of a call until its last message.
func receive[R progress](stream receiver[R], bar *terminal.Meter, what, hint string) (done R, err error) {
	defer bar.Done()
	for ended := false; ; {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && ended:
			return done, nil
		case errors.Is(err, io.EOF):
			return done, rowraft.Errorf(rowraft.CodeInternal, "the server ended the call without a result")
		case err != nil:
			return done, remote.HintIfBroken(rpc.FromStatus(err), hint)
		}
		switch reply.GetPhase() {
		case "done":
			done, ended = reply, true
			bar.Set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
		case what:
			bar.Set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
		default:
			bar.Phase(reply.GetPhase())
		}
	}
}
