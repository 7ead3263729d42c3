package table

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/tablefile"
)

// importFlags are the flags of `table import`.
type importFlags struct {
	from, format, ids, vectors string
	create, dryRun             bool
	table                      tableFlags
}

func newTableImportCmd(g *remote.Flags) *cobra.Command {
	var f importFlags
	cmd := &cobra.Command{
		Use:   "import NAME --from FILE",
		Short: "Set rows of a table from a file of another program",
		Long: `Set the weights of rows from a safetensors, .npy or Parquet file with an id and a vector for each row.

  safetensors  tensors "ids" (U64 or I64) and "vectors" (F32, BF16, F16 or F64)
  npy          FILE.npy with the vectors (<f4, <f2 or <f8), FILE.ids.npy with the ids (<u8 or <i8)
  parquet      columns "id" (int64 or uint64) and "embedding" (list of float or double)

All of the file is read and checked before anything changes: that it is whole, that its vectors are as long as the
table's rows, that every number is finite, and that no id occurs twice. Signed ids keep their bits: -1 is 18446744073709551615.

Rows that exist keep their optimizer state and get the new weights; other rows of the table stay as they are. Rows
are assigned in the order of the file, some batches at once, each exactly once. An import that was interrupted is
run again: what it had done is done again, with the same result. --timeout bounds each batch.`,
		Example: `  rowraft table import user_emb --from user_emb.parquet
  rowraft table import items --from items.npy --create --optimizer adagrad --lr 0.05
  rowraft table import user_emb --from model.safetensors --ids user.ids --vectors user.weight --dry-run`,
		Args: cli.OneArg("the name of the table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(cmd.Flags()); err != nil {
				return err
			}
			started := time.Now()
			v, err := importTable(g, cmd, args[0], &f)
			if err != nil {
				return fmt.Errorf("table import %s: %w", args[0], err)
			}
			v.Seconds = time.Since(started).Seconds()
			return cli.Show(cmd.OutOrStdout(), g.Output, v, v.print)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.from, "from", "", "the file to read (required)")
	fl.StringVar(&f.format, "format", "", "safetensors, npy or parquet; default: what the name of the file says")
	fl.StringVar(&f.ids, "ids", "", `the tensor or column of ids; default "ids", in Parquet "id"`)
	fl.StringVar(&f.vectors, "vectors", "", `the tensor or column of vectors; default "vectors", in Parquet "embedding"`)
	fl.BoolVar(&f.create, "create", false,
		"create the table, or accept an existing one of the same shape; --dim is that of the file unless given")
	fl.BoolVar(&f.dryRun, "dry-run", false, "read and check everything, change nothing")
	f.table.register(fl)
	return cmd
}

// check refuses flags that need --create if it was not given.
func (f *importFlags) check(fl *pflag.FlagSet) error {
	if f.from == "" {
		return cli.Usagef("--from is required: the file to read")
	}
	if f.create {
		return nil
	}
	var creates pflag.FlagSet
	(&tableFlags{}).register(&creates)
	var wrong error
	creates.VisitAll(func(flag *pflag.Flag) {
		if fl.Changed(flag.Name) && wrong == nil {
			wrong = cli.Usagef("--%s has no meaning without --create", flag.Name)
		}
	})
	return wrong
}

// importJSON is the contract of `table import -o json`.
type importJSON struct {
	Schema  string  `json:"schema"`
	Table   string  `json:"table"`
	File    string  `json:"file"`
	Numbers string  `json:"numbers"`
	Rows    uint64  `json:"rows"`
	Dim     int     `json:"dim"`
	Created bool    `json:"created"`
	DryRun  bool    `json:"dry_run"`
	Seconds float64 `json:"seconds"`
}

func (v *importJSON) print(w io.Writer, _ bool) error {
	what := "imported"
	if v.DryRun {
		what = "would import"
	}
	_, err := fmt.Fprintf(w, "table %s: %s %s of %d (%s) from %s in %.1fs (%s rows/s)\n",
		v.Table, what, cli.Rows(v.Rows), v.Dim, v.Numbers, v.File, v.Seconds,
		cli.Count(uint64(float64(v.Rows)/max(v.Seconds, 1e-3))))
	return err
}

