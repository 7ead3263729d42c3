package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/terminal"
	"github.com/rowraft/rowraft/internal/cli"
)

const destinationHelp = `A destination is an absolute path that all servers share, or s3://bucket/prefix. For S3 the environment
names the service and the account, on the servers too: AWS_ENDPOINT_URL (if it is not AWS), AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.`

// describeInstead is what to type for a description of a checkpoint.
const describeInstead = "`rowraft checkpoint list DESTINATION -o wide`, or `rowraft checkpoint verify`, which reads it"

// NewCmd returns the command `rowraft checkpoint`.
func NewCmd(g *remote.Flags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Keep the tables of a cluster at one cut, and bring them back",
		Long: "Keep the tables of a cluster at one cut through all shards, and bring them back into any number of " +
			"shards.\n\n" + destinationHelp,
		Annotations: map[string]string{cli.Instead + "describe": describeInstead, cli.Instead + "show": describeInstead},
	}
	cmd.AddCommand(newCheckpointCreateCmd(g), newCheckpointListCmd(g), newCheckpointVerifyCmd(g),
		newCheckpointRestoreCmd(g), newCheckpointDeleteCmd(g), newCheckpointPolicyCmd(g))
	return cmd
}

// checkpointJSON is one checkpoint in the JSON output of all commands.
type checkpointJSON struct {
	Name    string      `json:"name"`
	State   string      `json:"state"` // complete, incomplete, broken, unreadable
	Error   string      `json:"error"`
	Kind    string      `json:"kind"`   // full, delta
	Parent  string      `json:"parent"` // of a delta
	ID      string      `json:"id"`
	Created string      `json:"created"`
	Cluster string      `json:"cluster"`
	Epoch   uint64      `json:"epoch"`
	Shards  int         `json:"shards"`
	Rows    uint64      `json:"rows"`    // rows of the whole chain
	Written uint64      `json:"written"` // rows in its own files
	Bytes   uint64      `json:"bytes"`
	HeldMs  float64     `json:"held_ms"` // longest time that a shard held pushes
	Tables  []savedJSON `json:"tables"`
	Blobs   []string    `json:"blobs"`
}

type savedJSON struct {
	Table   string `json:"table"`
	ID      string `json:"id"`
	Rows    uint64 `json:"rows"`
	Written uint64 `json:"written"`
	Digest  string `json:"digest"`
}

const (
	kindFull  = "full"
	kindDelta = "delta"
)

func newCheckpointJSON(f *depot.Found) checkpointJSON {
	c := checkpointJSON{Name: f.Name, State: "incomplete", Bytes: uint64(f.Bytes), Tables: []savedJSON{},
		Blobs: []string{}}
	m := f.Manifest
	switch {
	case f.Err != nil && m == nil:
		c.State, c.Error = "unreadable", f.Err.Error()
	case f.Err != nil:
		c.State, c.Error = "broken", f.Err.Error()
	case m != nil:
		c.State = "complete"
	}
	if m == nil {
		return c
	}
	c.ID, c.Created, c.Kind = m.ID, m.Created.Format(time.RFC3339), kindFull
	if m.Parent != nil {
		c.Kind, c.Parent = kindDelta, m.Parent.Name
	}
	c.Cluster, c.Epoch, c.Shards, c.Rows, c.Written = string(m.Cluster), uint64(m.Epoch), len(m.Shards), m.Rows(),
		m.Written()
	c.HeldMs = float64(m.HeldFor.Microseconds()) / 1e3
	for _, t := range m.Tables {
		c.Tables = append(c.Tables, savedJSON{t.Schema.Name, fmt.Sprint(uint64(t.Schema.ID)), t.Rows, t.Written,
			fmt.Sprintf("%x", t.Digest)})
	}
	for _, b := range m.Blobs {
		c.Blobs = append(c.Blobs, b.Name)
	}
	return c
}

func newCheckpointListCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "list DESTINATION",
		Short: "List the checkpoints that lie at a destination, oldest first",
		Long: `List the checkpoints that lie at a destination, oldest first. It needs no cluster, reads manifests, and compares the
files that lie there with them.

"incomplete" is what a checkpoint that failed left behind, or one that is being written; it cannot be restored.
"broken" cannot be restored either: a file is missing or has another size, ` + "`checkpoint verify`" + ` has found damage, or
this is so of the checkpoint that it is a delta to, or that is missing. The reason follows the table.

` + destinationHelp,
		Example: `  rowraft checkpoint list /mnt/checkpoints
  rowraft checkpoint list s3://models/ctr -o json`,
		Args: cli.OneArg("the destination"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := g.WithTimeout(cmd)
			defer cancel()
			d, err := depot.Open(args[0])
			if err != nil {
				return err
			}
			found, err := depot.Scan(ctx, d)
			if err == nil && len(found) == 0 {
				err = noCheckpoints(d.String())
			}
			if err != nil {
				return fmt.Errorf("checkpoint list: %w", err)
			}
			v := struct {
				Schema      string           `json:"schema"`
				Destination string           `json:"destination"`
				Checkpoints []checkpointJSON `json:"checkpoints"`
			}{cli.JSONSchema, d.String(), []checkpointJSON{}}
			for _, f := range found {
				v.Checkpoints = append(v.Checkpoints, newCheckpointJSON(&f))
			}
			return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
				header := []string{"CHECKPOINT", "CREATED", "KIND", "PARENT", "TABLES", "ROWS", "BYTES", "SHARDS", "STATE"}
				if wide {
					header = append(header, "WRITTEN", "EPOCH", "HELD", "ID")
				}
				t := cli.NewTable(w, wide, header, "TABLES", "ROWS", "BYTES", "SHARDS", "WRITTEN", "EPOCH", "HELD").OnlyWide("KIND",
					"PARENT", "TABLES", "SHARDS")
				for _, c := range v.Checkpoints {
					row := table.Row{c.Name, c.Created, c.Kind, c.Parent, len(c.Tables), cli.Count(c.Rows), cli.Size(c.Bytes),
						c.Shards, c.State}
					if wide {
						row = append(row, cli.Count(c.Written), c.Epoch, fmt.Sprintf("%.1fms", c.HeldMs), c.ID)
					}
					t.AppendRow(row)
				}
				t.Render()
				for _, c := range v.Checkpoints {
					if c.Error != "" {
						fmt.Fprintf(w, "%s is %s: %s\n", c.Name, c.State, c.Error)
					}
				}
				return nil
			})
		},
	}
}

