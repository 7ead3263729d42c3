package replica

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/node/hot"
	"github.com/rowraft/rowraft/node/traffic"
	"github.com/rowraft/rowraft/raftstore"
)

// readCounts counts the bounded reads of a replica.
type readCounts struct{ served, refused atomic.Uint64 }

// replicaMetrics are numbers of a replica that its status message does not contain.
var replicaMetrics = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*replica, *raftstore.GroupStatus) float64
}{
	{desc("replica_unproved_entries",
		"Entries applied since the newest comparison at which this replica had the rows of the majority."),
		prometheus.GaugeValue,
		func(r *replica, g *raftstore.GroupStatus) float64 {
			return float64(max(g.AppliedIndex, r.machine.Rounds.AgreedAt()) - r.machine.Rounds.AgreedAt())
		}},
	{desc("replica_proof_age_seconds",
		"Time since that comparison; 0 if there was none since the server started. It grows while no row changes."),
		prometheus.GaugeValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 {
			at := r.provedAt.Load()
			if at == 0 {
				return 0
			}
			return time.Since(time.Unix(0, at)).Seconds()
		}},
	{desc("shard_session_evictions_total", "Sessions of clients that made room for others."), prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.machine.Sessions.Evicted()) }},
	{desc("summed_pushes_total", "Pushes that the leader summed with others before the log."), prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.packer.Sums().Pushes.Load()) }},
	{desc("summed_pushes_saved_bytes_total", "Bytes that the log of this server is smaller for these sums."),
		prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.packer.Sums().SavedBytes.Load()) }},
	{desc("refused_sums_total",
		"Sums that apply refused, because one of their pushes was no longer new; the pushes were logged one by one."),
		prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.packer.Sums().Refused.Load()) }},
	{desc("bounded_reads_total", "Bounded reads that this replica served."), prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.reads.served.Load()) }},
	{desc("bounded_reads_refused_total",
		"Bounded reads refused because this replica could not prove that its rows are as new as was asked."),
		prometheus.CounterValue,
		func(r *replica, _ *raftstore.GroupStatus) float64 { return float64(r.reads.refused.Load()) }},
	{desc("raft_snapshot_installs_total",
		"Snapshots of the leader that this replica took, because the leader's log began behind it."), prometheus.CounterValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.Installs) }},
	{desc("raft_restarts_total", "Restarts of the shard's raft in place, by its supervisor; among them each lead given "+
		"up because the disk hung."), prometheus.CounterValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.Restarts) }},
	{desc("raft_log_written_timestamp_seconds",
		"When the shard's log on this disk was last written, in Unix time; 0 if not since the start."), prometheus.GaugeValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return unixSeconds(g.WrittenAt) }},
	{desc("raft_snapshot_timestamp_seconds",
		"When the newest snapshot of this replica was written, in Unix time; 0 if there is none."), prometheus.GaugeValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return unixSeconds(g.SnapshotAt) }},
	{desc("raft_snapshot_index", "Log index of that snapshot."), prometheus.GaugeValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.SnapshotIndex) }},
	{desc("raft_backlog_bytes", "Entries committed and not applied here."), prometheus.GaugeValue,
		func(_ *replica, g *raftstore.GroupStatus) float64 { return float64(g.BacklogBytes) }},
}

// unixSeconds returns t as Prometheus wants times; 0 for the zero time.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("rowraft_"+name, help, []string{"shard"}, nil)
}

var stageDesc = prometheus.NewDesc("rowraft_push_stage_seconds", "Time of a push on the leader, by stage: queue (of a "+
	"push, until it is in an entry), then of the entry log (until it is on this server's disk), replicate (until a "+
	"majority has it and the entries before it are applied) and apply.", []string{"stage"}, nil)

// Refusals calls f with the number of refused requests for each limit that package admit does not count.
func (h *Host) Refusals(f func(limit string, n uint64)) { h.traffic.Refusals(f) }

// Describe sends the descriptions of what Collect sends.
func (*Host) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range slices.Concat(traffic.Descs, hot.Descs, []*prometheus.Desc{stageDesc}) {
		ch <- d
	}
	for _, d := range replicaMetrics {
		ch <- d.desc
	}
}

// Collect sends the metrics of the replicas that Status does not contain, and those of the requests.
func (h *Host) Collect(ch chan<- prometheus.Metric) {
	h.traffic.Collect(ch)
	h.copies.Collect(ch)
	for stage, took := range map[string]*histogram.Durations{
		"queue": &h.queued, "log": &h.stages.Log, "replicate": &h.stages.Replicate, "apply": &h.stages.Apply,
	} {
		s := took.Snapshot()
		ch <- prometheus.MustNewConstHistogram(stageDesc, s.Count, s.Sum.Seconds(), s.Buckets, stage)
	}
	for _, r := range h.runningReplicas() {
		g := r.group.Status()
		for _, d := range replicaMetrics {
			ch <- prometheus.MustNewConstMetric(d.desc, d.kind, d.of(r, &g), strconv.Itoa(int(r.shard)))
		}
	}
}
