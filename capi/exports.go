//go:build cgo

package main

/*
#include "rowraft.h"
*/
import "C"

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/trainer/tables"
)

func main() {}

// version is set by the linker (Makefile).
var version = "unknown"

//export rowraftGoStart
func rowraftGoStart(clientID C.uint64_t, what C.int32_t, segments *C.rowraft_segment, count C.int64_t,
	request *C.char, requestBytes, timeoutMs, waitMs C.int64_t, out *C.rowraft_status) {
	*out = C.rowraft_status{}
	defer guard(out)
	var body []byte
	if request != nil && requestBytes > 0 {
		body = C.GoBytes(unsafe.Pointer(request), C.int(requestBytes))
	}
	parts := slices.Clone(slice[C.rowraft_segment](unsafe.Pointer(segments), count)) // C may reuse them at once
	o := start(uint64(clientID), timeout(timeoutMs), func(ctx context.Context, s *session) (result, error) {
		switch {
		case what == C.ROWRAFT_CALL:
			text, err := call(ctx, s, body)
			return result{text: text}, err
		case s == nil:
			return result{}, rowraft.Errorf(rowraft.CodeInvalidArgument, "operation %d needs a client", what)
		case what == C.ROWRAFT_NEXT && len(parts) == 1:
			p := &parts[0]
			n, err := s.next(ctx, uint64(p.table), slice[rowraft.Key](unsafe.Pointer(p.keys), p.n),
				func(dim int) []float32 { return slice[float32](unsafe.Pointer(p.values), p.n*C.int64_t(dim)) })
			return result{rows: n}, err
		case what >= C.ROWRAFT_JOB_PULL && what <= C.ROWRAFT_JOB_FINISH:
			return work(ctx, s, what, parts, body)
		}
		return result{}, move(ctx, s, what, parts, body)
	})
	report(o, wait(o, waitMs), out)
}

// guard keeps a panic of this package from C. Operations have their own (protect).
func guard(out *C.rowraft_status) {
	if p := recover(); p != nil {
		o := &operation{cancel: func() {}, ended: make(chan struct{})}
		o.id = operations.add(o)
		o.result = protect(func() (result, error) { panic(p) })
		close(o.ended)
		report(o, true, out)
	}
}

// move pulls, pushes, assigns or deletes.
func move(ctx context.Context, s *session, what C.int32_t, parts []C.rowraft_segment, body []byte) (err error) {
	if s.local != nil {
		return moveLocal(ctx, s.local, what, parts, body)
	}
	segs := make([]client.Segment, len(parts))
	for i := range parts {
		p := &parts[i]
		t, err := s.table(rowraft.TableID(p.table))
		if err != nil {
			return err
		}
		segs[i] = client.Segment{Table: t, Keys: slice[rowraft.Key](unsafe.Pointer(p.keys), p.n), LR: float32(p.lr)}
		if what != C.ROWRAFT_DELETE {
			segs[i].Values = slice[float32](unsafe.Pointer(p.values), p.n*C.int64_t(t.Dim()))
		}
		if p.present != nil {
			segs[i].Present = slice[bool](unsafe.Pointer(p.present), p.n)
		}
	}
	switch what {
	case C.ROWRAFT_PULL:
		var how client.Read
		if how, err = readMode(body); err == nil {
			_, err = s.client.PullWith(ctx, how, segs...)
		}
	case C.ROWRAFT_PUSH:
		_, err = s.client.Push(ctx, segs...)
	case C.ROWRAFT_ASSIGN:
		_, err = s.client.Assign(ctx, segs...)
	case C.ROWRAFT_DELETE:
		_, err = s.client.Delete(ctx, segs...)
	default:
		err = rowraft.Errorf(rowraft.CodeInvalidArgument, "unknown operation %d with %d segments", what, len(parts))
	}
	return err
}

