package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/copies"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/member"
	"github.com/rowraft/rowraft/trainer/mode"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/ondevice"
	"github.com/rowraft/rowraft/trainer/pool"
	"github.com/rowraft/rowraft/trainer/ramp"
	"github.com/rowraft/rowraft/trainer/report"
	"github.com/rowraft/rowraft/trainer/scores"
	"github.com/rowraft/rowraft/trainer/tables"
)

// grace is how long a run that must stop waits for the pushes it has sent.
const grace = 20 * time.Second

// Job is one trainer's share of a training job. [NewJob] makes it; [Job.Run] or [Job.Evaluate] uses it, once.
type Job struct {
	cfg    Config
	tables tables.Tables
	set    data.Set
	shape  data.Shape
	model  models.Model
	accel  *accel.Report

	deviceRows *ondevice.Rows // nil without copies of rows on the device
	layout     *dense.Layout
	hybrid     *hybrid // nil if the trainers keep no weights
	mode       syncMode
	ramp       *ramp.Ramp
	progress   *progress // nil if the trainers of the job count no pushes
	steps      int64     // the run ends after this many steps; 0: at the end of the data
	whole      int64     // steps that read all of the data if no other trainer joins; 0: unknown

	fields               *pool.Fields
	dense, audit, pushes rowraft.Schema
	auditKeys            []rowraft.Key
	auditGrads           []float32

	// The goroutine of Run owns the following fields, but for those that are safe for concurrent use.
	started  time.Time
	quality  report.Quality
	step     int64
	examples int64
	at       position // position behind the last computed batch
	before   counters // counters of the processes before this one

	skippedInARow int

	validation scores.Watch

	windows *report.Windows // windows of a followed stream; nil without a stream

	pausePoint *member.PausePoint
	report     *report.Report
	splits     *member.Splits // nil: each trainer reads a fixed share

	beats    beatRates   // owned by the goroutine that calls beat
	stopping atomic.Bool // the job or this trainer got a stop request
}

// NewJob checks cfg, opens data, backend and model, and creates the job's missing tables. observe may be nil.
//
// Errors: CodeInvalidArgument for a bad configuration or data; CodeTableExists if a table of the job has another
// shape; those of tables.
func NewJob(ctx context.Context, cfg Config, tables tables.Tables, observe report.Observer) (*Job, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if observe == nil {
		observe = func(report.Event) {}
	}
	j := &Job{
		cfg: cfg, tables: tables, report: report.NewReport(cfg.rank(), observe),
		pausePoint: member.NewPausePoint(),
	}
	var err error
	if j.set = cfg.set; j.set == nil {
		if j.set, err = j.cfg.OpenData(); err != nil {
			return nil, err
		}
	}
	if s, ok := j.set.(interface{ OnNote(note func(string)) }); ok {
		s.OnNote(func(text string) { j.report.Note("%s", text) })
	}
	j.shape, j.steps = j.set.Shape(), cfg.steps(j.set)
	j.fields = newFields(&j.cfg, j.shape.Categorical)
	j.quality.Numbers = j.shape.Numbers
	if err := j.openModel(); err != nil {
		return nil, err
	}
	if err := j.openTables(ctx); err != nil {
		return nil, err
	}
	if cfg.splitData {
		// Without splits no trainer waits for an idle one.
		idleSteps := cfg.usesSteps() || j.hybrid != nil && cfg.Trainers > 1
		j.splits = member.NewSplits(j.set, cfg.member, cfg.member.Splits, idleSteps)
		if alone := cfg; cfg.member.Began && cfg.Trainers == 1 {
			alone.splitData = false
			j.whole = alone.steps(j.set)
		}
	}
	j.ramp = newRamp(&j.cfg, j.splits == nil || j.hybrid != nil)
	if cfg.member != nil {
		j.ramp.Reached(cfg.member.Steps)
	}
	if j.pushes.ID != 0 {
		j.progress = &progress{tables: j.tables, table: j.pushes.ID, patience: j.cfg.Patience, ramp: j.ramp,
			report: j.report, measures: j.cfg.DType == "float32"}
	}
	j.mode, err = j.newSyncMode()
	return j, err
}

