package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/node"
)

// server is one place of the cluster, with one life after the other.
type server struct {
	c          *Cluster
	name, dir  string
	addr, peer string
	lives      sync.WaitGroup // whose goroutines have not ended

	mu  sync.Mutex
	now *life
}

// life of a server, from start to its end.
type life struct {
	host   *Host
	cancel context.CancelFunc
	ended  chan struct{} // closed when node.Run has returned
	err    error         // what it returned
	told   atomic.Bool   // to end, by a fault or in order
}

func (s *server) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *server) running() bool {
	l := s.current()
	if l == nil || l.told.Load() {
		return false
	}
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

func (s *server) logFile() string { return filepath.Join(s.c.opts.Dir, s.name+".log") }

// cut ends a life at this instant.
func (s *server) cut(silent bool) {
	l := s.current()
	if l == nil {
		return
	}
	l.told.Store(true)
	l.host.Cut(silent)
	l.cancel()
}

// start begins the next life and returns when it serves.
func (s *server) start(ctx context.Context) error {
	if old := s.current(); old != nil {
		<-old.ended // it has the data directory
		old.host.Cut(false)
	}
	log, err := s.c.openLog(s)
	if err != nil {
		return err
	}
	l := &life{host: s.c.Net.Host(s.name), ended: make(chan struct{})}
	cfg, err := s.c.config(s, l.host, log)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	cfg.Ready = func(node.Info) { close(ready) }
	cfg.Fatal = func(error) { l.host.Cut(false) }
	var run context.Context
	run, l.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.now = l
	s.mu.Unlock()
	s.lives.Go(func() {
		l.err = node.Run(run, cfg)
		close(l.ended)
		log.close()
	})
	select {
	case <-ready:
		return nil
	case <-l.ended:
		return fmt.Errorf("server %s has ended before it served: %w", s.name, l.err)
	case <-ctx.Done():
		return fmt.Errorf("server %s does not serve: %w", s.name, context.Cause(ctx))
	}
}

// logFile receives the log of a life and tells the Watch who leads.
type logFile struct {
	s  *server
	mu sync.Mutex
	f  *os.File
	w  *bufio.Writer
}

func (c *Cluster) openLog(s *server) (*logFile, error) {
	f, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &logFile{s: s, f: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

func (l *logFile) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo})).With("server", l.s.name)
}

func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(line, []byte(`"leads the shard"`)) {
		var e struct {
			Shard   rowraft.ShardID
			Term    rowraft.Term
			Replica string
			Time    time.Time
		}
		if err := json.Unmarshal(line, &e); err == nil {
			l.s.c.Watch.saw(e.Shard, e.Term, l.s.name, e.Replica)
		}
	}
	return l.w.Write(line)
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w.Flush()
	l.f.Close()
	l.w.Reset(discard{})
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
