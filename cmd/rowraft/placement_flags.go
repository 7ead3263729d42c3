package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/rowraft/rowraft/node"
	"github.com/rowraft/rowraft/scheduler"
)

// placementFlags say how the scheduler places replicas; all of its members should be
// given the same. labels is of servers.
type placementFlags struct {
	labels       string
	replaceAfter time.Duration
	rebalance    bool
}

func (f *placementFlags) register(fl *pflag.FlagSet) {
	fl.DurationVar(&f.replaceAfter, "replace-after", scheduler.DefaultReplaceAfter, "of the scheduler: a server that is silent, or a replica fenced, for so long has its replicas rebuilt on others; negative: never")
	fl.BoolVar(&f.rebalance, "rebalance", true, "of the scheduler: move replicas and leads until every server has as many, and zones are used; false: only where they must move")
}

func (f *placementFlags) set(cfg *node.Config) {
	cfg.Labels, cfg.ReplaceAfter, cfg.NoRebalance = f.labels, f.replaceAfter, !f.rebalance
}