func (j *Job) openModel() error {
	backend, report, err := accel.Open(j.cfg.Device)
	if err != nil {
		return err
	}
	j.accel = report
	if j.model, err = newModels(&j.cfg, backend, j.shape); err != nil {
		return err
	}
	if j.layout, err = j.cfg.newLayout(j.model.Params()); err != nil {
		return err
	}
	if j.cfg.Cache.On == copies.Device {
		if j.deviceRows, err = newDeviceRows(backend, &j.cfg, j.shape, j.fields); err != nil {
			return err
		}
	}
	j.hybrid, err = newHybrid(j)
	return err
}

func (j *Job) openTables(ctx context.Context) error {
	places := map[string]*rowraft.Schema{tables.DenseSuffix: &j.dense, tables.AuditSuffix: &j.audit,
		tables.ProgressSuffix: &j.pushes}
	names, _ := embeddingTables(&j.cfg)
	for i, name := range names {
		places[name] = &j.fields.Tables[i]
	}
	all := j.cfg.schemas()
	if s, counts := progressSchema(&j.cfg); counts {
		all = append(all, s)
	}
	fixed, exported := j.tables.(tables.Weights)
	for _, s := range all {
		if exported && s.Kind == rowraft.Dense {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
		have, err := j.tables.EnsureTable(ctx, s)
		cancel()
		if strings.HasSuffix(s.Name, tables.ProgressSuffix) && rowraft.CodeOf(err) == rowraft.CodeTableNotFound {
			continue // scoring needs no progress
		}
		if err != nil {
			return fmt.Errorf("%w%s", err, j.cfg.tableHint(err))
		}
		*places[strings.TrimPrefix(s.Name, j.cfg.Job)] = have
	}
	if exported {
		j.hybrid = nil
		return j.layout.Fix(fixed)
	}
	if err := j.layout.Open(ctx, j.tables, j.dense, j.cfg.Patience); err != nil {
		return err
	}
	first := dense.Initializer{
		Layout: j.layout, Tables: j.tables, Table: j.cfg.Job + tables.DenseSuffix, Seed: j.cfg.Seed, Note: j.report.Note,
		Writes: j.cfg.rank() == 0 || j.cfg.member != nil && j.cfg.member.First, Patience: j.cfg.Patience,
	}
	if err := first.Run(ctx); err != nil {
		return err
	}
	if !j.cfg.Audit {
		return nil
	}
	keys, err := j.tables.KeyPerShard(ctx, j.audit.ID)
	if err != nil {
		return err
	}
	j.auditKeys = keys
	j.auditGrads = make([]float32, len(keys)*j.audit.Dim)
	for i := range keys {
		j.auditGrads[i*j.audit.Dim+j.cfg.rank()] = -j.cfg.auditWeight()
	}
	return nil
}

// Device describes the device that computes the model.
func (j *Job) Device() *accel.Report { return j.accel }

// Run trains until the data or the steps end, or ctx does. Then it scores the held-out examples, unless the
// configuration disables that. When ctx ends it stops reading, waits up to 20 s for the pushes it has sent, and
// returns the result so far with Interrupted set. With an error the result holds the counters at that time.
func (j *Job) Run(ctx context.Context) (*report.Result, error) { return j.run(ctx, nil) }

// run is trainAndScore, and writes an event file if the job has one.
func (j *Job) run(ctx context.Context, trained func(*report.Result) error) (*report.Result, error) {
	j.started = time.Now()
	if err := checkLabels(j.set); err != nil {
		j.endPausePoint(err, false)
		return j.result(), err
	}
	folder := ""
	if j.cfg.Trainers > 1 {
		folder = fmt.Sprintf("trainer-%d", j.cfg.rank())
	}
	b, err := j.cfg.TensorBoard.Open(folder, j.step+1)
	if err != nil {
		j.endPausePoint(err, false)
		return j.result(), err
	}
	if b != nil {
		j.report.SetFile(b)
	}
	r, err := j.trainAndScore(ctx, trained)
	if unwritten := j.report.EndFile(r); unwritten != nil {
		j.report.Note("the event file for TensorBoard is incomplete: %v", unwritten)
	}
	return r, err
}

// trainAndScore trains, calls trained unless it is nil, and scores.
func (j *Job) trainAndScore(ctx context.Context, trained func(*report.Result) error) (*report.Result, error) {
	j.emit(report.EventStart, func(e *report.Event) { e.Message = j.set.Name() })
	if f, ok := j.set.(*data.Files); ok {
		text, warning := f.Describe()
		j.report.Note("%s", text)
		if warning != "" {
			j.report.Note("%s", warning)
		}
		defer func() {
			if n := f.Bad(); n > 0 {
				j.report.Note("%d bad lines were skipped", n)
			}
		}()
	}
	train, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if j.validation.Keeper == nil { // without a cluster
		prepareScores(j, &scores.Memory{}, nil, func(reason string) error {
			stop(&jobStopped{reason})
			return nil
		})
	}
	err := j.train(train)
	j.endPausePoint(err, train.Err() == nil)
	err = errors.Join(err, j.validation.End(ctx, j.step, j.examples, err != nil || train.Err() != nil))
	j.emit(report.EventDone, func(e *report.Event) {
		if err != nil {
			e.Message = err.Error()
		}
	})
	r := j.result()
	r.Interrupted = ctx.Err() != nil
	if why, stopped := stopOf(train); stopped {
		r.StopReason = why.reason
	}
	if err == nil && trained != nil {
		err = trained(r)
	}
	setBest(ctx, j, r)
	if err != nil || r.Interrupted || !j.cfg.evaluate() {
		return r, err
	}
	if last := j.validation.Final; last != nil && j.ramp.Alone() { // the weights have not changed since
		r.TakeScore(last)
		return r, nil
	}
	return r, j.score(ctx, r)
}

func (j *Job) train(ctx context.Context) error {
	j.openWindows()
	defer j.windows.Close(true)
	j.mode.Begin(j.before.step, j.before.jobStep)
	src := j.feed(ctx)
	defer src.close()
	defer j.mode.Wait()
	j.report.BeginWait()
	defer j.report.EndWait()
	// Pushes outlive ctx by the grace period, so that their results are counted.
	pushes, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	defer stop()
	if err := j.hybrid.open(ctx); err != nil {
		return err
	}
	var err error
	if inFlight(&j.cfg) == 0 {
		err = j.trainInStep(ctx, pushes, src)
	} else {
		err = newPipeline(j, pushes, src).run(ctx)
	}
	if err = errors.Join(err, j.hybrid.close(err)); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // the stop request came while the trainers averaged
			return nil
		}
		return err
	}
	if err := j.mode.Drain(pushes); err != nil || ctx.Err() != nil {
		return err
	}
	err = j.mode.Finish(pushes, func() (bool, error) {
		return j.pausePoint.Begin(ctx, func(p *member.Pause) error { return j.boundary(ctx, pushes, p) })
	})
	if err != nil {
		return err
	}
	return j.splits.Flush(ctx)
}

