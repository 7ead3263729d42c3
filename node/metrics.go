package node

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
)

// metrics computes the metrics of a server when a scrape requests them: pulls and pushes count nothing.
// Labels are shards, tables and servers, never keys, because the number of keys has no bound.
type metrics struct{ n *Node }

// numberOf is one metric of a replica.
type numberOf struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*rowraftv1.ReplicaStatus) float64
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("rowraft_"+name, help, labels, nil)
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var replicaMetrics = []numberOf{
	{desc("replica_fenced", "1: this replica differed from the majority and serves nothing any more (critical).", "shard"),
		prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return bit(r.Fenced != "") }},
	{desc("replica_divided", "1: no majority of the replicas had the same rows, no replica serves the shard (critical).",
		"shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return bit(r.DividedIndex != 0) }},
	{desc("replica_failed", "1: this replica has stopped by an error.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return bit(r.Error != "") }},
	{desc("replica_proved_index", "Log index of the newest comparison at which this replica had the rows of the majority.",
		"shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.ProvedIndex) }},
	{desc("shard_leader", "1: this server leads the shard.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return bit(r.Role == string(raftstore.RoleLeader)) }},
	{desc("raft_has_leader", "1: this server knows a leader of the shard.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return bit(r.LeaderNode != "") }},
	{desc("raft_heartbeat_seconds", "Heartbeat and election timeout of the shard's Raft timers.", "shard"),
		prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return time.Duration(r.HeartbeatNs).Seconds() }},
	{desc("raft_term", "Raft term.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.Term) }},
	{desc("raft_commit_index", "Highest log index known to be on a majority of disks.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.CommitIndex) }},
	{desc("raft_applied_index", "Highest log index that this replica's rows have.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.AppliedIndex) }},
	{desc("raft_apply_lag_entries", "Entries committed and not applied here.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 {
			return float64(max(r.CommitIndex, r.AppliedIndex) - r.AppliedIndex)
		}},
	{desc("raft_log_bytes", "Log of the shard on this disk.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.LogBytes) }},
	{desc("shard_rows", "Rows of the shard in this replica.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.Rows) }},
	{desc("shard_memory_bytes", "Rows and index of the shard, off the Go heap.", "shard"), prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.MemoryBytes) }},
	{desc("shard_sessions", "Clients whose sessions this replica remembers.", "shard"),
		prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.Sessions) }},
	{desc("shard_sessions_in_use", "Sessions that would not make room for another one now.", "shard"),
		prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.SessionsInUse) }},
	{desc("shard_owner_sessions_in_use", "The most of them that one owner has.", "shard"),
		prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return float64(r.OwnerSessionsInUse) }},
	{desc("shard_restore_staged", "1: a restore has rows staged here; the shard takes no snapshot meanwhile.", "shard"),
		prometheus.GaugeValue,
		func(r *rowraftv1.ReplicaStatus) float64 { return bit(len(r.StagedRestore) > 0) }},
}

// tableMetrics have the labels shard and table.
var tableMetrics = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*rowraftv1.TableStats) float64
}{
	{desc("table_rows", "Rows of the table in this replica of the shard.", "table", "shard"), prometheus.GaugeValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.Rows) }},
	{desc("table_memory_bytes", "Rows and index of the table, off the Go heap.", "table", "shard"), prometheus.GaugeValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.MemoryBytes) }},
	{desc("table_inserts_total", "Rows made, of a table with admission, expiry or a capacity, since the replica started.",
		"table", "shard"), prometheus.CounterValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.Admitted) }},
	{desc("table_admission_rejected_total", "Pushes of keys that had no row yet and got none.", "table", "shard"),
		prometheus.CounterValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.Rejected) }},
	{desc("table_evictions_total", "Rows that made room.", "table", "shard"), prometheus.CounterValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.Evicted) }},
	{desc("table_expirations_total", "Rows that were not pushed for too long.", "table", "shard"), prometheus.CounterValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.Expired) }},
	{desc("table_candidates", "Keys that wait for a row.", "table", "shard"), prometheus.GaugeValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.Candidates) }},
	{desc("table_cold_rows", "Rows of a tiered table that are on disk.", "table", "shard"), prometheus.GaugeValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.ColdRows) }},
	{desc("table_cold_file_bytes", "Size of the file with these rows.", "table", "shard"), prometheus.GaugeValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.ColdFileBytes) }},
	{desc("table_cold_rows_read_total", "Rows read from that file.", "table", "shard"), prometheus.CounterValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.ColdRowsRead) }},
	{desc("table_cold_rows_written_total", "Rows written to that file.", "table", "shard"), prometheus.CounterValue,
		func(t *rowraftv1.TableStats) float64 { return float64(t.ColdRowsWritten) }},
	{desc("table_cold_failed", "1: that file cannot be written or read, and pushes to the table are refused.", "table",
		"shard"), prometheus.GaugeValue,
		func(t *rowraftv1.TableStats) float64 { return bit(t.ColdError != "") }},
}

