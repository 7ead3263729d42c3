package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/tablefile"
)

// exportFlags are the flags of `table export`.
type exportFlags struct {
	to, format, dtype, checkpoint string
	force                         bool
}

func newTableExportCmd(g *remote.Flags) *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export NAME --to FILE",
		Short: "Write the rows of a table into a file for other programs",
		Long: `Write the ids and vectors of a table into a safetensors, .npy or Parquet file, which NumPy, PyTorch, pandas,
Polars, DuckDB and others read. Optimizer state is not in it: checkpoints carry that. Only rows that exist are.

  safetensors  tensors "ids" (U64) and "vectors" (F32, or BF16 with --dtype)
  npy          FILE.npy with the vectors, FILE.ids.npy with the ids
  parquet      columns "id" (uint64) and "embedding" (list of float)

From a cluster, training may continue. Each slot (one of 4096 by default) is then read at one moment, and different slots
at different ones: the file is not the table at one point in time, but has all that was acknowledged before the export began. A file from a checkpoint is one point in time, and
needs no cluster.

The file appears under its name when it is complete; an interruption leaves nothing there. --timeout bounds
the time without any progress.`,
		Example: `  rowraft table export user_emb --to user_emb.parquet
  rowraft table export user_emb --to user_emb.safetensors --dtype bfloat16
  rowraft table export user_emb --to user_emb.npy --checkpoint /mnt/checkpoints/nightly-1`,
		Args: cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.to == "" {
				return cli.Usagef("--to is required: the file to write")
			}
			started := time.Now()
			v, err := exportTable(g, cmd, args[0], &f)
			if err != nil {
				return fmt.Errorf("table export %s: %w", args[0], err)
			}
			v.Seconds = time.Since(started).Seconds()
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "the file to write (required)")
	fl.StringVar(&f.format, "format", "", "safetensors, npy or parquet; default: what the name of the file says")
	fl.StringVar(&f.dtype, "dtype", "float32", "numbers in the file: float32, or bfloat16 in safetensors")
	fl.StringVar(&f.checkpoint, "checkpoint", "", "export from DESTINATION/NAME of a checkpoint, without a cluster")
	fl.BoolVar(&f.force, "force", false, "replace a file of that name")
	return cmd
}

