package main

import (
	"crypto/tls"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/trainer/report"
)

// Limits of the metrics port: it expects few scrapers, some of them slow.
const (
	metricsTimeout     = 10 * time.Second
	metricsHeaderBytes = 16 << 10
	metricsScrapes     = 4 // concurrent scrapes
)

// workerMetrics are the metrics of a run, labelled with its job and rank. The label of the job is training_job, because
// Prometheus uses job for its own jobs.
var workerMetrics = []struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*report.Event) float64
}{
	{workerDesc("loss", "Mean loss of recent batches, nats."), prometheus.GaugeValue, func(e *report.Event) float64 {
		return float64(e.Loss)
	}},
	{workerDesc("auc", "AUC of recent batches, predicted before the update."), prometheus.GaugeValue,
		func(e *report.Event) float64 { return float64(e.AUC) }},
	{workerDesc("accuracy", "Accuracy of recent batches, before the update; NaN but for classes."), prometheus.GaugeValue,
		func(e *report.Event) float64 { return float64(e.Accuracy) }},
	{workerDesc("held_auc", "AUC of the held-out examples at their last score during the training; NaN before."),
		prometheus.GaugeValue,
		func(e *report.Event) float64 { return held(e, func(h *report.Held) report.Number { return h.AUC }) }},
	{workerDesc("held_log_loss", "Log loss of the held-out examples at their last score, nats; NaN before."),
		prometheus.GaugeValue,
		func(e *report.Event) float64 { return held(e, func(h *report.Held) report.Number { return h.LogLoss }) }},
	{workerDesc("held_rmse", "RMSE of the held-out examples at their last score; NaN but for numbers as labels."),
		prometheus.GaugeValue,
		func(e *report.Event) float64 { return held(e, func(h *report.Held) report.Number { return h.RMSE }) }},
	{workerDesc("held_calibration", "Mean prediction / mean label of the held-out examples at their last score."),
		prometheus.GaugeValue,
		func(e *report.Event) float64 {
			return held(e, func(h *report.Held) report.Number { return h.Calibration })
		}},
	{workerDesc("epoch", "Passes over the data that are finished."), prometheus.GaugeValue, func(e *report.Event) float64 {
		return float64(e.Epoch)
	}},
	{workerDesc("examples_total", "Examples trained, those before a resume too."), prometheus.CounterValue,
		func(e *report.Event) float64 { return float64(e.Examples) }},
	{workerDesc("steps_total", "Batches trained or skipped."), prometheus.CounterValue, func(e *report.Event) float64 {
		return float64(e.Step)
	}},
	{workerDesc("skipped_total", "Batches whose loss or gradients were not finite."), prometheus.CounterValue,
		func(e *report.Event) float64 { return float64(e.BatchesSkipped) }},
	{workerDesc("late_total", "Batches that others went on without."), prometheus.CounterValue,
		func(e *report.Event) float64 { return float64(e.BatchesLate) }},
	{workerDesc("acknowledged_total", "Pushes that were acknowledged."), prometheus.CounterValue,
		func(e *report.Event) float64 { return float64(e.PushesAcknowledged) }},
	{workerDesc("waiting_seconds_total",
		"Time in which the model had nothing to compute: it waited for data, rows, acknowledgements or other workers."),
		prometheus.CounterValue,
		func(e *report.Event) float64 { return float64(e.WaitingSeconds) }},
	{workerDesc("staleness_steps", "Pushes that the weights of recent batches missed, on average."),
		prometheus.GaugeValue,
		func(e *report.Event) float64 { return float64(e.StalenessSteps) }},
	{workerDesc("staleness_max", "Most pushes that the weights of a batch missed."), prometheus.GaugeValue,
		func(e *report.Event) float64 { return float64(e.StalenessMax) }},
	{workerDesc("cache_reused_rows_total", "Rows of embeddings that came from copies (docs/caching.md)."),
		prometheus.CounterValue, func(e *report.Event) float64 { return float64(e.RowsReused) }},
	{workerDesc("cache_pulled_rows_total", "Rows of embeddings that were pulled with a cache: no copy, or too old."),
		prometheus.CounterValue, func(e *report.Event) float64 { return float64(e.RowsPulled) }},
	{workerDesc("cache_saved_bytes_total", "Keys and weights of the rows that came from copies."),
		prometheus.CounterValue, func(e *report.Event) float64 { return float64(e.BytesSaved) }},
	{workerDesc("cache_evicted_total", "Copies that made room for others."), prometheus.CounterValue,
		func(e *report.Event) float64 { return float64(e.Evicted) }},
	{workerDesc("cache_age_steps", "Mean age of the reused copies, with a bound in steps."), prometheus.GaugeValue,
		func(e *report.Event) float64 { return float64(e.ReusedSteps) }},
	{workerDesc("cache_age_seconds", "Mean age of the reused copies, with a bound in time."), prometheus.GaugeValue,
		func(e *report.Event) float64 { return float64(e.ReusedSeconds) }},
	{workerDesc("in_flight", "Pushes without an answer yet."), prometheus.GaugeValue, func(e *report.Event) float64 {
		return float64(e.InFlight)
	}},
}

// held returns a number of the last score of the held-out examples, NaN before the first one.
func held(e *report.Event, of func(*report.Held) report.Number) float64 {
	if e.Held == nil {
		return math.NaN()
	}
	return float64(of(e.Held))
}

func workerDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("rowraft_worker_"+name, help, []string{"training_job", "rank"}, nil)
}

// run is the source of a run's metrics.
type run struct {
	job string
	now func() report.Event
}

// metrics serves /metrics. A nil *metrics does nothing.
type metrics struct {
	run  atomic.Pointer[run] // nil before the first run
	srv  *http.Server
	addr net.Addr
	done chan struct{}
}

// listenMetrics serves on addr, with the certificates in files, or without them on loopback addresses only. With an
// empty addr it returns nil.
func listenMetrics(addr string, files *rpc.TLSFiles) (*metrics, error) {
	if addr == "" {
		return nil, nil
	}
	source, err := files.Open(nil)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, cli.Usagef("--metrics-listen %s: %w", addr, err)
	}
	if source != nil {
		l = tls.NewListener(l, source.Server())
	} else if err := rpc.CheckInsecure(l.Addr()); err != nil {
		l.Close()
		return nil,
			cli.Usagef(
				"--metrics-listen %s: without certificates it serves loopback addresses only: give --cert, --key and --cacert",
				addr)
	}
	m := &metrics{addr: l.Addr(), done: make(chan struct{})}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: metricsScrapes}))
	m.srv = &http.Server{Handler: mux, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, IdleTimeout: time.Minute,
		MaxHeaderBytes: metricsHeaderBytes}
	go func() {
		defer close(m.done)
		_ = m.srv.Serve(l) // until close
	}()
	return m, nil
}

// setRun makes the port serve the metrics of a run from now on.
func (m *metrics) setRun(job string, now func() report.Event) {
	if m != nil {
		m.run.Store(&run{job, now})
	}
}

func (m *metrics) close() {
	if m != nil {
		m.srv.Close()
		<-m.done
	}
}

// Describe and Collect implement prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range workerMetrics {
		ch <- d.desc
	}
}

func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	r := m.run.Load()
	if r == nil {
		return
	}
	e := r.now()
	for _, d := range workerMetrics {
		ch <- prometheus.MustNewConstMetric(d.desc, d.kind, d.of(&e), r.job, strconv.Itoa(e.Rank))
	}
}
