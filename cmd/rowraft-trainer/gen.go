package main

import (
	"compress/gzip"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/trainer/data"
)

func newGen() *cobra.Command {
	cfg := data.DefaultGenerator()
	var out, schema string
	cmd := &cobra.Command{
		Use:   "gen",
		Short: "Write a generated click log as CSV, and its schema",
		Long: `Gen writes a click log with keys that follow a power law and labels drawn from planted weights. The same flags
give the same file. A name that ends in .gz is compressed.`,
		Example: "  rowraft-trainer gen --out clicks.csv.gz --schema clicks.yaml --examples 1000000\n" +
			"  rowraft-trainer train --data clicks.csv.gz --schema clicks.yaml --endpoints 127.0.0.1:7070 --insecure",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Examples < 1 {
				return cli.Usagef("examples %d: want ≥ 1", cfg.Examples)
			}
			g, err := data.NewGenerator(cfg)
			if err != nil {
				return err
			}
			if schema != "" {
				if err := os.WriteFile(schema, []byte(g.SchemaYAML()), 0o644); err != nil {
					return err
				}
			}
			return writeLog(cmd, g, out, cfg.Examples)
		},
	}
	f := cmd.Flags()
	f.StringVar(&out, "out", "-", "file to write, - for standard output; .gz compresses")
	f.StringVar(&schema, "schema", "", "file to write the schema to, for train --schema")
	f.Uint64Var(&cfg.Seed, "seed", cfg.Seed, "everything follows from it")
	f.Int64Var(&cfg.Examples, "examples", cfg.Examples, "lines to write")
	f.IntVar(&cfg.Dense, "dense", cfg.Dense, "dense features")
	f.IntVar(&cfg.Categorical, "categorical", cfg.Categorical, "categorical features")
	f.Int64Var(&cfg.Keys, "keys", cfg.Keys, "different keys per categorical feature")
	f.Float64Var(&cfg.Zipf, "zipf", cfg.Zipf, "exponent of the power law of the keys, > 0")
	f.Float64Var(&cfg.Head, "head", cfg.Head, "rank up to which keys say much: the rarer, the less")
	f.Float64Var(&cfg.Bias, "bias", cfg.Bias, "logit of an average example")
	f.Float64Var(&cfg.Signal, "signal", cfg.Signal, "how far logits spread: more makes labels easier to predict")
	f.Float64Var(&cfg.Interaction, "interaction", cfg.Interaction, "weight of products of neighbouring features")
	return cmd
}

func writeLog(cmd *cobra.Command, g *data.Generator, name string, examples int64) (err error) {
	var w io.Writer = cmd.OutOrStdout()
	if name != "-" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		defer func() {
			if cerr := f.Close(); err == nil {
				err = cerr
			}
		}()
		w = f
	}
	if strings.HasSuffix(name, ".gz") {
		z := gzip.NewWriter(w)
		defer func() {
			if cerr := z.Close(); err == nil {
				err = cerr
			}
		}()
		w = z
	}
	return g.WriteCSV(cmd.Context(), w, examples)
}
