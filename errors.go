package rowraft

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Code answers the two questions of an error: what may the caller do, and may
// the push still take effect? Its numbers travel in ErrorDetail and stand in
// snapshots: they never change, new ones go to the end.
type Code uint8

const (
	CodeUnknown         Code = iota // an error without a code; effect: maybe
	CodeInvalidArgument             // wrong on any replica: fix the call
	CodeTableNotFound
	CodeTableExists
	CodeNotLeader      // refused before proposing: follow the hint
	CodeWrongShard     // the slot is elsewhere: fetch the map, split again
	CodeNoLeader       // no replica here can serve it now: back off, same call
	CodeStarting       // likewise
	CodeClosing        // likewise
	CodeTooStale       // this replica lags the bound: another one, then the leader
	CodeOverloaded     // queue, memory or disk is full: wait as told
	CodeLeadershipLost // commit unknown: resend the same number
	CodeDeadline       // gave up after proposing: resend the same number
	CodeSessionExpired // session unknown, fenced or of an older epoch: report
	CodeVersionTooNew  // file or peer is newer than this binary: upgrade
	CodeCorrupt        // checksum or format broken: operator
	CodeInternal       // an invariant does not hold: report
	CodeIdentity       // data directory or peer of another cluster or node: operator
	CodeNotFound       // a named thing other than a table does not exist
	CodeAlreadyExists  // likewise, exists
	CodePrecondition   // the cluster is not as the call needs it: look again, then decide; effect: none
	CodeFenced         // this replica differs from the majority and serves nothing: another one; operator

	CodeStepClosed      // the step was closed without this gradient: go on with the step that is told; effect: none
	CodeStaleGeneration // the job is at a later generation: take that; effect: none
	CodeNotMember       // the worker, or this incarnation of it, is not of the job (any more): stop; effect: none

	CodeDenied // who calls may not do that: another certificate; effect: none

	CodeNotSent // the client gave up before it sent anything of the call: same call again; effect: none
)

var codeNames = [...]string{
	"Unknown", "InvalidArgument", "TableNotFound", "TableExists", "NotLeader", "WrongShard",
	"NoLeader", "Starting", "Closing", "TooStale", "Overloaded", "LeadershipLost", "Deadline",
	"SessionExpired", "VersionTooNew", "Corrupt", "Internal", "Identity", "NotFound", "AlreadyExists", "Precondition",
	"Fenced",
	"StepClosed", "StaleGeneration", "NotMember", "Denied", "NotSent",
}

// Codes is the number of codes: each Code is below it.
const Codes = len(codeNames)

func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("Code(%d)", uint8(c))
}

// MaybeApplied reports whether a push that ended with this code may still take
// effect. Only then must the client resend it under the same number.
func (c Code) MaybeApplied() bool {
	switch c {
	case CodeUnknown, CodeLeadershipLost, CodeDeadline, CodeSessionExpired, CodeInternal, CodeFenced:
		return true
	}
	return false
}

// Retryable reports whether the same call may succeed later without a change
// by the caller.
func (c Code) Retryable() bool {
	switch c {
	case CodeUnknown, CodeNotLeader, CodeWrongShard, CodeNoLeader, CodeStarting, CodeClosing,
		CodeTooStale, CodeOverloaded, CodeLeadershipLost, CodeDeadline, CodeFenced, CodeNotSent:
		return true
	}
	return false
}

// Error is an error with a Code and a text for a person. Errors that carry
// more (NotLeaderError …) are types of their own with a Code method.
type Error struct {
	code Code
	msg  string
	err  error // wrapped, may be nil
}

func (e *Error) Error() string { return e.msg }
func (e *Error) Code() Code    { return e.code }
func (e *Error) Unwrap() error { return e.err }

// Errorf returns an error with code. The format is that of fmt.Errorf, %w included.
func Errorf(code Code, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{code: code, msg: err.Error(), err: errors.Unwrap(err)}
}

// CodeOf returns the code of the first error in err's chain that has one:
// CodeDeadline for an expired or cancelled context, CodeUnknown otherwise.
func CodeOf(err error) Code {
	var coded interface {
		error
		Code() Code
	}
	if errors.As(err, &coded) {
		return coded.Code()
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return CodeDeadline
	}
	return CodeUnknown
}

