package raftstore

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// hclogger forwards the log messages of hashicorp's libraries to slog.
type hclogger struct {
	log  *slog.Logger
	name string
	args []any
	rate *logRate // shared with the loggers derived from this one; nil: no limit
}

// logRate permits each message once per logPause: raft reports a dead peer many times a second, in every group.
type logRate struct {
	mu   sync.Mutex
	seen map[string]*logSeen
}

type logSeen struct {
	until time.Time
	held  int
}

const logPause = 10 * time.Second

func newLogRate() *logRate { return &logRate{seen: map[string]*logSeen{}} }

// allow reports whether msg may be logged now. It adds the number of suppressed messages to args.
func (r *logRate) allow(msg string, args []any, now time.Time) (with []any, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seen[msg]
	if s == nil {
		s = &logSeen{}
		r.seen[msg] = s // raft's messages are constants, so there are few
	}
	if now.Before(s.until) {
		s.held++
		return args, false
	}
	if s.held > 0 {
		args = append(args[:len(args):len(args)], "repeated", s.held)
	}
	s.held, s.until = 0, now.Add(logPause)
	return args, true
}

var _ hclog.Logger = (*hclogger)(nil)

func (l *hclogger) emit(level slog.Level, msg string, args []any) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	if level >= slog.LevelWarn && l.rate != nil {
		var ok bool
		if args, ok = l.rate.allow(msg, args, time.Now()); !ok {
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

func (l *hclogger) Log(level hclog.Level, msg string, args ...any) {
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

func (l *hclogger) Trace(string, ...any)          {}
func (l *hclogger) Debug(msg string, args ...any) { l.emit(slog.LevelDebug, msg, args) }
func (l *hclogger) Info(msg string, args ...any)  { l.emit(slog.LevelDebug, msg, args) }
func (l *hclogger) Warn(msg string, args ...any)  { l.emit(slog.LevelWarn, msg, args) }

// Error logs at Warn: raft reports every refused connection as an error, and our Error means that someone must act.
func (l *hclogger) Error(msg string, args ...any) { l.emit(slog.LevelWarn, msg, args) }

func (l *hclogger) IsTrace() bool { return false }
func (l *hclogger) IsDebug() bool { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l *hclogger) IsInfo() bool  { return l.IsDebug() }
func (l *hclogger) IsWarn() bool  { return true }
func (l *hclogger) IsError() bool { return true }

func (l *hclogger) ImpliedArgs() []any { return l.args }
func (l *hclogger) Name() string       { return l.name }

func (l *hclogger) With(args ...any) hclog.Logger {
	return &hclogger{log: l.log.With(args...), name: l.name, args: append(l.args[:len(l.args):len(l.args)], args...), rate: l.rate}
}

func (l *hclogger) Named(name string) hclog.Logger {
	return &hclogger{log: l.log, name: l.name + "." + name, args: l.args, rate: l.rate}
}

func (l *hclogger) ResetNamed(name string) hclog.Logger {
	return &hclogger{log: l.log, name: name, args: l.args, rate: l.rate}
}

func (l *hclogger) SetLevel(hclog.Level)  {}
func (l *hclogger) GetLevel() hclog.Level { return hclog.Debug }

func (l *hclogger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(o), "", 0)
}

func (l *hclogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
