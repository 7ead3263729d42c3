// Command models trains the models of rowraft and the same models in PyTorch, on the same examples in the same order,
// each with its own initial weights, and prints a table of the AUC of held-out examples, which docs/training.md has. It
// needs python3-torch of Debian and the data sets of examples/README.md and ml-100k.
//
//	go run ./scripts/models [--seeds 5] [--data ../shared/data] [--python /usr/bin/python3] [--only ml-100k,adult]
//	go run ./scripts/models --speed
//
// With --speed it prints the CPU time of a step of each model on one thread, in alternating rounds.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/scripts/internal/torch"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/tables"
)

//go:embed compare.py
var compare string

func main() {
	seeds := flag.Int("seeds", 5, "how many seeds, from 1 on")
	folder := flag.String("data", "../shared/data", "the folder with adult, criteo and ml-100k")
	python := flag.String("python", "/usr/bin/python3", "a Python that has torch")
	only := flag.String("only", "", "data sets, with commas; none: all")
	speed := flag.Bool("speed", false, "measure steps instead")
	flag.Parse()
	if *speed {
		if err := measure(*python, 10, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "models:", err)
			os.Exit(1)
		}
		return
	}
	for _, s := range sets {
		if *only != "" && !strings.Contains(","+*only+",", ","+s.name+",") {
			continue
		}
		if err := run(s, *folder, *seeds, *python, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintf(os.Stderr, "models: %s: %v\n", s.name, err)
			os.Exit(1)
		}
	}
}

// set is a data set with the models that are trained on it.
type set struct {
	name  string
	batch int
	dim   int
	open  func(folder, dir string, c *trainer.Config) error // sets the data of a job; dir is for files
	tasks []task
}

// task is one model. Both tables have Adagrad: LR is the rate of the embeddings, DenseLR that of the dense weights.
type task struct {
	Kind    string    `json:"kind"`
	Epochs  int       `json:"epochs"`
	LR      float32   `json:"lr"`
	DenseLR float32   `json:"dense_lr"`
	AtLeast float64   `json:"at_least"` // what is published for data like these; 0: nothing
	AUC     []float64 `json:"auc"`      // by seed
}

// Rates and epochs of ml-100k were chosen on its second part, the others by a few runs.
var sets = []set{
	{name: "ml-100k", batch: 256, dim: 16, open: openML, tasks: []task{
		{Kind: "lr", Epochs: 10, LR: 0.2, DenseLR: 0.2, AtLeast: 0.765},
		{Kind: "fm", Epochs: 10, LR: 0.05, DenseLR: 0.05, AtLeast: 0.78},
		{Kind: "wide-deep", Epochs: 3, LR: 0.05, DenseLR: 0.02},
		{Kind: "deepfm", Epochs: 3, LR: 0.05, DenseLR: 0.02},
		{Kind: "dcn", Epochs: 3, LR: 0.05, DenseLR: 0.02},
	}},
	{name: "adult", batch: 256, dim: 8, open: openFile("adult", "adult_train.csv"), tasks: []task{
		{Kind: "lr", Epochs: 3, LR: 0.1, DenseLR: 0.1},
		{Kind: "fm", Epochs: 3, LR: 0.05, DenseLR: 0.05},
		{Kind: "wide-deep", Epochs: 3, LR: 0.05, DenseLR: 0.02},
		{Kind: "deepfm", Epochs: 3, LR: 0.05, DenseLR: 0.02, AtLeast: 0.90},
		{Kind: "dcn", Epochs: 3, LR: 0.05, DenseLR: 0.02},
		{Kind: "dlrm", Epochs: 3, LR: 0.05, DenseLR: 0.02},
	}},
	{name: "criteo", batch: 128, dim: 8, open: openFile("criteo", "criteo_train8k.csv"), tasks: []task{
		{Kind: "lr", Epochs: 2, LR: 0.05, DenseLR: 0.05},
		{Kind: "fm", Epochs: 1, LR: 0.02, DenseLR: 0.02},
		{Kind: "wide-deep", Epochs: 1, LR: 0.02, DenseLR: 0.02},
		{Kind: "deepfm", Epochs: 1, LR: 0.02, DenseLR: 0.02, AtLeast: 0.735},
		{Kind: "dcn", Epochs: 1, LR: 0.02, DenseLR: 0.02},
		{Kind: "dlrm", Epochs: 1, LR: 0.02, DenseLR: 0.02},
	}},
}

// hidden are the hidden layers of every network, cross is the number of cross layers, initial is the range of new rows.
var hidden = []int{32}