// work is an operation of the worker of a job.
func work(ctx context.Context, s *session, what C.int32_t, parts []C.rowraft_segment, body []byte) (r result,
	err error) {
	if what == C.ROWRAFT_JOB_STATE {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.found != nil {
			r.text = s.found.State.Opaque
		}
		return r, nil
	}
	j, err := s.worker()
	if err != nil {
		return r, err
	}
	if what == C.ROWRAFT_JOB_HOLD || what == C.ROWRAFT_JOB_FINISH {
		if len(parts) != 1 {
			return r, rowraft.Errorf(rowraft.CodeInvalidArgument, "%d segments, want the state", len(parts))
		}
		opaque := bytes.Clone(slice[byte](unsafe.Pointer(parts[0].values), parts[0].n)) // a checkpoint reads it later
		if what == C.ROWRAFT_JOB_HOLD {
			return r, j.hold(ctx, opaque)
		}
		return r, j.finish(opaque)
	}
	segs := make([]tables.Segment, len(parts))
	for i := range parts {
		p := &parts[i]
		t, err := s.table(rowraft.TableID(p.table))
		if err != nil {
			return r, err
		}
		segs[i] = tables.Segment{Table: t.Schema().ID, Dim: t.Dim(), Keys: slice[rowraft.Key](unsafe.Pointer(p.keys), p.n),
			Values: slice[float32](unsafe.Pointer(p.values), p.n*C.int64_t(t.Dim())), LR: float32(p.lr)}
	}
	if err := ascending(segs); err != nil {
		return r, err
	}
	if what == C.ROWRAFT_JOB_PULL {
		stale, err := j.pull(ctx, segs)
		return result{rows: int(stale)}, err
	}
	var q struct {
		Step int64 `json:"step"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return r, rowraft.Errorf(rowraft.CodeInvalidArgument, "request of a step: %w", err)
	}
	return r, j.push(q.Step, segs)
}

// readMode reads the request of a pull: {"mode": "bounded", "max_age_ms": 1000}; without one it is a leader read.
func readMode(body []byte) (how client.Read, err error) {
	if len(body) == 0 {
		return how, nil
	}
	var q struct {
		Mode     string `json:"mode"`
		MaxAgeMs int64  `json:"max_age_ms"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return how, rowraft.Errorf(rowraft.CodeInvalidArgument, "request of a pull: %w", err)
	}
	switch q.Mode {
	case "leader":
	case "linearizable":
		how.Mode = client.Linearizable
	case "bounded":
		how = client.Read{Mode: client.Bounded, MaxAge: time.Duration(q.MaxAgeMs) * time.Millisecond}
	default:
		return how, rowraft.Errorf(rowraft.CodeInvalidArgument, "mode %q: want leader, linearizable or bounded", q.Mode)
	}
	return how, nil
}

// slice is C memory as a Go slice, which C owns. The sizes of Key, float32 and bool are those of rowraft.h.
func slice[T any](p unsafe.Pointer, n C.int64_t) []T {
	if p == nil || n <= 0 {
		return nil
	}
	return unsafe.Slice((*T)(p), n)
}

//export rowraftGoWait
func rowraftGoWait(op C.uint64_t, waitMs C.int64_t, out *C.rowraft_status) {
	defer guard(out)
	o, ok := operations.get(uint64(op))
	if !ok {
		*out = C.rowraft_status{state: C.ROWRAFT_FAILED, code: C.ROWRAFT_ENDED}
		return
	}
	report(o, wait(o, waitMs), out)
}

//export rowraftGoCancel
func rowraftGoCancel(op C.uint64_t) {
	if o, ok := operations.get(uint64(op)); ok {
		o.cancel()
	}
}

//export rowraftGoTake
func rowraftGoTake(op C.uint64_t, text *C.char, bytes C.int64_t) {
	o, ok := operations.get(uint64(op))
	if !ok {
		return
	}
	select {
	case <-o.ended:
		operations.remove(o.id)
		copy(slice[byte](unsafe.Pointer(text), bytes), o.result.text)
	default: // it runs: its caller has to wait first
	}
}

func timeout(ms C.int64_t) time.Duration {
	if ms < 0 {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}

// wait returns whether the operation has ended.
func wait(o *operation, ms C.int64_t) bool { return o.wait(timeout(ms)) }

// report fills out and forgets an operation that has ended without a text. While the operation runs, out.op stays as it
// is: another thread may read it to cancel the operation.
func report(o *operation, ended bool, out *C.rowraft_status) {
	s := C.rowraft_status{op: C.uint64_t(o.id)}
	if !ended {
		*out = s
		return
	}
	r := &o.result
	s.state, s.rows = C.ROWRAFT_DONE, C.int64_t(r.rows)
	if r.err != nil {
		code := rowraft.CodeOf(r.err)
		s.state, s.code = C.ROWRAFT_FAILED, C.int32_t(code)
		if code.MaybeApplied() {
			s.maybe_applied = 1
		}
		r.text = []byte(strings.ToValidUTF8(r.err.Error(), "?"))
	}
	if s.text_bytes = C.int64_t(len(r.text)); s.text_bytes == 0 {
		operations.remove(o.id)
		s.op = 0
	}
	*out = s
}
