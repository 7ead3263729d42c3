package server

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/node"
	"github.com/rowraft/rowraft/scheduler"
)

// placementFlags configure the placement of replicas; all members of the scheduler should get the same values. labels
// is for servers.
type placementFlags struct {
	labels       string
	replaceAfter time.Duration
	rebalance    bool
	destinations []string
}

func (f *placementFlags) register(fl *pflag.FlagSet) {
	fl.DurationVar(&f.replaceAfter, "replace-after", scheduler.DefaultReplaceAfter,
		"of the scheduler: a server that is silent, or a replica fenced, for so long has its replicas rebuilt on others; "+
			"negative: never")
	fl.StringSliceVar(&f.destinations, "checkpoint-destination", nil, "of the scheduler: trainers whose certificate is "+
		"for all tables may have checkpoints written here and below: an absolute path or s3://bucket/prefix; may be "+
		"repeated; default: only admins and operators have checkpoints written. No effect with --insecure")
	fl.BoolVar(&f.rebalance, "rebalance", true, "of the scheduler: move replicas and leads until every server has as "+
		"many, and zones are used; false: only where they must move")
}

func (f *placementFlags) set(cfg *node.Config) {
	cfg.CheckpointDestinations = f.destinations
	cfg.Labels, cfg.ReplaceAfter, cfg.NoRebalance = f.labels, f.replaceAfter, !f.rebalance
}
