package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/serving"
)

// Copies is what copies of rows have answered.
type Copies struct {
	Rows    uint64        // number of rows that came from copies
	Age     time.Duration // sum over these rows of how old the copy was
	Evicted uint64
}

// metrics are the metrics of a server.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
	examples prometheus.Counter
	batches  prometheus.Histogram
	joined   prometheus.Counter
	rows     prometheus.Counter
	pull     prometheus.Histogram
	compute  prometheus.Histogram
	age      prometheus.Histogram
}

// latencies are the upper bounds of durations, from an example out of copies to the longest deadline, in seconds.
var latencies = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// ages are those of weights.
var ages = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "rowraft_serve_" + name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "rowraft_serve_" + name, Help: help, Buckets: buckets})
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rowraft_serve_" + name, Help: help}, f)
	}
	total := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "rowraft_serve_" + name, Help: help}, f)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rowraft_serve_requests_total",
			Help: "Requests, by protocol and result: ok, or the code of the error."}, []string{"protocol", "code"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rowraft_serve_request_seconds",
			Help:    "Time from the header of a request to its answer, refused ones too.",
			Buckets: latencies}, []string{"protocol"}),
		examples: counter("examples_total", "Examples of requests that were parsed."),
		batches: histogram("batch_examples", "Examples of a batch that was computed.",
			prometheus.ExponentialBuckets(1, 2, 13)),
		joined:  counter("batch_requests_total", "Requests, or parts of large ones, in the computed batches."),
		rows:    counter("rows_total", "Rows of embeddings that batches needed, once per batch."),
		pull:    histogram("pull_seconds", "Time of a batch until it had its rows.", latencies),
		compute: histogram("compute_seconds", "Time of a batch in the model.", latencies),
		age:     histogram("weights_age_seconds", "Age of the dense weights of a batch.", ages),
	}
	m.registry.MustRegister(m.requests, m.latency, m.examples, m.batches, m.joined, m.rows, m.pull, m.compute, m.age,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("ready", "1: /readyz says ok.", func() float64 {
			if s.ready() != nil {
				return 0
			}
			return 1
		}),
		gauge("waiting_examples", "Examples that wait to be computed.", func() float64 {
			return float64(s.scorer.Waiting())
		}))
	if copies := s.cfg.Copies; copies != nil {
		m.registry.MustRegister(
			total("copied_rows_total", "Rows of rows_total that came from copies in this process.", func() float64 {
				return float64(copies().Rows)
			}),
			total("copied_rows_age_seconds_total", "Sum over these rows of how old the copy was.", func() float64 {
				return copies().Age.Seconds()
			}),
			total("evicted_copies_total", "Copies that made room for others.", func() float64 {
				return float64(copies().Evicted)
			}))
	}
	return m
}

// request counts a request that ended with err.
func (m *metrics) request(protocol string, err error, took time.Duration) {
	code := "ok"
	if err != nil {
		code = rowraft.CodeOf(err).String()
	}
	m.requests.WithLabelValues(protocol, code).Inc()
	m.latency.WithLabelValues(protocol).Observe(took.Seconds())
}

// batch counts a batch.
func (m *metrics) batch(b serving.Batch) {
	m.batches.Observe(float64(b.Examples))
	m.joined.Add(float64(b.Requests))
	m.rows.Add(float64(b.Rows))
	m.pull.Observe(b.Pull.Seconds())
	m.compute.Observe(b.Compute.Seconds())
	m.age.Observe(b.Age.Seconds())
}
