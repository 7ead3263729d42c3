package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func newCheckpointRestoreCmd(g *globals) *cobra.Command {
	var req rowraftv1.RestoreCheckpointRequest
	cmd := &cobra.Command{
		Use:   "restore DESTINATION/NAME",
		Short: "Put a checkpoint's tables in the place of the cluster's",
		Long: `Put a checkpoint's tables in the place of the cluster's, whatever the number of shards here and there.

A delta is restored with all that it stands on, which must lie beside it.

The rows are staged beside the tables that serve. Only when all of the checkpoint was read and found right, and
every shard holds exactly the rows it should, the shards change over, each at one log entry: a new table epoch begins, and
sessions and read positions from before are refused (trainers connect anew). Until then an interruption or a failure
leaves everything as it was; afterwards the scheduler finishes it. Both states are in memory and the staged rows in the
log until then, so each server needs room for both: a restore is refused if a server that leads a shard has less memory left
(MemAvailable, or what the memory.max of its cgroups leaves) than the records take.

Tables that the checkpoint does not have, or that --table leaves out, do not exist afterwards. A cluster that holds rows
is refused without --replace.

Exit code 3 says that the checkpoint is damaged or that rows are missing. --timeout bounds the search for the cluster's leader.

` + destinationHelp,
		Example: `  rowraft checkpoint restore /mnt/checkpoints/nightly-1
  rowraft checkpoint restore s3://models/ctr/nightly-1 --replace
  rowraft checkpoint restore s3://models/ctr/nightly-1 --table user_emb --dry-run -o json`,
		Args: oneArg("the checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if req.Destination, req.Name, err = depot.Split(args[0]); err != nil {
				return err
			}
			started := time.Now()
			done, err := follow(g, cmd, "read", lostRestore, func(ctx context.Context, c rowraftv1.CheckpointsClient) (receiver[*rowraftv1.RestoreCheckpointReply], error) {
				return c.RestoreCheckpoint(ctx, &req)
			})
			if err != nil {
				err = fmt.Errorf("checkpoint restore: %w", err)
				if rowraft.CodeOf(err) == rowraft.CodeCorrupt {
					return verdictError{err}
				}
				return err
			}
			return g.showRestored(cmd, newRestoredJSON(&req, done, time.Since(started)))
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&req.Tables, "table", nil, "restore these tables only; may be repeated")
	f.BoolVar(&req.Replace, "replace", false, "drop the rows that the cluster has")
	f.BoolVar(&req.DryRun, "dry-run", false, "read and check everything, change nothing")
	return cmd
}

const lostRestore = "the server that led the restore is gone; either nothing has changed or the scheduler finishes it; it may be run again, with --replace"

// restoredJSON is the contract of `checkpoint restore -o json`.
type restoredJSON struct {
	Schema     string              `json:"schema"`
	Checkpoint string              `json:"checkpoint"`
	DryRun     bool                `json:"dry_run"`
	Epoch      uint64              `json:"epoch"`
	Bytes      uint64              `json:"bytes"`
	Seconds    float64             `json:"seconds"`
	Tables     []restoredTableJSON `json:"tables"`
	Shards     []restoredShardJSON `json:"shards"`
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

func newRestoredJSON(req *rowraftv1.RestoreCheckpointRequest, r *rowraftv1.RestoreCheckpointReply, took time.Duration) *restoredJSON {
	v := &restoredJSON{
		Schema: jsonSchema, Checkpoint: req.GetName(), DryRun: req.GetDryRun(), Epoch: r.GetTableEpoch(), Bytes: r.GetBytes(), Seconds: took.Seconds(),
		Tables: []restoredTableJSON{}, Shards: []restoredShardJSON{},
	}
	for _, t := range r.GetTables() {
		v.Tables = append(v.Tables, restoredTableJSON{t.GetName(), fmt.Sprint(t.GetId()), t.GetWritten(), t.GetRestored(), t.GetFiltered(), t.GetFailed()})
	}
	for _, s := range r.GetShards() {
		v.Shards = append(v.Shards, restoredShardJSON{s.GetShard(), s.GetRows(), fmt.Sprintf("%x", s.GetDigest())})
	}
	return v
}

// check compares what the shards hold with what the manifest has.
func (v *restoredJSON) check() error {
	var restored, held uint64
	for _, t := range v.Tables {
		if t.Failed > 0 || t.Restored+t.Filtered != t.Written {
			return verdictError{rowraft.Errorf(rowraft.CodeCorrupt, "table %s: %d rows written, %d restored, %d filtered, %d failed: rows are missing", t.Table, t.Written, t.Restored, t.Filtered, t.Failed)}
		}
		restored += t.Restored
	}
	for _, s := range v.Shards {
		held += s.Rows
	}
	if !v.DryRun && held < restored {
		return verdictError{rowraft.Errorf(rowraft.CodeCorrupt, "%d rows were restored, the shards hold %d", restored, held)}
	}
	return nil
}

func (g *globals) showRestored(cmd *cobra.Command, v *restoredJSON) error {
	err := show(cmd.OutOrStdout(), g.output, v, func(w io.Writer, _ bool) error {
		t := newTable(w, []string{"TABLE", "WRITTEN", "RESTORED", "FILTERED", "FAILED"}, "WRITTEN", "RESTORED", "FILTERED", "FAILED")
		rows := uint64(0)
		for _, s := range v.Tables {
			t.AppendRow(table.Row{s.Table, count(s.Written), count(s.Restored), count(s.Filtered), count(s.Failed)})
			rows += s.Restored
		}
		t.Render()
		what := fmt.Sprintf("restored %s rows into %s; table epoch %d", count(rows), plural(len(v.Shards), "shard"), v.Epoch)
		if v.DryRun {
			what = fmt.Sprintf("would restore %s rows", count(rows))
		}
		_, err := fmt.Fprintf(w, "checkpoint %s: %s; %s read in %.1fs\n", v.Checkpoint, what, size(v.Bytes), v.Seconds)
		return err
	})
	return errors.Join(err, v.check())
}
