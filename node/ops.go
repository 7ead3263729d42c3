package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of the ops port. Scrapers may be slow or hang, but they are few.
const (
	opsReadTimeout  = 5 * time.Second
	opsWriteTimeout = 2 * time.Minute // longer than a profile takes
	opsHeaderBytes  = 16 << 10
	opsScrapes      = 4 // concurrent
	opsConns        = 64
	opsConnsPerHost = 32 // from one address
)

// serveOps serves the ops port: /metrics, /livez, /readyz, /debug/pprof and Config.Pages. The returned
// function stops it.
func (n *Node) serveOps(source *certs.Source) (stop func() error) {
	if n.cfg.OpsListener == nil {
		return func() error { return nil }
	}
	l := rpc.LimitListener(n.cfg.OpsListener, opsConns, opsConnsPerHost, source != nil)
	if source != nil {
		l = tls.NewListener(l, source.Probed())
	}
	srv := &http.Server{
		Handler: opsRoles(n.opsHandler()), ReadTimeout: opsReadTimeout, WriteTimeout: opsWriteTimeout,
		IdleTimeout: opsWriteTimeout, MaxHeaderBytes: opsHeaderBytes,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, opsConnKey{}, c) },
		ErrorLog:    slog.NewLogLogger(n.log.Handler(), slog.LevelDebug), // a failed handshake is the client's error
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	n.log.Info("ops port", "addr", n.cfg.OpsListener.Addr().String())
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
		defer cancel()
		err := srv.Shutdown(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close()
		}
		if serr := <-done; !errors.Is(serr, http.ErrServerClosed) && !errors.Is(serr, net.ErrClosed) {
			err = errors.Join(err, fmt.Errorf("ops port: %w", serr))
		}
		return err
	}
}

func (n *Node) opsHandler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(&metrics{n: n}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(nameMetrics{reg, n.name},
		promhttp.HandlerOpts{MaxRequestsInFlight: opsScrapes}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := n.notReady(n.host.Status()); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	for name, page := range n.cfg.Pages {
		mux.HandleFunc("GET /debug/"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			if err := page(w); err != nil {
				n.log.Debug("a page of the ops port ends early", "page", name, "err", err)
			}
		})
	}
	return mux
}

// notReady returns why this server should get no traffic; "" if it should. A ready server belongs to a
// cluster with shards, and each of its replicas works and knows a leader.
func (n *Node) notReady(replicas []*rowraftv1.ReplicaStatus) string {
	if !n.ready.Load() {
		return "the cluster is not formed, or its map not known here"
	}
	if n.leaving.Load() || n.stopping.Err() != nil {
		return "the server is stopping"
	}
	for _, r := range replicas {
		switch {
		case r.Fenced != "":
			return fmt.Sprintf("shard %d: %s", r.Shard, r.Fenced)
		case r.Error != "":
			return fmt.Sprintf("shard %d: %s", r.Shard, r.Error)
		case r.LeaderNode == "":
			return fmt.Sprintf("shard %d has no leader that this server knows", r.Shard)
		}
	}
	return ""
}