// exportJSON is the contract of `table export -o json`.
type exportJSON struct {
	Schema  string  `json:"schema"`
	Table   string  `json:"table"`
	File    string  `json:"file"`
	Format  string  `json:"format"`
	DType   string  `json:"dtype"`
	Source  string  `json:"source"`
	Rows    uint64  `json:"rows"`
	Dim     int     `json:"dim"`
	Bytes   uint64  `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

func (v *exportJSON) print(w io.Writer, _ bool) error {
	_, err := fmt.Fprintf(w, "table %s: %s of %d from %s, %s of numbers in %s, %.1fs (%s rows/s)\n",
		v.Table, cli.Rows(v.Rows), v.Dim, v.Source, cli.Size(v.Bytes), v.File, v.Seconds,
		cli.Count(uint64(float64(v.Rows)/max(v.Seconds, 1e-3))))
	return err
}

func dtypeOf(name string) (rowraft.DType, error) {
	switch name {
	case "float32", "f32":
		return rowraft.Float32, nil
	case "bfloat16", "bf16":
		return rowraft.BFloat16, nil
	}
	return 0, cli.Usagef("--dtype %q: want float32 or bfloat16%s", name,
		cli.DidYouMean("", name, []string{"float32", "bfloat16"}))
}

// tableSource is the source of the rows of an export.
type tableSource struct {
	schema rowraft.Schema
	name   string // description
	rows   uint64 // approximate
	scan   func(ctx context.Context, rows func([]rowraft.Key, []float32) error) error
	close  func() error
}

func exportTable(g *remote.Flags, cmd *cobra.Command, name string, f *exportFlags) (v *exportJSON, err error) {
	dtype, err := dtypeOf(f.dtype)
	if err != nil {
		return nil, err
	}
	format, err := tablefile.FormatOf(f.to, tablefile.Format(f.format))
	if err != nil {
		return nil, err
	}
	src, err := exportSource(g, cmd, name, f.checkpoint)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, src.close()) }()
	rows, err := writeExport(g, cmd, src, f, format, dtype)
	if err != nil {
		return nil, err
	}
	return &exportJSON{
		Schema: cli.JSONSchema, Table: name, File: f.to, Format: string(format), DType: dtype.String(), Source: src.name,
		Rows: rows, Dim: src.schema.Dim, Bytes: rows * uint64(8+src.schema.Dim*dtype.Size()),
	}, nil
}

// writeExport writes the file and returns the number of rows in it.
func writeExport(g *remote.Flags, cmd *cobra.Command, src *tableSource, f *exportFlags, format tablefile.Format,
	dtype rowraft.DType) (rows uint64, err error) {
	w, err := tablefile.Create(f.to, format, tablefile.MetaOf(src.schema, src.name),
		tablefile.WriteOptions{DType: dtype, Overwrite: f.force})
	if err != nil {
		if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
			err = cli.Hint(err, "--force replaces it")
		}
		return 0, err
	}
	defer func() { err = errors.Join(err, w.Abort()) }()
	rowBytes := int64(8 + src.schema.Dim*dtype.Size())
	bar := g.NewMeter(cmd, "export")
	defer bar.Done()
	ctx, moved, stop := g.WithProgressTimeout(cmd)
	defer stop()
	err = src.scan(ctx, func(keys []rowraft.Key, values []float32) error {
		moved()
		if err := w.Append(keys, values); err != nil {
			return err
		}
		at := int64(w.Rows()) * rowBytes
		bar.Set(at, max(int64(src.rows)*rowBytes, at))
		return ctx.Err()
	})
	if err == nil {
		err = ctx.Err() // interrupted, or its time is over
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && cmd.Context().Err() == nil {
			err = fmt.Errorf("%w; the last answer was: %w", cause, err)
		}
		return 0, err
	}
	return w.Rows(), w.Commit()
}

func exportSource(g *remote.Flags, cmd *cobra.Command, name, ckpt string) (*tableSource, error) {
	ctx, cancel := g.WithTimeout(cmd)
	defer cancel()
	if ckpt != "" {
		return checkpointSource(ctx, name, ckpt)
	}
	c, err := g.DialClient(ctx)
	if err != nil {
		return nil, err
	}
	t, err := c.Table(ctx, name)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	m := c.Map()
	src := &tableSource{schema: t.Schema(), name: fmt.Sprintf("cluster %s", m.Cluster), scan: t.Scan, close: c.Close}
	// The number of rows is needed only for the progress bar, so an unreachable scheduler is no reason to fail.
	if reply, err := g.Status(ctx); err == nil {
		if shards, err := perShard(reply, name); err == nil {
			for _, s := range shards {
				src.rows += s.Rows
			}
		}
	}
	return src, nil
}

// checkpointSource reads a table from a checkpoint. It checks all files that contain rows of the table.
func checkpointSource(ctx context.Context, name, ckpt string) (*tableSource, error) {
	url, ckptName, err := depot.Split(ckpt)
	if err != nil {
		return nil, err
	}
	d, err := depot.Open(url)
	if err != nil {
		return nil, err
	}
	chain, err := depot.Chain(ctx, d, ckptName)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", ckpt, err)
	}
	m := chain.Manifest()
	i := slices.IndexFunc(m.Tables, func(t checkpoint.TableSum) bool { return t.Schema.Name == name })
	if i < 0 {
		var have []string
		for _, t := range m.Tables {
			have = append(have, t.Schema.Name)
		}
		return nil, rowraft.Errorf(rowraft.CodeTableNotFound, "checkpoint %s has no table %s%s", ckpt, name,
			cli.DidYouMean("", name, have))
	}
	table := &m.Tables[i]
	return &tableSource{
		schema: table.Schema, name: "checkpoint " + ckpt, rows: table.Rows, close: func() error { return nil },
		scan: func(ctx context.Context, rows func([]rowraft.Key, []float32) error) error {
			err := chain.Scan(ctx, []rowraft.TableID{table.Schema.ID}, func(_ *checkpoint.TableSum, keys []rowraft.Key,
				weights []float32) error {
				return rows(keys, weights)
			})
			if err != nil {
				return fmt.Errorf("checkpoint %s: %w", ckpt, err)
			}
			return nil
		},
	}, nil
}
