package trainer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/copies"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/scores"
	"github.com/rowraft/rowraft/trainer/tableconf"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Config is a training job. examples/README.md documents its YAML form. The zero value of a field means the default
// of [DefaultConfig].
type Config struct {
	Job       string   `yaml:"job"` // names the tables: <job>.embeddings, <job>.dense, <job>.audit
	Endpoints []string `yaml:"endpoints"`
	DType     string   `yaml:"dtype"` // of numbers on the wire: float32 or bfloat16
	Mode      string   `yaml:"mode"`
	// Quorum is the share of the trainers whose pushes close a step of mode sync. Deadline closes a step so long
	// after its first push, with the pushes that have come; 0: never.
	Quorum    float64       `yaml:"quorum"`
	Deadline  time.Duration `yaml:"deadline"`
	Staleness int           `yaml:"staleness"` // mode ssp: how many steps a trainer may be ahead of the slowest
	Geo       GeoConfig     `yaml:"geo"`
	// InFlight is how many pushes may be unacknowledged while training continues. With 0 the trainer pulls nothing
	// ahead, and runs are bit-reproducible. nil: 8 in mode async, but at most 16 batches of all trainers under way or 4 of
	// each; 2 in the other modes, and with the optimizers sgd and momentum.
	InFlight *int   `yaml:"in_flight"`
	Seed     uint64 `yaml:"seed"`
	// Rank of Trainers: without Splits this trainer reads every Trainers-th example. With a nil rank and several
	// trainers, the scheduler assigns one.
	Rank     *int `yaml:"rank"`
	Trainers int  `yaml:"trainers"`
	// Splits: the scheduler hands out the data in splits, and gives those of a dead trainer to another one;
	// otherwise each trainer reads a fixed share. Default: true for several trainers and bounded data that can be
	// read from any position.
	Splits   *bool             `yaml:"splits"`
	Lease    time.Duration     `yaml:"lease"` // the others continue without a trainer that is silent for longer; 0: 10 s
	Batch    int               `yaml:"batch"`
	Threads  int               `yaml:"threads"`  // each computes a slice of a batch; gradients are summed in order
	Epochs   int               `yaml:"epochs"`   // passes over the examples; default 1, or no bound if steps is set
	Steps    int64             `yaml:"steps"`    // batches of this trainer; 0: as epochs implies
	Patience time.Duration     `yaml:"patience"` // how long one pull or push may take, other trainers apart
	Reads    tables.ReadConfig `yaml:"reads"`
	Cache    copies.Config     `yaml:"cache"`

	Data DataConfig `yaml:"data"`
	// Validation are files whose examples are held out, in the format of data.file, which then is trained as a whole.
	// They are scored during the training.
	Validation data.Paths `yaml:"validation"`
	// EvaluateEvery is the interval between two scores of the held-out examples, which the trainer of the lowest rank
	// computes; zero: the end of each epoch, and ten times as many trained examples. Without Validation they are
	// scored during the training if this, EarlyStop or Checkpoint.KeepBest is set.
	EvaluateEvery scores.Interval       `yaml:"evaluate_every"`
	EarlyStop     scores.EarlyStop      `yaml:"early_stop"`
	Generator     *data.GeneratorConfig `yaml:"generator"` // instead of data
	Model         ModelConfig           `yaml:"model"`
	Embeddings    tableconf.Table       `yaml:"embeddings"`
	Dense         tableconf.Table       `yaml:"dense"`
	// Parameters configures where dense weights are stored and which process initializes them; the first entry that
	// matches a name applies.
	Parameters []ParameterConfig `yaml:"parameters"`
	Average    AverageConfig     `yaml:"average"` // averaging of the weights that the trainers keep

	Checkpoint member.CheckpointConfig `yaml:"checkpoint"`
	// Resume names the checkpoint to resume from: DESTINATION/NAME of a checkpoint whose tables the cluster has;
	// "auto": the one that its tables come from, if this trainer has not trained since; "": none, begin with the
	// data.
	Resume string `yaml:"resume"`

	// MaxSkipped ends the run after so many batches in a row that are not finite; 0: 100.
	MaxSkipped int `yaml:"max_skipped"`

	TensorBoard report.TensorBoardConfig `yaml:"tensorboard"`
	// Runs is a folder to which the command rowraft-trainer writes a record of each run; "": none.
	Runs string `yaml:"runs"`

	Audit    bool   `yaml:"audit"`    // change audit rows with each push
	Evaluate *bool  `yaml:"evaluate"` // score the held-out examples at the end; default true
	Device   string `yaml:"device"`   // the model is computed on it: auto, cpu or cuda

	member    *jobs.Member // the membership of the job, after registration
	set       data.Set     // opened for registration
	checked   data.Set     // opened by CheckData, for the registration that follows
	splitData bool         // the scheduler divides the data
	again     bool         // it was lost, and registers once more
	rampEvery int64        // set by tests: instead of batchesPerStep; negative: no ramp
	continues string       // describes the rows of earlier runs; "" if there are none
}

