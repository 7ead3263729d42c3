// Command optimizers trains jobs with each optimizer of rowraft and with the class of PyTorch that a user comes from,
// from equal initial weights and with equal batches, and prints a table for each job: the AUC of held-out examples, and
// the greatest difference of a weight at the end. docs/optimizers.md has the tables. It needs python3-torch of Debian.
//
//	go run ./scripts/optimizers [--seeds 10] [--python /usr/bin/python3] JOB.yaml...
//
// It trains on tables inside the process and writes examples and weights into a temporary directory, from which
// compare.py trains in PyTorch.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/scripts/internal/torch"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
)

//go:embed compare.py
var compare string

func main() {
	seeds := flag.Int("seeds", 10, "how many seeds, from 1 on")
	python := flag.String("python", "/usr/bin/python3", "a Python that has torch")
	flag.Parse()
	if flag.NArg() == 0 || *seeds < 2 {
		fmt.Fprintln(os.Stderr, "usage: optimizers [--seeds N] [--python PYTHON] JOB.yaml..., with 2 seeds or more")
		os.Exit(2)
	}
	for _, job := range flag.Args() {
		if err := run(job, *seeds, *python, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintf(os.Stderr, "optimizers: %s: %v\n", job, err)
			os.Exit(1)
		}
	}
}

func run(job string, seeds int, python string, table, progress io.Writer) (err error) {
	cfg, err := trainer.LoadConfig(job)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "rowraft-optimizers-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d, err := train(cfg, seeds, dir, progress)
	if err != nil {
		return err
	}
	return torch.Run(python, compare, dir, d, table, progress)
}

// optimizer is one comparison: the optimizers and learning rates of both tables.
type optimizer struct {
	Name      string    `json:"name"`
	LR        float32   `json:"lr"`
	Dense     string    `json:"dense"`
	DenseLR   float32   `json:"dense_lr"`
	AUC       []float64 `json:"auc"`           // by seed, with in_flight: 0
	AUCFlight []float64 `json:"auc_in_flight"` // by seed, with in_flight: 2
}

// optimizers are the comparisons, at rates that were tried and found good, and momentum at a rate that is too small.
// Row-wise Adagrad and FTRL are for embeddings: the dense weights have Adagrad.
var optimizers = []optimizer{
	{Name: "sgd", LR: 5, Dense: "sgd", DenseLR: 0.5},
	{Name: "sgd", LR: 5, Dense: "momentum", DenseLR: 0.05},
	{Name: "momentum", LR: 0.5, Dense: "momentum", DenseLR: 0.05},
	{Name: "momentum", LR: 0.05, Dense: "momentum", DenseLR: 0.02},
	{Name: "adagrad", LR: 0.05, Dense: "adagrad", DenseLR: 0.02},
	{Name: "rowwise-adagrad", LR: 0.05, Dense: "adagrad", DenseLR: 0.02},
	{Name: "adam", LR: 0.01, Dense: "adam", DenseLR: 0.005},
	{Name: "ftrl", LR: 5, Dense: "adagrad", DenseLR: 0.02},
}

// description is what compare.py needs in addition to the files of numbers.
type description struct {
	Data       string         `json:"data"`
	Batch      int            `json:"batch"`
	Epochs     int            `json:"epochs"`
	Dense      int            `json:"dense"`
	Features   int            `json:"features"`
	Dim        int            `json:"dim"`
	Seeds      int            `json:"seeds"`
	Params     []models.Param `json:"params"`
	Optimizers []optimizer    `json:"optimizers"`
}

// job is the data and the dense weights of a job, which are the same for all optimizers.
type job struct {
	cfg    trainer.Config
	dir    string
	keys   []rowraft.Key // of all examples, ascending
	params []models.Param
}

