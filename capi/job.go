//go:build cgo

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/state"
	"github.com/rowraft/rowraft/trainer/tables"
)

// job is a worker of a training job. A session has one at most, because its client has the identity of the member.
//
// The caller is the loop that package trainer/mode speaks of: it pulls, pushes the gradients of a step, and asks next
// whether it may begin the following one. One thread calls push, next, hold and leave; any thread calls pull.
type job struct {
	conf    enterRequest
	tables  *tables.Cluster
	mode    syncMode
	pauses  *member.PausePoint
	member  *jobs.Member
	ms      *member.Membership
	stream  *jobs.Stream
	life    context.Context // ends when the job has failed, was left, or the client closes
	end     context.CancelCauseFunc
	run     jobRun
	jobDone int64        // steps of the job before this run, in mode sync
	step    atomic.Int64 // steps of this worker that were pushed

	stopping atomic.Bool   // an operator stops the job
	wanted   *member.Pause // of the last next; owned by the caller's thread
	held     chan struct{} // closed when the last hold's checkpoint has released the state; nil: there was none
}

// syncMode is a mode of training.
type syncMode interface {
	Begin(done, jobDone int64)
	Pull(ctx context.Context, b *mode.Batch) error
	Push(ctx context.Context, b *mode.Batch) error
	Drain(ctx context.Context) error
	Finish(ctx context.Context, begin func() (bool, error)) error
	PushesEmpty() bool
	Wait()
}

// jobRun is the [mode.Run] of a job: it keeps the first error.
type jobRun struct {
	mu      sync.Mutex
	err     error
	acked   int64
	jobStep int64
}

func (r *jobRun) PushBegan(int64) time.Time { return time.Now() }

func (r *jobRun) PushEnded(_ time.Time, batches int64, err error) error {
	if err != nil {
		return r.Fail(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked += batches
	return nil
}

// Late fails the run: no gradients may be lost.
func (r *jobRun) Late(b *mode.Batch, why string) {
	_ = r.Fail(rowraft.Errorf(rowraft.CodeLeadershipLost, "the gradients of step %d are lost: %s", b.Step-1, why))
}

func (r *jobRun) JobReached(step int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.jobStep = max(r.jobStep, step)
}

func (r *jobRun) Fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
	return err
}

func (r *jobRun) Failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *jobRun) Unfinished(int64) int64 { return 0 }

func (r *jobRun) counted() (acked, jobStep int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked, r.jobStep
}

// worker returns the session's job.
func (s *session) worker() (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.job == nil {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the client has not entered a job")
	}
	return s.job, nil
}

// enterRequest describes a worker to its job.
type enterRequest struct {
	Job       string  `json:"job"`
	Rank      int     `json:"rank"`
	Workers   int     `json:"workers"`
	Mode      string  `json:"mode"`
	Staleness int     `json:"staleness"` // ssp: steps that a worker may be ahead of the slowest
	Every     int64   `json:"every"`     // geo: steps between two rounds
	InFlight  int     `json:"in_flight"`
	Together  bool    `json:"together"` // the workers wait for each other outside of rowraft, and stop at one step only
	Lease     float64 `json:"lease"`    // seconds
	Patience  float64 `json:"patience"` // seconds that one push may take
	Gather    float64 `json:"gather"`   // seconds to wait for the other workers
	Tables    []struct {
		Handle    uint64     `json:"handle"`
		Optimizer schemaJSON `json:"optimizer"` // geo: the worker's; the table's is add
	} `json:"tables"`
}

// geoRows limits the rows of a table in the copy of a worker in mode geo.
const geoRows = 1_000_000

func (q *enterRequest) inShards() bool { return q.Workers > 1 && (q.Mode == "sync" || q.Mode == "ssp") }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// enterJob makes the client a worker of a job that continues where findJob has found it. In modes sync and ssp it waits
// for the other workers.
func enterJob(ctx context.Context, s *session, q enterRequest) (_ any, err error) {
	s.mu.Lock()
	taken, saved := s.job != nil, s.found
	s.mu.Unlock()
	if taken {
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "the client is in a job already")
	}
	j := &job{conf: q, pauses: member.NewPausePoint(), tables: tables.NewCluster(s.client)}
	if q.Workers > 1 && (q.Mode == "sync" || q.Together) {
		j.pauses.SetPace(1)
	}
	ids, err := j.open(ctx, s)
	if err != nil {
		return nil, err
	}
	if j.member, err = jobs.Enter(ctx, s.client, j.entry(saved)); err != nil {
		return nil, err
	}
	j.life, j.end = context.WithCancelCause(s.client.Control().Context())
	defer func() {
		if err != nil {
			j.abandon(ctx, err)
		}
	}()
	if err := j.begin(saved); err != nil {
		return nil, err
	}
	if err := j.register(ctx, s, saved, ids); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, rowraft.Errorf(rowraft.CodeClosing, "the client is closed")
	}
	s.job = j
	return map[string]any{"rank": j.member.Rank(), "incarnation": uint64(j.member.Incarnation())}, nil
}