// DataConfig is a data set in a file or a stream, or images with labels in idx files.
type DataConfig struct {
	File   data.Paths `yaml:"file"`
	Schema string     `yaml:"schema"`
	// Described is the schema of a model that was saved, instead of the file Schema. Validate sets it.
	Described *data.Schema `yaml:"-"`
	Held      *float64     `yaml:"held"`    // share of the examples that is held out; default 0.2
	HeldBy    string       `yaml:"held_by"` // last (default) or random
	// Shuffle is none (default), files or examples; ShuffleBuffer examples are in memory for it, 0: 65536.
	Shuffle       string  `yaml:"shuffle"`
	ShuffleBuffer int     `yaml:"shuffle_buffer"`
	MaxBad        float64 `yaml:"max_bad"` // share of bad lines that is skipped; 0: the first one ends the run

	Unlabelled bool `yaml:"-" json:",omitempty"` // the labels are not read
	KeepLines  bool `yaml:"-" json:",omitempty"` // batches keep the lines of their examples
	NoFit      bool `yaml:"-" json:",omitempty"` // of data.Options

	// Follow is a file, a folder of files or standard input ("-") that grows, instead of File; metrics are per
	// Window.
	Follow string        `yaml:"follow"`
	Window time.Duration `yaml:"window"` // default 1m

	Images string `yaml:"images"`
	Labels string `yaml:"labels"`
	// HeldImages and HeldLabels are held out, instead of a share of the others.
	HeldImages string `yaml:"held_images"`
	HeldLabels string `yaml:"held_labels"`
	Limit      int64  `yaml:"limit"` // train on the first so many images; 0: all
}

// ModelConfig is the kind of model and its sizes.
type ModelConfig struct {
	Kind   string `yaml:"kind" json:",omitempty"`  // one of package models
	Dim    int    `yaml:"dim"`                     // of an embedding
	Bottom []int  `yaml:"bottom"`                  // dlrm: hidden layers over the dense features
	Top    []int  `yaml:"top"`                     // hidden layers
	Cross  int    `yaml:"cross" json:",omitempty"` // dcn: cross layers; 0: 2
	Items  int    `yaml:"items" json:",omitempty"` // two-tower: the last so many features describe the item
	// Sleep > 0 replaces the model by a step that takes so long and learns nothing.
	Sleep time.Duration `yaml:"sleep" json:"-"`
}

// MaxAuditTrainers is the largest number of trainers in an audit row.
const MaxAuditTrainers = 64

// auditOptimizer adds 1 for a gradient of −1.
var auditOptimizer = rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}

// DefaultConfig returns the defaults of all fields.
func DefaultConfig() Config {
	held, evaluate := 0.2, true
	return Config{
		Job: "ctr", DType: "float32", Mode: Async, Quorum: 1, Seed: 1, Trainers: 1, Batch: 512, Threads: 1,
		Patience: 2 * time.Minute, Reads: tables.ReadConfig{Mode: "leader"},
		Data:       DataConfig{Held: &held},
		Model:      ModelConfig{Kind: DLRM, Dim: 16, Bottom: []int{64}, Top: []int{64, 32}},
		Embeddings: tableconf.Table{Optimizer: "adagrad", LR: 0.05, Init: 0.05},
		Dense:      tableconf.Table{Optimizer: "adagrad", LR: 0.02},
		Evaluate:   &evaluate,
		Device:     accel.Auto,
	}
}