func importTable(g *remote.Flags, cmd *cobra.Command, name string, f *importFlags) (v *importJSON, err error) {
	r, err := tablefile.Open(f.from, tablefile.Format(f.format), tablefile.ReadOptions{IDs: f.ids, Vectors: f.vectors})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	info := r.Info()
	schema, err := f.schema(cmd, name, info.Dim)
	if err != nil {
		return nil, err
	}
	ctx, cancel := g.WithTimeout(cmd)
	defer cancel()
	c, err := g.DialClient(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	t, err := c.Table(ctx, name)
	missing := rowraft.CodeOf(err) == rowraft.CodeTableNotFound
	switch {
	case missing && f.create:
	case missing:
		return nil, cli.Hint(err, "--create makes it")
	case err != nil:
		return nil, err
	case info.Rows > 0 && t.Dim() != info.Dim:
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "the vectors of %s have %d numbers, the rows of the table %d",
			f.from, info.Dim, t.Dim())
	}
	if err := checkFile(g, cmd, r); err != nil {
		return nil, err
	}
	v = &importJSON{Schema: cli.JSONSchema, Table: name, File: f.from, Numbers: info.Numbers, Rows: info.Rows,
		Dim: info.Dim, DryRun: f.dryRun}
	if f.dryRun {
		return v, nil
	}
	if f.create {
		ctx, cancel := g.WithTimeout(cmd) // a new limit: the check may have taken long
		defer cancel()
		if t, err = c.CreateTable(ctx, schema, true); err != nil {
			return nil, err
		}
		v.Created = missing
	}
	return v, assignFile(g, cmd, t, r)
}

// schema returns the schema of the table to create.
func (f *importFlags) schema(cmd *cobra.Command, name string, dim int) (rowraft.Schema, error) {
	if !f.create {
		return rowraft.Schema{}, nil
	}
	switch {
	case f.table.dim == 0:
		f.table.dim = dim
	case dim != 0 && f.table.dim != dim:
		return rowraft.Schema{}, cli.Usagef("--dim %d: the vectors of %s have %d numbers", f.table.dim, f.from, dim)
	}
	return f.table.schema(name, cmd.Flags().Changed)
}

// checkFile reads the whole file before anything changes.
func checkFile(g *remote.Flags, cmd *cobra.Command, r *tablefile.Reader) error {
	info := r.Info()
	bar := g.NewMeter(cmd, "check")
	defer bar.Done()
	rowBytes, total := int64(info.Dim*4), int64(info.Rows)*int64(info.Dim*4)
	at := int64(0)
	return tablefile.Check(cmd.Context(), r, func(n int) {
		at = min(at+int64(n)*rowBytes, total) // the ids are read later and are small
		bar.Set(at, total)
	})
}

const (
	importers = 4 // concurrent batches
	// importBatchBytes is the size of a batch: it contains some rows for every shard.
	importBatchBytes = 4 << 20
)

// assignFile assigns all rows and returns after they are acknowledged.
func assignFile(g *remote.Flags, cmd *cobra.Command, t *client.Table, r *tablefile.Reader) error {
	info := r.Info()
	if info.Rows == 0 {
		return nil
	}
	rowBytes := 8 + 4*info.Dim
	n := min(max(importBatchBytes/rowBytes, 1), rowraft.MaxKeysPerPart)
	bar := g.NewMeter(cmd, "import")
	defer bar.Done()
	var done atomic.Int64
	total := int64(info.Rows) * int64(rowBytes)
	group, ctx := errgroup.WithContext(cmd.Context())
	group.SetLimit(importers)
	rows := uint64(0)
	for ctx.Err() == nil {
		keys, values := make([]rowraft.Key, n), make([]float32, n*info.Dim)
		got, err := r.Next(keys, values)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, group.Wait())
		}
		rows += uint64(got)
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, g.Timeout)
			defer cancel()
			_, err := t.Assign(ctx, keys[:got], values[:got*info.Dim])
			bar.Set(done.Add(int64(got*rowBytes)), total)
			return err
		})
	}
	err := group.Wait()
	if err == nil {
		err = cmd.Context().Err()
	}
	if err == nil && rows != info.Rows {
		err = rowraft.Errorf(rowraft.CodeCorrupt, "the file changed while it was read: %d rows of %d", rows, info.Rows)
	}
	if err != nil {
		return cli.Hint(err, "a part of the rows may be set; the same command again sets them all")
	}
	return nil
}
