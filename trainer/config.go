package trainer

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/data"
)

// Config is a training job. Its YAML form is documented in examples/README.md;
// the zero value of a field means the default of [DefaultConfig].
type Config struct {
	Job       string   `yaml:"job"` // names the tables: <job>.embeddings, <job>.dense, <job>.audit
	Endpoints []string `yaml:"endpoints"`
	DType     string   `yaml:"dtype"` // of numbers on the wire: float32 or bfloat16
	Mode      string   `yaml:"mode"`
	// Quorum is the share of the trainers whose pushes close a step of mode sync, and
	// Deadline when it is closed with those that are there, after the first; 0: never.
	Quorum    float64       `yaml:"quorum"`
	Deadline  time.Duration `yaml:"deadline"`
	Staleness int           `yaml:"staleness"` // mode ssp: steps that a trainer may be ahead of the slowest
	Geo       GeoConfig     `yaml:"geo"`
	// InFlight is how many pushes may be unacknowledged while training goes on.
	// 0: none, and nothing is pulled ahead; runs are then bit-reproducible.
	InFlight int    `yaml:"in_flight"`
	Seed     uint64 `yaml:"seed"`
	// Rank of Trainers: without Parts this trainer reads every Trainers-th example. A nil rank
	// is asked of the scheduler if there are several trainers.
	Rank     *int `yaml:"rank"`
	Trainers int  `yaml:"trainers"`
	// Parts: the scheduler gives the data out in parts, and what a dead trainer had to another
	// one; else each reads its own share. Default: if there are several trainers, and bounded data that can
	// be read from any place.
	Parts    *bool         `yaml:"parts"`
	Lease    time.Duration `yaml:"lease"` // how long a trainer may be silent before the others go on without it; 0: 10 s
	Batch    int           `yaml:"batch"`
	Threads  int           `yaml:"threads"`  // that compute a batch, each a slice of it; their gradients are summed in order
	Epochs   int           `yaml:"epochs"`   // passes over the training part; default 1, or no bound if steps is set
	Steps    int64         `yaml:"steps"`    // batches of this trainer; 0: as the epochs say
	Patience time.Duration `yaml:"patience"` // how long one pull or push may take before the run fails
	Reads    ReadConfig    `yaml:"reads"`

	Data       DataConfig            `yaml:"data"`
	Generator  *data.GeneratorConfig `yaml:"generator"` // instead of data
	Model      ModelConfig           `yaml:"model"`
	Embeddings TableConfig           `yaml:"embeddings"`
	Dense      TableConfig           `yaml:"dense"`
	// Parameters says of dense weights where they are kept and who initializes them; the
	// first entry that matches a name counts.
	Parameters []ParameterConfig `yaml:"parameters"`
	Average    AverageConfig     `yaml:"average"` // of those that the trainers keep

	Checkpoint CheckpointConfig `yaml:"checkpoint"`
	// Resume is where to go on: DESTINATION/NAME of a checkpoint whose tables the
	// cluster has; "auto": the one that its tables come from, if this trainer has not
	// trained since; "": at the beginning of the data.
	Resume string `yaml:"resume"`

	// MaxSkipped batches in a row that are not finite end the run; 0: 100.
	MaxSkipped int `yaml:"max_skipped"`

	TensorBoard TensorBoardConfig `yaml:"tensorboard"`

	Audit       bool   `yaml:"audit"`       // bump audit rows with each push
	Evaluate    *bool  `yaml:"evaluate"`    // score the held-out part at the end; default true
	Accelerator string `yaml:"accelerator"` // auto, go or cuda

	member *client.Member // of the job, once it has entered
	set    data.Set       // that was opened to enter it
	parted bool           // the scheduler divides the data
	again  bool           // it was lost, and enters once more
}

// DataConfig is a data set in a file, or images with labels in idx files.
type DataConfig struct {
	File   string   `yaml:"file"`
	Schema string   `yaml:"schema"`
	Held   *float64 `yaml:"held"` // share at the end that is held out; default 0.2

	// Follow is a file, a folder of files or standard input ("-") that grows, instead of File;
	// metrics are per Window.
	Follow string        `yaml:"follow"`
	Window time.Duration `yaml:"window"` // default 1m

	Images string `yaml:"images"`
	Labels string `yaml:"labels"`
	// HeldImages and HeldLabels are held out, instead of a share of the others.
	HeldImages string `yaml:"held_images"`
	HeldLabels string `yaml:"held_labels"`
	Limit      int64  `yaml:"limit"` // train on the first so many images; 0: on all
}

