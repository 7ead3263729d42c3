package rpc

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// grpcCodes maps each Code to the status code of gRPC.
var grpcCodes = map[rowraft.Code]codes.Code{
	rowraft.CodeInvalidArgument: codes.InvalidArgument,
	rowraft.CodeTableNotFound:   codes.NotFound,
	rowraft.CodeTableExists:     codes.AlreadyExists,
	rowraft.CodeNotLeader:       codes.FailedPrecondition,
	rowraft.CodeWrongShard:      codes.FailedPrecondition,
	rowraft.CodeNoLeader:        codes.Unavailable,
	rowraft.CodeStarting:        codes.Unavailable,
	rowraft.CodeClosing:         codes.Unavailable,
	rowraft.CodeTooStale:        codes.Unavailable,
	rowraft.CodeOverloaded:      codes.ResourceExhausted,
	rowraft.CodeLeadershipLost:  codes.Unavailable,
	rowraft.CodeDeadline:        codes.DeadlineExceeded,
	rowraft.CodeSessionExpired:  codes.OutOfRange,
	rowraft.CodeVersionTooNew:   codes.FailedPrecondition,
	rowraft.CodeCorrupt:         codes.DataLoss,
	rowraft.CodeInternal:        codes.Internal,
	rowraft.CodeIdentity:        codes.FailedPrecondition,
	rowraft.CodeNotFound:        codes.NotFound,
	rowraft.CodeAlreadyExists:   codes.AlreadyExists,
	rowraft.CodePrecondition:    codes.FailedPrecondition,
	rowraft.CodeFenced:          codes.Unavailable,

	rowraft.CodeStepClosed:      codes.FailedPrecondition,
	rowraft.CodeStaleGeneration: codes.FailedPrecondition,
	rowraft.CodeNotMember:       codes.FailedPrecondition,

	rowraft.CodeDenied: codes.PermissionDenied,

	rowraft.CodeNotSent: codes.Unavailable, // made by clients; no server returns it
}

// Detail converts an error to the message that carries all its fields. Its text is UTF-8, as protobuf requires.
func Detail(err error) *rowraftv1.ErrorDetail {
	d := &rowraftv1.ErrorDetail{Code: uint32(rowraft.CodeOf(err)), Message: strings.ToValidUTF8(err.Error(), "\uFFFD")}
	if e, ok := errors.AsType[*rowraft.NotLeaderError](err); ok {
		d.Shard, d.Leader, d.Term = uint32(e.Shard), string(e.Leader), uint64(e.Term)
	}
	if e, ok := errors.AsType[*rowraft.WrongShardError](err); ok {
		d.Shard, d.HaveVersion, d.WantVersion = uint32(e.Shard), uint64(e.Have), uint64(e.Want)
	}
	if e, ok := errors.AsType[*rowraft.RestoredError](err); ok {
		d.Shard, d.HaveVersion, d.WantVersion = uint32(e.Shard), uint64(e.Have), uint64(e.Want)
	}
	if _, ok := errors.AsType[*rowraft.SessionEndedError](err); ok {
		d.SessionEnded = true
	}
	if e, ok := errors.AsType[*rowraft.TooStaleError](err); ok {
		d.Shard, d.Applied, d.Wanted = uint32(e.Shard), uint64(e.Applied), uint64(e.Wanted)
		d.AgeNs, d.MaxAgeNs, d.Lag, d.MaxLag = uint64(max(e.Age, 0)), uint64(max(e.MaxAge, 0)), e.Lag, e.MaxLag
	}
	if e, ok := errors.AsType[*rowraft.OverloadedError](err); ok {
		d.RetryAfterNs = uint64(max(e.RetryAfter, 0))
	}
	if e, ok := errors.AsType[*rowraft.StepClosedError](err); ok {
		d.Shard, d.Step, d.NextStep, d.Unsure = uint32(e.Shard), uint64(e.Step), uint64(e.Next), e.Unsure
	}
	if e, ok := errors.AsType[*rowraft.StaleGenerationError](err); ok {
		d.Shard, d.HaveVersion, d.WantVersion, d.NextStep = uint32(e.Shard), uint64(e.Have), uint64(e.Want), uint64(e.Next)
	}
	if e, ok := errors.AsType[*rowraft.DeniedError](err); ok {
		d.What, d.Need, d.Have = e.What, e.Need, e.Have
	}
	return d
}

// detailError is a received error: its text, and the typed error inside.
type detailError struct {
	msg   string
	inner error
}

func (e *detailError) Error() string { return e.msg }
func (e *detailError) Unwrap() error { return e.inner }

// maxRetryAfter limits the wait that a server may request: a damaged number, or one of a later version,
// must not stop a client forever.
const maxRetryAfter = time.Minute

// duration converts ns, limited to the longest duration.
func duration(ns uint64) time.Duration { return time.Duration(min(ns, math.MaxInt64)) }

