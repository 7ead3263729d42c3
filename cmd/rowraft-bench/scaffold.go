package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/cli"
)

// host is the machine of a measurement. It is a part of every result.
type host struct {
	Cores     int    `json:"cores"`
	Processor string `json:"cpu"`
	GoVersion string `json:"go_version"`
}

func thisHost() host { return host{runtime.NumCPU(), cpuModel(), runtime.Version()} }

func (h host) String() string {
	return fmt.Sprintf("%d cores, %s, %s", h.Cores, h.Processor, h.GoVersion)
}

// busyHost is the host of a measurement that the load of the machine's other users changes.
type busyHost struct {
	host
	Load [2]float64 `json:"machine_load"` // 1 minute average before and after
}

func (h busyHost) String() string {
	return fmt.Sprintf("%v, load %.1f before and %.1f after", h.host, h.Load[0], h.Load[1])
}

// workload is the part of a result that names the table, the calls and the servers.
type workload struct {
	Optimizer string `json:"optimizer"`
	Rows      int    `json:"rows"`
	Dim       int    `json:"dim"`
	Batch     int    `json:"batch"`
	Conns     int    `json:"conns"`
	Keys      string `json:"keys"`
	Replicas  int    `json:"replicas"`
	Shards    int    `json:"shards"`
	Backend   string `json:"log_backend"`
	host
}

func workloadOf(cfg *benchConfig, m *clustermap.Map) workload {
	return workload{
		Optimizer: cfg.optimizer, Rows: cfg.rows, Dim: cfg.dim, Batch: cfg.batch, Conns: cfg.conns, Keys: cfg.keys,
		Replicas: len(m.Shards[0].Replicas), Shards: len(m.Shards), Backend: cfg.backend, host: thisHost(),
	}
}

// facts returns the lines of package cli's Facts. The line of the table ends with more.
func (l *workload) facts(more string) []string {
	return []string{
		"table", fmt.Sprintf("%s rows, dim %d, %s, %s keys%s", cli.Count(uint64(l.Rows)), l.Dim, l.Optimizer, l.Keys, more),
		"servers", fmt.Sprintf("%s, %s, log %s", cli.Plural(l.Replicas, "replica"), cli.Plural(l.Shards, "shard"), l.Backend),
		"machine", l.host.String(),
	}
}

// bars is the part of a result that holds it against its bars.
type bars struct {
	Passed bool     `json:"passed"`
	Failed []string `json:"failed,omitempty"` // the figures that missed their bars
}

func (b *bars) miss(format string, args ...any) {
	b.Failed = append(b.Failed, fmt.Sprintf(format, args...))
}

// summary is the verdict for people.
func (b *bars) summary() string {
	if b.Passed {
		return "passed"
	}
	return "missed: " + strings.Join(b.Failed, "; ")
}

// verdict is the error of a result that --check does not let pass.
func (b *bars) verdict(op string) error {
	if b.Passed {
		return nil
	}
	return cli.Verdict(fmt.Errorf("bench %s: %s", op, strings.Join(b.Failed, "; ")))
}