// LoadConfig reads a job from a YAML file over the defaults. Relative paths in the file are relative to its folder.
// Errors name the unknown key with its file and line. The caller validates the result, because flags may change it.
func LoadConfig(path string) (Config, error) { return loadConfig(path, DefaultConfig()) }

// loadConfig is LoadConfig over c.
func loadConfig(path string, c Config) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return c, invalid("config: %w", err)
	}
	generator := data.DefaultGenerator()
	if hasKey(text, "generator") {
		c.Generator = &generator // omitted keys keep their defaults
	}
	if strings.TrimSpace(string(text)) == "" {
		return c, nil
	}
	err = data.DecodeYAML(path, text, &c)
	c.relativeTo(filepath.Dir(path))
	return c, err
}

// hasKey reports whether a YAML text has a top-level key.
func hasKey(text []byte, key string) bool {
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, key+":") {
			return true
		}
	}
	return false
}

func invalid(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
}

// Validate returns the first problem of c, with CodeInvalidArgument.
func (c *Config) Validate() error {
	if _, err := rowraft.ParseDType(c.DType); err != nil {
		return invalid("dtype %w", err)
	}
	switch {
	case strings.Contains(c.Job+".", tables.DenseSuffix+".") || strings.Contains(c.Job+".", tables.EmbeddingsSuffix+"."):
		return invalid("job %q: a job named x.dense or x.embeddings would have tables of the job x: take another name",
			c.Job)
	case inFlight(c) < 0 || inFlight(c) > 64:
		return invalid("in_flight %d: want 0 to 64", inFlight(c))
	case c.Lease != 0 && (c.Lease < time.Second || c.Lease > time.Hour):
		return invalid("lease %v: want 1s to 1h", c.Lease)
	case c.Trainers < 1:
		return invalid("trainers is %d: want 1 or more", c.Trainers)
	case c.Rank != nil && (*c.Rank < 0 || *c.Rank >= c.Trainers):
		return invalid("rank %d: want 0 to %d for %d trainers", *c.Rank, c.Trainers-1, c.Trainers)
	case c.Audit && c.Trainers > MaxAuditTrainers:
		return invalid("audit with %d trainers: want at most %d", c.Trainers, MaxAuditTrainers)
	case c.Batch < 1 || c.Batch > 1<<16:
		return invalid("batch %d: want 1 to %d", c.Batch, 1<<16)
	case c.Epochs < 0 || c.Steps < 0:
		return invalid("epochs %d, steps %d: want ≥ 0", c.Epochs, c.Steps)
	case c.MaxSkipped < 0:
		return invalid("max_skipped %d: want ≥ 0", c.MaxSkipped)
	case c.Patience <= 0:
		return invalid("patience is %v: want more than 0", c.Patience)
	case len(c.Validation) > 0 && len(c.Data.File) == 0:
		return invalid("validation %s needs data.file: other data has held-out examples of its own, or none", c.Validation)
	case len(c.Data.File) > 0 && c.Data.Schema == "" && c.Data.Described == nil:
		return invalid("data %s has no schema: set data.schema", c.Data.File)
	case len(c.Data.File) == 0 && (c.Data.HeldBy != "" || c.Data.Shuffle != "" || c.Data.ShuffleBuffer != 0 ||
		c.Data.MaxBad != 0):
		return invalid("data: held_by, shuffle, shuffle_buffer and max_bad are for data.file")
	case c.Model.Sleep < 0:
		return invalid("model sleep %v: want ≥ 0", c.Model.Sleep)
	case !(c.Embeddings.Init > 0):
		return invalid("embeddings: init %v: want > 0", c.Embeddings.Init)
	}
	if err := c.validateMode(); err != nil {
		return err
	}
	if err := c.Reads.Validate(); err != nil {
		return err
	}
	if err := c.Cache.Validate(c.Mode, c.Reads.Mode); err != nil {
		return err
	}
	if err := c.validateFollow(); err != nil {
		return err
	}
	if err := c.validateModel(); err != nil {
		return err
	}
	if err := validateScores(c); err != nil {
		return err
	}
	if err := c.TensorBoard.Validate(); err != nil {
		return err
	}
	if err := c.Checkpoint.Validate(); err != nil {
		return err
	}
	for _, t := range []*tableconf.Table{&c.Embeddings, &c.Dense} {
		if err := t.Validate(); err != nil {
			return err
		}
	}
	if c.Data.Described == nil && c.Data.Schema != "" {
		var err error
		if c.Data.Described, err = data.LoadSchema(c.Data.Schema); err != nil {
			return err
		}
	}
	for _, s := range c.schemas() {
		if err := s.Validate(); err != nil {
			return err
		}
	}
	return nil
}

