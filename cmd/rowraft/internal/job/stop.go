package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/route"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// jobPoll is the interval at which a command reads the state of a job that it waits for.
const jobPoll = 500 * time.Millisecond

func newJobStopCmd(g *remote.Flags) *cobra.Command {
	wait := true
	cmd := &cobra.Command{
		Use:   "stop NAME",
		Short: "Have the workers of a job end in order",
		Long: `Have the workers of a job end in order: each trains the batch that it has, waits for its pushes, makes the checkpoint that
its job asks for (on_stop), and leaves. The command waits for that until --timeout and then names those that have not answered.
A job that was stopped continues where it was when its workers are started again.`,
		Example: "  rowraft job stop ctr",
		Args:    cli.OneArg("the NAME of the job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			reply, err := remote.Call(ctx, g, route.Control, rowraftv1.NewJobsClient, rowraftv1.JobsClient.StopJob,
				&rowraftv1.StopJobRequest{Job: args[0]})
			j := reply.GetJob()
			if err == nil && wait {
				j, err = awaitStop(ctx, g, cmd, j)
			}
			if err != nil {
				return err
			}
			return showStopped(g, cmd, newTrainingJSON(j))
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the workers have left")
	return cmd
}

// awaitStop waits until no worker trains in the job's run.
func awaitStop(ctx context.Context, g *remote.Flags, cmd *cobra.Command,
	j *rowraftv1.JobInfo) (*rowraftv1.JobInfo, error) {
	for tick := time.NewTicker(jobPoll); ; {
		names := stillTraining(j)
		if len(names) == 0 {
			return j, nil
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			if cmd.Context().Err() != nil {
				return nil, fmt.Errorf("the job is being stopped all the same: %w", cmd.Context().Err())
			}
			return nil, rowraft.Errorf(rowraft.CodeDeadline, "job %s: no answer within %v from %s; `rowraft job describe %s` "+
				"shows when they were last heard of; a worker that is silent for longer than the lease counts as lost",
				j.GetJob(), g.Timeout, strings.Join(names, ", "), j.GetJob())
		case <-tick.C:
		}
		now, err := describeJob(ctx, g, j.GetJob())
		switch {
		case err == nil && string(now.GetRun()) != string(j.GetRun()): // another run has begun
			return now, nil
		case err == nil:
			j = now
		case !errors.Is(err, context.DeadlineExceeded) && route.On(route.Control, err) == route.Return:
			return nil, err
		}
	}
}

func stillTraining(j *rowraftv1.JobInfo) (names []string) {
	for _, m := range j.GetMembers() {
		if m.GetMember().GetState() == rowraftv1.MemberState_MEMBER_STATE_TRAINING {
			names = append(names, fmt.Sprintf("%s (rank %d)", m.GetMember().GetWorker(), m.GetMember().GetRank()))
		}
	}
	return names
}

func showStopped(g *remote.Flags, cmd *cobra.Command, j Job) error {
	v := struct {
		Schema string `json:"schema"`
		Job    Job    `json:"job"`
	}{cli.JSONSchema, j}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "job %s: %s\n", j.Name, j.State)
		return err
	})
}
