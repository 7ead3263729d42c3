package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
)

// Exit codes. Scripts rely on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitVerdict     = 3
	exitUnavailable = 4
	exitRefused     = 5 // by a safety check
	exitSpoiled     = 6 // a server's data
	exitInterrupted = 130
)

// usageError is a wrong command line or configuration.
type usageError struct{ err error }

func (e *usageError) Error() string      { return e.err.Error() }
func (e *usageError) Unwrap() error      { return e.err }
func (e *usageError) Code() rowraft.Code { return rowraft.CodeInvalidArgument }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// verdictError says that a command ran well and found something bad.
type verdictError struct{ error }

// refusedError says that something was not done because of what could be lost.
type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// spoiledError ended a server whose data does not let it go on: a restart would find the same.
type spoiledError struct{ error }

func (e spoiledError) Unwrap() error { return e.error }

// endOfServer is why a server ended, marked if it was its data.
func endOfServer(err error) error {
	switch rowraft.CodeOf(err) {
	case rowraft.CodeCorrupt, rowraft.CodeVersionTooNew:
		return spoiledError{err}
	}
	return err
}

// hintedError carries advice for a person.
type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }

func exitCode(ctx context.Context, err error) int {
	if _, ok := errors.AsType[verdictError](err); ok {
		return exitVerdict
	}
	if _, ok := errors.AsType[refusedError](err); ok {
		return exitRefused
	}
	if _, ok := errors.AsType[spoiledError](err); ok {
		return exitSpoiled
	}
	switch code := rowraft.CodeOf(err); code {
	case rowraft.CodeInvalidArgument:
		return exitUsage
	case rowraft.CodeDeadline, rowraft.CodeNoLeader, rowraft.CodeNotLeader, rowraft.CodeStarting, rowraft.CodeClosing, rowraft.CodeTooStale, rowraft.CodeOverloaded, rowraft.CodeLeadershipLost, rowraft.CodeNotSent:
		if errors.Is(ctx.Err(), context.Canceled) {
			return exitInterrupted
		}
		return exitUnavailable
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return exitInterrupted
	case rpc.Broken(err):
		return exitUnavailable
	}
	return exitFailed
}

// hintOf says what a person can do about err, "" if there is nothing to add.
func hintOf(err error) string {
	if h, ok := errors.AsType[*hintedError](err); ok {
		return h.hint
	}
	if _, ok := errors.AsType[spoiledError](err); ok && rowraft.CodeOf(err) == rowraft.CodeCorrupt {
		return "the other replicas have what it had: `rowraft log verify` shows the damage; start the server with an empty data directory and it joins as a new one (docs/ops/runbooks.md)"
	}
	switch rowraft.CodeOf(err) {
	case rowraft.CodeDeadline:
		return "the cluster did not answer in time; `rowraft cluster status` says what is wrong with it, --timeout waits longer"
	case rowraft.CodeStarting, rowraft.CodeNoLeader, rowraft.CodeNotSent:
		return "the cluster is starting or electing a leader; try again, or wait longer with --timeout"
	case rowraft.CodeTooStale:
		return "no replica can prove that its rows are so new; allow a larger --max-age, or ask the leader with --mode leader"
	case rowraft.CodeTableExists:
		return "a table keeps its shape; `rowraft table describe NAME` shows it, --if-not-exists accepts one of the same shape"
	case rowraft.CodeIdentity:
		return "check --data-dir and --join: a data directory belongs to one server of one cluster"
	case rowraft.CodeVersionTooNew:
		return "upgrade this binary"
	}
	return ""
}

type errorJSON struct {
	Error struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		Hint      string `json:"hint"`
		Retryable bool   `json:"retryable"`
	} `json:"error"`
}

// printError tells err to a person, or to a program.
func printError(w io.Writer, err error, asJSON bool) {
	hint := hintOf(err)
	if !asJSON {
		fmt.Fprintf(w, "rowraft: %s\n", rpc.CleanLines(err.Error())) // part of it may come from another machine
		if hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", hint)
		}
		return
	}
	var e errorJSON
	code := rowraft.CodeOf(err)
	e.Error.Code, e.Error.Message, e.Error.Hint, e.Error.Retryable = code.String(), err.Error(), hint, code.Retryable()
	raw, merr := json.Marshal(e)
	if merr != nil {
		raw = []byte(merr.Error())
	}
	fmt.Fprintln(w, string(raw))
}

// asksForJSON looks at a command line that could not be parsed.
func asksForJSON(args []string) bool {
	for i, a := range args {
		for _, flag := range []string{"-o", "--output"} {
			rest, ok := strings.CutPrefix(a, flag)
			if ok && (slices.Contains([]string{"json", "=json"}, rest) || rest == "" && i+1 < len(args) && args[i+1] == formatJSON) {
				return true
			}
		}
	}
	return false
}