// train trains with all optimizers and seeds and writes the files of compare.py to dir.
func train(cfg trainer.Config, seeds int, dir string, progress io.Writer) (*description, error) {
	cfg.Trainers, cfg.Epochs = 1, max(cfg.Epochs, 1)
	set, err := cfg.OpenData()
	if err != nil {
		return nil, err
	}
	shape := set.Shape()
	kind, _ := models.Find(trainer.DLRM)
	m, err := kind.New(nil, &models.Config{Batch: cfg.Batch, Dense: shape.Dense, Dim: cfg.Model.Dim,
		Widths: slices.Repeat([]int{cfg.Model.Dim}, shape.Categorical), Bottom: cfg.Model.Bottom, Top: cfg.Model.Top})
	if err != nil {
		return nil, err
	}
	j := &job{cfg: cfg, dir: dir, params: m.Params()}
	if j.keys, err = torch.WriteExamples(dir, set); err != nil {
		return nil, err
	}
	done := slices.Clone(optimizers)
	for i := range done {
		o := &done[i]
		for seed := uint64(1); seed <= uint64(seeds); seed++ {
			if err := j.compare(o, i, seed); err != nil {
				return nil, fmt.Errorf("%s, seed %d: %w", o.Name, seed, err)
			}
		}
		fmt.Fprintf(progress, "trained %s %v, dense %s %v, with %d seeds\n", o.Name, o.LR, o.Dense, o.DenseLR, seeds)
	}
	return &description{Data: set.Name(), Batch: cfg.Batch, Epochs: cfg.Epochs, Dense: shape.Dense,
		Features: shape.Categorical, Dim: cfg.Model.Dim, Seeds: seeds, Params: j.params, Optimizers: done}, nil
}

// delayed is the in_flight of the second run.
const delayed = 2

// compare trains twice: with in_flight: 0, and with delayed. It writes the weights before and after the first run.
func (j *job) compare(o *optimizer, number int, seed uint64) error {
	defaults := trainer.DefaultConfig()
	for _, inFlight := range []int{0, delayed} {
		cfg := j.cfg
		cfg.Seed, cfg.InFlight = seed, &inFlight
		cfg.Embeddings, cfg.Dense = defaults.Embeddings, defaults.Dense
		cfg.Embeddings.Optimizer, cfg.Embeddings.LR = o.Name, o.LR
		cfg.Dense.Optimizer, cfg.Dense.LR = o.Dense, o.DenseLR
		ctx := context.Background()
		local, err := tables.NewLocal(4, rowraft.Float32)
		if err != nil {
			return err
		}
		run, err := trainer.NewJob(ctx, cfg, local, nil)
		if err != nil {
			return err
		}
		if inFlight == 0 {
			dense := make([]float32, models.TotalSize(j.params))
			models.Initial(dense, j.params, seed)
			if err := errors.Join(j.writeRows(local, cfg, fmt.Sprintf("initial-%d", seed)),
				torch.Write(j.dir, fmt.Sprintf("initial-%d.dense", seed), dense)); err != nil {
				return err
			}
		}
		r, err := run.Run(ctx)
		if err != nil {
			return err
		}
		if inFlight != 0 {
			o.AUCFlight = append(o.AUCFlight, float64(r.AUC))
			continue
		}
		o.AUC = append(o.AUC, float64(r.AUC))
		name := fmt.Sprintf("%d-%d", number, seed)
		if err := errors.Join(j.writeRows(local, cfg, name), j.writeDense(local, cfg, name)); err != nil {
			return err
		}
	}
	return nil
}

// writeRows writes the weights of all embeddings.
func (j *job) writeRows(local *tables.Local, cfg trainer.Config, name string) error {
	rows := make([]float32, len(j.keys)*cfg.Model.Dim)
	seg := tables.Segment{Table: schemaOf(local, cfg.Job+".embeddings").ID, Dim: cfg.Model.Dim, Keys: j.keys, Values: rows}
	if err := local.Pull(context.Background(), []tables.Segment{seg}); err != nil {
		return err
	}
	return torch.Write(j.dir, name+".rows", rows)
}

// writeDense writes what training added to the dense weights, without the padding of the rows.
func (j *job) writeDense(local *tables.Local, cfg trainer.Config, name string) error {
	var padded, dense []float32
	schema := schemaOf(local, cfg.Job+".dense")
	_, rows := local.Rows(schema.ID)
	for _, row := range rows {
		padded = append(padded, row[:schema.Dim]...)
	}
	for _, p := range j.params {
		dense = append(dense, padded[:p.Size()]...)
		padded = padded[(p.Size()+schema.Dim-1)/schema.Dim*schema.Dim:]
	}
	return torch.Write(j.dir, name+".dense", dense)
}

func schemaOf(local *tables.Local, name string) (s rowraft.Schema) {
	for _, s = range local.Schemas() {
		if s.Name == name {
			break
		}
	}
	return s
}