// ModelConfig is the kind of model and the shape of a DLRM.
type ModelConfig struct {
	Kind   string `yaml:"kind" json:",omitempty"` // dlrm, or lenet for images
	Dim    int    `yaml:"dim"`
	Bottom []int  `yaml:"bottom"` // hidden layers over the dense features
	Top    []int  `yaml:"top"`    // hidden layers over the dot products
	// Sleep > 0: instead of a model, a step that takes so long and learns nothing.
	Sleep time.Duration `yaml:"sleep" json:"-"`
}

// TableConfig says how a table starts and learns.
type TableConfig struct {
	// Optimizer is sgd, momentum, adagrad, rowwise-adagrad, adam or ftrl. A
	// constant that is nil has the default of its rule; one of another rule is refused.
	Optimizer          string   `yaml:"optimizer"`
	LR                 float32  `yaml:"lr"`
	InitialAccumulator *float32 `yaml:"initial_accumulator"`            // adagrad, rowwise-adagrad, ftrl
	Epsilon            *float32 `yaml:"epsilon"`                        // adagrad, rowwise-adagrad, adam
	Beta1              *float32 `yaml:"beta1"`                          // adam
	Beta2              *float32 `yaml:"beta2"`                          // adam
	Momentum           *float32 `yaml:"momentum" json:",omitempty"`     // momentum
	L1                 *float32 `yaml:"l1" json:",omitempty"`           // ftrl
	L2                 *float32 `yaml:"l2" json:",omitempty"`           // ftrl
	Beta               *float32 `yaml:"beta" json:",omitempty"`         // ftrl
	WeightDecay        *float32 `yaml:"weight_decay" json:",omitempty"` // all but ftrl
	Bound              *float32 `yaml:"bound" json:",omitempty"`        // of each weight
	// Schedule: how the learning rate changes with the steps; nil: it is LR.
	Schedule *ScheduleConfig `yaml:"schedule" json:",omitempty"`
	// Init: embeddings start uniform in [−Init, Init).
	Init float32 `yaml:"init"`

	Storage   string          `yaml:"storage"`   // of the weights: float32 or bfloat16
	Admission string          `yaml:"admission"` // all, count:3 or probability:0.1; embeddings only
	Expire    string          `yaml:"expire"`    // "168h", or seconds; embeddings only
	Capacity  *CapacityConfig `yaml:"capacity"`  // embeddings only
}

// CapacityConfig bounds the rows of a table.
type CapacityConfig struct {
	Rows  uint64 `yaml:"rows"`
	Evict string `yaml:"evict"` // lru or lfu
}

// CheckpointConfig says which checkpoints a job makes.
type CheckpointConfig struct {
	To string `yaml:"to"` // destination
	// Every is how often the cluster makes one in To while the job trains, by a policy
	// that the first trainer sets and, when the job is done, deletes; 0: never. It keeps Keep of
	// them, 5 unless set, and those younger than KeepWithin. FullEvery > 1: the others are deltas.
	Every      time.Duration `yaml:"every"`
	Keep       int           `yaml:"keep"`
	KeepWithin time.Duration `yaml:"keep_within"`
	FullEvery  int           `yaml:"full_every"`
	// AtEnd is "true" for a checkpoint in To when all trainers are done, or another
	// destination; OnStop makes one in To when a trainer is told to stop.
	AtEnd      string `yaml:"at_end"`
	OnStop     bool   `yaml:"on_stop"`
	SkipAbsent bool   `yaml:"skip_absent"` // make them without trainers that do not answer
}

// atEnd is the destination of the checkpoint at the end, "" for none.
func (c *CheckpointConfig) atEnd() string {
	switch c.AtEnd {
	case "", "false":
		return ""
	case "true":
		return c.To
	}
	return c.AtEnd
}

// whenParked are the destinations of the checkpoints that a trainer may ask for as it parks.
func (c *CheckpointConfig) whenParked() (out []string) {
	if d := c.atEnd(); d != "" {
		out = append(out, d)
	}
	if c.OnStop {
		out = append(out, c.To)
	}
	return out
}

