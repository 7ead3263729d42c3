package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newCheckpointRestoreCmd(g *remote.Flags) *cobra.Command {
	var req rowraftv1.RestoreCheckpointRequest
	yes := false
	cmd := &cobra.Command{
		Use:   "restore DESTINATION/NAME",
		Short: "Put a checkpoint's tables in the place of the cluster's",
		Long: `Put a checkpoint's tables in the place of the cluster's, whatever the number of shards here and there.

With --table only these tables change. Tables of the same names give way to them; all other tables keep their rows, and
their trainers train on. A trainer of a table that was replaced is refused (TableNotFound) and connects again.

Without --table the checkpoint takes the place of everything: tables that it does not have are removed. A new table epoch
begins, and all sessions and read positions from before are refused (trainers connect again).

The command lists the tables that are removed or replaced, with their rows, and asks. --yes does not ask; without a
terminal it is needed. Rows are lost only with --replace.

A delta is restored with all checkpoints that it depends on, which must lie at the same destination.

The rows are staged next to the tables that serve. Only when all of the checkpoint was read and found right, and
every shard holds exactly the rows it should, the shards change over, each at one log entry. Until then an interruption or a failure
leaves everything as it was; afterwards the scheduler finishes it. If the scheduler's leader changes, the command continues with
the next one, and nothing is restored twice. Both states are in memory and the staged rows in the
log until then, so each server needs room for both: a restore is refused if a server that leads a shard has less memory left
(MemAvailable, or what the memory.max of its cgroups leaves) than the records take.

Exit code 3 says that the checkpoint is damaged or that rows are missing. --timeout bounds the search for a
leader, and the time without progress in which it looks for the next one.

` + destinationHelp,
		Example: `  rowraft checkpoint restore /mnt/checkpoints/nightly-1
  rowraft checkpoint restore s3://models/ctr/nightly-1 --replace
  rowraft checkpoint restore s3://models/ctr/nightly-1 --table 'ctr.*' --replace     # all tables that begin with ctr.
  rowraft checkpoint restore s3://models/ctr/nightly-1 --table user_emb --dry-run -o json`,
		Args: cli.OneArg("the checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if req.Destination, req.Name, err = depot.Split(args[0]); err != nil {
				return err
			}
			plan := proto.CloneOf(&req)
			plan.Plan = true
			planned, err := restoreCheckpoint(g, cmd, plan)
			if err != nil {
				return err
			}
			if err := agreeToRestore(cmd, &req, planned.GetChanges(), yes); err != nil {
				return err
			}
			started := time.Now()
			req.After = planned.GetDecided() // no attempt is decided after another one
			done, err := restoreCheckpoint(g, cmd, &req)
			if err != nil {
				return err
			}
			return showRestored(g, cmd, newRestoredJSON(&req, planned, done, time.Since(started)))
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&req.Tables, "table", nil,
		"restore these tables and leave all others alone; a name, or a pattern that ends with *; may be repeated")
	f.BoolVar(&yes, "yes", false, "do not ask")
	f.BoolVar(&req.Replace, "replace", false, "drop the rows that the cluster has")
	f.BoolVar(&req.DryRun, "dry-run", false, "read and check everything, change nothing")
	return cmd
}

// restoreCheckpoint runs one restore, or plans it.
func restoreCheckpoint(g *remote.Flags, cmd *cobra.Command,
	req *rowraftv1.RestoreCheckpointRequest) (*rowraftv1.RestoreCheckpointReply, error) {
	done, err := follow(g, cmd, "read", lostRestore, func(ctx context.Context, c rowraftv1.CheckpointsClient,
		_ uint32) (receiver[*rowraftv1.RestoreCheckpointReply], error) {
		return c.RestoreCheckpoint(ctx, req)
	})
	if err == nil {
		return done, nil
	}
	err = fmt.Errorf("checkpoint restore: %w", err)
	if rowraft.CodeOf(err) == rowraft.CodeCorrupt {
		return nil, cli.Verdict(err)
	}
	if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists { // the cluster holds rows, and the request lacks --replace
		return nil, cli.Refused(err)
	}
	return nil, err
}

// agreeToRestore prints what would be lost and asks for confirmation. It adds the printed tables to the request, so
// that the server refuses to drop others.
func agreeToRestore(cmd *cobra.Command, req *rowraftv1.RestoreCheckpointRequest, changes []*rowraftv1.RestoreChange,
	yes bool) error {
	w := cmd.ErrOrStderr()
	lost := uint64(0)
	for _, c := range changes {
		if c.GetId() == 0 {
			continue
		}
		if len(req.Agreed) == 0 {
			fmt.Fprintln(w, "This restore changes tables that the cluster has:")
		}
		req.Agreed = append(req.Agreed, c.GetId())
		lost += c.GetRows()
		what := "REMOVED: the checkpoint does not have it"
		if c.GetComes() {
			what = fmt.Sprintf("replaced by %s of the checkpoint", cli.Rows(c.GetBrings()))
		}
		fmt.Fprintf(w, "  %s, %s: %s\n", c.GetName(), cli.Rows(c.GetRows()), what)
	}
	if len(req.Agreed) == 0 || yes || req.GetDryRun() || lost > 0 && !req.GetReplace() { // the server refuses that
		return nil
	}
	return terminal.ConfirmOrRefuse(cmd, "Type yes to do it: ", "yes", "--yes")
}

