package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/rowraft/rowraft/e2e/cluster"
)

// sum collects what the run has seen, and whether that was enough.
func (r *chaos) sum() {
	c := r.load.Counts()
	r.res.Acks, r.res.Pulls, r.res.Refused, r.res.Unknown = c.Acks, c.Pulls, c.Refused, c.Unknown
	r.res.Pushes = c.Acks + c.Refused + c.Unknown
	r.res.Terms = r.watch.Terms()
	r.res.Gap = r.load.LongestGap().Seconds()
	r.res.Faults = r.world.Counts()
	r.res.Tried, r.res.Observed = totals(r.res.Faults)
	for _, p := range slices.Concat(r.world.Problems(), r.load.Problems(), r.watch.Doubles()) {
		r.wrong("%s", p)
	}
	if len(r.res.Problems) > 0 {
		return // a run cut short has done little
	}
	if least := int64(minAcksPerSecond * r.cfg.For.Seconds()); c.Acks < least {
		r.wrong("too little happened: %d pushes acknowledged, want %d", c.Acks, least)
	}
	if least := int(minFaultsPerMinute * r.cfg.For.Minutes()); r.res.Observed < least {
		r.wrong("too little happened: %d faults observed, want %d", r.res.Observed, least)
	}
	for _, k := range slices.Sorted(maps.Keys(r.res.Faults)) {
		if n := r.res.Faults[k]; n.Tried > 1 && n.Observed == 0 {
			r.wrong("fault %s was tried %d times and never had an effect", k, n.Tried)
		}
	}
	if c.Unknown > 0 {
		r.wrong("%d pushes ended with an unknown outcome: clients must retry until they know", c.Unknown)
	}
}

// descriptors counts the open files of every server.
func (r *chaos) descriptors() map[string]int {
	out := make(map[string]int)
	for _, name := range r.cluster.Names() {
		out[name] = r.cluster.Descriptors(name)
	}
	return out
}

func (r *chaos) compareDescriptors(before map[string]int) {
	for name, now := range r.descriptors() {
		if now > before[name]+descriptorSlack {
			r.wrong("server %s holds %d files and sockets, %d before the faults", name, now, before[name])
		}
	}
}

// lookAtLogs finds what must not stand in the servers' logs.
func (r *chaos) lookAtLogs() {
	for _, name := range r.cluster.Names() {
		b, err := os.ReadFile(r.cluster.Server(name).LogFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.wrong("%v", err)
		}
		for _, line := range cluster.BadLines(b) {
			r.wrong("log of server %s: %s", name, line)
		}
	}
}
