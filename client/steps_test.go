package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

var testJob = rowraft.JobID{1, 2, 3, 15: 4}

// fakeSteps is a leader that takes steps. It gives the answers of the test and records the requests.
type fakeSteps struct {
	mu    sync.Mutex
	calls []*rowraftv1.PushStepRequest
	// answers are those of each shard; the last one repeats.
	answers map[uint32][]stepReply
}

type stepReply struct {
	outcome rowraftv1.StepOutcome
	err     error
}

const (
	applied = rowraftv1.StepOutcome_STEP_OUTCOME_APPLIED
	held    = rowraftv1.StepOutcome_STEP_OUTCOME_HELD
	missing = rowraftv1.StepOutcome_STEP_OUTCOME_MISSING
)

func (f *fakeSteps) answer(_ context.Context, req *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, req)
	all := f.answers[req.Shard]
	if len(all) > 1 {
		f.answers[req.Shard] = all[1:]
	}
	return &rowraftv1.PushStepReply{Outcome: all[0].outcome, AppliedIndex: 7}, all[0].err
}

// of lists the calls of a shard: the fragment, or −1 for a probe.
func (f *fakeSteps) of(shard uint32) (calls []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		switch {
		case c.Shard != shard:
		case c.Probe:
			calls = append(calls, -1)
		default:
			calls = append(calls, int(c.Fragment))
		}
	}
	return calls
}

// pushStep pushes step 5 with the given number of rows to a shard, in a cluster of two shards.
func pushStep(t *testing.T, ctx context.Context, f *fakeSteps, rows int) (StepResult, *Job, error) {
	t.Helper()
	s := &fakeServer{step: f.answer}
	s.serve(t, 2)
	c, table := s.dial(t, nil)
	j, err := c.Job(JobOptions{ID: testJob, Generation: 3, Rank: 1, Incarnation: 2})
	if err != nil {
		t.Fatal(err)
	}
	seg := Segment{Table: table}
	for k := rowraft.Key(1); len(seg.Keys) < rows; k++ {
		if s.m.ShardOf(table.Slot(k)) == 0 {
			seg.Keys, seg.Values = append(seg.Keys, k), append(seg.Values, 1, 1)
		}
	}
	result, err := j.PushStep(ctx, 5, []rowraft.Position{{ID: 8, Offset: 9}}, seg)
	return result, j, err
}

// Each shard gets a part, even an empty one. The client sends all fragments of a part again when a leader
// does not have it, and asks for its outcome while the leader holds it.
func TestAStepIsPushedUntilItIsKnown(t *testing.T) {
	const rows = 100_000 // of 16 bytes: two messages
	f := &fakeSteps{answers: map[uint32][]stepReply{
		0: {{outcome: held}, {outcome: held}, {outcome: held}, {outcome: missing}, {outcome: held}, {outcome: held},
			{outcome: applied}},
		1: {{err: &rowraft.OverloadedError{What: "x", RetryAfter: time.Millisecond}},
			{err: rowraft.Errorf(rowraft.CodeLeadershipLost, "x")}, {outcome: applied}},
	}}
	result, j, err := pushStep(t, patience(t), f, rows)
	if err != nil || len(result.Late)+len(result.Unsure) > 0 || result.Next != 6 || result.Index[0] != 7 ||
		result.Index[1] != 7 {
		t.Fatalf("%+v, %v", result, err)
	}
	if got, want := f.of(0), []int{0, 1, -1, -1, 0, 1, -1}; !slices.Equal(got, want) {
		t.Errorf("shard 0 was sent %d, want %d", got, want)
	}
	if got, want := f.of(1), []int{0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("shard 1 was sent %d, want %d", got, want)
	}
	home := j.clockShard()
	keys := 0
	for _, c := range f.calls {
		if c.Step != 5 || c.Generation != 3 || c.Rank != 1 || c.Incarnation != 2 || rowraft.JobID(c.Job) != testJob {
			t.Errorf("the call names another part: %v", c)
		}
		if first := c.Fragment == 0 && !c.Probe; first != (len(c.Positions) == 1) {
			t.Errorf("positions %v in a call of shard %d, fragment %d", c.Positions, c.Shard, c.Fragment)
		}
		if len(c.Payload) > batchBytes {
			t.Errorf("a message of %d bytes", len(c.Payload))
		}
		if len(c.Payload) > 0 {
			seg, _, _, err := wire.ParseSegment(c.Payload)
			if err != nil {
				t.Fatal(err)
			}
			keys += seg.N
		}
	}
	if keys != 2*rows {
		t.Errorf("%d rows were sent, want all of %d twice", keys, rows)
	}
	if home != j.c.Map().ShardOf(clustermap.JobSlot(testJob, rowraft.DefaultSlots)) {
		t.Errorf("the clock shard is %d", home)
	}
}

