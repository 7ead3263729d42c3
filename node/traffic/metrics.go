package traffic

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	labels       = []string{"op", "code", "table"}
	requestsDesc = desc("requests_total", "Requests for a shard, by operation, result and table. A request that names "+
		"two tables counts for both; the table is empty if the request names none, \"unknown\" if the cluster does not "+
		"have it.", labels...)
	keysDesc      = desc("request_keys_total", "Keys of these requests.", labels...)
	unchangedDesc = desc("unchanged_keys_total", "Keys of pulls whose rows were not sent, because the client had their "+
		"version.", labels...)
	receivedDesc = desc("received_bytes_total", "Bytes of keys and values that these requests brought.", labels...)
	sentDesc     = desc("sent_bytes_total", "Bytes of rows that the answers to these requests took.", labels...)
	tookDesc     = desc("request_seconds", "Time from the arrival of a request to its answer, of requests that were "+
		"served or ran out of time, without refused ones.", "op")
)

// Descs describes the metrics of Collect.
var Descs = []*prometheus.Desc{requestsDesc, keysDesc, unchangedDesc, receivedDesc, sentDesc, tookDesc}

// Collect sends the counters that are not 0.
func (c *Counts) Collect(ch chan<- prometheus.Metric) {
	for op := range opNames {
		h := c.took[op].Snapshot()
		ch <- prometheus.MustNewConstHistogram(tookDesc, h.Count, h.Sum.Seconds(), h.Buckets, opNames[op])
	}
	c.mu.Lock()
	tables := []*table{&c.none, &c.unknown, &c.other}
	for _, t := range c.byName {
		tables = append(tables, t)
	}
	c.mu.Unlock()
	slices.SortFunc(tables, func(a, b *table) int { return cmp.Compare(a.name, b.name) })
	for i, t := range tables {
		if i > 0 && t.name == tables[i-1].name {
			continue // a table with the name of one of ours: see merge
		}
		for op := range opNames {
			for code := range codes {
				sum := merged(tables[i:], op, code)
				if sum.requests == 0 {
					continue
				}
				send := func(d *prometheus.Desc, n uint64) {
					ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), opNames[op], codeName(code), t.name)
				}
				send(requestsDesc, sum.requests)
				send(keysDesc, sum.keys)
				if op == int(Pull) {
					send(unchangedDesc, sum.unchanged)
				}
				send(receivedDesc, sum.received)
				send(sentDesc, sum.sent)
			}
		}
	}
}

type numbers struct{ requests, keys, unchanged, received, sent uint64 }

// merged returns the sums of the tables at the begin of list that have the same name: a user may call a table "other".
func merged(list []*table, op, code int) (n numbers) {
	for _, t := range list {
		if t.name != list[0].name {
			break
		}
		from := &t.by[op][code]
		n.requests += from.requests.Load()
		n.keys += from.keys.Load()
		n.unchanged += from.unchanged.Load()
		n.received += from.received.Load()
		n.sent += from.sent.Load()
	}
	return n
}

// Refusals calls f with the number of refused requests for each limit that package admit does not count.
func (c *Counts) Refusals(f func(limit string, n uint64)) {
	for i, name := range refusals {
		f(name, c.refused[i].Load())
	}
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("rowraft_"+name, help, labels, nil)
}
