package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	servingv1 "github.com/rowraft/rowraft/proto/rowraft/serving/v1"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/data/request"
	"github.com/rowraft/rowraft/trainer/serving"
)

// Config of a Server. HTTP and GRPC are addresses, host:port; an empty one is not served.
type Config struct {
	HTTP, GRPC string
	TLS        rpc.TLSFiles // zero: plaintext, on loopback only
	Schema     *data.Schema
	Tables     []string // tables of embeddings, which a caller with limited tables must be allowed to read
	Limits     Limits
	Log        *slog.Logger

	// NewScorer makes the scorer with these options, of which it sets MaxAge.
	NewScorer func(serving.Options) (*serving.Scorer, error)
	// Copies reports what the copies of rows have answered; nil: there are none.
	Copies func() Copies
}

// Limits of a request. All are above 0.
type Limits struct {
	Timeout  time.Duration // a request may ask for a shorter one
	Examples int           // in a request
	Bytes    int64         // length of a request
	Queue    int           // examples of all requests that wait; at least Examples
}

// Server serves predictions until Stop. Safe for concurrent use.
//
// Goroutines: those of the scorer and of the two protocols. All end in Stop.
type Server struct {
	cfg     Config
	scorer  *serving.Scorer
	parsers sync.Pool
	bytes   budget
	metrics *metrics

	source   *certs.Source
	http     *http.Server
	grpc     *grpc.Server
	health   *health.Server
	httpAddr net.Addr
	grpcAddr net.Addr
	stopping atomic.Bool
	serving  sync.WaitGroup
	watch    context.CancelFunc
}

// Start opens the ports, and serves when the scorer has its weights.
func Start(cfg Config) (_ *Server, err error) {
	s := &Server{cfg: cfg, bytes: budget{limit: max(maxBytesInFlight, cfg.Limits.Bytes)}}
	if s.source, err = cfg.TLS.Open(cfg.Log); err != nil {
		return nil, err
	}
	first, err := request.NewParser(cfg.Schema)
	if err != nil {
		return nil, err
	}
	s.parsers.Put(first)
	s.parsers.New = func() any {
		p, _ := request.NewParser(cfg.Schema) // the schema is right
		return p
	}
	s.metrics = newMetrics(s)
	httpPort, err := s.listen("--listen", cfg.HTTP)
	if err != nil {
		return nil, err
	}
	grpcPort, err := s.listen("--grpc-listen", cfg.GRPC)
	if err == nil {
		s.scorer, err = cfg.NewScorer(serving.Options{Timeout: cfg.Limits.Timeout, Queue: cfg.Limits.Queue,
			OnBatch: s.metrics.batch})
	}
	if err != nil {
		closeListeners(httpPort, grpcPort)
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.watch = cancel
	if httpPort != nil {
		s.httpAddr = httpPort.Addr()
		s.serveHTTP(httpPort)
	}
	if grpcPort != nil {
		s.grpcAddr = grpcPort.Addr()
		s.serveGRPC(ctx, grpcPort)
	}
	return s, nil
}

func closeListeners(all ...net.Listener) {
	for _, l := range all {
		if l != nil {
			l.Close()
		}
	}
}

// Limits of a port.
const (
	maxConns        = 4096
	maxConnsPerHost = 2048
)

// listen opens a port; nil for an empty address.
func (s *Server) listen(flag, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err == nil && s.source == nil {
		if err = rpc.CheckInsecure(l.Addr()); err != nil {
			l.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, addr, err)
	}
	return rpc.LimitListener(l, maxConns, maxConnsPerHost, s.source != nil), nil
}

func (s *Server) serveHTTP(l net.Listener) {
	if s.source != nil {
		l = tls.NewListener(l, s.source.Probed())
	}
	s.http = &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute,
		WriteTimeout: 2*time.Minute + s.cfg.Limits.Timeout, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:    slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), // a failed handshake is the client's error
	}
	s.serving.Go(func() { _ = s.http.Serve(l) }) // until Stop
}

func (s *Server) serveGRPC(ctx context.Context, l net.Listener) {
	// Above the limit gRPC refuses a message before it is here.
	s.grpc = grpc.NewServer(append(rpc.ServerOptions(s.source), grpc.MaxRecvMsgSize(int(s.cfg.Limits.Bytes)+1024))...)
	servingv1.RegisterScoringServer(s.grpc, &scoring{s: s})
	s.health = health.NewServer()
	healthpb.RegisterHealthServer(s.grpc, s.health)
	s.setHealth()
	s.serving.Go(func() {
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				s.setHealth()
			}
		}
	})
	s.serving.Go(func() { _ = s.grpc.Serve(l) }) // until Stop
}

func (s *Server) setHealth() {
	status := healthpb.HealthCheckResponse_SERVING
	if s.ready() != nil {
		status = healthpb.HealthCheckResponse_NOT_SERVING
	}
	s.health.SetServingStatus(servingv1.Scoring_ServiceDesc.ServiceName, status)
}

var errStopping = errors.New("the server is stopping")

// ready returns why the server should get no requests; nil if it should.
func (s *Server) ready() error {
	if s.stopping.Load() {
		return errStopping
	}
	return s.scorer.Ready()
}

// Addrs returns the addresses of HTTP and gRPC; nil where it does not serve.
func (s *Server) Addrs() (http, grpc net.Addr) { return s.httpAddr, s.grpcAddr }

// Stop closes the ports, answers the requests that have begun, waits for that until ctx ends, and then ends all.
func (s *Server) Stop(ctx context.Context) {
	s.stopping.Store(true)
	var all sync.WaitGroup
	if s.grpc != nil {
		s.health.Shutdown()
		all.Go(func() {
			stop := context.AfterFunc(ctx, s.grpc.Stop)
			defer stop()
			s.grpc.GracefulStop()
		})
	}
	if s.http != nil {
		all.Go(func() {
			if err := s.http.Shutdown(ctx); err != nil {
				s.http.Close()
			}
		})
	}
	all.Wait()
	s.watch()
	s.serving.Wait()
	s.scorer.Close()
}

// score parses a request and computes its predictions.
func (s *Server) score(ctx context.Context,
	parse func(*request.Parser) (*data.Batch, error)) (scores []float32, err error) {
	p := s.parsers.Get().(*request.Parser)
	b, err := parse(p)
	s.parsers.Put(p)
	if err != nil {
		return nil, err
	}
	s.metrics.examples.Add(float64(b.N))
	return s.scorer.Score(ctx, b)
}
