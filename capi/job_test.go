//go:build cgo

package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tables"
)

// localJob returns a worker of a job on tables in this process, with one table of dim 1 that adds.
func localJob(t *testing.T, q enterRequest) (*job, rowraft.TableID) {
	t.Helper()
	local, err := tables.NewLocal(4, rowraft.Float32)
	if err != nil {
		t.Fatal(err)
	}
	s, err := local.EnsureTable(t.Context(), rowraft.Schema{Name: "user", Kind: rowraft.Sparse, Dim: 1,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.Add}})
	if err != nil {
		t.Fatal(err)
	}
	j := &job{conf: q, pauses: member.NewPausePoint()}
	j.life, j.end = context.WithCancelCause(t.Context())
	o := mode.Options{Tables: local, Run: &j.run, Patience: time.Minute}
	if j.mode = mode.NewAsync(o); q.Mode == "sync" {
		j.pauses.SetPace(1)
		j.mode = mode.NewSyncStep(o, mode.StepOptions{
			Stepper: tables.ForOneTrainer(local, time.Minute), Pauses: j.pauses, Strict: true,
			PushAgain: true, SetRates: func([]tables.Segment, int64) {}})
	}
	j.mode.Begin(0, 0)
	return j, s.ID
}

func gradients(table rowraft.TableID) []tables.Segment {
	return []tables.Segment{{Table: table, Dim: 1, Keys: []rowraft.Key{7}, Values: []float32{1}}}
}

// TestPausesOfAJob: next reports a checkpoint, hold gives it the state behind the pushed steps and waits for its
// release, and after finish checkpoints get the last state.
func TestPausesOfAJob(t *testing.T) {
	for _, kind := range []string{"async", "sync"} {
		t.Run(kind, func(t *testing.T) {
			j, table := localJob(t, enterRequest{Job: "ctr", Workers: 1, Mode: kind})
			read := func(p *jobs.Paused) *state.State {
				t.Helper()
				var b bytes.Buffer
				if err := p.Write(&b); err != nil {
					t.Fatal(err)
				}
				s, err := state.Read(&b)
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			if v, err := j.next(t.Context(), -1); v.Pause || err != nil {
				t.Fatal(v, err)
			}
			if err := j.hold(t.Context(), nil); rowraft.CodeOf(err) != rowraft.CodePrecondition {
				t.Errorf("hold without a checkpoint: %v", err)
			}
			paused := make(chan *jobs.Paused)
			go func() {
				p, err := j.pauses.Serve(nil)(t.Context(), nil)
				if err != nil {
					t.Error(err)
				}
				paused <- p
			}()
			requested, stop := j.pauses.UntilRequested(t.Context(), time.Minute)
			defer stop()
			<-requested.Done()
			if err := j.push(0, gradients(table)); err != nil {
				t.Fatal(err)
			}
			j.pushed(0)
			if v, err := j.next(t.Context(), 0); !v.Pause || err != nil {
				t.Fatal(v, err)
			}
			held := make(chan error)
			go func() { held <- j.hold(t.Context(), []byte("weights")) }()
			p := <-paused
			if s := read(p); s.Step != 1 || s.Ended || string(s.Opaque) != "weights" || s.Acknowledged != 1 ||
				(s.JobStep == 1) != (kind == "sync") {
				t.Errorf("state %+v", s)
			}
			select {
			case <-held:
				t.Fatal("hold returned before the release")
			case <-time.After(20 * time.Millisecond):
			}
			p.Release()
			if err := <-held; err != nil {
				t.Error(err)
			}
			if v, err := j.next(t.Context(), 0); v.Pause || err != nil {
				t.Fatal(v, err)
			}
			if err := j.finish([]byte("last")); err != nil {
				t.Fatal(err)
			}
			if p, err := j.pauses.Serve(nil)(t.Context(), nil); err != nil || string(read(p).Opaque) != "last" ||
				!read(p).Ended {
				t.Errorf("after finish: %v, %v", p, err)
			}
		})
	}
}

// TestFailuresOfAJob: the first failed push is the error of every later call, and so is what ends the membership.
func TestFailuresOfAJob(t *testing.T) {
	j, table := localJob(t, enterRequest{Job: "ctr", Workers: 1, Mode: "async"})
	if err := j.push(0, gradients(table+1)); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Fatal(err)
	}
	_, pulled := j.pull(t.Context(), gradients(table))
	_, next := j.next(t.Context(), 0)
	for what, err := range map[string]error{"push": j.push(1, gradients(table)), "pull": pulled, "next": next,
		"finish": j.finish(nil)} {
		if rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
			t.Errorf("%s after a failed push: %v", what, err)
		}
	}

	j, table = localJob(t, enterRequest{Job: "ctr", Workers: 1, Mode: "async"})
	fenced := rowraft.Errorf(rowraft.CodeSessionExpired, "another worker")
	j.end(fenced)
	if err := j.push(0, gradients(table)); !errors.Is(err, fenced) {
		t.Errorf("push of a worker that was replaced: %v", err)
	}

	j, _ = localJob(t, enterRequest{Job: "ctr", Workers: 1, Mode: "sync"})
	j.run.Late(&mode.Batch{Step: 3}, "nothing knows it")
	if err := j.failed(); rowraft.CodeOf(err) != rowraft.CodeLeadershipLost || !rowraft.CodeOf(err).MaybeApplied() {
		t.Errorf("a step that is lost: %v", err)
	}
}

// TestAscending: the keys of a job's segments are strictly ascending.
func TestAscending(t *testing.T) {
	for _, tc := range []struct {
		keys []rowraft.Key
		ok   bool
	}{{nil, true}, {[]rowraft.Key{1, 2, 9}, true}, {[]rowraft.Key{1, 1}, false}, {[]rowraft.Key{2, 1}, false}} {
		if err := ascending([]tables.Segment{{Keys: tc.keys}}); (err == nil) != tc.ok {
			t.Errorf("%v: %v", tc.keys, err)
		}
	}
}

// TestInterruptedHold: the worker takes no step while a checkpoint has its state, even if it stopped to wait for it.
func TestInterruptedHold(t *testing.T) {
	j, table := localJob(t, enterRequest{Job: "ctr", Workers: 1, Mode: "async"})
	paused := make(chan *jobs.Paused, 1)
	go func() {
		p, err := j.pauses.Serve(nil)(t.Context(), nil)
		if err != nil {
			t.Error(err)
		}
		paused <- p
	}()
	for {
		if v, err := j.next(t.Context(), -1); err != nil {
			t.Fatal(err)
		} else if v.Pause {
			break
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan error, 1)
	go func() { held <- j.hold(ctx, []byte("a")) }()
	p := <-paused
	cancel()
	if err := <-held; !errors.Is(err, context.Canceled) {
		t.Fatalf("hold: %v, want that it was canceled", err)
	}
	pushed := make(chan error, 1)
	go func() { pushed <- j.push(0, gradients(table)) }()
	select {
	case err := <-pushed:
		t.Fatalf("push before the release: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	p.Release()
	if err := <-pushed; err != nil {
		t.Fatal(err)
	}
}
