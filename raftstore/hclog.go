package raftstore

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hclogger passes what hashicorp's libraries log on to slog.
type hclogger struct {
	log  *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hclogger)(nil)

func (l *hclogger) emit(level slog.Level, msg string, args []any) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
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

// Error logs at Warn: raft calls every refused connection an error, and ours
// means that someone must act.
func (l *hclogger) Error(msg string, args ...any) { l.emit(slog.LevelWarn, msg, args) }

func (l *hclogger) IsTrace() bool { return false }
func (l *hclogger) IsDebug() bool { return l.log.Enabled(context.Background(), slog.LevelDebug) }
func (l *hclogger) IsInfo() bool  { return l.IsDebug() }
func (l *hclogger) IsWarn() bool  { return true }
func (l *hclogger) IsError() bool { return true }

func (l *hclogger) ImpliedArgs() []any { return l.args }
func (l *hclogger) Name() string       { return l.name }

func (l *hclogger) With(args ...any) hclog.Logger {
	return &hclogger{log: l.log.With(args...), name: l.name, args: append(l.args[:len(l.args):len(l.args)], args...)}
}

func (l *hclogger) Named(name string) hclog.Logger {
	return &hclogger{log: l.log, name: l.name + "." + name, args: l.args}
}

func (l *hclogger) ResetNamed(name string) hclog.Logger {
	return &hclogger{log: l.log, name: name, args: l.args}
}

func (l *hclogger) SetLevel(hclog.Level)  {}
func (l *hclogger) GetLevel() hclog.Level { return hclog.Debug }

func (l *hclogger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(l.StandardWriter(o), "", 0)
}

func (l *hclogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer { return io.Discard }
