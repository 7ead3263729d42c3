package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

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

const (
	attempts   = 6 // of a call whose leader is lost
	retryAfter = 500 * time.Millisecond
)

// follow starts a call at the scheduler's leader, shows its progress, and returns its last message. what
// names the first phase. If the leader changes, follow starts the call again at the next one; start gets the number of
// the attempt, from 0. hint is added to the error of the last attempt, if no server returned it.
func follow[R progress](g *remote.Flags, cmd *cobra.Command, what, hint string,
	start func(context.Context, rowraftv1.CheckpointsClient, uint32) (receiver[R], error)) (done R, err error) {
	for attempt := range uint32(attempts) {
		if attempt > 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "the scheduler's leader changed; the %s continues with the next one\n", cmd.Name())
			select {
			case <-time.After(retryAfter):
			case <-cmd.Context().Done():
				return done, err
			}
		}
		err = remote.CallLong(cmd.Context(), g, rowraftv1.NewCheckpointsClient,
			func(ctx context.Context, c rowraftv1.CheckpointsClient) error {
				stream, err := start(ctx, c, attempt)
				if err != nil {
					return rpc.FromStatus(err)
				}
				done, err = receive(stream, g.NewMeter(cmd, what), what)
				return err
			})
		if err == nil || !lost(err) || cmd.Context().Err() != nil {
			break
		}
	}
	return done, remote.HintIfBroken(err, hint)
}

// lost reports whether an error means that the server of a call does not lead the scheduler any more.
func lost(err error) bool {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeLeadershipLost, rowraft.CodeNotLeader, rowraft.CodeClosing:
		return true
	}
	return rpc.Broken(err)
}

// receive shows the progress of a call until its last message.
func receive[R progress](stream receiver[R], bar *terminal.Meter, what string) (done R, err error) {
	defer bar.Done()
	for ended := false; ; {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && ended:
			return done, nil
		case errors.Is(err, io.EOF):
			return done, rowraft.Errorf(rowraft.CodeInternal, "the server ended the call without a result")
		case err != nil:
			return done, rpc.FromStatus(err)
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