const lostRestore = "the server that led the restore is gone; either nothing has changed or the scheduler finishes " +
	"it; it may be run again, with --replace"

// restoredJSON is the contract of `checkpoint restore -o json`.
type restoredJSON struct {
	Schema     string              `json:"schema"`
	Checkpoint string              `json:"checkpoint"`
	DryRun     bool                `json:"dry_run"`
	Epoch      uint64              `json:"epoch"`
	Bytes      uint64              `json:"bytes"`
	Seconds    float64             `json:"seconds"`
	Changes    []restoreChangeJSON `json:"changes"` // tables of the cluster that were removed or replaced
	Tables     []restoredTableJSON `json:"tables"`
	Shards     []restoredShardJSON `json:"shards"`
}

type restoreChangeJSON struct {
	Table  string `json:"table"`
	ID     string `json:"id"`
	Rows   uint64 `json:"rows"`   // lost rows
	Change string `json:"change"` // removed, replaced
}

type restoredTableJSON struct {
	Table    string `json:"table"`
	ID       string `json:"id"`
	Written  uint64 `json:"written"`
	Restored uint64 `json:"restored"`
	Filtered uint64 `json:"filtered"`
	Failed   uint64 `json:"failed"`
}

type restoredShardJSON struct {
	Shard  uint32 `json:"shard"`
	Rows   uint64 `json:"rows"`
	Digest string `json:"digest"`
}

func newRestoredJSON(req *rowraftv1.RestoreCheckpointRequest, plan, r *rowraftv1.RestoreCheckpointReply,
	took time.Duration) *restoredJSON {
	v := &restoredJSON{
		Schema: cli.JSONSchema, Checkpoint: req.GetName(), DryRun: req.GetDryRun(), Epoch: r.GetTableEpoch(),
		Bytes: r.GetBytes(), Seconds: took.Seconds(),
		Changes: []restoreChangeJSON{}, Tables: []restoredTableJSON{}, Shards: []restoredShardJSON{},
	}
	for _, c := range plan.GetChanges() {
		change := map[bool]string{false: "removed", true: "replaced"}[c.GetComes()]
		if c.GetId() != 0 {
			v.Changes = append(v.Changes, restoreChangeJSON{c.GetName(), fmt.Sprint(c.GetId()), c.GetRows(), change})
		}
	}
	for _, t := range r.GetTables() {
		v.Tables = append(v.Tables, restoredTableJSON{t.GetName(), fmt.Sprint(t.GetId()), t.GetWritten(), t.GetRestored(),
			t.GetFiltered(), t.GetFailed()})
	}
	for _, s := range r.GetShards() {
		v.Shards = append(v.Shards, restoredShardJSON{s.GetShard(), s.GetRows(), fmt.Sprintf("%x", s.GetDigest())})
	}
	return v
}

// check compares the rows that were restored with the manifest. What the shards hold is no measure of them: tables are
// written from the restore on, and rows expire.
func (v *restoredJSON) check() error {
	for _, t := range v.Tables {
		if t.Failed > 0 || t.Restored+t.Filtered != t.Written {
			return cli.Verdict(rowraft.Errorf(rowraft.CodeCorrupt,
				"table %s: %d rows written, %d restored, %d filtered, %d failed: rows are missing", t.Table, t.Written, t.Restored,
				t.Filtered, t.Failed))
		}
	}
	return nil
}

func showRestored(g *remote.Flags, cmd *cobra.Command, v *restoredJSON) error {
	err := cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		t := cli.NewTable(w, wide, []string{"TABLE", "WRITTEN", "RESTORED", "FILTERED", "FAILED"}, "WRITTEN", "RESTORED",
			"FILTERED", "FAILED")
		rows := uint64(0)
		for _, s := range v.Tables {
			t.AppendRow(table.Row{s.Table, cli.Count(s.Written), cli.Count(s.Restored), cli.Count(s.Filtered),
				cli.Count(s.Failed)})
			rows += s.Restored
		}
		t.Render()
		what := fmt.Sprintf("restored %s into %s; table epoch %d", cli.Rows(rows), cli.Plural(len(v.Shards), "shard"),
			v.Epoch)
		if v.DryRun {
			what = fmt.Sprintf("would restore %s", cli.Rows(rows))
		}
		_, err := fmt.Fprintf(w, "checkpoint %s: %s; %s read in %.1fs\n", v.Checkpoint, what, cli.Size(v.Bytes), v.Seconds)
		return err
	})
	return errors.Join(err, v.check())
}
