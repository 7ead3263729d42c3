package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/nemesis"
	"github.com/rowraft/rowraft/raftstore"
)

// sum collects the observations of the run, and checks that the run did enough.
func (r *chaos) sum() {
	c := r.load.Counts()
	r.res.Acks, r.res.Pulls, r.res.Refused, r.res.Unknown = c.Acks, c.Pulls, c.Refused, c.Unknown
	r.res.Pushes = c.Acks + c.Refused + c.Unknown
	r.res.Gap = r.load.LongestGap().Seconds()
	r.res.Faults = r.world.Counts()
	r.res.Tried, r.res.Observed = totals(r.res.Faults)
	for _, p := range slices.Concat(r.world.Problems(), r.load.Problems()) {
		r.wrong("%s", p)
	}
	if len(r.res.Problems) > 0 {
		return // an interrupted run has done little
	}
	if least := int64(minAcksPerSecond * r.cfg.For.Seconds()); c.Acks < least {
		r.wrong("too little happened: %d pushes acknowledged, want %d", c.Acks, least)
	}
	if least := int(nemesis.MinPerMinute(r.cfg.Faults) * r.cfg.For.Minutes()); r.res.Observed < least {
		r.wrong("too little happened: %d faults observed, want %d", r.res.Observed, least)
	}
	for _, k := range slices.Sorted(maps.Keys(r.res.Faults)) {
		if n := r.res.Faults[k]; n.Idle() {
			r.wrong("fault %s was tried %d times and never had an effect", k, n.Tried)
		}
	}
	if c.Unknown > 0 {
		r.wrong("%d pushes ended with an unknown outcome: clients must retry until they know", c.Unknown)
	}
}

// readLogs reads errors from the servers' logs, and the leader of each shard in each term: the logs include
// terms that were too short for sampling.
func (r *chaos) readLogs() []check.Leading {
	var leads []check.Leading
	for _, name := range r.cluster.Names() {
		b, err := os.ReadFile(r.cluster.Server(name).LogFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.wrong("%v", err)
		}
		for _, line := range cluster.BadLines(b) {
			if strings.Contains(line, raftstore.RolledBack) {
				continue // WronglyRefused checks these
			}
			r.wrong("log of server %s: %s", name, line)
		}
		leads = append(leads, leadsIn(b)...)
	}
	if len(leads) == 0 {
		r.wrong("no server has logged that it leads a shard")
	}
	return leads
}

// leadsIn returns the leaderships in a server's log.
func leadsIn(log []byte) []check.Leading {
	var out []check.Leading
	for line := range bytes.Lines(log) {
		var e struct {
			Msg, Replica string
			Shard        int
			Term         uint64
		}
		if bytes.Contains(line, []byte("leads the shard")) && json.Unmarshal(line, &e) == nil && e.Msg == "leads the shard" {
			out = append(out, check.Leading{Shard: e.Shard, Term: e.Term, Replica: e.Replica})
		}
	}
	return out
}
