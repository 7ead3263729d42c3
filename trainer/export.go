package trainer

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/data/request"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Model is the model of a job with its weights, without data.
type Model struct {
	job     *Job
	trained bool // by this process, which has the weights that trainers keep
}

// OpenModel opens the model of a job and its tables. It reads examples only if the schema lacks what they decide.
//
// Errors: as NewJob.
func OpenModel(ctx context.Context, cfg Config, t tables.Tables) (*Model, error) {
	if cfg.Data.Described == nil && cfg.Data.Schema != "" {
		var err error
		if cfg.Data.Described, err = data.LoadSchema(cfg.Data.Schema); err != nil {
			return nil, err
		}
	}
	if s := cfg.Data.Described; s != nil && s.Complete() {
		cfg.set = request.NoExamples{Schema: s}
	} else {
		var err error
		if cfg.set, err = cfg.OpenData(); err != nil {
			return nil, err
		}
	}
	j, err := NewJob(ctx, cfg, t, nil)
	return &Model{job: j}, err
}

// TrainedModel returns the model that j has trained. Call it after Run.
func TrainedModel(j *Job) *Model { return &Model{job: j, trained: true} }

// Config returns the configuration of the job. Its schema is complete.
func (m *Model) Config() *Config { return &m.job.cfg }

// Embeddings returns the tables of embeddings, with their ids.
func (m *Model) Embeddings() []rowraft.Schema { return m.job.fields.Tables }

// Weights returns the parameters of the model and their present weights, one after the other. saved is the state of a
// trainer in the checkpoint that the tables are from, or nil.
//
// Errors: CodePrecondition if the trainers keep dense weights and saved is nil; CodeInvalidArgument if saved is the
// state of another model; those of the tables.
func (m *Model) Weights(ctx context.Context, saved *state.State) ([]models.Param, []float32, error) {
	j := m.job
	if saved != nil {
		if err := j.layout.SetInitial(saved); err != nil {
			return nil, nil, err
		}
		if _, err := j.hybrid.resume(saved); err != nil {
			return nil, nil, err
		}
	} else if j.hybrid != nil && !m.trained {
		return nil, nil, rowraft.Errorf(rowraft.CodePrecondition,
			"the trainers keep dense weights of job %s: only they have them, and a checkpoint that they took part in",
			j.cfg.Job)
	}
	flat := make([]float32, len(j.layout.Initial))
	return j.layout.Params, flat, pullDense(ctx, j, flat)
}

// pullDense writes the present dense weights to flat.
func pullDense(ctx context.Context, j *Job, flat []float32) error {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	delta := make([]float32, j.layout.Rows*dense.Width)
	if segs := j.layout.Segments(nil, delta); len(segs) > 0 {
		if err := j.tables.Pull(ctx, segs); err != nil {
			return fmt.Errorf("dense weights: %w", err)
		}
	}
	j.layout.Weights(flat, delta)
	j.hybrid.fill(flat)
	return nil
}
