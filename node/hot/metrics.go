package hot

import "github.com/prometheus/client_golang/prometheus"

var (
	copiesRows = prometheus.NewDesc("rowraft_copies_rows_total", "Rows of bounded reads of shards without a replica on "+
		"this server, by source: copy, or fetched from a replica (of them stale: the copy was too old); sent are hot "+
		"rows that leaders sent ahead of reads.",
		[]string{"source"}, nil)
	copiesAge = prometheus.NewDesc("rowraft_copies_age_seconds", "Age of the oldest row of a reply with copies.", nil, nil)
)

// Descs describes the metrics of Collect.
var Descs = []*prometheus.Desc{copiesRows, copiesAge}

// Collect sends the counts of copies.
func (c *Reader) Collect(ch chan<- prometheus.Metric) {
	s, _ := c.rows.Stats()
	for source, n := range map[string]uint64{"copy": s.Hits, "stale": s.Stale, "fetched": c.fetched.Load(),
		"sent": c.sent.Load()} {
		ch <- prometheus.MustNewConstMetric(copiesRows, prometheus.CounterValue, float64(n), source)
	}
	a := c.ages.Snapshot()
	ch <- prometheus.MustNewConstHistogram(copiesAge, a.Count, a.Sum.Seconds(), a.Buckets)
}