// TestPatienceDoesNotCountOtherWorkers: a shard that waits for other workers may do so for longer than the patience of
// the job. One that does not answer may not, and neither may one that waits for none.
func TestPatienceDoesNotCountOtherWorkers(t *testing.T) {
	t.Parallel()
	push := func(patience time.Duration, answer func(context.Context, *rowraftv1.PushStepRequest) (
		*rowraftv1.PushStepReply, error)) error {
		s := &fakeServer{step: answer}
		s.serve(t, 2)
		c, _ := s.dial(t, nil)
		j, err := c.Job(JobOptions{ID: testJob, Generation: 3, Rank: 1, Incarnation: 2, Patience: patience})
		if err != nil {
			t.Fatal(err)
		}
		_, err = j.PushStep(t.Context(), 5, nil)
		return err
	}
	const patience = 3 * time.Second
	begun := time.Now()
	if err := push(patience, func(context.Context, *rowraftv1.PushStepRequest) (*rowraftv1.PushStepReply,
		error) {
		if time.Since(begun) > patience+patience/2 {
			return &rowraftv1.PushStepReply{Outcome: applied, AppliedIndex: 7}, nil
		}
		time.Sleep(patience / 20) //tidy:allow sleep the hold of a leader
		return &rowraftv1.PushStepReply{Outcome: held, WaitingFor: 1}, nil
	}); err != nil {
		t.Errorf("a step that was open for longer than the patience: %v", err)
	}
	for name, answer := range map[string]func(context.Context) (*rowraftv1.PushStepReply, error){
		"does not answer": func(ctx context.Context) (*rowraftv1.PushStepReply, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"waits for no worker": func(context.Context) (*rowraftv1.PushStepReply, error) {
			return &rowraftv1.PushStepReply{Outcome: held}, nil
		},
	} {
		err := push(100*time.Millisecond, func(ctx context.Context, _ *rowraftv1.PushStepRequest) (
			*rowraftv1.PushStepReply, error) {
			return answer(ctx)
		})
		if rowraft.CodeOf(err) != rowraft.CodeDeadline || !strings.Contains(err.Error(), "no result within 100ms") {
			t.Errorf("a shard that %s: %v", name, err)
		}
	}
}

func TestWhatAShardTellsOfAStep(t *testing.T) {
	late := func(next rowraft.Step, unsure bool) stepReply {
		return stepReply{err: &rowraft.StepClosedError{Shard: 1, Step: 5, Next: next, Unsure: unsure}}
	}
	stale := stepReply{err: &rowraft.StaleGenerationError{Have: 3, Want: 9, Next: 5}}
	for _, tc := range []struct {
		name    string
		one     []stepReply // of shard 1; shard 0 has applied, or waits if want is set
		late    []rowraft.ShardID
		unsure  []rowraft.ShardID
		next    rowraft.Step
		calls   int
		code    rowraft.Code
		adopted rowraft.Generation
	}{
		{name: "late", one: []stepReply{late(9, false)}, late: []rowraft.ShardID{1}, next: 9, calls: 1, adopted: 3},
		{name: "unsure", one: []stepReply{late(40, true)}, unsure: []rowraft.ShardID{1}, next: 40, calls: 1, adopted: 3},
		{name: "a newer generation is taken", one: []stepReply{stale, {outcome: applied}}, next: 6, calls: 2, adopted: 9},
		{name: "no member", one: []stepReply{{err: rowraft.Errorf(rowraft.CodeNotMember, "x")}}, code: rowraft.CodeNotMember,
			calls: 1, adopted: 3},
		{name: "the job has ended", one: []stepReply{{err: rowraft.Errorf(rowraft.CodeNotFound, "x")}},
			code: rowraft.CodeNotFound, calls: 1, adopted: 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			zero := []stepReply{{outcome: applied}}
			if tc.code != rowraft.CodeUnknown {
				zero[0].outcome = held // would repeat forever: the error of the other shard ends it
			}
			f := &fakeSteps{answers: map[uint32][]stepReply{0: zero, 1: tc.one}}
			result, j, err := pushStep(t, patience(t), f, 1)
			if rowraft.CodeOf(err) != tc.code || !slices.Equal(result.Late, tc.late) ||
				!slices.Equal(result.Unsure, tc.unsure) || result.Next != tc.next || j.Generation() != tc.adopted {
				t.Errorf("%+v, generation %d, %v", result, j.Generation(), err)
			}
			if got := f.of(1); len(got) != tc.calls {
				t.Errorf("calls %v, want %d", got, tc.calls)
			}
		})
	}
}

