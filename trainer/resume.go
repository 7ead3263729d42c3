package trainer

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tableconf"
)

// position is how far a trainer has read its share of the data.
type position struct {
	epoch  int64      // finished passes
	offset int64      // examples read in the present pass
	place  data.Place // for a stream, instead
}

// configFingerprint has the settings that decide what a run computes: a run that resumes exactly must have the
// same. Settings for the length of training, for waiting, and for the cluster's addresses may change.
type configFingerprint struct {
	Job       string        `json:"job"`
	DType     string        `json:"dtype"`
	Mode      string        `json:"mode"`
	Quorum    float64       `json:"quorum,omitempty"`
	Deadline  time.Duration `json:"deadline,omitempty"`
	Staleness int           `json:"staleness,omitempty"`
	Geo       *GeoConfig    `json:"geo,omitempty"`
	Threads   int           `json:"threads,omitempty"` // 0: one
	Seed      uint64        `json:"seed"`
	Trainers  int           `json:"trainers"` // 0: the scheduler divides the data
	Batch     int           `json:"batch"`
	File      string        `json:"data.file,omitempty"` // base name
	Shuffle   string        `json:"data.shuffle,omitempty"`
	// Measured are mean and standard deviation of the columns that the training examples standardize.
	Measured   map[string][2]float64 `json:"data.standardize,omitempty"`
	Follow     string                `json:"data.follow,omitempty"`
	Examples   int64                 `json:"data.examples"` // training examples; 0: unlimited
	Generator  *data.GeneratorConfig `json:"generator,omitempty"`
	Model      ModelConfig           `json:"model"`
	Embeddings tableconf.Table       `json:"embeddings"`
	Dense      tableconf.Table       `json:"dense"`
	Parameters []ParameterConfig     `json:"parameters,omitempty"`
	Average    int                   `json:"average.every,omitempty"`
	Audit      bool                  `json:"audit"`
}

// fingerprint returns the JSON of the configFingerprint of a job with so many training examples.
func (c *Config) fingerprint(examples int64) []byte {
	e := configFingerprint{
		Job: c.Job, DType: c.DType, Mode: c.Mode, Seed: c.Seed, Trainers: c.Trainers, Batch: c.Batch,
		Examples:  examples,
		Generator: c.Generator, Model: c.Model.fingerprint(), Embeddings: c.Embeddings, Dense: c.Dense,
		Parameters: c.Parameters, Average: c.Average.Every, Audit: c.Audit,
		Follow: c.Data.followed(),
	}
	if c.splitData { // workers may join and leave
		e.Trainers = 0
	}
	if c.Threads > 1 { // so that states of one thread omit it
		e.Threads = c.Threads
	}
	if t := c.terms(); t.Mode != Async {
		e.Quorum, e.Deadline, e.Staleness, e.Geo = t.Quorum, t.Deadline, t.Staleness, t.Geo
	}
	for _, file := range append(slices.Clone(c.Data.File), c.Data.Images) {
		if file != "" {
			e.File += "," + filepath.Base(file)
		}
	}
	e.File = strings.TrimPrefix(e.File, ",")
	e.Shuffle = c.Data.shuffle()
	if s := c.Data.Described; s != nil {
		e.Measured = s.Measured()
	}
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // impossible: Validate has checked that all numbers are finite
	}
	return b
}

// state returns the state at a batch boundary.
// REQUIRES: no push is under way.
func (j *Job) state(ended bool) *state.State {
	c := j.report.Counted()
	s := &state.State{
		Job: j.cfg.Job, Rank: j.cfg.rank(), Trainers: j.cfg.Trainers, Ended: ended,
		Step: j.step, Examples: j.examples, Skipped: c.Skipped, Acknowledged: c.Acknowledged,
		Config: j.cfg.fingerprint(j.set.TrainSize()),
		Positions: []state.Position{{Share: j.cfg.rank(), Shares: j.cfg.Trainers, Epoch: j.at.epoch,
			Offset: j.at.offset}},
		Place: placeOf(j.at.place),
	}
	if m, ok := j.mode.(*mode.SyncStep); ok {
		s.JobStep = j.before.jobStep + m.Step() - 1
	}
	if j.splits != nil { // the checkpoint stores the job's positions once
		s.Positions = nil
	}
	at := 0
	for _, p := range j.layout.Params {
		n := p.Size()
		s.Tensors = append(s.Tensors, state.Tensor{Kind: state.InitialWeights, Name: p.Name, Shape: p.Shape,
			Values: j.layout.Initial[at : at+n]})
		at += n
	}
	s.Tensors = append(s.Tensors, j.hybrid.tensors()...)
	return s
}

// Resume makes the run continue where s was taken. Call it before Run.
//
// Errors: CodeInvalidArgument if s is the state of another job or trainer, or of another configuration; the error
// names the difference.
func (j *Job) Resume(s *state.State) error {
	if s.Job != j.cfg.Job || s.Rank != j.cfg.rank() || j.splits == nil && s.Trainers != j.cfg.Trainers {
		return invalid("this is trainer %d of %d of job %s, the state is that of trainer %d of %d of job %s",
			j.cfg.rank(), j.cfg.Trainers, j.cfg.Job, s.Rank, s.Trainers, s.Job)
	}
	if err := sameFingerprint(s.Config, j.cfg.fingerprint(j.set.TrainSize())); err != nil {
		return err
	}
	if divided := j.splits != nil; divided != (len(s.Positions) == 0) {
		return invalid("the data was divided differently when the checkpoint was made: splits is %v now", divided)
	}
	if j.splits == nil && (len(s.Positions) != 1 || s.Positions[0].Share != s.Rank ||
		s.Positions[0].Shares != s.Trainers) {
		return invalid("the state has positions in another share of the data: %v", s.Positions)
	}
	if err := j.layout.SetInitial(s); err != nil {
		return err
	}
	kept, err := j.hybrid.resume(s)
	if err != nil {
		return err
	}
	if len(s.Tensors) != len(j.layout.Params)+kept {
		return invalid("the state has %d tensors, the model %d", len(s.Tensors), len(j.layout.Params)+kept)
	}
	if j.splits == nil {
		j.at = position{s.Positions[0].Epoch, s.Positions[0].Offset, resumePlace(s.Place)}
	}
	j.step, j.examples = s.Step, s.Examples
	j.before = counters{step: s.Step, examples: s.Examples}
	if j.cfg.Mode == Sync {
		j.before.jobStep = s.JobStep
	}
	j.report.Resume(s.Acknowledged, s.Skipped)
	return nil
}

// counters are the counters of the processes before this one.
type counters struct{ step, examples, jobStep int64 }

// sameFingerprint returns an error that names the first field in which two configurations differ.
func sameFingerprint(was, is []byte) error {
	var a, b map[string]any
	if err := json.Unmarshal(was, &a); err != nil {
		return invalid("the configuration in the state: %w", err)
	}
	if err := json.Unmarshal(is, &b); err != nil {
		return invalid("the configuration: %w", err)
	}
	return sameFields("", a, b)
}

func sameFields(prefix string, a, b map[string]any) error {
	keys := slices.Collect(maps.Keys(a))
	for k := range b {
		if _, ok := a[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		x, xok := a[k].(map[string]any)
		y, yok := b[k].(map[string]any)
		if xok && yok {
			if err := sameFields(prefix+k+".", x, y); err != nil {
				return err
			}
			continue
		}
		if !reflect.DeepEqual(a[k], b[k]) {
			return invalid("%s was %v when the checkpoint was made, and is %v: resume with the same configuration",
				prefix+k, a[k], b[k])
		}
	}
	return nil
}