const (
	cross   = 2
	initial = 0.02
)

// openFile returns the open of a file below the folder, with its schema of the examples and the last fifth held out.
func openFile(name, file string) func(string, string, *trainer.Config) error {
	return func(folder, _ string, c *trainer.Config) error {
		c.Data.File, c.Data.Schema = data.Paths{filepath.Join(folder, name, file)}, filepath.Join(examples(), name+".yaml")
		return nil
	}
}

// examples returns the folder of the examples; a test runs in the folder of its package.
func examples() string {
	if _, err := os.Stat("examples"); err == nil {
		return "examples"
	}
	return "../../examples"
}

// openML shuffles the ratings with a fixed seed, and splits them 8:1:1. The first part trains, the last is held out. A
// rating of 4 or 5 is positive.
func openML(folder, dir string, c *trainer.Config) error {
	text, err := os.ReadFile(filepath.Join(folder, "ml-100k", "ml-100k.inter"))
	if err != nil {
		return err
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	header, lines := lines[0], lines[1:]
	r := rand.New(rand.NewPCG(1, 0))
	r.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
	write := func(name string, lines [][]byte) error {
		return os.WriteFile(filepath.Join(dir, name), append(bytes.Join(append([][]byte{header}, lines...), []byte("\n")),
			'\n'), 0o600)
	}
	const schema = `format: tsv
label: {column: "rating:float", positive: ["4", "5"]}
categorical: [{column: "user_id:token", name: user}, {column: "item_id:token", name: item}]
`
	n := len(lines)
	c.Data.File, c.Data.Schema = data.Paths{filepath.Join(dir, "train.tsv")}, filepath.Join(dir, "schema.yaml")
	c.Validation = data.Paths{filepath.Join(dir, "test.tsv")}
	return errors.Join(write("train.tsv", lines[:n*8/10]), write("test.tsv", lines[n*9/10:]),
		os.WriteFile(c.Data.Schema, []byte(schema), 0o600))
}

// description is what compare.py needs in addition to the examples.
type description struct {
	Data     string `json:"data"`
	Batch    int    `json:"batch"`
	Dense    int    `json:"dense"`
	Features int    `json:"features"`
	network
	Seeds int    `json:"seeds"`
	Tasks []task `json:"tasks"`
}

// network is the sizes of a model.
type network struct {
	Dim    int     `json:"dim"`
	Hidden []int   `json:"hidden"`
	Cross  int     `json:"cross"`
	Init   float32 `json:"init"`
}

func run(s set, folder string, seeds int, python string, table, progress io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "rowraft-models-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg := trainer.DefaultConfig()
	if err := s.open(folder, dir, &cfg); err != nil {
		return err
	}
	data, err := cfg.OpenData()
	if err != nil {
		return err
	}
	if _, err := torch.WriteExamples(dir, data); err != nil {
		return err
	}
	d := description{Data: s.name, Batch: s.batch, Dense: data.Shape().Dense, Features: data.Shape().Categorical,
		Seeds: seeds, network: network{Dim: s.dim, Hidden: hidden, Cross: cross, Init: initial}}
	for _, t := range s.tasks {
		for seed := uint64(1); seed <= uint64(seeds); seed++ {
			auc, err := t.train(s, cfg, seed)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", t.Kind, seed, err)
			}
			t.AUC = append(t.AUC, auc)
		}
		d.Tasks = append(d.Tasks, t)
		fmt.Fprintf(progress, "trained %s on %s with %d seeds\n", t.Kind, s.name, seeds)
	}
	return torch.Run(python, compare, dir, &d, table, progress)
}

// train trains with one seed, and returns the AUC of the held-out examples.
func (t *task) train(s set, cfg trainer.Config, seed uint64) (float64, error) {
	cfg.Seed, cfg.Batch, cfg.Epochs, cfg.InFlight, cfg.Device = seed, s.batch, t.Epochs, new(0), "cpu"
	cfg.Model = trainer.ModelConfig{Kind: t.Kind, Dim: s.dim, Bottom: hidden, Top: hidden, Cross: cross}
	cfg.Embeddings.LR, cfg.Embeddings.Init, cfg.Dense.LR = t.LR, initial, t.DenseLR
	local, err := tables.NewLocal(4, rowraft.Float32)
	if err != nil {
		return 0, err
	}
	ctx := context.Background()
	job, err := trainer.NewJob(ctx, cfg, local, nil)
	if err != nil {
		return 0, err
	}
	r, err := job.Run(ctx)
	if err != nil {
		return 0, err
	}
	return float64(r.AUC), nil
}