// entry returns the request to enter the job.
func (j *job) entry(saved *member.Saved) jobs.Entry {
	q := &j.conf
	e := jobs.Entry{
		Job: q.Job, Worker: fmt.Sprintf("w%d", q.Rank), Workers: q.Workers, Rank: &q.Rank, Lease: seconds(q.Lease),
		InShards: q.inShards(), Gather: q.inShards(), Restart: saved == nil,
		Settings: map[string]string{"program": "rowraft.torch", "mode": q.Mode, "staleness": fmt.Sprint(q.Staleness),
			"every": fmt.Sprint(q.Every), "together": fmt.Sprint(q.Together)},
	}
	if q.Mode == "sync" && e.InShards {
		e.Quorum = 1
	}
	if saved != nil {
		e.Checkpoint, e.BaseStep = saved.ID, saved.State.JobStep
	}
	return e
}

// open opens the tables and makes the mode.
func (j *job) open(ctx context.Context, s *session) (ids []rowraft.TableID, err error) {
	q := &j.conf
	o := mode.Options{Tables: j.tables, Run: &j.run, Patience: seconds(q.Patience)}
	geo := mode.GeoOptions{Every: q.Every, Concurrent: q.InFlight > 0}
	for i := range q.Tables {
		t, err := s.table(rowraft.TableID(q.Tables[i].Handle))
		if err != nil {
			return nil, err
		}
		schema, err := j.tables.EnsureTable(ctx, t.Schema())
		if err != nil {
			return nil, err
		}
		ids = append(ids, schema.ID)
		if q.Mode != "geo" {
			continue
		}
		own, err := q.Tables[i].Optimizer.schema()
		if err != nil {
			return nil, err
		}
		geo.Copies = append(geo.Copies, mode.GeoCopy{Schema: schema, Optimizer: own.Optimizer,
			Share: 1 / float32(q.Workers), Limit: geoRows})
	}
	stepper := tables.Stepper(j.tables)
	if q.Workers == 1 {
		stepper = tables.ForOneTrainer(j.tables, o.Patience)
	}
	switch q.Mode {
	case "async":
		j.mode = mode.NewAsync(o)
	case "sync":
		j.mode = mode.NewSyncStep(o, mode.StepOptions{Stepper: stepper, Pauses: j.pauses, Strict: true, PushAgain: true,
			SetRates: func([]tables.Segment, int64) {}})
	case "ssp":
		j.mode = mode.NewSSP(o, mode.SSPOptions{Stepper: stepper, Pauses: j.pauses, Staleness: q.Staleness})
	case "geo":
		j.mode, err = mode.NewGeo(o, geo)
	default:
		err = rowraft.Errorf(rowraft.CodeInvalidArgument, "mode %q: want async, sync, ssp or geo", q.Mode)
	}
	return ids, err
}

// begin sets where the run begins.
func (j *job) begin(saved *member.Saved) error {
	done := int64(0)
	if j.jobDone = j.member.BaseStep; saved != nil {
		done, j.jobDone = saved.State.Step, max(saved.State.JobStep, j.jobDone)
		j.run.acked = saved.State.Acknowledged
	}
	j.step.Store(done)
	j.run.JobReached(j.jobDone)
	j.mode.Begin(done, j.jobDone)
	if j.conf.Together && j.conf.Mode != "sync" {
		j.pauses.Advance(done)
	}
	return nil
}