// trainInStep trains one batch after the other, with staleness 0.
func (j *Job) trainInStep(ctx, pushes context.Context, src feed) error {
	w := j.newWork()
	stop := func(p *member.Pause) error { return j.boundary(ctx, pushes, p) }
	for {
		j.validation.Hold(ctx)
		if ok, err := j.pausePoint.Begin(ctx, stop); !ok {
			return err
		}
		err := j.read(src, w)
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, data.ErrNoneYet):
			if err := j.mode.Idle(pushes); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if err := j.pull(ctx, w, stop); err != nil {
			return stopped(ctx, err)
		}
		push, err := j.compute(ctx, w)
		if err != nil {
			return err
		}
		if push {
			err = j.push(pushes, w)
		} else {
			err = j.batchDone(w.Place)
		}
		if err != nil {
			return err
		}
	}
}

// stopped returns nil for an error that ctx caused by ending.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// read fills w with the next batch, or returns io.EOF.
func (j *Job) read(src feed, w *work) (err error) {
	defer func() {
		if err != nil {
			j.pausePoint.Undo()
		}
	}()
	if j.steps > 0 && src.count() >= j.steps || j.mode.Done() {
		return io.EOF
	}
	if err := src.next(w); err != nil {
		if errors.Is(err, data.ErrNoneYet) {
			j.windows.Close(false)
		}
		return err
	}
	if w.Idle {
		return nil
	}
	w.prepare(j.fields)
	return nil
}

