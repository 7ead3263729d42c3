package trainer

import (
	"context"
	"os"

	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/report"
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

// Served returns the model of a job for package serving, with its weights in t. It makes c a job whose examples come
// from requests, with a complete schema: if the schema standardizes by the training examples, it reads these.
//
// The tables of the job must exist, and t must create none: [tables.OpenCluster].
//
// Errors: CodeInvalidArgument for a bad configuration, and for a job whose examples no request can have; those of t.
func Served(ctx context.Context, c *Config, t tables.Tables) (*serving.Model, error) {
	if err := serveRequests(c); err != nil {
		return nil, err
	}
	shape := c.Data.Described.Shape()
	j := &Job{cfg: *c, tables: t, shape: shape, fields: newFields(c, shape.Categorical),
		report: report.NewReport(0, func(report.Event) {})}
	backend, _, err := accel.Open(c.Device)
	if err != nil {
		return nil, err
	}
	open := func() (models.Model, error) { return c.newModel(backend, shape, c.Batch) }
	first, err := open()
	if err != nil {
		return nil, err
	}
	if j.layout, err = c.newLayout(first.Params()); err != nil {
		return nil, err
	}
	if err := j.openTables(ctx); err != nil {
		return nil, err
	}
	return &serving.Model{Shape: shape, Batch: c.Batch, Fields: j.fields, Dense: j.layout, New: open}, nil
}

// serveRequests replaces the data of c by requests.
func serveRequests(c *Config) error {
	d := &c.Data
	if d.Described == nil && d.Schema == "" {
		return invalid("job %s learns from generated examples or images, which no request has: want a job with a schema",
			c.Job)
	}
	if c.trainersKeepWeights() {
		return errElsewhere
	}
	var err error
	if d.Described == nil {
		if d.Described, err = data.LoadSchema(d.Schema); err != nil {
			return err
		}
	}
	if len(d.File) > 0 && !d.Described.Complete() {
		if err := c.Validate(); err != nil {
			return err
		}
		if _, err := c.OpenData(); err != nil {
			return err
		}
	}
	c.Data = DataConfig{Described: d.Described, Requests: true}
	c.Generator, c.Validation, c.Audit, c.Threads = nil, nil, false, 1
	if err := c.Validate(); err != nil {
		return err
	}
	if !c.Data.Described.Complete() {
		return invalid("job %s: the schema depends on the training examples, which are not there: give the file of train "+
			"--save-model", c.Job)
	}
	return nil
}
