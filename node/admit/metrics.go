package admit

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	inFlightDesc      = desc("in_flight_bytes", "Pushes that are not applied and replies that are not taken.", "op")
	shardInFlightDesc = desc("shard_in_flight_bytes", "The same, by shard.", "shard")
	inFlightLimitDesc = desc("in_flight_limit_bytes", "What may be in flight: of the server, of one shard, of one client.",
		"of")
	clientsDesc = desc("in_flight_clients", "Clients that have something in flight.")
	refusedDesc = desc("refused_total",
		"Requests refused because a limit was reached, by the limit (docs/ops/overload.md).", "reason")
	memoryFullDesc = desc("memory_full",
		"1: pushes are refused because the process is near its memory limit (critical).")
	memoryUsedDesc = desc("memory_used_bytes",
		"What the process has, rows and Go's heap, without pages of files: what the limit is held against.")
	memoryLimitDesc = desc("memory_limit_bytes", "What the process may have; 0: unknown.")
)

// Descs describes the metrics of Collect.
var Descs = []*prometheus.Desc{inFlightDesc, shardInFlightDesc, inFlightLimitDesc, clientsDesc, refusedDesc,
	memoryFullDesc, memoryUsedDesc, memoryLimitDesc}

// Collect sends the bytes in flight and the refused requests; others calls its argument with the limits that other
// packages check. No metric has a label for the client: the number of clients has no bound.
func (a *Admission) Collect(ch chan<- prometheus.Metric, others func(func(limit string, n uint64))) {
	s := a.stats()
	gauge := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for op, name := range opNames {
		gauge(inFlightDesc, s.used[op], name)
	}
	for id, used := range s.shards {
		gauge(shardInFlightDesc, used, strconv.Itoa(int(id)))
	}
	gauge(inFlightLimitDesc, s.limits.InFlight, "server")
	gauge(inFlightLimitDesc, s.limits.Shard, "shard")
	gauge(inFlightLimitDesc, s.limits.Client, "client")
	gauge(clientsDesc, int64(s.clients))
	refused := func(limit string, n uint64) {
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(n), limit)
	}
	for why, name := range refusalNames {
		refused(name, s.refused[why])
	}
	others(refused)
	full := int64(0)
	if s.full {
		full = 1
	}
	gauge(memoryFullDesc, full)
	gauge(memoryUsedDesc, s.memory)
	gauge(memoryLimitDesc, s.limits.Memory)
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("rowraft_"+name, help, labels, nil)
}
