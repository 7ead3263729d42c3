package trainer

import (
	"path"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/tables"
)

// The process that computes the initial values of a dense weight.
const (
	// InitSeed: every trainer computes them from the job's seed; the table holds what training added. No trainer
	// writes or waits.
	InitSeed = "seed"
	// InitServer: the initializer of a table of the parameter's own, as for embeddings.
	InitServer = "server"
	// InitWorker: trainer 0 or the first that enters the job writes them once; the others wait for it.
	InitWorker = "worker"
)

// The process that stores a dense weight.
const (
	PlaceServers  = "servers"  // in rows of a dense table
	PlaceTrainers = "trainers" // by each trainer, averaged between them
)

// ParameterConfig configures some dense weights. An empty field means: on the servers, from the seed.
type ParameterConfig struct {
	Name      string `yaml:"name" json:"name"` // the name of the model's parameter; * matches any part of it
	Placement string `yaml:"placement" json:"placement,omitempty"`
	Init      string `yaml:"init" json:"init,omitempty"`
}

// placements are the valid placements.
var placements = []string{PlaceServers, PlaceTrainers}

func (c *Config) validateParameters() error {
	for _, p := range c.Parameters {
		if _, err := path.Match(p.Name, ""); err != nil || p.Name == "" {
			return invalid("parameters: name %q: want a parameter of the model, or a pattern with *", p.Name)
		}
		if p.Placement != "" && !slices.Contains(placements, p.Placement) {
			return invalid("parameters: %s: placement %q: want %s", p.Name, p.Placement,
				strings.Join(placements, " or "))
		}
		if p.Placement == PlaceTrainers && p.Init != "" && p.Init != InitSeed {
			return invalid("parameters: %s: init is %q, but the trainers keep these weights, and each computes them "+
				"from the seed: remove init", p.Name, p.Init)
		}
		switch p.Init {
		case "", InitSeed, InitServer, InitWorker:
		default:
			return invalid("parameters: %s: init %q: want %s, %s or %s", p.Name, p.Init, InitSeed, InitServer,
				InitWorker)
		}
	}
	return c.validateHybrid()
}

// parameter returns the configuration of a model's parameter, with defaults.
func (c *Config) parameter(name string) ParameterConfig {
	found := ParameterConfig{Name: name}
	for _, p := range c.Parameters {
		if ok, _ := path.Match(p.Name, name); ok {
			found = p
			break
		}
	}
	if found.Placement == "" {
		found.Placement = PlaceServers
	}
	if found.Init == "" {
		found.Init = InitSeed
	}
	return found
}

// checkParameters returns an error for an entry that matches no parameter of the model.
func (c *Config) checkParameters(params []models.Param) error {
	var names []string
	for _, p := range params {
		names = append(names, p.Name)
	}
	for _, p := range c.Parameters {
		used := false
		for _, name := range names {
			ok, _ := path.Match(p.Name, name)
			used = used || ok
		}
		if !used {
			return invalid("parameters: the model has no parameter %s; it has %s", p.Name, strings.Join(names, ", "))
		}
	}
	return nil
}

// newLayout returns the layout of the dense weights of a model with these parameters.
func (c *Config) newLayout(params []models.Param) (*dense.Layout, error) {
	if err := c.checkParameters(params); err != nil {
		return nil, err
	}
	places := make([]dense.Place, len(params))
	for i, p := range params {
		switch conf := c.parameter(p.Name); {
		case conf.Placement == PlaceTrainers:
			places[i] = dense.Kept
		case conf.Init == InitServer:
			places[i] = dense.Served
		case conf.Init == InitWorker:
			places[i] = dense.Written
		default:
			if err := c.Dense.FitsDifferences(p.Name); err != nil {
				return nil, err
			}
		}
	}
	like := rowraft.Schema{Name: c.Job + tables.DenseSuffix, Kind: rowraft.Dense, Dim: dense.Width}
	like.Optimizer, _ = c.Dense.Rule()
	_ = c.Dense.Policies(&like)
	if c.Mode == Geo {
		like.Optimizer = rowraft.Optimizer{Kind: rowraft.Add}
	}
	return dense.New(params, places, c.Seed, like)
}
