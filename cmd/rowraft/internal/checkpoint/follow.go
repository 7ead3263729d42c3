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
	"github.com/rowraft/rowraft/internal/route"
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
	maxAttempts = 64 // that a server accepts of one operation
	retryAfter  = 500 * time.Millisecond
	// maxPause is the longest time between attempts: without progress maxAttempts take longer than --timeout by default.
	maxPause = 4 * retryAfter
)

// follow starts a call at the scheduler's leader, shows its progress, and returns its last message. what names the
// first phase. If the leader is lost, follow starts the call again at the next one, until --timeout has passed without
// progress; start gets the number of the attempt, from 0. hint is added to the error of the last attempt, if no server
// returned it.
func follow[R progress](g *remote.Flags, cmd *cobra.Command, what, hint string,
	start func(context.Context, rowraftv1.CheckpointsClient, uint32) (receiver[R], error)) (done R, err error) {
	err = retryLost(cmd.Context(), g.Timeout, func(why string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s; the %s continues with the next one\n", why, cmd.Name())
	}, func(attempt uint32, moved func()) error {
		return remote.CallLong(cmd.Context(), g, rowraftv1.NewCheckpointsClient,
			func(ctx context.Context, c rowraftv1.CheckpointsClient) error {
				stream, err := start(ctx, c, attempt)
				if err != nil {
					return rpc.FromStatus(err)
				}
				done, err = receive(stream, g.NewMeter(cmd, what), what, moved)
				return err
			})
	})
	return done, remote.HintIfBroken(err, hint)
}

// retryLost repeats try while it loses the scheduler's leader, until patience has passed since the start or the last
// call of moved. notify gets the reason before an attempt, unless it is that of the attempt before, which made no
// progress.
func retryLost(ctx context.Context, patience time.Duration, notify func(why string),
	try func(attempt uint32, moved func()) error) (err error) {
	var (
		b        route.Backoff
		late     = time.Now().Add(patience)
		notified string
	)
	moved := func() { late, notified = time.Now().Add(patience), "" }
	for attempt := range uint32(maxAttempts) {
		if attempt > 0 && b.Wait(ctx, min(time.Duration(attempt)*retryAfter, maxPause)) != nil {
			return err
		}
		if err = try(attempt, moved); err == nil || !lost(err) || ctx.Err() != nil || time.Now().After(late) {
			return err
		}
		why := "the scheduler's leader changed"
		if rpc.Broken(err) {
			why = "the connection to the scheduler's leader was lost"
		}
		if why != notified {
			notify(why)
		}
		notified = why
	}
	return err
}

// lost reports whether an error means that the server of a call does not lead the scheduler any more.
func lost(err error) bool {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeLeadershipLost, rowraft.CodeNotLeader, rowraft.CodeClosing:
		return true
	}
	return rpc.Broken(err)
}

// receive shows the progress of a call until its last message. It calls moved for each message.
func receive[R progress](stream receiver[R], bar *terminal.Meter, what string, moved func()) (done R, err error) {
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
		moved()
		switch reply.GetPhase() {
		case "done":
			done, ended = reply, true
			if reply.GetBytes() > 0 { // a plan reads nothing
				bar.Set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
			}
		case what:
			bar.Set(int64(reply.GetBytes()), int64(reply.GetBytesTotal()))
		default:
			bar.Phase(reply.GetPhase())
		}
	}
}
