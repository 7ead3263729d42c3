package trainer

import (
	"crypto/rand"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/rowraft/rowraft/trainer/data"
)

// modelFile is the description of a trained model: what is needed to read its tables and to parse examples.
type modelFile struct {
	Job    Config       `yaml:"model"`
	Schema *data.Schema `yaml:"schema"` // complete; nil for generated data
}

// SaveModel writes the description of the job's model to a file. The weights stay in the cluster's tables.
func (c *Config) SaveModel(path string) error {
	f := modelFile{Job: DefaultConfig()}
	m := &f.Job
	m.Job, m.Endpoints, m.DType, m.Seed, m.Batch = c.Job, c.Endpoints, c.DType, c.Seed, c.Batch
	m.Model, m.Embeddings, m.Dense, m.Parameters, m.Average = c.Model, c.Embeddings, c.Dense, c.Parameters, c.Average
	if c.Mode == Geo { // its tables add differences
		m.Mode = Geo
	}
	if f.Schema = c.Data.Described; f.Schema == nil && c.Data.Schema != "" {
		var err error
		if f.Schema, err = data.LoadSchema(c.Data.Schema); err != nil {
			return err
		}
	}
	text, err := yaml.Marshal(&f)
	if err != nil {
		return err
	}
	text = append([]byte("# A model that rowraft-trainer trained, for rowraft-trainer evaluate --model.\n"), text...)
	part := path + "." + rand.Text() + ".tmp" // other trainers may write the file, too
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// LoadModel reads the file of SaveModel. The caller adds the data.
func LoadModel(path string) (Config, error) {
	f := modelFile{Job: DefaultConfig()}
	text, err := os.ReadFile(path)
	if err != nil {
		return f.Job, invalid("model: %w", err)
	}
	if err := data.DecodeYAML(path, text, &f); err != nil {
		return f.Job, err
	}
	f.Job.Data.Described = f.Schema
	return f.Job, nil
}
