package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// shrinkFlags are the flags of `table shrink`.
type shrinkFlags struct {
	unseen string
	count  uint32
	norm   float32
	dryRun bool
}

func newTableShrinkCmd(g *remote.Flags) *cobra.Command {
	var f shrinkFlags
	cmd := &cobra.Command{
		Use:   "shrink NAME",
		Short: "Remove the rows of a table that training no longer uses",
		Long: `Remove the rows that meet all conditions given, in all shards, while training continues. The leaders of the shards
look at some thousand rows at a time and log what they remove; this command shows how far they are. When it is interrupted,
the rows removed so far stay removed: run the same command again for the rest.

--unseen and --count-below need a table that keeps track of pushes: one created with --admit, --expire or --capacity. Time is that of
the shards' logs, which stands still while a shard is down. With --evict lfu counts fade, as streaming.md says.

A row that was removed reads as the table's initializer, and a later push creates it again.

--timeout bounds the search for the cluster's leader, not the shrinking.`,
		Example: `  rowraft table shrink ads --unseen 168h --dry-run
  rowraft table shrink ads --unseen 24h --count-below 2
  rowraft table shrink ads --norm-below 1e-4 -o json`,
		Args: cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.conditions(cmd.Flags().Changed)
			if err != nil {
				return err
			}
			started := time.Now()
			done, err := shrinkTable(g, cmd, &rowraftv1.ShrinkTableRequest{Table: args[0], Conditions: c, DryRun: f.dryRun})
			if err != nil {
				return err
			}
			return showShrunk(g, cmd, args[0], done, f.dryRun, time.Since(started))
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.unseen, "unseen", "", "rows that got no push for longer: a duration (168h) or a number of seconds")
	fl.Uint32Var(&f.count, "count-below", 0, "rows that were pushed fewer times")
	fl.Float32Var(&f.norm, "norm-below", 0, "rows whose weights have a smaller Euclidean norm")
	fl.BoolVar(&f.dryRun, "dry-run", false, "count the rows, remove none")
	return cmd
}

func (f *shrinkFlags) conditions(given func(string) bool) (*rowraftv1.SweepConditions, error) {
	c := &rowraftv1.SweepConditions{CountBelow: f.count, NormBelow: f.norm}
	if given("unseen") {
		ticks, err := rowraft.ParseTicks(f.unseen)
		if err != nil {
			return nil, cli.Usagef("--unseen %s: want whole seconds, as a duration (168h) or a number", f.unseen)
		}
		c.UnseenTicks = &ticks
	}
	switch {
	case given("count-below") && f.count == 0:
		return nil, cli.Usagef("--count-below 0 is no row: want at least 1")
	case given("norm-below") && !(f.norm > 0):
		return nil, cli.Usagef("--norm-below %v is no row: want more than 0", f.norm)
	case c.UnseenTicks == nil && f.count == 0 && f.norm == 0:
		return nil, cli.Usagef("which rows? say --unseen, --count-below or --norm-below")
	}
	return c, nil
}

func shrinkTable(g *remote.Flags, cmd *cobra.Command,
	req *rowraftv1.ShrinkTableRequest) (last *rowraftv1.ShrinkTableReply, err error) {
	err = remote.CallLong(cmd.Context(), g, rowraftv1.NewSweepsClient,
		func(ctx context.Context, c rowraftv1.SweepsClient) error {
			stream, err := c.ShrinkTable(ctx, req)
			if err != nil {
				return rpc.FromStatus(err)
			}
			last, err = receiveShrink(stream, terminal.NewCounter(cmd.ErrOrStderr(), "shrink", "slots",
				g.Output == cli.FormatJSON), req.GetDryRun())
			return err
		})
	return last, err
}

// receiveShrink shows the progress of a sweep until its last message.
func receiveShrink(stream grpc.ServerStreamingClient[rowraftv1.ShrinkTableReply], bar *terminal.Meter,
	dryRun bool) (last *rowraftv1.ShrinkTableReply, err error) {
	defer bar.Done()
	for {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && last.GetDone():
			return last, nil
		case errors.Is(err, io.EOF):
			return nil, rowraft.Errorf(rowraft.CodeInternal, "the server ended the call without a result")
		case err != nil:
			err = rpc.FromStatus(err)
			if n := last.GetRemoved(); n > 0 && !dryRun {
				err = fmt.Errorf("%s rows were removed before this: %w", cli.Count(n), err)
			}
			return nil, remote.HintIfBroken(err, "run the same command again: it continues with the rows that are left")
		}
		last = reply
		bar.Set(int64(reply.GetSlots()), int64(reply.GetSlotsTotal()))
	}
}

func showShrunk(g *remote.Flags, cmd *cobra.Command, name string, r *rowraftv1.ShrinkTableReply, dryRun bool,
	took time.Duration) error {
	v := struct {
		Schema     string  `json:"schema"`
		Table      string  `json:"table"`
		DryRun     bool    `json:"dry_run"`
		Looked     uint64  `json:"looked_at"`  // rows and candidates
		Removed    uint64  `json:"removed"`    // rows
		Candidates uint64  `json:"candidates"` // removed keys without a row
		Seconds    float64 `json:"seconds"`
	}{cli.JSONSchema, name, dryRun, r.GetRows(), r.GetRemoved(), r.GetCandidates(), took.Seconds()}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, _ bool) error {
		what := "removed"
		if dryRun {
			what = "would remove"
		}
		_, err := fmt.Fprintf(w, "table %s: %s %s and %s keys that waited for one, looked at %s in %.1fs\n",
			name, what, cli.Rows(v.Removed), cli.Count(v.Candidates), cli.Count(v.Looked), v.Seconds)
		return err
	})
}
