package checkpoint

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newCheckpointCreateCmd(g *remote.Flags) *cobra.Command {
	var req rowraftv1.CreateCheckpointRequest
	cmd := &cobra.Command{
		Use:   "create DESTINATION",
		Short: "Write all tables at one cut through all shards, while training continues",
		Long: `Write all tables at one cut through all shards, while training continues. Pushes wait for the cut, some
milliseconds, and not for the writing. Trainers that take part (rowraft-trainer does) stop at their next
batch boundary, and their state is in the checkpoint: their jobs resume from it exactly. The servers write; this command shows the progress. When it is
interrupted, or anything fails, there is no checkpoint and nothing else has changed. A trainer that is at work and does
not answer is such a failure, unless --skip-absent is given. If the scheduler's leader changes, the command continues with the next one.

A delta has the rows that changed since another checkpoint at the destination, and restores with it: keep both.
With --delta that is the newest of this cluster; if no delta can depend on it (the tables were restored since, or 16 deltas
are in a row) a full checkpoint is made, and the command says why. With --base it is the one you name, or an error.

--timeout bounds the search for a leader, and the time without progress in which it looks for the next one, not the writing.

` + destinationHelp,
		Example: `  rowraft checkpoint create /mnt/checkpoints
  rowraft checkpoint create s3://models/ctr --name nightly-1 -o json
  rowraft checkpoint create s3://models/ctr --delta
  rowraft checkpoint create s3://models/ctr --name noon --base nightly-1`,
		Args: cli.OneArg("the destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			started := time.Now()
			operation := uuid.New()
			req.Destination, req.Operation = args[0], operation[:]
			if req.Name == "" { // of all attempts
				req.Name = depot.NameAt(started, operation.String())
			}
			done, err := follow(g, cmd, "write", lostCreate, func(ctx context.Context, c rowraftv1.CheckpointsClient,
				attempt uint32) (receiver[*rowraftv1.CreateCheckpointReply], error) {
				req.Attempt = attempt
				return c.CreateCheckpoint(ctx, &req)
			})
			if err != nil {
				return fmt.Errorf("checkpoint create: %w", err)
			}
			m, err := checkpoint.ParseManifest(done.GetManifest())
			if err != nil {
				return err
			}
			c := newCheckpointJSON(&depot.Found{Name: done.GetName(), Bytes: m.Bytes(), Manifest: m})
			return showCreated(g, cmd, c, done.GetNote(), done.GetTrainers(), time.Since(started))
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Name, "name", "", "name of the checkpoint; by default the time and four digits")
	f.BoolVar(&req.Delta, "delta", false,
		"write what changed since the newest checkpoint there, if a delta can depend on it")
	f.StringVar(&req.Base, "base", "", "write what changed since the checkpoint of this name")
	f.StringVar(&req.Job, "job", "", "fail unless all trainers of this job take part")
	f.BoolVar(&req.SkipAbsent, "skip-absent", false,
		"continue without trainers that do not answer; their job cannot resume exactly from the checkpoint")
	return cmd
}

const lostCreate = "the server that led the checkpoint is gone, and what it had not finished is no checkpoint: run " +
	"it again, under another name if it had one"

// attendedJSON is a trainer whose state is in a checkpoint.
type attendedJSON struct {
	Job      string  `json:"job"`
	Rank     uint32  `json:"rank"`
	Step     uint64  `json:"step"`
	Bytes    uint64  `json:"bytes"`
	PausedMs float64 `json:"paused_ms"`
}

func showCreated(g *remote.Flags, cmd *cobra.Command, c checkpointJSON, note string,
	trainers []*rowraftv1.AttendedTrainer, took time.Duration) error {
	v := struct {
		Schema     string         `json:"schema"`
		Checkpoint checkpointJSON `json:"checkpoint"`
		Trainers   []attendedJSON `json:"trainers"`
		Note       string         `json:"note"` // what is unusual about the checkpoint
		Seconds    float64        `json:"seconds"`
	}{cli.JSONSchema, c, []attendedJSON{}, note, took.Seconds()}
	paused := 0.0
	for _, t := range trainers {
		v.Trainers = append(v.Trainers, attendedJSON{t.GetJob(), t.GetRank(), t.GetStep(), t.GetBytes(),
			float64(t.GetPausedNs()) / 1e6})
		paused = max(paused, float64(t.GetPausedNs())/1e6)
	}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		t := cli.NewTable(w, wide, []string{"TABLE", "ROWS", "WRITTEN", "DIGEST"}, "ROWS", "WRITTEN").OnlyWide("WRITTEN")
		for _, s := range c.Tables {
			t.AppendRow(table.Row{s.Table, cli.Count(s.Rows), cli.Count(s.Written), s.Digest})
		}
		t.Render()
		what := cli.Rows(c.Rows)
		if c.Kind == kindDelta {
			what = fmt.Sprintf("%s changed of %s, a delta to %s", cli.Count(c.Written), cli.Rows(c.Rows), c.Parent)
		} else if note != "" {
			what += " (" + note + ")"
		}
		for _, t := range v.Trainers {
			fmt.Fprintf(w, "trainer %d of job %s is in it, after step %d\n", t.Rank, t.Job, t.Step)
		}
		with := ""
		if len(v.Trainers) > 0 {
			with = fmt.Sprintf(", trainers stood still for %.1fms", paused)
		}
		_, err := fmt.Fprintf(w, "checkpoint %s: %s; %s of %s in %.1fs; pushes waited %.1fms at most%s\n",
			c.Name, what, cli.Size(c.Bytes), cli.Plural(c.Shards, "shard"), took.Seconds(), c.HeldMs, with)
		return err
	})
}
