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
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/node"
)

// server is one place of the cluster, with one life after the other.
type server struct {
	c          *Cluster
	name       string
	addr, peer string
	goroutines sync.WaitGroup // of all lives

	mu   sync.Mutex
	now  *life
	disk *vfs.Mem // of the life that runs, or for the next
	hits int      // of disk faults, in earlier lives

	refused bool // the next life must not serve
}

// life of a server, from start to its end.
type life struct {
	host   *Host
	disk   *vfs.Faulty
	cancel context.CancelFunc
	ended  chan struct{} // closed when node.Run has returned
	err    error         // what it returned
	told   atomic.Bool   // to end, by a fault or in order
	over   atomic.Bool   // nothing of it counts any more
	failed atomic.Bool   // it said that it must not go on
}

func (s *server) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

func (s *server) running() bool {
	l := s.current()
	return l != nil && !l.over.Load() && !l.hasEnded()
}

func (l *life) hasEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (s *server) logFile() string { return filepath.Join(s.c.opts.Dir, s.name+".log") }

// What becomes of a disk when the life on it ends.
type afterlife func(*vfs.Mem) *vfs.Mem

// killed is the death of the process: the machine still has all that was written.
func killed(m *vfs.Mem) *vfs.Mem { return m.Kill() }

// powerless is the loss of power: what was not synced may be lost.
func powerless(seed uint64) afterlife {
	return func(m *vfs.Mem) *vfs.Mem { return m.Crash(seed) }
}

// end ends the life l at this instant, for the network and for the disk, unless it
// is over. Its goroutines run on for a while and find both gone.
func (s *server) end(l *life, silent bool, what afterlife) {
	s.mu.Lock()
	first := s.now == l && l.over.CompareAndSwap(false, true)
	if first {
		l.host.Cut(silent)
		s.disk = what(s.disk)
	}
	s.mu.Unlock()
	if first {
		l.cancel()
		s.goroutines.Go(l.disk.Clear) // elsewhere: this may be called by the disk
	}
}

// cut ends what lives.
func (s *server) cut(silent bool, what afterlife) {
	if l := s.current(); l != nil {
		l.told.Store(true)
		s.end(l, silent, what)
	}
}

// start begins the next life and returns when it serves.
func (s *server) start(ctx context.Context) error {
	l, cfg, err := s.born()
	if err != nil {
		return err
	}
	log, err := s.c.openLog(s, l)
	if err != nil {
		return err
	}
	ready := make(chan struct{})
	cfg.Logger = log.logger()
	cfg.Ready = func(node.Info) { close(ready) }
	// A process would end in it.
	cfg.Fatal = func(error) {
		l.failed.Store(true)
		s.end(l, false, killed)
	}
	var run context.Context
	run, l.cancel = context.WithCancel(context.Background())
	s.mu.Lock()
	s.now = l
	s.mu.Unlock()
	s.goroutines.Go(func() {
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

// born prepares a life after the one before.
func (s *server) born() (*life, node.Config, error) {
	if old := s.current(); old != nil {
		if !old.over.Load() && !old.hasEnded() {
			return nil, node.Config{}, fmt.Errorf("server %s is alive", s.name)
		}
		s.end(old, false, killed) // unless it is over: one that has stopped in order
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		s.hits += s.now.hits()
	}
	l := &life{host: s.c.Net.Host(s.name), disk: vfs.NewFaulty(s.disk), ended: make(chan struct{})}
	if late := s.c.opts.LogLate; late > 0 {
		if err := l.disk.Set(vfs.DiskFault{Name: "slow", Ops: []vfs.Op{vfs.OpLog}, Delay: late}); err != nil {
			return nil, node.Config{}, err
		}
	}
	l.told.Store(s.refused)
	cfg, err := s.c.config(s, l)
	return l, cfg, err
}

// logFile receives the log of a life and tells the Watch who leads.
type logFile struct {
	s    *server
	life *life

	mu sync.Mutex
	f  *os.File // nil once closed
	w  *bufio.Writer
}

func (c *Cluster) openLog(s *server, l *life) (*logFile, error) {
	f, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &logFile{s: s, life: l, f: f, w: bufio.NewWriterSize(f, 64<<10)}, nil
}

func (l *logFile) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo})).With("server", l.s.name)
}

func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil || l.life.over.Load() {
		return len(line), nil // a dead process says nothing
	}
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
	l.f = nil
}