func (c *CheckpointConfig) validate() error {
	if c.Every < 0 || c.Keep < 0 || c.KeepWithin < 0 || c.FullEvery < 0 {
		return invalid("checkpoint: every %v, keep %d, keep_within %v, full_every %d: want ≥ 0", c.Every, c.Keep, c.KeepWithin, c.FullEvery)
	}
	if c.To == "" && (c.OnStop || c.AtEnd == "true" || c.Every > 0) {
		return invalid("checkpoint: to is missing: where checkpoints are kept, an absolute path that all servers share or s3://bucket/prefix")
	}
	for _, to := range []string{c.To, c.atEnd()} {
		if to == "" {
			continue
		}
		if _, err := depot.Open(to); err != nil {
			return err
		}
	}
	return nil
}

// MaxAuditTrainers is the number of trainers an audit row has room for.
const MaxAuditTrainers = 64

// auditOptimizer makes a gradient of −1 count one.
var auditOptimizer = rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}

// denseWidth is the number of weights in a row of the dense table.
const denseWidth = 64

// DefaultConfig is what a field means that is not set.
func DefaultConfig() Config {
	held, evaluate := 0.2, true
	return Config{
		Job: "ctr", DType: "float32", Mode: Async, Quorum: 1, InFlight: 2, Seed: 1, Trainers: 1, Batch: 512, Threads: 1, Patience: 2 * time.Minute, Reads: ReadConfig{Mode: "leader"},
		Data:        DataConfig{Held: &held},
		Model:       ModelConfig{Kind: DLRM, Dim: 16, Bottom: []int{64}, Top: []int{64, 32}},
		Embeddings:  TableConfig{Optimizer: "adagrad", LR: 0.05, Init: 0.05},
		Dense:       TableConfig{Optimizer: "adagrad", LR: 0.02},
		Evaluate:    &evaluate,
		Accelerator: "auto",
	}
}

// LoadConfig reads a job from a YAML file over the defaults. Unknown keys are
// errors that name file, line and key. The result is not yet validated, since
// flags may change it.
func LoadConfig(path string) (Config, error) {
	c := DefaultConfig()
	text, err := os.ReadFile(path)
	if err != nil {
		return c, invalid("config: %w", err)
	}
	generator := data.DefaultGenerator()
	if hasKey(text, "generator") {
		c.Generator = &generator // so that keys left out keep their defaults
	}
	if strings.TrimSpace(string(text)) == "" {
		return c, nil
	}
	return c, data.DecodeYAML(path, text, &c)
}

// hasKey tells whether a YAML text has a top-level key.
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

