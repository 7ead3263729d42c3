package trainer

import (
	"path"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/trainer/models"
)

// Who computes the first values of a dense weight.
const (
	// InitSeed: every trainer for itself, from the job's seed; the table holds what
	// training added to them. Nobody writes, and nobody waits.
	InitSeed = "seed"
	// InitServer: the initializer of a table of the parameter's own, as for embeddings.
	InitServer = "server"
	// InitWorker: trainer 0, which writes them once; the others wait for it.
	InitWorker = "worker"
)

// Where a dense weight is kept.
const (
	PlaceServers  = "servers"  // in rows of a dense table
	PlaceTrainers = "trainers" // by each trainer, averaged between them
)

// ParameterConfig says of some dense weights where they are kept and who initializes
// them. Empty means: on the servers, from the seed.
type ParameterConfig struct {
	Name      string `yaml:"name" json:"name"` // of the model's parameter; * stands for any part of it
	Placement string `yaml:"placement" json:"placement,omitempty"`
	Init      string `yaml:"init" json:"init,omitempty"`
}

// placements that there are.
var placements = []string{PlaceServers, PlaceTrainers}

func (c *Config) validateParameters() error {
	for _, p := range c.Parameters {
		if _, err := path.Match(p.Name, ""); err != nil || p.Name == "" {
			return invalid("parameters: name %q: want a parameter of the model, or a pattern with *", p.Name)
		}
		if p.Placement != "" && !slices.Contains(placements, p.Placement) {
			return invalid("parameters: %s: placement %q: want %s", p.Name, p.Placement, strings.Join(placements, " or "))
		}
		if p.Placement == PlaceTrainers && p.Init != "" && p.Init != InitSeed {
			return invalid("parameters: %s: init %q of weights that the trainers keep: each computes them from the seed", p.Name, p.Init)
		}
		switch p.Init {
		case "", InitSeed, InitServer, InitWorker:
		default:
			return invalid("parameters: %s: init %q: want %s, %s or %s", p.Name, p.Init, InitSeed, InitServer, InitWorker)
		}
	}
	return c.validateHybrid()
}

// parameter is what the configuration says of a model's parameter, with the defaults.
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

// checkParameters reports an entry that is about no parameter of the model.
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
			return invalid("parameters: the model has no %s; it has %s", p.Name, strings.Join(names, ", "))
		}
	}
	return nil
}