// resume returns what a trainer of the job may resume from.
func (c *Config) resume() *member.Resume {
	q := &member.Resume{
		From: c.Resume, Job: c.Job, Rank: c.rank(), Table: c.Job + tables.DenseSuffix, Steps: c.Mode == Sync,
		Patience: c.Patience, Continues: c.splitData && (c.Trainers > 1 || !c.member.Began),
	}
	for _, t := range c.schemas() {
		q.Tables = append(q.Tables, t.Name)
	}
	return q
}

// FindSaved reads the state that c.Resume names, or nil if there is none to resume from.
func FindSaved(ctx context.Context, c *Config, cl *client.Client) (*member.Saved, error) {
	return c.resume().State(ctx, cl)
}

// schemas returns the tables of the job that it trains: embeddings, if its model has any, dense and, with Audit, audit.
func (c *Config) schemas() []rowraft.Schema {
	var all []rowraft.Schema
	names, widths := embeddingTables(c)
	for i, name := range names {
		optimizer, _ := c.Embeddings.Rule()
		all = append(all, rowraft.Schema{
			Name: c.Job + name, Kind: rowraft.Sparse, Dim: widths[i], Optimizer: optimizer,
			Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: c.Seed, A: -c.Embeddings.Init,
				B: c.Embeddings.Init},
		})
		_ = c.Embeddings.Policies(&all[i])
	}
	optimizer, _ := c.Dense.Rule()
	dense := rowraft.Schema{
		Name: c.Job + tables.DenseSuffix, Kind: rowraft.Dense, Dim: dense.Width, Optimizer: optimizer,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
	}
	_ = c.Dense.Policies(&dense)
	all = append(all, dense)
	if c.Audit {
		all = append(all, rowraft.Schema{
			Name: c.Job + tables.AuditSuffix, Kind: rowraft.Sparse, Dim: c.Trainers,
			Optimizer:   auditOptimizer,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		})
	}
	if c.Mode == Geo { // in mode geo the trainers run the optimizers
		for i := range all {
			all[i].Optimizer = rowraft.Optimizer{Kind: rowraft.Add, Bound: all[i].Optimizer.Bound}
		}
	}
	return all
}