// pull fills w with the weights. While it waits for other trainers it calls stop if a checkpoint wants the state.
func (j *Job) pull(ctx context.Context, w *work, stop func(*member.Pause) error) error {
	j.ramp.Reached(w.Step - 1)
	w.Segs = nil
	if !w.Idle {
		segs, err := j.deviceRows.ToPull(&w.onDevice, &w.pooled, j.fields, j.cfg.Cache.Reuse(j.ramp, w.Step))
		if err != nil {
			return err
		}
		w.Segs = j.layout.Segments(segs, w.delta)
		w.Segs = j.progress.with(w.Segs, w.pushes[:])
	}
	for {
		err := j.pullOnce(ctx, w)
		j.ramp.Reached(int64(w.pushes[0]))
		if err == nil && !w.Idle {
			return j.deviceRows.Send(&w.onDevice, &w.pooled, j.fields, w.data)
		}
		if err != mode.ErrBoundary {
			return err
		}
		if p := j.pausePoint.Current(); p != nil {
			if err := stop(p); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (j *Job) pullOnce(ctx context.Context, w *work) error {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
	defer cancel()
	err := j.mode.Pull(ctx, &w.Batch)
	if err != nil && err != mode.ErrBoundary {
		err = fmt.Errorf("step %d: pull %d rows: %w", w.Step, w.Rows(), err)
	}
	return err
}

// compute runs the model on w and reports whether w must be pushed.
func (j *Job) compute(ctx context.Context, w *work) (push bool, err error) {
	if w.Idle {
		return j.idleStep(w)
	}
	j.report.EndWait()
	defer j.report.BeginWait()
	if err := j.validation.Run(ctx, j.step, j.examples, w.after.epoch != j.at.epoch, false); err != nil {
		return false, err
	}
	j.mode.Refresh(&w.Batch)
	j.layout.Weights(w.flat, w.delta)
	j.hybrid.fill(w.flat)
	err = j.deviceRows.Run(j.model, &w.onDevice, &w.pooled, j.fields, w.data, &w.batch, w.flat, &w.result)
	if err != nil {
		return false, fmt.Errorf("step %d: %w", w.Step, err)
	}
	bad, skip := j.cfg.notFinite(&w.result, w.pooled.Grads)
	w.Empty = skip
	if err := j.hybrid.learn(w); err != nil {
		return false, fmt.Errorf("step %d: %w", w.Step, err)
	}
	j.step++
	j.at = w.after
	if !j.progress.measured() {
		j.report.AddStaleness(w.Stale)
	}
	if skip {
		if push = j.mode.PushesEmpty(); !push {
			j.report.BatchEnded()
		}
		return push, j.skip(w, bad)
	}
	j.skippedInARow = 0
	j.examples += int64(w.batch.N)
	j.quality.Add(&w.batch, &w.result)
	if start, recent, rose := j.quality.LossRose(); rose {
		j.report.Note("WARNING: THE LOSS RISES: it is %.4f in recent batches and was %.4f at the start: a learning rate "+
			"is too high, or too many batches are under way at once (staleness): lower lr, in_flight or trainers", recent,
			start)
	}
	predictions := w.result.Predictions
	if j.shape.Numbers { // they have no AUC
		predictions = nil
	}
	j.windows.Add(predictions, w.batch.Labels[:len(w.result.Predictions)], w.result.Loss)
	j.layout.Gradients(w.denseGrads, w.result.ParamGrads)
	j.emit(report.EventStep, nil)
	return true, nil
}