// FromDetail is the reverse of Detail.
func FromDetail(d *rowraftv1.ErrorDetail) error {
	// An unknown code of a later version may mean that the push was applied. A code above a byte must not
	// become a known one.
	code := rowraft.Code(min(d.Code, math.MaxUint8))
	if _, known := grpcCodes[code]; !known {
		code = rowraft.CodeUnknown
	}
	var inner error
	switch code {
	case rowraft.CodeNotLeader:
		inner = &rowraft.NotLeaderError{Shard: rowraft.ShardID(d.Shard), Term: rowraft.Term(d.Term),
			Leader: rowraft.NodeID(d.Leader)}
	case rowraft.CodeWrongShard:
		inner = &rowraft.WrongShardError{Shard: rowraft.ShardID(d.Shard), Have: rowraft.MapVersion(d.HaveVersion),
			Want: rowraft.MapVersion(d.WantVersion)}
	case rowraft.CodeTooStale:
		inner = &rowraft.TooStaleError{Shard: rowraft.ShardID(d.Shard), Applied: rowraft.Index(d.Applied),
			Wanted: rowraft.Index(d.Wanted),
			Age:    duration(d.AgeNs), MaxAge: duration(d.MaxAgeNs), Lag: d.Lag, MaxLag: d.MaxLag}
	case rowraft.CodeOverloaded:
		inner = &rowraft.OverloadedError{What: d.Message,
			RetryAfter: time.Duration(min(d.RetryAfterNs, uint64(maxRetryAfter)))}
	case rowraft.CodeStepClosed:
		inner = &rowraft.StepClosedError{Shard: rowraft.ShardID(d.Shard), Step: rowraft.Step(d.Step),
			Next: rowraft.Step(d.NextStep), Unsure: d.Unsure}
	case rowraft.CodeStaleGeneration:
		inner = &rowraft.StaleGenerationError{Shard: rowraft.ShardID(d.Shard), Have: rowraft.Generation(d.HaveVersion),
			Want: rowraft.Generation(d.WantVersion), Next: rowraft.Step(d.NextStep)}
	case rowraft.CodeSessionExpired:
		if d.SessionEnded {
			return &rowraft.SessionEndedError{What: d.Message}
		}
		if d.WantVersion == 0 { // not because of a wanted version
			return rowraft.Errorf(code, "%s", d.Message)
		}
		inner = &rowraft.RestoredError{Shard: rowraft.ShardID(d.Shard), Have: rowraft.TableEpoch(d.HaveVersion),
			Want: rowraft.TableEpoch(d.WantVersion)}
	case rowraft.CodeDenied:
		inner = &rowraft.DeniedError{What: d.What, Need: d.Need, Have: d.Have}
	default:
		return rowraft.Errorf(code, "%s", d.Message)
	}
	return &detailError{msg: d.Message, inner: inner}
}

// ToStatus converts an error to the gRPC error that a handler returns; nil stays nil.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	d := Detail(err)
	code, ok := grpcCodes[rowraft.Code(d.Code)]
	if !ok {
		if s, isStatus := status.FromError(err); isStatus {
			return s.Err()
		}
		code = codes.Unknown
	}
	details := []protoadapt.MessageV1{d}
	if d.RetryAfterNs > 0 { // for clients that do not know the rowraft detail
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(duration(d.RetryAfterNs))})
	}
	s, derr := status.New(code, d.Message).WithDetails(details...)
	if derr != nil {
		return status.Error(code, d.Message)
	}
	return s.Err()
}

// FromStatus converts the error of a gRPC call to an error with a Code; nil stays nil. A status without a
// rowraft detail (from gRPC itself, a proxy, a crash) becomes CodeUnknown or CodeDeadline: a push may have
// been applied.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, any := range s.Details() {
		if d, ok := any.(*rowraftv1.ErrorDetail); ok {
			return FromDetail(d)
		}
	}
	switch s.Code() {
	case codes.DeadlineExceeded, codes.Canceled:
		return rowraft.Errorf(rowraft.CodeDeadline, "%s", s.Message())
	case codes.Unimplemented:
		return rowraft.Errorf(rowraft.CodeVersionTooNew,
			"the server does not know this call (%s): it is older than this client, or not a rowraft server", s.Message())
	}
	err = rowraft.Errorf(rowraft.CodeUnknown, "%s: %s", s.Code(), s.Message())
	if s.Code() == codes.Unavailable {
		return brokenError{err}
	}
	return err
}

// brokenError is an Unavailable that gRPC itself made.
type brokenError struct{ error }

func (e brokenError) Unwrap() error { return e.error }

// Broken reports that a call ended because its connection broke, or could not be made. No response will
// come, and the call may have taken effect.
func Broken(err error) bool {
	_, ok := errors.AsType[brokenError](err)
	return ok
}

// unaryStatus and streamStatus convert the errors of handlers to statuses.
func unaryStatus(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	reply, err := h(ctx, req)
	return reply, ToStatus(err)
}

func streamStatus(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	return ToStatus(h(srv, s))
}

// clientStatus converts the errors of generated stubs to errors with Codes.
func clientStatus(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	return FromStatus(invoke(ctx, method, req, reply, cc, opts...))
}