// OpenData opens the data set of the job. It completes Data.Described by the files.
func (c *Config) OpenData() (data.Set, error) {
	if c.Generator != nil {
		return data.NewGenerator(*c.Generator)
	}
	held := 0.2
	if c.Data.Held != nil {
		held = *c.Data.Held
	}
	if c.Data.Images != "" {
		return data.OpenImages(data.ImagesConfig{
			Images: c.Data.Images, Labels: c.Data.Labels, HeldImages: c.Data.HeldImages,
			HeldLabels: c.Data.HeldLabels, Held: held, Limit: c.Data.Limit,
		})
	}
	schema, err := c.Data.Described, error(nil)
	if schema == nil {
		schema, err = data.LoadSchema(c.Data.Schema)
	}
	if err != nil {
		return nil, err
	}
	if c.Data.Unlabelled || c.Data.KeepLines {
		s := *schema
		s.Unlabelled, s.KeepLines = c.Data.Unlabelled, c.Data.KeepLines
		schema = &s
	}
	if c.Data.Follow != "" {
		return data.OpenFollow(c.Data.Follow, schema)
	}
	if len(c.Validation) > 0 {
		held = 0
	}
	f, err := data.OpenFiles(c.Data.File, schema, data.Options{Held: held, HeldBy: c.Data.HeldBy,
		Shuffle: c.Data.Shuffle, Buffer: c.Data.ShuffleBuffer, Seed: c.Seed, MaxBad: c.Data.MaxBad, NoFit: c.Data.NoFit})
	if err == nil {
		c.Data.Described = f.Schema() // complete
	}
	switch {
	case err != nil:
		return nil, err
	case len(c.Validation) == 0:
		return f, nil
	}
	v, err := data.OpenFiles(c.Validation, f.Schema(), data.Options{MaxBad: c.Data.MaxBad})
	if err != nil {
		return nil, fmt.Errorf("validation: %w", err)
	}
	f.SetValidation(v)
	return f, nil
}

// shuffle returns what decides the order of the examples; "" if it is that of the files.
func (d *DataConfig) shuffle() string {
	text := ""
	if d.Shuffle != "" && d.Shuffle != data.ShuffleNone {
		text = fmt.Sprint(d.Shuffle, " ", d.ShuffleBuffer, " ")
	}
	if d.HeldBy == data.HeldRandom {
		text += "held by random"
	}
	return text
}

// rank returns 0 if no rank is set.
func (c *Config) rank() int {
	if c.Rank == nil {
		return 0
	}
	return *c.Rank
}

// steps returns an upper bound of this trainer's batches; 0: unknown.
func (c *Config) steps(set data.Set) int64 { return c.stepsOf(c.rank(), set.TrainSize()) }

// stepsOf is steps for the trainer of a rank; size is the number of training examples.
func (c *Config) stepsOf(rank int, size int64) int64 {
	var planned int64
	epochs := int64(c.Epochs)
	if epochs == 0 && c.Steps == 0 {
		epochs = 1
	}
	if size > 0 && epochs > 0 {
		mine := (size - int64(rank) + int64(c.Trainers) - 1) / int64(c.Trainers)
		planned = epochs * ((mine + int64(c.Batch) - 1) / int64(c.Batch))
	}
	if c.Steps > 0 && (planned == 0 || c.Steps < planned || c.splitData) {
		return c.Steps
	}
	if c.splitData {
		return 0 // a faster trainer reads more
	}
	return planned
}

func (c *Config) evaluate() bool {
	return (c.Evaluate == nil || *c.Evaluate) && c.Data.Follow == "" // a stream has no held-out examples
}

// What a job without in_flight has. The more pushes may be unacknowledged, the less its trainers wait for disks and
// networks; docs/training.md has the quality.
const (
	manyInFlight = 8
	fewInFlight  = 2
	mostUnderWay = 16 // batches of all trainers; but each may have those that fewInFlight allows
)

// inFlight returns InFlight or, if it is not set, what mode and optimizers tolerate. The modes but async push one batch
// after the other. Sgd and momentum are not adaptive: their steps go too far if several are from one state of the rows.
func inFlight(c *Config) int {
	adaptive := func(optimizer string) bool {
		return optimizer != rowraft.SGD.String() && optimizer != rowraft.Momentum.String()
	}
	switch {
	case c.InFlight != nil:
		return *c.InFlight
	case c.Mode == Async && adaptive(c.Embeddings.Optimizer) && adaptive(c.Dense.Optimizer):
		return manyInFlight
	}
	return fewInFlight
}

// String describes the job in one line.
func (c *Config) String() string {
	return fmt.Sprintf("job %s, mode %s, batch %d, in_flight %d, trainer %d of %d", c.Job, c.Mode, c.Batch, inFlight(c),
		c.rank(), c.Trainers)
}

// epochs returns the number of epochs to train; 0: no end.
func (c *Config) epochs() int {
	if c.Epochs == 0 && c.Steps == 0 || c.Data.Follow != "" {
		return 1
	}
	return c.Epochs
}