func newCheckpointVerifyCmd(g *remote.Flags) *cobra.Command {
	return &cobra.Command{
		Use:   "verify DESTINATION/NAME",
		Short: "Read every byte of a checkpoint and check all of it",
		Long: `Read every byte of a checkpoint and check all of it: checksums, the slot of each row, the digest of
each slot recomputed from its rows and compared with what the shard counted, row counts. It needs no cluster.
A delta is read with all checkpoints that it depends on, and its slots are checked as they result from all of them.
The result is written to the checkpoint's directory, as VERIFIED or DAMAGED, which ` + "`checkpoint list`" + ` and policies read.

Exit code 3 says that the checkpoint is damaged.

` + destinationHelp,
		Example: `  rowraft checkpoint verify /mnt/checkpoints/nightly-1
  rowraft checkpoint verify s3://models/ctr/nightly-1 -o json`,
		Args: cli.OneArg("the checkpoint"),
		RunE: func(cmd *cobra.Command, args []string) error {
			url, name, err := depot.Split(args[0])
			if err != nil {
				return err
			}
			d, err := depot.Open(url)
			if err != nil {
				return err
			}
			started := time.Now()
			bar := g.NewMeter(cmd, "verify")
			defer bar.Done()
			chain, rows, err := verifyCheckpoint(cmd, d, name, bar)
			bar.Done()
			if err != nil {
				err = fmt.Errorf("checkpoint %s: %w", args[0], err)
				if rowraft.CodeOf(err) == rowraft.CodeCorrupt {
					return cli.Verdict(err)
				}
				return err
			}
			m := chain.Manifest()
			c := newCheckpointJSON(&depot.Found{Name: name, Bytes: m.Bytes(), Manifest: m})
			return showVerified(g, cmd, c, chain, rows, time.Since(started))
		},
	}
}

func verifyCheckpoint(cmd *cobra.Command, d depot.Depot, name string,
	bar *terminal.Meter) (checkpoint.Chain, checkpoint.TableRows, error) {
	if chain, err := depot.Chain(cmd.Context(), d, name); err == nil {
		bar.Set(0, chain.Bytes())
	}
	return depot.Verify(cmd.Context(), d, name, bar.Add)
}

func showVerified(g *remote.Flags, cmd *cobra.Command, c checkpointJSON, chain checkpoint.Chain,
	rows checkpoint.TableRows, took time.Duration) error {
	v := struct {
		Schema     string         `json:"schema"`
		Checkpoint checkpointJSON `json:"checkpoint"`
		Chain      []string       `json:"chain"` // checkpoints that were read, newest first
		BytesRead  uint64         `json:"bytes_read"`
		Verified   bool           `json:"verified"`
		Seconds    float64        `json:"seconds"`
	}{cli.JSONSchema, c, nil, uint64(chain.Bytes()), true, took.Seconds()}
	for _, l := range chain {
		v.Chain = append(v.Chain, l.Name)
	}
	return cli.Show(cmd.OutOrStdout(), g.Output, v, func(w io.Writer, wide bool) error {
		t := cli.NewTable(w, wide, []string{"TABLE", "ROWS", "DIGEST"}, "ROWS")
		for _, s := range c.Tables {
			t.AppendRow(table.Row{s.Table, cli.Count(s.Rows), s.Digest})
		}
		t.Render()
		on := ""
		if len(chain) > 1 {
			on = ", with " + strings.Join(v.Chain[1:], ", ")
		}
		_, err := fmt.Fprintf(w, "checkpoint %s%s is whole: %s in %s, %s read in %.1fs\n",
			c.Name, on, cli.Rows(c.Rows), cli.Plural(len(rows), "table"), cli.Size(v.BytesRead), took.Seconds())
		return err
	})
}

// shownFiles bounds the files that an error names.
const shownFiles = 5

// noCheckpoints returns an error that says what a directory holds instead of checkpoints; nil if that is nothing, or
// dir is a URL.
func noCheckpoints(dir string) error {
	if strings.Contains(dir, "://") {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no directory %s", dir)
	}
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if inside, err := os.ReadDir(filepath.Join(dir, e.Name())); err == nil && len(inside) == 0 {
			continue // the directory of a checkpoint that failed, or was deleted
		}
		if e.Name() == checkpoint.ManifestFile {
			return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s is one checkpoint; list its destination, %s, or read it "+
				"with `rowraft checkpoint verify %s`", dir, filepath.Dir(dir), dir)
		}
		names = append(names, e.Name())
	}
	if len(names) == 0 {
		return nil
	}
	if more := len(names) - shownFiles; more > 0 {
		names = append(names[:shownFiles], fmt.Sprintf("%d more", more))
	}
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%s holds no checkpoint, but %s", dir, strings.Join(names, ", "))
}
