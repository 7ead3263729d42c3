package node

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowraft/rowraft/raftstore"
)

// readCounts counts the bounded reads of a replica.
type readCounts struct{ served, refused atomic.Uint64 }

var (
	matchDesc    = desc("raft_member_match_index", "Last entry of the leader's log that a member is known to have; by the leader.", "shard", "member")
	logWriteDesc = desc("raft_log_write_seconds", "Time of a log write with its fsync, of all shards of this server.")
)

// insideMetrics are numbers of a replica that its status message does not contain.
var insideMetrics = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*replica, *raftstore.GroupStatus) float64
}{
	{desc("replica_unproved_entries", "Entries applied since the newest comparison at which this replica had the rows of the majority.", "shard"), prometheus.GaugeValue,
		func(r *replica, g *raftstore.GroupStatus) float64 {
			return float64(max(g.AppliedIndex, r.machine.AgreedAt()) - r.machine.AgreedAt())
		}},
	{desc("replica_proof_age_seconds", "Time since that comparison; 0 if there was none since the server started. It grows while no row changes.", "shard"), prometheus.GaugeValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 {
			at := r.provedAt.Load()
			if at == 0 {
				return 0
			}
			return time.Since(time.Unix(0, at)).Seconds()
		}},
	{desc("shard_session_evictions_total", "Sessions of clients that made room for others.", "shard"), prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.machine.EvictedSessions()) }},
	{desc("bounded_reads_total", "Bounded reads that this replica served.", "shard"), prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.reads.served.Load()) }},
	{desc("bounded_reads_refused_total", "Bounded reads refused because this replica could not prove that its rows are as new as was asked.", "shard"), prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.reads.refused.Load()) }},
	{desc("raft_snapshot_installs_total", "Snapshots of the leader that this replica took, because the leader's log began behind it.", "shard"), prometheus.CounterValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.Installs) }},
	{desc("raft_restarts_total", "Restarts of the shard's raft in place, by its supervisor.", "shard"), prometheus.CounterValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.Restarts) }},
	{desc("raft_backlog_bytes", "Entries committed and not applied here.", "shard"), prometheus.GaugeValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.BacklogBytes) }},
}

// inside sends the metrics that the status message does not contain.
func (m *metrics) inside(ch chan<- prometheus.Metric) {
	if store := m.n.opened.Load(); store != nil {
		h := store.LogWrites()
		ch <- prometheus.MustNewConstHistogram(logWriteDesc, h.Count, h.Sum.Seconds(), h.Buckets)
	}
	for _, r := range m.n.runningReplicas() {
		g := r.group.Status()
		for _, d := range insideMetrics {
			ch <- prometheus.MustNewConstMetric(d.desc, d.kind, d.of(r, &g), strconv.Itoa(int(r.shard)))
		}
	}
}
