package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
)

func newJobWatchCmd(g *globals) *cobra.Command {
	every := time.Second
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Watch a job until nobody trains in it any more",
		Long: `Watch a job until nobody trains in it any more. On a terminal the picture is drawn again and again; elsewhere it is a line
for each worker now and then, and with -o json an event in a line of its own. Ctrl-C ends the watching, not the job.`,
		Example: "  rowraft job watch ctr",
		Args:    cli.OneArg("the NAME of the job"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return cli.Usagef("--every %v: want 100ms or more", every)
			}
			return g.watchJob(cmd, args[0], every)
		},
	}
	cmd.Flags().DurationVar(&every, "every", every, "how often to look")
	return cmd
}

func (g *globals) watchJob(cmd *cobra.Command, name string, every time.Duration) error {
	out := cmd.OutOrStdout()
	draw := g.drawer(out)
	tick := time.NewTicker(every)
	defer tick.Stop()
	ctx := cmd.Context()
	for {
		j, err := g.describeJob(ctx, name)
		if ctx.Err() != nil {
			return g.leaveWatch(cmd, name)
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
			return g.leaveWatch(cmd, name)
		case <-tick.C:
		}
	}
}

// leaveWatch prints that the watch has ended and the job continues.
func (g *globals) leaveWatch(cmd *cobra.Command, name string) error {
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "\njob %s goes on; `rowraft job stop %s` stops it\n", name, name)
	return err
}

// drawer returns the function that shows a job each time.
func (g *globals) drawer(out io.Writer) func(trainingJSON) error {
	switch {
	case g.output == cli.FormatJSON:
		enc := json.NewEncoder(out)
		return func(j trainingJSON) error {
			return enc.Encode(struct {
				Schema string       `json:"schema"`
				Time   time.Time    `json:"time"`
				Job    trainingJSON `json:"job"`
			}{cli.JSONSchema, time.Now(), j})
		}
	case g.output == cli.FormatYAML:
		return func(j trainingJSON) error {
			if _, err := fmt.Fprintln(out, "---"); err != nil {
				return err
			}
			return cli.WriteYAML(out, j)
		}
	}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		return redraw(out, g.output == cli.FormatWide)
	}
	return func(j trainingJSON) error { return jobLines(out, j) }
}

// redraw moves the cursor to the start of the last output.
func redraw(out io.Writer, wide bool) func(trainingJSON) error {
	lines := 0
	return func(j trainingJSON) error {
		var b bytes.Buffer
		if lines > 0 {
			fmt.Fprintf(&b, "\x1b[%dA\x1b[J", lines)
		}
		start := b.Len()
		fmt.Fprintf(&b, "job %s: %s, %d of %d workers train, %s steps/s, %s examples/s, epoch %s\n\n", j.Name, j.State, j.Training, j.Workers,
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
func jobLines(out io.Writer, j trainingJSON) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s job %s %s  %d/%d workers  %s steps/s  %s examples/s  epoch %s\n", time.Now().Format(time.TimeOnly), j.Name, j.State, j.Training, j.Workers,
		figure(j.StepsPerSec, 1), figure(j.ExamplesSec, 0), j.Data.progress())
	for _, m := range j.Members {
		fmt.Fprintf(&b, "  rank %d %s %s  step %s  %s steps/s  %s examples/s  loss %s  AUC %s  staleness %s  waiting %s\n", m.Rank, m.Worker, m.State, whole(m.Step),
			figure(m.StepsPerSec, 1), figure(m.ExamplesSec, 0), figure(m.Loss, 4), figure(m.AUC, 4), figure(m.Staleness, 1), percent(m.Waiting))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
