package trainer

import (
	"os"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/serving"
	"github.com/rowraft/rowraft/trainer/tables"
)

// LoadServed reads the file of a job, or that of SaveModel. Reads has no mode unless the file of the job sets one.
func LoadServed(path string) (Config, error) {
	c := DefaultConfig()
	c.Reads = tables.ReadConfig{}
	text, err := os.ReadFile(path)
	if err != nil {
		return c, invalid("job: %w", err)
	}
	if !hasKey(text, "schema") {
		return loadConfig(path, c)
	}
	model, err := LoadModel(path)
	model.Reads = c.Reads
	return model, err
}

// Served returns the model for package serving. The tables of OpenModel must create none: [tables.OpenCluster].
//
// Errors: CodeInvalidArgument if no request can have the examples; CodePrecondition if the trainers keep weights.
func (m *Model) Served() (*serving.Model, error) {
	c := m.Config()
	if c.Data.Described == nil {
		return nil, invalid("job %s learns from generated examples or images, which no request has: want a job with a schema",
			c.Job)
	}
	if m.job.hybrid != nil {
		return nil, errElsewhere
	}
	backend, _, err := accel.Open(c.Device)
	if err != nil {
		return nil, err
	}
	return &serving.Model{Shape: m.job.shape, Batch: c.Batch, Fields: m.job.fields, Dense: m.job.layout,
		New: func() (models.Model, error) { return c.newModel(backend, m.job.shape, c.Batch) }}, nil
}
