package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/exported"
	"github.com/rowraft/rowraft/trainer/tables"
)

// exportFlags are the flags of `export`.
type exportFlags struct {
	to, checkpoint, output string
}

func newExport() *cobra.Command {
	var f exportFlags
	o := options{mustExist: true, export: &f}
	cmd := newJobCommandOf(&o)
	cmd.Use, cmd.Short = "export", "Write a trained model to a directory, for scoring without a cluster"
	cmd.Long = `Export writes the dense weights and the rows of the embeddings to safetensors files, and a JSON file with the model, its
features and how their values become ids and numbers. rowraft-trainer predict --from DIR scores from it, and so can any program:
docs/formats/model-export.md says how. The model is that of evaluate: a job (--config) or a file of train --save-model (--model).

From a cluster, training may continue: each row is whole, and different rows are of different moments. From a checkpoint
(--checkpoint) all weights are those of one moment, and no cluster is needed; only so can dense weights that the trainers keep
be exported. The directory must not exist, and appears when it is complete.`
	cmd.Example = "  rowraft-trainer export --model ctr.model --to ctr-export --endpoints 127.0.0.1:7070 --insecure\n" +
		"  rowraft-trainer export --config job.yaml --to ctr-export --checkpoint /mnt/checkpoints/nightly-1"
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "the directory to write, which must not exist (required)")
	fl.StringVar(&f.checkpoint, "checkpoint", "", "export from DESTINATION/NAME of a checkpoint, without a cluster")
	fl.StringVarP(&f.output, "output", "o", cli.FormatTable, "how to print the result: table or json")
	return cmd
}

// exportResult is the contract of `export -o json`.
type exportResult struct {
	Schema  string  `json:"schema"`
	To      string  `json:"to"`
	Job     string  `json:"job"`
	Source  string  `json:"source"`
	Tables  int     `json:"tables"`
	Rows    uint64  `json:"rows"`
	Tensors int     `json:"tensors"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// run exports the model of cfg.
func (f *exportFlags) run(ctx context.Context, o *options, cfg trainer.Config, out io.Writer) error {
	if err := cli.CheckFormat(f.output); err != nil {
		return err
	}
	if f.to == "" {
		return cli.Usagef("--to is required: the directory to write")
	}
	e, done, err := f.open(ctx, o, cfg)
	if err != nil {
		return err
	}
	defer done()
	r, err := writeExport(ctx, e, f.to, o.notes)
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return cli.Show(out, f.output, r, func(w io.Writer, _ bool) error {
		_, err := fmt.Fprintf(w, "job %s: %s of %s and %s from %s, %s in %s, %.1fs\n", r.Job, cli.Rows(r.Rows),
			cli.Plural(r.Tables, "table"), cli.Plural(r.Tensors, "tensor"), r.Source, cli.Size(uint64(r.Bytes)), r.To, r.Seconds)
		return err
	})
}

// open opens the source.
func (f *exportFlags) open(ctx context.Context, o *options, cfg trainer.Config) (*exported.Export, func(), error) {
	if f.checkpoint != "" {
		dtype, err := rowraft.ParseDType(cfg.DType)
		if err != nil {
			return nil, nil, cli.Usagef("dtype: %w", err)
		}
		from, err := exported.OpenCheckpoint(ctx, f.checkpoint, dtype)
		if err != nil {
			return nil, nil, err
		}
		m, err := trainer.OpenModel(ctx, cfg, from)
		if err != nil {
			return nil, nil, err
		}
		e, err := from.Export(ctx, m)
		return e, func() {}, err
	}
	c, err := o.dial(ctx, &cfg)
	if err != nil {
		return nil, nil, err
	}
	done := func() { c.Close() }
	t := tables.OpenCluster(c)
	t.SetReads(cfg.Reads)
	m, err := trainer.OpenModel(ctx, cfg, t)
	if err != nil {
		done()
		return nil, nil, err
	}
	return exported.FromCluster(c, m), done, nil
}

// exportTrained writes the model that job has trained; c is nil without a cluster.
func (o *options) exportTrained(ctx context.Context, job *trainer.Job, c *client.Client) error {
	m := trainer.TrainedModel(job)
	e := exported.FromLocal(o.localTables, m)
	if c != nil {
		e = exported.FromCluster(c, m)
	}
	if _, err := writeExport(ctx, e, o.exportTo, o.notes); err != nil {
		return fmt.Errorf("--export: %w", err)
	}
	return nil
}

// exportEvery is the time between two lines of progress.
const exportEvery = 5 * time.Second

// writeExport writes an export and a line of progress now and then.
func writeExport(ctx context.Context, e *exported.Export, to string, notes io.Writer) (*exportResult, error) {
	began := time.Now()
	next := began.Add(exportEvery)
	e.Progress = func(rows uint64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(exportEvery)
			fmt.Fprintf(notes, "export: %s written, %s rows/s\n", cli.Rows(rows),
				cli.Count(uint64(float64(rows)/now.Sub(began).Seconds())))
		}
	}
	d, err := e.Write(ctx, to)
	if err != nil {
		if rowraft.CodeOf(err) == rowraft.CodeAlreadyExists {
			err = cli.Hint(err, "remove it, or give another name")
		}
		return nil, err
	}
	r := &exportResult{Schema: cli.JSONSchema, To: to, Job: d.Job, Source: d.Source.From, Tables: len(d.Tables),
		Tensors: len(d.Tensors.Names), Bytes: d.Tensors.Bytes, Seconds: time.Since(began).Seconds()}
	for i := range d.Tables {
		r.Rows += d.Tables[i].Rows
		for _, f := range d.Tables[i].Files {
			r.Bytes += f.Bytes
		}
	}
	return r, nil
}
