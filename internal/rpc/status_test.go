package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
)

func TestErrorsSurviveTheWire(t *testing.T) {
	for _, want := range []error{
		rowraft.Errorf(rowraft.CodeInvalidArgument, "dim 3, want 4"),
		fmt.Errorf("push: %w", &rowraft.NotLeaderError{Shard: 3, Term: 9, Leader: "n2"}),
		&rowraft.WrongShardError{Shard: 1, Have: 2, Want: 5},
		&rowraft.TooStaleError{Shard: 1, Applied: 7, Wanted: 8},
		&rowraft.TooStaleError{Shard: 3, Applied: 7, Age: 11 * time.Second, MaxAge: 10 * time.Second, Lag: 4, MaxLag: 9},
		&rowraft.OverloadedError{What: "queue", RetryAfter: 20 * time.Millisecond},
		rowraft.Errorf(rowraft.CodeSessionExpired, "gone"),
		&rowraft.StepClosedError{Shard: 1, Step: 7, Next: 9},
		&rowraft.StaleGenerationError{Shard: 1, Have: 2, Want: 3, Next: 9},
		&rowraft.RestoredError{Shard: 1, Have: 2, Want: 3},
	} {
		got := FromStatus(ToStatus(want))
		if got.Error() != want.Error() || rowraft.CodeOf(got) != rowraft.CodeOf(want) {
			t.Errorf("%v (%v) came out as %v (%v)", want, rowraft.CodeOf(want), got, rowraft.CodeOf(got))
		}
	}
	sc, ok := errors.AsType[*rowraft.StepClosedError](FromStatus(ToStatus(&rowraft.StepClosedError{Shard: 1, Step: 7,
		Next: 9, Unsure: true})))
	if !ok || *sc != (rowraft.StepClosedError{Shard: 1, Step: 7, Next: 9, Unsure: true}) {
		t.Errorf("what StepClosed tells was lost: %+v", sc)
	}
	if e, ok := errors.AsType[*rowraft.SessionEndedError](FromStatus(ToStatus(fmt.Errorf("server a: %w",
		&rowraft.SessionEndedError{What: "over"})))); !ok || e.What != "server a: over" {
		t.Errorf("a SessionEndedError arrives as %+v", e)
	}
	if e, ok := errors.AsType[*rowraft.RestoredError](FromStatus(ToStatus(&rowraft.RestoredError{Shard: 1, Have: 2,
		Want: 3}))); !ok || *e != (rowraft.RestoredError{Shard: 1, Have: 2, Want: 3}) {
		t.Errorf("a RestoredError arrives as %+v", e)
	}
	sg, ok := errors.AsType[*rowraft.StaleGenerationError](FromStatus(ToStatus(&rowraft.StaleGenerationError{Shard: 1,
		Have: 2, Want: 3, Next: 9})))
	if !ok || *sg != (rowraft.StaleGenerationError{Shard: 1, Have: 2, Want: 3, Next: 9}) {
		t.Errorf("what StaleGeneration tells was lost: %+v", sg)
	}
	de, ok := errors.AsType[*rowraft.DeniedError](FromStatus(ToStatus(&rowraft.DeniedError{What: "Push", Need: "trainer",
		Have: "reader r"})))
	if !ok || *de != (rowraft.DeniedError{What: "Push", Need: "trainer", Have: "reader r"}) {
		t.Errorf("what Denied tells was lost: %+v", de)
	}
	nl, ok := errors.AsType[*rowraft.NotLeaderError](FromStatus(ToStatus(fmt.Errorf("x: %w",
		&rowraft.NotLeaderError{Shard: 3, Term: 9, Leader: "n2"}))))
	if !ok || *nl != (rowraft.NotLeaderError{Shard: 3, Term: 9, Leader: "n2"}) {
		t.Errorf("the hint of NotLeader was lost: %+v", nl)
	}
}

// TestOverloadedSaysWhenToAskAgain: a client that does not know the rowraft detail gets the wait time in gRPC's
// own message.
func TestOverloadedSaysWhenToAskAgain(t *testing.T) {
	s := status.Convert(ToStatus(&rowraft.OverloadedError{What: "queue", RetryAfter: 30 * time.Millisecond}))
	var told time.Duration
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			told = info.GetRetryDelay().AsDuration()
		}
	}
	if s.Code() != codes.ResourceExhausted || told != 30*time.Millisecond {
		t.Errorf("%v with a RetryInfo of %v, want ResourceExhausted with 30 ms", s.Code(), told)
	}
	if n := len(status.Convert(ToStatus(rowraft.Errorf(rowraft.CodeOverloaded, "another is running"))).Details()); n != 1 {
		t.Errorf("without a wait time there are %d details, want one", n)
	}
}

// TestForeignStatusMayHaveBeenApplied: a status that rowraft did not make does not say whether the push was
// applied.
func TestForeignStatusMayHaveBeenApplied(t *testing.T) {
	for _, err := range []error{
		status.Error(codes.Unavailable, "connection reset"),
		status.Error(codes.DeadlineExceeded, "late"),
		context.DeadlineExceeded,
		status.Error(codes.Internal, "stream"),
	} {
		if got := FromStatus(err); !rowraft.CodeOf(got).MaybeApplied() {
			t.Errorf("%v became %v, which claims that nothing was applied", err, rowraft.CodeOf(got))
		}
	}
}

func TestEveryCodeHasAStatus(t *testing.T) {
	for c := rowraft.CodeInvalidArgument; c <= rowraft.CodeDenied; c++ {
		if _, ok := grpcCodes[c]; !ok {
			t.Errorf("code %v has no gRPC status", c)
		}
	}
}
