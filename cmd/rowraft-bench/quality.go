package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
)

// qualityConfig has the flags of `bench quality`.
type qualityConfig struct {
	pairs   int
	data    string
	trainer string
}

// qualityData has the part of a job file that names the data and the model, and which arms are compared.
var qualityData = map[string]struct {
	yaml  string // %d: the seed; DIR: the folder examples
	batch int
	pairs [][2]int // of arms: the first is compared with the second
}{
	"sparse": {"generator: {examples: 160000, held: 40000, " + sparseLog, 512, shortPairs},
	// With four trainers the bound of copies rises by one step in 400 batches: this log has 3,125.
	"sparse-long": {"generator: {examples: 1600000, held: 40000, " + sparseLog, 512, [][2]int{{5, 1}, {6, 2}}},
	"adult": {"data: {file: DIR/data/adult/adult_train.csv, schema: DIR/adult.yaml}\n" +
		"model: {dim: 8, bottom: [32], top: [32]}\n# %d\n", 256, shortPairs},
	"criteo": {"data: {file: DIR/data/criteo/criteo_train8k.csv, schema: DIR/criteo.yaml}\n" +
		"model: {dim: 8, bottom: [32], top: [32]}\nembeddings: {lr: 0.02}\n# %d\n", 128, shortPairs},
}

// sparseLog is the rest of the generated log of 10 fields with 500 ids each, and its model.
const sparseLog = "categorical: 10, dense: 1, keys: 500, zipf: 0.7, head: 500, signal: 6, seed: %d}\n" +
	"model: {dim: 8, bottom: [32], top: [32]}\n"

// shortPairs are the arms that differ in few batches.
var shortPairs = [][2]int{{2, 1}, {4, 3}, {1, 0}, {5, 1}}

// qualityArms are the jobs that train on the data of a seed. In mode sync all have one global batch.
var qualityArms = []struct {
	name, yaml string
	trainers   int
	share      int // a trainer has 1/share of the batch
}{
	{"in_flight 0", "in_flight: 0\n", 1, 1},
	{"async × 1", "mode: async\n", 1, 1},
	{"async × 4", "mode: async\n", 4, 1},
	{"sync × 1", "mode: sync\n", 1, 1},
	{"sync × 4", "mode: sync\n", 4, 4},
	{"cache, 8 steps", "cache: {bytes: 64MiB, staleness: {steps: 8}}\n", 1, 1},
	{"cache, 8 steps × 4", "cache: {bytes: 64MiB, staleness: {steps: 8}}\n", 4, 1},
}

const (
	qualityMeanBar  = -0.001 // least mean difference in AUC
	qualityLowerBar = -0.005 // least lower end of its 95 % interval
)

// qualityResult is the JSON of `bench quality`; the field names are a contract.
type qualityResult struct {
	Schema string        `json:"schema"`
	Op     string        `json:"op"`
	Data   string        `json:"data"`
	Pairs  int           `json:"pairs"`
	Arms   []qualityArm  `json:"arms"`
	Diffs  []qualityDiff `json:"differences"`
	scaffold.Bars
	scaffold.Host
}

// qualityArm has the results of one kind of job, by seed.
type qualityArm struct {
	Name string    `json:"name"`
	Mean float64   `json:"auc_mean"`
	AUC  []float64 `json:"auc"`
	// ExamplesPerSecond is the throughput of all trainers, from the first step to the last push.
	ExamplesPerSecond float64 `json:"examples_per_second"`
	Reused            float64 `json:"reused_rows"` // share of the rows that came from copies
}

// qualityDiff compares two kinds of jobs.
type qualityDiff struct {
	Name  string  `json:"name"`
	Mean  float64 `json:"auc_difference_mean"`
	Lower float64 `json:"lower_95"`
	Upper float64 `json:"upper_95"`
}