// NotLeaderError reports that this replica does not lead the shard, so it
// refused the request before proposing it: nothing was or will be applied.
// Leader is a hint and may be stale. A client follows it once, then fetches a
// fresh cluster map.
type NotLeaderError struct {
	Shard  ShardID
	Term   Term   // in which Leader was last seen leading
	Leader NodeID // "" if unknown
}

func (e *NotLeaderError) Error() string {
	if e.Leader == "" {
		return fmt.Sprintf("shard %d: not leader, and the leader at term %d is unknown", e.Shard, e.Term)
	}
	return fmt.Sprintf("shard %d: not leader (server %s leads at term %d)", e.Shard, e.Leader, e.Term)
}

func (e *NotLeaderError) Code() Code { return CodeNotLeader }

// WrongShardError reports that the request was split by a map that no longer
// holds. Nothing was applied.
type WrongShardError struct {
	Shard      ShardID
	Have, Want MapVersion // of the request, and of the node
}

func (e *WrongShardError) Error() string {
	return fmt.Sprintf(
		"shard %d: the request was split by map version %d, this server has version %d: fetch the map and split again",
		e.Shard, e.Have, e.Want)
}

func (e *WrongShardError) Code() Code { return CodeWrongShard }

// TooStaleError reports that this replica is not as new as the read asked for: it lacks
// the entry Wanted, or cannot prove the bound MaxAge and MaxLag of a bounded read. Applied,
// Age and Lag are what it could have met.
type TooStaleError struct {
	Shard           ShardID
	Applied, Wanted Index

	Age    time.Duration // 0: it has proved none
	MaxAge time.Duration // 0: the read was not bounded
	Lag    uint64        // log entries known and not applied
	MaxLag uint64        // 0: any
}

func (e *TooStaleError) Error() string {
	switch {
	case e.MaxAge == 0 || e.Applied < e.Wanted:
		return fmt.Sprintf("shard %d: applied index %d, the read wants %d", e.Shard, e.Applied, e.Wanted)
	case e.Age == 0:
		return fmt.Sprintf("shard %d: this replica could not learn how old its rows are; the read wants at most %v", e.Shard,
			e.MaxAge)
	}
	lag := ""
	if e.MaxLag > 0 {
		lag = fmt.Sprintf(" and %d entries", e.MaxLag)
	}
	return fmt.Sprintf("shard %d: the rows may be %v old and lack %d entries of the log; the read wants at most %v%s",
		e.Shard, e.Age.Round(time.Millisecond), e.Lag, e.MaxAge, lag)
}

func (e *TooStaleError) Code() Code { return CodeTooStale }

// RestoredError reports that a checkpoint was restored after the caller began. The tables
// were replaced, and the caller's sessions, jobs and read positions are gone. The caller
// starts again, on the present tables.
type RestoredError struct {
	Shard      ShardID
	Have, Want TableEpoch // of the call, and of the tables
}

func (e *RestoredError) Error() string {
	return fmt.Sprintf("shard %d: the cluster was restored from a checkpoint: this began with the tables of epoch %d, "+
		"those of epoch %d are there now: start it again to continue with them", e.Shard, e.Have, e.Want)
}

func (e *RestoredError) Code() Code { return CodeSessionExpired }

// SessionEndedError reports that the shard has no session of this client and incarnation
// any more: it was closed, expired, or made room for others, and never opens again. The
// shard applied nothing of this call. A client without unanswered batches may open a
// session under another incarnation. A session that a later incarnation fenced is not one
// of these.
type SessionEndedError struct {
	What string // which session and why, for a person
}

func (e *SessionEndedError) Error() string { return e.What }

func (e *SessionEndedError) Code() Code { return CodeSessionExpired }

// OverloadedError reports that a bounded queue, the memory or the disk is full.
// Nothing was applied; retry after RetryAfter with jitter.
type OverloadedError struct {
	What       string // which limit, for a person
	Limit      string // the same in one word, for the server's metrics; a client does not get it
	RetryAfter time.Duration
}

func (e *OverloadedError) Error() string {
	return fmt.Sprintf("overloaded: %s, retry after %v", e.What, e.RetryAfter)
}

func (e *OverloadedError) Code() Code { return CodeOverloaded }

// DeniedError reports that the certificate of who calls does not allow the call.
// Nothing was applied.
type DeniedError struct {
	What string // that was refused: a call, a table, a session
	Need string // the roles that may, as people read them
	Have string // role and name of who asked
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("%s needs the role %s; the certificate is of %s", e.What, e.Need, e.Have)
}

func (e *DeniedError) Code() Code { return CodeDenied }