// Validate reports the first thing that makes c unusable, as CodeInvalidArgument.
func (c *Config) Validate() error {
	switch {
	case c.DType != "float32" && c.DType != "bfloat16":
		return invalid("dtype %q: want float32 or bfloat16", c.DType)
	case c.InFlight < 0 || c.InFlight > 64:
		return invalid("in_flight %d: want 0 to 64", c.InFlight)
	case c.Lease != 0 && (c.Lease < time.Second || c.Lease > time.Hour):
		return invalid("lease %v: want 1s to 1h", c.Lease)
	case c.Trainers < 1:
		return invalid("trainers %d: want ≥ 1", c.Trainers)
	case c.Rank != nil && (*c.Rank < 0 || *c.Rank >= c.Trainers):
		return invalid("rank %d: want 0 to %d, since there are %d trainers", *c.Rank, c.Trainers-1, c.Trainers)
	case c.Audit && c.Trainers > MaxAuditTrainers:
		return invalid("audit with %d trainers: want at most %d", c.Trainers, MaxAuditTrainers)
	case c.Batch < 1 || c.Batch > 1<<16:
		return invalid("batch %d: want 1 to %d", c.Batch, 1<<16)
	case c.Epochs < 0 || c.Steps < 0:
		return invalid("epochs %d, steps %d: want ≥ 0", c.Epochs, c.Steps)
	case c.MaxSkipped < 0:
		return invalid("max_skipped %d: want ≥ 0", c.MaxSkipped)
	case c.Patience <= 0:
		return invalid("patience %v: want > 0", c.Patience)
	case c.Data.File != "" && c.Data.Schema == "":
		return invalid("data %s: no schema is given", c.Data.File)
	case c.Model.Dim < 1 || c.Model.Dim > rowraft.MaxDim:
		return invalid("model dim %d: want 1 to %d", c.Model.Dim, rowraft.MaxDim)
	case c.Model.Sleep < 0:
		return invalid("model sleep %v: want ≥ 0", c.Model.Sleep)
	case !(c.Embeddings.Init > 0):
		return invalid("embeddings: init %v: want > 0", c.Embeddings.Init)
	}
	if err := c.validateMode(); err != nil {
		return err
	}
	if err := c.Reads.validate(); err != nil {
		return err
	}
	if err := c.validateFollow(); err != nil {
		return err
	}
	if err := c.validateModel(); err != nil {
		return err
	}
	if err := c.TensorBoard.validate(); err != nil {
		return err
	}
	if err := c.Checkpoint.validate(); err != nil {
		return err
	}
	for _, t := range []*TableConfig{&c.Embeddings, &c.Dense} {
		if _, err := t.optimizer(); err != nil {
			return err
		}
		if err := t.policies(&rowraft.Schema{}); err != nil {
			return err
		}
		if !(t.LR > 0) {
			return invalid("lr %v: want > 0", t.LR)
		}
		if err := t.Schedule.validate(t.LR); err != nil {
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

// policies sets how rows are stored, which keys get one and which lose it.
func (t *TableConfig) policies(s *rowraft.Schema) (err error) {
	switch t.Storage {
	case "", "float32":
	case "bfloat16":
		s.Storage = rowraft.BFloat16
	default:
		return invalid("storage %q: want float32 or bfloat16", t.Storage)
	}
	if s.Admission, err = rowraft.ParseAdmission(t.Admission); err != nil {
		return err
	}
	if s.Expire, err = rowraft.ParseTicks(t.Expire); err != nil {
		return err
	}
	if t.Capacity != nil {
		s.Capacity.Rows = t.Capacity.Rows
		s.Capacity.Evict, err = rowraft.ParseEvict(t.Capacity.Evict)
	}
	return err
}

// mainTable is a table that every job has.
func (c *Config) mainTable() string { return c.Job + ".dense" }

// schemas are the tables of the job: embeddings, if its model has any, dense and, with Audit, audit.
func (c *Config) schemas() []rowraft.Schema {
	var tables []rowraft.Schema
	if c.embedded() {
		optimizer, _ := c.Embeddings.optimizer()
		tables = append(tables, rowraft.Schema{
			Name: c.Job + ".embeddings", Kind: rowraft.Sparse, Dim: c.Model.Dim, Optimizer: optimizer,
			Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: c.Seed, A: -c.Embeddings.Init, B: c.Embeddings.Init},
		})
		_ = c.Embeddings.policies(&tables[0])
	}
	optimizer, _ := c.Dense.optimizer()
	dense := rowraft.Schema{
		Name: c.Job + ".dense", Kind: rowraft.Dense, Dim: denseWidth, Optimizer: optimizer,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
	}
	_ = c.Dense.policies(&dense)
	tables = append(tables, dense)
	if c.Audit {
		tables = append(tables, rowraft.Schema{
			Name: c.Job + ".audit", Kind: rowraft.Sparse, Dim: c.Trainers,
			Optimizer:   auditOptimizer,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		})
	}
	if c.Mode == Geo { // the optimizers are the trainers'
		for i := range tables {
			tables[i].Optimizer = rowraft.Optimizer{Kind: rowraft.Add, Bound: tables[i].Optimizer.Bound}
		}
	}
	return tables
}

// OpenData opens the data set of the job.
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
			Images: c.Data.Images, Labels: c.Data.Labels, HeldImages: c.Data.HeldImages, HeldLabels: c.Data.HeldLabels, Held: held, Limit: c.Data.Limit,
		})
	}
	schema, err := data.LoadSchema(c.Data.Schema)
	if err != nil {
		return nil, err
	}
	if c.Data.Follow != "" {
		return data.OpenFollow(c.Data.Follow, schema)
	}
	return data.OpenFile(c.Data.File, schema, held)
}

// rank is 0 if it is not set.
func (c *Config) rank() int {
	if c.Rank == nil {
		return 0
	}
	return *c.Rank
}

// steps is how many batches this trainer runs at most; 0: no bound known.
func (c *Config) steps(set data.Set) int64 { return c.stepsOf(c.rank(), set.TrainSize()) }

// stepsOf is steps of the trainer of a rank; size is that of the training part.
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
	if c.Steps > 0 && (planned == 0 || c.Steps < planned || c.parted) {
		return c.Steps
	}
	if c.parted {
		return 0 // whoever is faster reads more
	}
	return planned
}

func (c *Config) evaluate() bool {
	return (c.Evaluate == nil || *c.Evaluate) && c.Data.Follow == "" // a stream holds nothing out
}

// String names the job in a line.
func (c *Config) String() string {
	return fmt.Sprintf("job %s, mode %s, batch %d, in_flight %d, trainer %d of %d", c.Job, c.Mode, c.Batch, c.InFlight, c.rank(), c.Trainers)
}