// register makes the worker take part in checkpoints.
func (j *job) register(ctx context.Context, s *session, saved *member.Saved, ids []rowraft.TableID) error {
	q := &j.conf
	j.ms = member.New(member.Options{
		Job: q.Job, Rank: q.Rank, Trainers: q.Workers, Patience: seconds(q.Gather), PushPatience: seconds(q.Patience),
		Lease: seconds(q.Lease), Note: func(string, ...any) {}, Reached: func() []jobs.SplitReached { return nil },
	}, s.client, j.member)
	a := jobs.Registration{
		Tables: ids, Pause: j.pauses.Serve(nil), Announces: j.pauses.Paced(), Beat: j.beat,
		OnStop: func(string) { j.stopping.Store(true) },
		OnMembers: func(m jobs.Members) {
			if g, ok := j.mode.(*mode.Geo); ok {
				g.SetShare(1 / float32(len(m.Ranks)))
			}
			j.ms.Update(m)
		},
	}
	if saved != nil {
		a.Checkpoint = saved.ID
	}
	var err error
	if j.stream, err = j.member.Register(ctx, a); err != nil {
		return err
	}
	err = s.client.Control().Go(func() {
		select {
		case <-j.stream.Ended():
			if err := j.stream.Err(); err != nil {
				_ = j.run.Fail(err)
				j.end(err)
			}
		case <-j.life.Done():
		}
	})
	if err != nil {
		return err
	}
	step, err := j.ms.Join(ctx, j.tables)
	if m, ok := j.mode.(*mode.SyncStep); ok && err == nil {
		m.JoinAt(step)
	}
	return err
}

// beat is the report of this worker.
func (j *job) beat() jobs.Beat {
	b := jobs.Beat{Step: j.step.Load(), Stopping: j.stopping.Load()}
	for _, f := range []*float64{&b.StepsPerSecond, &b.ExamplesPerSecond, &b.Loss, &b.AUC, &b.StalenessSteps,
		&b.Waiting} {
		*f = unknown
	}
	return b
}

// state returns the worker's state at a boundary. REQUIRES: no push is under way.
func (j *job) state(opaque []byte, ended bool) *state.State {
	acked, _ := j.run.counted()
	conf, err := json.Marshal(map[string]any{"program": "rowraft.torch", "mode": j.conf.Mode})
	if err != nil {
		panic(err) // impossible: two strings
	}
	s := &state.State{Job: j.conf.Job, Rank: j.conf.Rank, Trainers: j.conf.Workers, Ended: ended, Step: j.step.Load(),
		Acknowledged: acked, Config: conf, Opaque: opaque}
	if m, ok := j.mode.(*mode.SyncStep); ok {
		s.JobStep = j.jobDone + m.Step() - 1
	}
	return s
}

// abandon ends the membership of a worker that has failed.
func (j *job) abandon(ctx context.Context, cause error) {
	j.end(cause)
	j.pauses.End(nil, rowraft.Errorf(rowraft.CodeOf(cause), "the worker has failed: %w", cause))
	if j.ms != nil {
		j.setTrained()
		j.ms.Leave(ctx, false, cause)
	} else {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), member.LeavePatience)
		defer cancel()
		_ = j.member.Leave(ctx, jobs.LeaveFailed, cause.Error(), nil)
	}
	if j.stream != nil {
		j.stream.Close()
	}
}

// setTrained sets the steps that the worker reports when it leaves.
func (j *job) setTrained() {
	steps := j.step.Load()
	if j.conf.Mode == "sync" {
		_, steps = j.run.counted()
	}
	j.member.SetTrained(steps)
}

// leaveJob ends the training of the worker: it has given its last state, or it has failed.
func leaveJob(ctx context.Context, s *session, q struct {
	Failed string `json:"failed"` // why; "": it has done its work
}) (any, error) {
	j, err := s.worker()
	if err != nil {
		return nil, err
	}
	if q.Failed != "" {
		j.abandon(ctx, errors.New(q.Failed))
		s.mu.Lock()
		s.job = nil
		s.mu.Unlock()
		j.mode.Wait()
		return nil, nil
	}
	if err := j.failed(); err != nil {
		return nil, err
	}
	j.setTrained()
	j.ms.Leave(ctx, j.stopping.Load(), nil)
	return nil, nil
}

// parkJob waits until no checkpoint needs the state of the worker any more: the other workers are done, too.
func parkJob(ctx context.Context, s *session, _ nothing) (any, error) {
	j, err := s.worker()
	if err != nil {
		return nil, err
	}
	_, _, err = j.ms.Park(ctx, j.stream, j.stopping.Load())
	j.stream.Close()
	j.end(nil)
	j.mode.Wait()
	s.mu.Lock()
	s.job = nil
	s.mu.Unlock()
	return nil, err
}
