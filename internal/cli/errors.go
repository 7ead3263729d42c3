package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
)

// Exit codes. Scripts rely on them.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitVerdict     = 3
	ExitUnavailable = 4
	ExitRefused     = 5 // refused by a safety check
	ExitSpoiled     = 6 // a server ended for a reason that a restart does not cure
	ExitInterrupted = 130
)

// ErrInterrupted reports that a signal ended the command and that its state is good: ExitInterrupted.
var ErrInterrupted = errors.New("interrupted")

type usageError struct{ err error }

func (e *usageError) Error() string      { return e.err.Error() }
func (e *usageError) Unwrap() error      { return e.err }
func (e *usageError) Code() rowraft.Code { return rowraft.CodeInvalidArgument }

// Usagef returns the error of a wrong command line or configuration: ExitUsage.
func Usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

type verdictError struct{ error }

func (e verdictError) Unwrap() error { return e.error }

// Verdict marks the error of a command that completed and detected a problem: ExitVerdict.
func Verdict(err error) error { return verdictError{err} }

type refusedError struct{ error }

func (e refusedError) Unwrap() error { return e.error }

// Refused marks an error of a safety check that prevented a loss of data: ExitRefused.
func Refused(err error) error { return refusedError{err} }

type spoiledError struct{ error }

func (e spoiledError) Unwrap() error { return e.error }

// Spoiled marks the error of a server that a restart cannot cure: its data is damaged, newer than the binary or of
// another cluster, or its certificates are of another CA. ExitSpoiled.
func Spoiled(err error) error { return spoiledError{err} }

type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }

// Hint adds advice for the operator to err. It replaces the advice for the error's code.
func Hint(err error, hint string) error { return &hintedError{err, hint} }

// devEnv is the file that `rowraft dev` writes for a shell, in the directory in which it was started.
const devEnv = "rowraft-dev/env"

// DevHint adds, to an error about a cluster that the command line does not name, that the variables of `rowraft dev`
// are missing in this shell, if that has been started here.
func DevHint(err error) error {
	if _, missing := os.Stat(devEnv); missing != nil {
		return err
	}
	return Hint(err, "`. "+devEnv+"` makes commands in this shell find the servers of `rowraft dev`")
}

// ExitCode returns the exit code of a command that ended with err under ctx.
func ExitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitDone
	}
	if _, ok := errors.AsType[verdictError](err); ok {
		return ExitVerdict
	}
	if _, ok := errors.AsType[refusedError](err); ok {
		return ExitRefused
	}
	if _, ok := errors.AsType[spoiledError](err); ok {
		return ExitSpoiled
	}
	if errors.Is(err, ErrInterrupted) {
		return ExitInterrupted
	}
	switch code := rowraft.CodeOf(err); code {
	case rowraft.CodeInvalidArgument:
		return ExitUsage
	case rowraft.CodeDeadline, rowraft.CodeNoLeader, rowraft.CodeNotLeader, rowraft.CodeStarting, rowraft.CodeClosing,
		rowraft.CodeTooStale, rowraft.CodeOverloaded, rowraft.CodeLeadershipLost, rowraft.CodeNotSent:
		if errors.Is(ctx.Err(), context.Canceled) {
			return ExitInterrupted
		}
		return ExitUnavailable
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ExitInterrupted
	case rpc.Broken(err):
		return ExitUnavailable
	}
	return ExitFailed
}

// hintOf returns what the operator can do about err, empty if there is nothing to add.
func hintOf(err error) string {
	if h, ok := errors.AsType[*hintedError](err); ok {
		return h.hint
	}
	if _, ok := errors.AsType[spoiledError](err); ok && rowraft.CodeOf(err) == rowraft.CodeCorrupt {
		return "the other replicas have what it had: `rowraft log verify` shows the damage; start the server with an " +
			"empty data directory and it joins as a new one (docs/ops/runbooks.md)"
	}
	if _, ok := errors.AsType[*route.SilentError](err); ok {
		return "is it running, is --endpoints right, and do both sides use TLS or both --insecure?"
	}
	switch rowraft.CodeOf(err) {
	case rowraft.CodeDeadline:
		return "the cluster did not answer in time; `rowraft cluster status` says what is wrong with it, --timeout " +
			"waits longer"
	case rowraft.CodeStarting, rowraft.CodeNoLeader, rowraft.CodeNotSent:
		return "the cluster is starting or electing a leader; try again, or wait longer with --timeout"
	case rowraft.CodeTooStale:
		return "no replica can prove that its rows are so new; allow a larger --max-age, or ask the leader with --mode leader"
	case rowraft.CodeTableExists:
		return "a table keeps its shape; `rowraft table describe NAME` shows it, --if-not-exists accepts one of the " +
			"same shape"
	case rowraft.CodeIdentity:
		return "check --data-dir and --join: a data directory belongs to one server of one cluster"
	case rowraft.CodeVersionTooNew:
		return "upgrade this binary"
	}
	return ""
}

// ErrorJSON is the contract of an error with --output json.
type ErrorJSON struct {
	Error struct {
		Code      string `json:"code"`
		Message   string `json:"message"`
		Hint      string `json:"hint"`
		Retryable bool   `json:"retryable"`
	} `json:"error"`
}

// PrintError writes err for people, or as JSON for programs. name is the name of the binary.
func PrintError(w io.Writer, name string, err error, asJSON bool) {
	hint := hintOf(err)
	if !asJSON {
		fmt.Fprintf(w, "%s: %s\n", name, rpc.CleanLines(err.Error())) // a part of it may be from another machine
		if hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", hint)
		}
		return
	}
	var e ErrorJSON
	code := rowraft.CodeOf(err)
	e.Error.Code, e.Error.Message, e.Error.Hint, e.Error.Retryable = code.String(), err.Error(), hint, code.Retryable()
	raw, merr := json.Marshal(e)
	if merr != nil {
		raw = []byte(merr.Error())
	}
	fmt.Fprintln(w, string(raw))
}

// asksForJSON searches a command line that could not be parsed for --output json.
func asksForJSON(args []string) bool {
	for i, a := range args {
		for _, flag := range []string{"-o", "--output"} {
			rest, ok := strings.CutPrefix(a, flag)
			if ok && (slices.Contains([]string{"json", "=json"}, rest) || rest == "" && i+1 < len(args) &&
				args[i+1] == FormatJSON) {
				return true
			}
		}
	}
	return false
}
