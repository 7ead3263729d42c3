package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
)

func newJobWatchCmd(g *remote.Flags) *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Watch a job until no worker trains in it",
		Long: `Watch a job until no worker trains in it. On a terminal the picture is redrawn; otherwise each look prints a line
for each worker, and with -o json one event per line. Ctrl-C ends the watching, not the job.`,
		Example: "  rowraft job watch ctr",
		Args:    cli.OneArg("the NAME of the job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return cli.Usagef("--every %v: want 100ms or more", every)
			}
			return watchJob(g, cmd, args[0], every)
		},
	}
	cmd.Flags().DurationVar(&every, "every", every, "how often to look")
	return cmd
}

func watchJob(g *remote.Flags, cmd *cobra.Command, name string, every time.Duration) error {
	out := cmd.OutOrStdout()
	draw := drawer(g, out)
	tick := time.NewTicker(every)
	defer tick.Stop()
	ctx := cmd.Context()
	for {
		j, err := describeJob(ctx, g, name)
		if ctx.Err() != nil {
			return leaveWatch(g, cmd, name)
		}
		if err != nil {
			return err
		}
		v := newTrainingJSON(j)
		if err := draw(v); err != nil {
			return err
		}
		if v.Training == 0 && v.State != "running" {
			if v.State == "failed" {
				return rowraft.Errorf(rowraft.CodePrecondition, "job %s has failed: %s", name, v.Reason)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return leaveWatch(g, cmd, name)
		case <-tick.C:
		}
	}
}

// leaveWatch prints that the watch has ended and the job continues.
func leaveWatch(g *remote.Flags, cmd *cobra.Command, name string) error {
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "\njob %s continues; `rowraft job stop %s` stops it\n", name, name)
	return err
}

// drawer returns the function that shows a job each time.
func drawer(g *remote.Flags, out io.Writer) func(Job) error {
	switch {
	case g.Output == cli.FormatJSON:
		enc := json.NewEncoder(out)
		return func(j Job) error {
			return enc.Encode(struct {
				Schema string    `json:"schema"`
				Time   time.Time `json:"time"`
				Job    Job       `json:"job"`
			}{cli.JSONSchema, time.Now(), j})
		}
	case g.Output == cli.FormatYAML:
		return func(j Job) error {
			if _, err := fmt.Fprintln(out, "---"); err != nil {
				return err
			}
			return cli.WriteYAML(out, j)
		}
	}
	if cli.IsTerminal(out) {
		return redraw(out, g.Output == cli.FormatWide)
	}
	return func(j Job) error { return jobLines(out, j) }
}

// redraw moves the cursor to the start of the last output.
func redraw(out io.Writer, wide bool) func(Job) error {
	lines := 0
	return func(j Job) error {
		var b bytes.Buffer
		if lines > 0 {
			fmt.Fprintf(&b, "\x1b[%dA\x1b[J", lines)
		}
		start := b.Len()
		fmt.Fprintf(&b, "job %s: %s, %d of %d workers train, %s steps/s, %s examples/s, epoch %s\n\n", j.Name, j.State,
			j.Training, j.Workers,
			figure(j.StepsPerSec, 1), figure(j.ExamplesSec, 0), j.Data.progress())
		if err := listMembers(&b, j.Members, wide); err != nil {
			return err
		}
		lines = bytes.Count(b.Bytes()[start:], []byte("\n"))
		_, err := out.Write(b.Bytes())
		return err
	}
}

// jobLines returns one line for the job and one for each of its workers.
func jobLines(out io.Writer, j Job) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s job %s %s  %d/%d workers  %s steps/s  %s examples/s  epoch %s\n", time.Now().Format(time.TimeOnly),
		j.Name, j.State, j.Training, j.Workers,
		figure(j.StepsPerSec, 1), figure(j.ExamplesSec, 0), j.Data.progress())
	for _, m := range j.Members {
		fmt.Fprintf(&b, "  rank %d %s %s  step %s  %s steps/s  %s examples/s  loss %s  AUC %s  staleness %s  waiting %s\n",
			m.Rank, m.Worker, m.State, whole(m.Step),
			figure(m.StepsPerSec, 1), figure(m.ExamplesSec, 0), figure(m.Loss, 4), figure(m.AUC, 4), figure(m.Staleness, 1),
			percent(m.Waiting))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