// A caller that leaves does not know the outcome.
func TestAStepWithoutAnAnswerInTime(t *testing.T) {
	f := &fakeSteps{answers: map[uint32][]stepReply{0: {{outcome: held}}, 1: {{outcome: applied}}}}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if result, _, err := pushStep(t, ctx, f, 1); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Errorf("%+v, %v; want Deadline", result, err)
	}
}

// A clock travels with the last batch for its shard, or with an empty one. Every other batch names the
// worker and what it has read, with clock 0.
func TestAClockRidesOnAPush(t *testing.T) {
	var mu sync.Mutex
	var got []*rowraftv1.WriteRequest
	s := &fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, req)
		return nil
	}}
	asked := 0
	s.clock = func(req *rowraftv1.WaitClockRequest) (*rowraftv1.WaitClockReply, error) {
		asked++
		return &rowraftv1.WaitClockReply{Slowest: uint64(asked)}, nil
	}
	s.serve(t, 2)
	c, table := s.dial(t, nil)
	j, err := c.Job(JobOptions{ID: testJob, Generation: 3, Rank: 1, Incarnation: 2})
	if err != nil {
		t.Fatal(err)
	}
	home := j.clockShard()
	for _, shard := range []rowraft.ShardID{home, 1 - home} {
		got = nil
		seg := Segment{Table: table, Keys: []rowraft.Key{s.keyOf(table, shard)}, Values: []float32{1, 1}}
		if _, err := j.PushClock(patience(t), 9, []rowraft.Position{{ID: 1, Offset: 2}, {ID: 3, Offset: 4}},
			seg); err != nil {
			t.Fatal(err)
		}
		clocked, rows := 0, 0
		for _, req := range got {
			payload := req.Payload
			if req.Op == rowraftv1.WriteOp_WRITE_OP_CLOCKED {
				clock, rest, err := wire.ParseClock(payload)
				want := uint64(0)
				if rowraft.ShardID(req.Shard) == home {
					want = 9
					clocked++
				}
				if err != nil || clock.Clock != want || clock.Rank != 1 || clock.Incarnation != 2 || clock.Job != testJob ||
					len(clock.Positions) != 2 {
					t.Errorf("shard %d: %+v, %v", req.Shard, clock, err)
				}
				payload = rest
			} else {
				t.Errorf("shard %d has a part that names no worker", req.Shard)
			}
			if len(payload) > 0 {
				rows++
			}
		}
		if want := 1 + int(shard^home); clocked != 1 || rows != 1 || len(got) != want {
			t.Errorf("rows for shard %d, clock in %d: %d messages, %d with a clock, %d with rows", shard, home, len(got),
				clocked, rows)
		}
	}
	if slowest, err := j.WaitClock(patience(t), 3); err != nil || slowest != 3 || asked != 3 {
		t.Errorf("WaitClock = %d, %v after %d calls", slowest, err, asked)
	}
	if _, err := j.PushClock(patience(t), 9, []rowraft.Position{{ID: 3}, {ID: 1}}); rowraft.CodeOf(
		err) != rowraft.CodeInvalidArgument {
		t.Errorf("data parts that do not ascend: %v", err)
	}
}

