package main

import (
	"fmt"

	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
)

// workload is the part of a result that names the table, the calls and the servers.
type workload struct {
	Optimizer string `json:"optimizer"`
	Tables    int    `json:"tables"`
	Rows      int    `json:"rows"` // of all tables together
	Dim       int    `json:"dim"`
	Memory    string `json:"table_memory"` // of a tiered table; "": all rows are in memory
	Batch     int    `json:"batch"`
	Conns     int    `json:"conns"`
	Keys      string `json:"keys"`
	Replicas  int    `json:"replicas"`
	Shards    int    `json:"shards"`
	Backend   string `json:"log_backend"`
	Profile   string `json:"profile"` // of the timers
	// Sync is how long fdatasync takes on the disk of the servers after a write of 64 KiB; null with --endpoints.
	Sync *float64 `json:"fdatasync_ms"`
	scaffold.Host
}

func workloadOf(cfg *benchConfig, m *clustermap.Map) workload {
	return workload{
		Optimizer: cfg.optimizer, Tables: cfg.tables, Rows: cfg.rows, Dim: cfg.dim, Memory: cfg.memory,
		Batch: cfg.batch, Conns: cfg.conns, Keys: cfg.keys,
		Replicas: len(m.Shards[0].Replicas), Shards: len(m.Shards), Backend: cfg.backend, Profile: cfg.profile,
		Sync: cfg.sync, Host: scaffold.ThisHost(),
	}
}

// facts returns the lines of package cli's Facts. The line of the table ends with more.
func (l *workload) facts(more string) []string {
	if l.Memory != "" {
		more += ", " + l.Memory + " of memory"
	}
	if l.Tables > 1 {
		more += fmt.Sprintf(", in %d tables", l.Tables)
	}
	disk := ""
	if l.Sync != nil {
		disk = fmt.Sprintf(", fdatasync %.2f ms", *l.Sync)
	}
	return []string{
		"table", fmt.Sprintf("%s rows, dim %d, %s, %s keys%s", cli.Count(uint64(l.Rows)), l.Dim, l.Optimizer, l.Keys, more),
		"servers", fmt.Sprintf("%s, %s, log %s, profile %s%s", cli.Plural(l.Replicas, "replica"),
			cli.Plural(l.Shards, "shard"), l.Backend, l.Profile, disk),
		"machine", l.Host.String(),
	}
}
