package hclogger

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Logger forwards the log messages of hashicorp's libraries to slog.
type Logger struct {
	log  *slog.Logger
	name string
	args []any
	rate *Rate // of all but debug messages; shared with the loggers derived from this one; nil: no limit
}

// Rate permits each message once per pause: raft reports a dead peer many times a second, in every group.
type Rate struct {
	mu   sync.Mutex
	seen map[string]*seenMessage // guarded by mu; by message
}

type seenMessage struct {
	until      time.Time // the message is suppressed until then
	suppressed int       // since it was last logged
}

// pause is the least time between two logs of one message.
const pause = 10 * time.Second

// NewRate returns a Rate that has seen no message.
func NewRate() *Rate { return &Rate{seen: map[string]*seenMessage{}} }

// Allow reports whether msg may be logged now. It adds the number of suppressed messages to args.
func (r *Rate) Allow(msg string, args []any, now time.Time) (with []any, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seen[msg]
	if s == nil {
		s = &seenMessage{}
		r.seen[msg] = s // raft's messages are constants, so there are few
	}
	if now.Before(s.until) {
		s.suppressed++
		return args, false
	}
	if s.suppressed > 0 {
		args = append(args[:len(args):len(args)], "repeated", s.suppressed)
	}
	s.suppressed, s.until = 0, now.Add(pause)
	return args, true
}

var _ hclog.Logger = (*Logger)(nil)

func (l *Logger) emit(level slog.Level, msg string, args []any) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	if level > slog.LevelDebug && l.rate != nil {
		var ok bool
		if args, ok = l.rate.Allow(msg, args, time.Now()); !ok {
			return
		}
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			if format, ok := f[0].(string); ok {
				args[i] = fmt.Sprintf(format, f[1:]...)
			}
		}
	}
	l.log.Log(ctx, level, l.name+": "+msg, args...)
}

func (l *Logger) Log(level hclog.Level, msg string, args ...any) {
	switch level {
	case hclog.Error:
		l.Error(msg, args...)
	case hclog.Warn:
		l.Warn(msg, args...)
	case hclog.Info:
		l.Info(msg, args...)
	default:
		l.Debug(msg, args...)
	}
}

func (l *Logger) Trace(string, ...any)          {}
func (l *Logger) Debug(msg string, args ...any) { l.emit(slog.LevelDebug, msg, args) }
func (l *Logger) Info(msg string, args ...any)  { l.emit(slog.LevelDebug, msg, args) }

// Warn logs at Info: raft warns of each election, also of the first one of a healthy group.
func (l *Logger) Warn(msg string, args ...any) { l.emit(slog.LevelInfo, msg, args) }

// Error logs at Warn, and at Info if a peer does not answer: peers start later than this server, stop and restart in
// place, and cluster status reports those that stay away.
func (l *Logger) Error(msg string, args ...any) {
	level := slog.LevelWarn
	if slices.Contains(peerErrors, msg) {
		level = slog.LevelInfo
	}
	l.emit(level, msg, args)
}

// peerErrors are the errors of hashicorp/raft about a connection to a peer.
var peerErrors = []string{
	"failed to make requestVote RPC", "failed to appendEntries to", "failed to heartbeat to",
	"failed to pipeline appendEntries", "failed to start pipeline replication to", "failed to send snapshot to",
	"failed to decode incoming command", "failed to flush response", "failed to receive whole snapshot",
	"peer has newer term, stopping replication",
}

func (l *Logger) IsTrace() bool { return false }
func (l *Logger) IsDebug() bool { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l *Logger) IsInfo() bool  { return l.IsDebug() }
func (l *Logger) IsWarn() bool  { return true }
func (l *Logger) IsError() bool { return true }

func (l *Logger) ImpliedArgs() []any { return l.args }
func (l *Logger) Name() string       { return l.name }

func (l *Logger) With(args ...any) hclog.Logger {
	return &Logger{log: l.log.With(args...), name: l.name, args: append(l.args[:len(l.args):len(l.args)], args...),
		rate: l.rate}
}

func (l *Logger) Named(name string) hclog.Logger {
	return &Logger{log: l.log, name: l.name + "." + name, args: l.args, rate: l.rate}
}

func (l *Logger) ResetNamed(name string) hclog.Logger {
	return &Logger{log: l.log, name: name, args: l.args, rate: l.rate}
}

func (l *Logger) SetLevel(hclog.Level)  {}
func (l *Logger) GetLevel() hclog.Level { return hclog.Debug }

func (l *Logger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(o), "", 0)
}

func (l *Logger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }

// New returns a logger that forwards to log, with name before each message. rate limits warnings; nil: no limit.
func New(log *slog.Logger, name string, rate *Rate) *Logger {
	return &Logger{log: log, name: name, rate: rate}
}