// raisesClock reports whether req is the batch of a push that has the clock.
func raisesClock(req *rowraftv1.WriteRequest) bool {
	c, _, err := wire.ParseClock(req.Payload)
	return err == nil && req.Op == rowraftv1.WriteOp_WRITE_OP_CLOCKED && c.Clock > 0
}

// A reader that sees a clock finds the rows of its push in every shard. The client sends the batch with the
// clock when the others are acknowledged, and does not send it if one is refused.
func TestAClockWaitsForTheOtherParts(t *testing.T) {
	clocked := make(chan struct{}, 1)
	var refuse error
	s := &fakeServer{push: func(_ context.Context, req *rowraftv1.WriteRequest) error {
		if raisesClock(req) {
			clocked <- struct{}{}
			return nil
		}
		select {
		case <-clocked:
			t.Error("the clock was sent before the rows in another shard were acknowledged")
		case <-time.After(100 * time.Millisecond): // a concurrent send would arrive by now
		}
		return refuse
	}}
	s.serve(t, 2)
	c, table := s.dial(t, nil)
	j, err := c.Job(JobOptions{ID: testJob, Generation: 3, Rank: 1, Incarnation: 2})
	if err != nil {
		t.Fatal(err)
	}
	home := j.clockShard()
	seg := Segment{Table: table, Keys: []rowraft.Key{s.keyOf(table, home), s.keyOf(table, 1-home)},
		Values: []float32{1, 1, 1, 1}}
	slices.Sort(seg.Keys)
	r, err := j.PushClock(patience(t), 9, nil, seg)
	if err != nil || r.Batches != 2 || len(r.Index) != 2 || len(clocked) != 1 {
		t.Errorf("%+v, %v, and the clock was sent %d times", r, err, len(clocked))
	}
	<-clocked
	refuse = rowraft.Errorf(rowraft.CodeInvalidArgument, "x")
	if _, err := j.PushClock(patience(t), 10, nil, seg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
		len(clocked) != 0 {
		t.Errorf("%v, and the clock was sent %d times", err, len(clocked))
	}
}

// A worker names the epoch of the tables that it began with, so that a shard can distinguish a restore from
// the end of the job.
func TestAWorkerNamesItsTableEpoch(t *testing.T) {
	var got []uint64
	s := &fakeServer{clock: func(req *rowraftv1.WaitClockRequest) (*rowraftv1.WaitClockReply, error) {
		if got = append(got, req.TableEpoch); len(got) == 3 {
			return nil, &rowraft.RestoredError{Have: 4, Want: 5}
		}
		return &rowraftv1.WaitClockReply{Slowest: 9, TableEpoch: 4}, nil
	}}
	s.serve(t, 2)
	c, _ := s.dial(t, nil)
	j, err := c.Job(JobOptions{ID: testJob, Generation: 3, Rank: 1, Incarnation: 2})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, err = j.WaitClock(patience(t), 3)
	}
	if e, ok := errors.AsType[*rowraft.RestoredError](err); !ok || *e != (rowraft.RestoredError{Have: 4, Want: 5}) {
		t.Errorf("a restore is told as %v", err)
	}
	if !slices.Equal(got, []uint64{0, 4, 4}) {
		t.Errorf("the calls named the epochs %d", got)
	}
}