// benchQuality trains all arms with each seed, one job after the other, and compares the AUC of held-out examples.
func benchQuality(ctx context.Context, cfg benchConfig, progress io.Writer) (r *qualityResult, err error) {
	q := cfg.quality
	data, ok := qualityData[q.data]
	switch {
	case !ok:
		return nil, cli.Usagef("--data %q: want sparse, sparse-long, adult or criteo", q.data)
	case q.pairs < 2:
		return nil, cli.Usagef("--pairs %d: want 2 or more", q.pairs)
	}
	dir, err := filepath.Abs("examples")
	if err != nil {
		return nil, err
	}
	data.yaml = strings.ReplaceAll(data.yaml, "DIR", dir)
	training, cleanup, err := startTraining(ctx, cfg, q.trainer, progress)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cleanup()) }()
	r = &qualityResult{Schema: cli.JSONSchema, Op: "quality", Data: q.data, Pairs: q.pairs, Host: scaffold.ThisHost()}
	var used []int // numbers of arms
	for i := range qualityArms {
		if slices.ContainsFunc(data.pairs, func(p [2]int) bool { return p[0] == i || p[1] == i }) {
			used = append(used, i)
		}
	}
	seconds := make([]float64, len(used))
	examples := make([]float64, len(used))
	r.Arms = make([]qualityArm, len(used))
	for pair := range q.pairs {
		seed := cfg.seed + uint64(pair)
		for i, n := range used {
			arm := qualityArms[n]
			const job = "quality" // one name: initial weights depend on the names of tables
			yaml := fmt.Sprintf("job: %s\nseed: %d\nbatch: %d\n%s"+data.yaml, job, seed, data.batch/arm.share,
				arm.yaml, seed)
			run := &trainingRun{trainingBench: training, job: job, yaml: yaml, trainers: arm.trainers}
			if err := run.train(ctx); err != nil {
				return nil, fmt.Errorf("%s, seed %d: %w", arm.name, seed, err)
			}
			r.Arms[i].Name = arm.name
			r.Arms[i].AUC = append(r.Arms[i].AUC, run.auc)
			r.Arms[i].Reused += run.reused / float64(q.pairs)
			examples[i] += float64(run.examples)
			seconds[i] += run.seconds
			fmt.Fprintf(progress, "seed %d, %s: AUC %.4f, %.0f examples/s\n", seed, arm.name, run.auc,
				float64(run.examples)/run.seconds)
		}
	}
	for i := range r.Arms {
		r.Arms[i].Mean, _ = meanAndError(r.Arms[i].AUC)
		r.Arms[i].ExamplesPerSecond = examples[i] / seconds[i]
	}
	r.compare(data.pairs, used)
	return r, nil
}

// compare sets the differences of pairs and the verdict; used are the numbers of the arms of r.
func (r *qualityResult) compare(pairs [][2]int, used []int) {
	for _, p := range pairs {
		a, b := &r.Arms[slices.Index(used, p[0])], &r.Arms[slices.Index(used, p[1])]
		diffs := make([]float64, len(a.AUC))
		for i := range diffs {
			diffs[i] = a.AUC[i] - b.AUC[i]
		}
		mean, e := meanAndError(diffs)
		d := qualityDiff{Name: a.Name + " − " + b.Name, Mean: mean, Lower: mean - e, Upper: mean + e}
		if d.Mean < qualityMeanBar || d.Lower < qualityLowerBar {
			r.Miss("%s: %.4f, from %.4f: want a mean of at least %v, and a lower end of at least %v", d.Name, d.Mean, d.Lower,
				qualityMeanBar, qualityLowerBar)
		}
		r.Diffs = append(r.Diffs, d)
	}
	r.Passed = len(r.Failed) == 0
}

// student has the 97.5 % quantiles of Student's distribution, by degrees of freedom from 1.
var student = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
	2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086}

// meanAndError returns the mean of values, of which there are 2 or more, and half the width of its 95 % interval.
func meanAndError(values []float64) (mean, half float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	sum := 0.0
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return mean, student[min(len(values)-1, len(student))-1] * math.Sqrt(sum/(n-1)/n)
}

// print writes the result for a person.
func (r *qualityResult) Print(w io.Writer) error {
	pairs := []string{"data", fmt.Sprintf("%s, %s", r.Data, cli.Plural(r.Pairs, "seed"))}
	for _, a := range r.Arms {
		text := fmt.Sprintf("AUC %.4f, %.0f examples/s", a.Mean, a.ExamplesPerSecond)
		if a.Reused > 0 {
			text += fmt.Sprintf(", %.1f %% of the rows from copies", 100*a.Reused)
		}
		pairs = append(pairs, a.Name, text)
	}
	for _, d := range r.Diffs {
		pairs = append(pairs, d.Name, fmt.Sprintf("%+.4f (95 %%: %+.4f to %+.4f)", d.Mean, d.Lower, d.Upper))
	}
	return cli.Facts(w, append(pairs, "bars", r.Summary(), "machine", r.Host.String())...)
}