var (
	buildInfo = desc("build_info", "1, with the version of the binary.", "version", "server_id")
	readyDesc = desc("ready", "1: /readyz says ok.")
	profile   = desc("raft_profile_info", "1, with the name of the Raft timers: fast, default or dense.", "profile")
	certDesc  = desc("certificate_expiry_timestamp_seconds",
		"When this server's certificate ends, in Unix time: replace its files before; no restart is needed.")
	fsyncDesc = desc("disk_fsync_seconds", "How long a write to a log takes on this server's disk with its fsync: "+
		"the third worst second of the last two minutes.")
	lateDesc = desc("timer_lateness_seconds",
		"How late timers of this server fire for lack of CPU: the third worst second of the last two minutes.")
	needDesc = desc("raft_needed_heartbeat_seconds", "Heartbeat timeout that this server needs by its profile, its "+
		"disk and its CPU; the shards take the longest that any of their servers needs.")
	diskFree  = desc("disk_free_bytes", "Free where this server keeps its data, as seen every few seconds.")
	diskKept  = desc("disk_reserve_bytes", "With less free, the shards that this server leads refuse pushes.")
	matchDesc = desc("raft_member_match_index",
		"Last entry of the leader's log that a member is known to have; by the leader.", "shard", "member")
	logWriteDesc = desc("raft_log_write_seconds", "Time of a log write with its fsync, of all shards of this server.")
	sessionsDesc = desc("sessions_limit", "Sessions that a shard has room for, and that one owner may have of them.", "of")
	snapshotDesc = desc("raft_snapshot_seconds", "Time of a snapshot for the logs, of all shards of this server.")
	lagDesc      = desc("raft_member_lag_entries",
		"Entries of the leader's log that a member is not known to have; by the leader.", "shard", "member")
)

// Describe and Collect implement prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{buildInfo, profile, fsyncDesc, lateDesc, needDesc, readyDesc, certDesc, diskFree,
		diskKept, lagDesc} {
		ch <- d
	}
	for _, d := range admit.Descs {
		ch <- d
	}
	for _, d := range replicaMetrics {
		ch <- d.desc
	}
	m.n.host.Describe(ch)
	m.n.sched.Describe(ch)
	ch <- matchDesc
	ch <- logWriteDesc
	ch <- snapshotDesc
	ch <- sessionsDesc
	for _, d := range tableMetrics {
		ch <- d.desc
	}
}

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	if m.n.certs != nil {
		ch <- prometheus.MustNewConstMetric(certDesc, prometheus.GaugeValue, float64(m.n.certs.NotAfter().Unix()))
	}
	if s := m.n.slowness(); s != nil {
		ch <- prometheus.MustNewConstMetric(fsyncDesc, prometheus.GaugeValue, time.Duration(s.FsyncNs).Seconds())
		ch <- prometheus.MustNewConstMetric(lateDesc, prometheus.GaugeValue, time.Duration(s.LatenessNs).Seconds())
		ch <- prometheus.MustNewConstMetric(needDesc, prometheus.GaugeValue, time.Duration(s.HeartbeatNs).Seconds())
	}
	if d := m.n.disk(); d != nil {
		ch <- prometheus.MustNewConstMetric(diskFree, prometheus.GaugeValue, float64(d.FreeBytes))
		ch <- prometheus.MustNewConstMetric(diskKept, prometheus.GaugeValue, float64(d.ReserveBytes))
	}
	if store := m.n.opened.Load(); store != nil {
		for d, h := range map[*prometheus.Desc]histogram.Snapshot{
			logWriteDesc: store.LogWrites(), snapshotDesc: store.SnapshotTimes(),
		} {
			ch <- prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), h.Buckets)
		}
	}
	ch <- prometheus.MustNewConstMetric(sessionsDesc, prometheus.GaugeValue, shard.MaxSessions, "shard")
	ch <- prometheus.MustNewConstMetric(sessionsDesc, prometheus.GaugeValue, shard.MaxOwnerSessions, "owner")
	m.n.host.Collect(ch)
	m.n.sched.Collect(ch)
	replicas := m.n.host.Status()
	ch <- prometheus.MustNewConstMetric(buildInfo, prometheus.GaugeValue, 1, m.n.cfg.Version, string(m.n.self.ID))
	ch <- prometheus.MustNewConstMetric(readyDesc, prometheus.GaugeValue, bit(m.n.notReady(replicas) == ""))
	m.n.admission.Collect(ch, m.n.host.Refusals)
	ch <- prometheus.MustNewConstMetric(profile, prometheus.GaugeValue, 1, m.n.profile())
	nodes, tables := m.names()
	for _, r := range replicas {
		id := strconv.Itoa(int(r.Shard))
		for _, d := range replicaMetrics {
			ch <- prometheus.MustNewConstMetric(d.desc, d.kind, d.of(r), id)
		}
		for _, member := range r.Members {
			ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, float64(member.LagEntries), id,
				nodes(member.Node))
			ch <- prometheus.MustNewConstMetric(matchDesc, prometheus.GaugeValue, float64(member.MatchIndex), id,
				nodes(member.Node))
		}
		for _, t := range r.Tables {
			for _, d := range tableMetrics {
				ch <- prometheus.MustNewConstMetric(d.desc, d.kind, d.of(t), tables(t.Table), id)
			}
		}
	}
}

// names returns functions that map ids to the names of servers and tables. A function returns the id if the
// name is unknown.
func (m *metrics) names() (node func(id string) string, table func(id uint64) string) {
	cm := m.n.host.Map()
	node = func(id string) string {
		if cm != nil {
			if found, ok := cm.Node(rowraft.NodeID(id)); ok && found.Name != "" {
				return found.Name
			}
		}
		return id
	}
	table = func(id uint64) string {
		if cm != nil {
			for _, t := range cm.Tables {
				if uint64(t.ID) == id {
					return t.Name
				}
			}
		}
		return strconv.FormatUint(id, 16)
	}
	return node, table
}
