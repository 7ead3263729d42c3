package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/models"
)

// grace is how long a run that is told to stop waits for the pushes it has sent.
const grace = 20 * time.Second

// Job is one trainer's share of a training job: made by [NewJob], used once, by
// [Job.Run] or [Job.Evaluate].
type Job struct {
	cfg    Config
	tables Tables
	set    data.Set
	shape  data.Shape
	model  models.Model
	accel  *accel.Report
	layout *denseLayout
	hybrid *hybrid // nil if the trainers keep no weights
	way    way
	steps  int64 // planned; 0: not known

	embeddings, dense, audit rowraft.Schema
	auditKeys                []rowraft.Key
	auditGrads               []float32

	// What follows belongs to the goroutine of Run, except under mu.
	observe  Observer
	started  time.Time
	running  running
	step     int64
	examples int64
	at       position // behind the last batch that was computed
	before   counters // of the processes before this one

	accuracy      accuracy
	firstLoss     float64
	losses        int64 // batches that had one
	skippedInARow int

	windows *windows // of a followed stream, else nil

	gate  gate
	meter meter
	parts *dataParts // nil: each trainer reads its own share

	beats    beatMeter   // of the goroutine that calls beat
	stopping atomic.Bool // the job was stopped, or this trainer was told to

	mu struct {
		sync.Mutex
		sent, acknowledged, unknown, skipped int64
		late                                 int64 // pushed, without effect
		jobStep                              int64 // last step of the job that is closed
		failure                              error // first failed push
		progress                             Event // as of the last event that was no acknowledgement
	}
}

// NewJob checks cfg, opens data, backend and model, and makes sure that the
// job's tables exist. observe may be nil.
//
// Errors: CodeInvalidArgument for a bad configuration or data; CodeTableExists
// if a table of the job has another shape; those of tables.
func NewJob(ctx context.Context, cfg Config, tables Tables, observe Observer) (*Job, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if observe == nil {
		observe = func(Event) {}
	}
	j := &Job{cfg: cfg, tables: tables, observe: observe, gate: gate{turn: make(chan struct{}, 1)}}
	var err error
	if j.set = cfg.set; j.set == nil {
		if j.set, err = cfg.OpenData(); err != nil {
			return nil, err
		}
	}
	if f, ok := j.set.(*data.Follow); ok {
		f.OnNote(func(text string) { j.note("%s", text) })
	}
	if cfg.parted {
		j.parts = &dataParts{set: j.set, giver: cfg.member, plan: cfg.member.Parts}
	}
	j.shape, j.steps = j.set.Shape(), cfg.steps(j.set)
	if err := j.openModel(); err != nil {
		return nil, err
	}
	if err := j.openTables(ctx); err != nil {
		return nil, err
	}
	if j.parts != nil { // else nobody waits for who has nothing to read
		j.parts.keepStep = cfg.inShards() || j.hybrid != nil && cfg.Trainers > 1
	}
	j.way, err = j.newWay()
	return j, err
}

func (j *Job) openModel() error {
	backend, report, err := accel.Open(j.cfg.Accelerator)
	if err != nil {
		return err
	}
	j.accel = report
	model, err := models.NewThreads(j.cfg.Threads, j.cfg.Batch, j.cfg.Model.Dim, func(batch int) (models.Model, error) {
		return j.newModel(backend, batch)
	})
	if err != nil {
		return err
	}
	j.model = model
	if j.layout, err = newDenseLayout(&j.cfg, model.Params()); err != nil {
		return err
	}
	j.hybrid, err = newHybrid(j)
	return err
}

func (j *Job) openTables(ctx context.Context) error {
	places := map[string]*rowraft.Schema{".embeddings": &j.embeddings, ".dense": &j.dense, ".audit": &j.audit}
	for _, s := range j.cfg.schemas() {
		ctx, cancel := context.WithTimeout(ctx, j.cfg.Patience)
		have, err := j.tables.EnsureTable(ctx, s)
		cancel()
		if err != nil {
			return fmt.Errorf("table %s: %w%s", s.Name, err, j.cfg.wantsOfTables(err))
		}
		*places[strings.TrimPrefix(s.Name, j.cfg.Job)] = have
	}
	if err := j.openDense(ctx); err != nil {
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

// Accelerator says what the model runs on.
func (j *Job) Accelerator() *accel.Report { return j.accel }

// Run trains until the data or the steps end, or ctx does; then, unless the
// configuration says otherwise, it scores the held-out part. When ctx ends it
// stops reading, waits up to 20 s for the pushes it has sent, and returns the
// result so far with Interrupted set. With an error the result holds what was
// counted until then.
func (j *Job) Run(ctx context.Context) (*Result, error) { return j.run(ctx, nil) }

// run is trainAndScore with an event file beside it, if one is wanted.
func (j *Job) run(ctx context.Context, trained func(*Result) error) (*Result, error) {
	j.started = time.Now()
	b, err := j.openBoard()
	if err != nil {
		j.endGate(err, false)
		return j.result(), err
	}
	j.watch(b)
	r, err := j.trainAndScore(ctx, trained)
	j.mu.Lock()
	unwritten := b.end(r)
	j.mu.Unlock()
	if unwritten != nil {
		j.note("the event file for TensorBoard is not whole: %v", unwritten)
	}
	return r, err
}

// trainAndScore calls trained, unless it is nil, between the two.
func (j *Job) trainAndScore(ctx context.Context, trained func(*Result) error) (*Result, error) {
	j.emit(EventStart, func(e *Event) { e.Message = j.set.Name() })
	err := j.train(ctx)
	j.endGate(err, ctx.Err() == nil)
	j.emit(EventDone, func(e *Event) {
		if err != nil {
			e.Message = err.Error()
		}
	})
	r := j.result()
	r.Interrupted = ctx.Err() != nil
	if err == nil && trained != nil {
		err = trained(r)
	}
	if err != nil || r.Interrupted {
		return r, err
	}
	if j.cfg.evaluate() {
		err = j.score(ctx, r)
	}
	return r, err
}

func (j *Job) train(ctx context.Context) error {
	j.openWindows()
	defer j.windows.close(true)
	src := j.feed(ctx)
	defer src.close()
	defer j.way.wait()
	j.meter.stand()
	defer j.meter.move()
	// Pushes outlive ctx by the grace period, so that those sent are counted.
	pushes, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	defer stop()
	train := j.trainAhead
	if j.cfg.InFlight == 0 {
		train = j.trainInStep
	}
	if err := j.hybrid.open(ctx); err != nil {
		return err
	}
	err := train(ctx, pushes, src)
	if err = errors.Join(err, j.hybrid.close(err)); err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // it was told to stop while the trainers averaged
			return nil
		}
		return err
	}
	if err := j.way.settle(pushes); err != nil || ctx.Err() != nil {
		return err
	}
	err = j.way.end(pushes, func() (bool, error) {
		return j.begin(ctx, func(p *pause) error { return j.boundary(ctx, pushes, p) })
	})
	if err != nil {
		return err
	}
	return j.parts.flush(ctx)
}

func (j *Job) epochs() int {
	if j.cfg.Epochs == 0 && j.cfg.Steps == 0 || j.cfg.Data.Follow != "" {
		return 1
	}
	return j.cfg.Epochs
}

// trainInStep does one thing after another: staleness 0.
func (j *Job) trainInStep(ctx, pushes context.Context, src feed) error {
	w := j.newWork()
	stand := func(p *pause) error { return j.boundary(ctx, pushes, p) }
	for {
		if ok, err := j.begin(ctx, stand); !ok {
			return err
		}
		err := j.read(src, w)
		switch {
		case err == io.EOF:
			return nil
		case err == errNotYet:
			if err := j.way.rest(pushes); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if err := j.pull(ctx, w, stand); err != nil {
			return stopped(ctx, err)
		}
		push, err := j.compute(w)
		if err != nil {
			return err
		}
		if push {
			err = j.push(pushes, w)
		} else {
			err = j.covered(w.piece)
		}
		if err != nil {
			return err
		}
	}
}

// trainAhead reads and pulls the next batch while the model runs, and pushes
// beside it.
func (j *Job) trainAhead(ctx, pushes context.Context, src feed) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { cancel(); all.Wait() }()

	// One item in the model, one being pulled, one per unacknowledged push.
	items := j.cfg.InFlight + 2
	free, ready := make(chan *work, items), make(chan *work)
	for range items {
		free <- j.newWork()
	}
	var readErr error // set before ready is closed
	all.Go(func() {
		defer close(ready)
		readErr = j.readAhead(ctx, pushes, src, free, ready)
	})
	unacknowledged := make(chan struct{}, j.cfg.InFlight)
	for w := range ready {
		push, err := j.compute(w)
		if err != nil {
			return err
		}
		if !push {
			if err := j.covered(w.piece); err != nil {
				return err
			}
			free <- w
			continue
		}
		unacknowledged <- struct{}{} // waits for a place; a push always ends
		if err := j.failed(); err != nil {
			return err
		}
		all.Go(func() {
			_ = j.push(pushes, w) // kept by the job
			free <- w
			<-unacknowledged
		})
	}
	for range j.cfg.InFlight { // until all pushes have ended
		unacknowledged <- struct{}{}
	}
	if err := j.failed(); err != nil {
		return err
	}
	if readErr == io.EOF {
		return nil
	}
	return readErr
}

func (j *Job) readAhead(ctx, pushes context.Context, src feed, free chan *work, ready chan<- *work) error {
	for {
		var w *work
		select {
		case w = <-free:
		case <-ctx.Done():
			return nil
		}
		stand := func(p *pause) error {
			return j.drained(ctx, free, func() error { return j.boundary(ctx, pushes, p) })
		}
		if ok, err := j.begin(ctx, stand); !ok {
			return err // if nil, ctx has ended: what was asked for its state stays in it
		}
		switch err := j.read(src, w); {
		case err == errNotYet:
			free <- w
			if err := j.way.rest(pushes); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		if err := j.pull(ctx, w, stand); err != nil {
			return stopped(ctx, err)
		}
		select {
		case ready <- w:
		case <-ctx.Done():
			return nil
		}
	}
}

// drained calls f when every item but the caller's is free: what was read is trained,
// and its push has ended. It does not if ctx ends before.
func (j *Job) drained(ctx context.Context, free chan *work, f func() error) error {
	var idle []*work
	for range cap(free) - 1 {
		select {
		case w := <-free:
			idle = append(idle, w)
		case <-ctx.Done():
			return nil // the loop ends
		}
	}
	err := f()
	for _, w := range idle {
		free <- w
	}
	return err
}

// stopped drops an error that is only the end of ctx.
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
			j.gate.back()
		}
	}()
	if j.steps > 0 && src.count() >= j.steps || j.way.over() {
		return io.EOF
	}
	if err := src.next(w); err != nil {
		return j.noneYet(err)
	}
	if w.idle {
		return nil
	}
	w.prepare(j.shape.Categorical, j.cfg.Model.Dim)
	return nil
}

// pull fills w with the weights. While it waits for other workers it calls stand if
// somebody wants the state.
func (j *Job) pull(ctx context.Context, w *work, stand func(*pause) error) error {
	w.segs = nil
	if !w.idle {
		w.segs = j.layout.segments(j.rowSegments(w, w.rows), w.delta)
	}
	for {
		err := j.pullOnce(ctx, w)
		if err != errBoundary {
			return err
		}
		if p := j.gate.wanted(); p != nil {
			if err := stand(p); err != nil {
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
	err := j.way.pull(ctx, w)
	if err != nil && err != errBoundary {
		err = fmt.Errorf("step %d: pull %d rows: %w", w.step, rowsOf(w.segs), err)
	}
	return err
}

// compute runs the model on w and tells whether there is anything to push.
func (j *Job) compute(w *work) (push bool, err error) {
	if w.idle {
		return j.keepStep(w)
	}
	j.meter.move()
	defer j.meter.stand()
	if g, ok := j.way.(*geo); ok {
		g.renew(w)
	}
	j.layout.weights(w.flat, w.delta)
	j.hybrid.fill(w.flat)
	if err := j.model.Step(&w.batch, w.rows, w.flat, &w.result); err != nil {
		return false, fmt.Errorf("step %d: %w", w.step, err)
	}
	bad, skip := j.cfg.notFinite(&w.result)
	w.empty = skip
	if err := j.hybrid.learn(w); err != nil {
		return false, fmt.Errorf("step %d: %w", w.step, err)
	}
	j.step++
	j.at = w.after
	j.meter.saw(w.stale)
	if skip {
		if push = j.way.empties(); !push {
			j.meter.end()
		}
		return push, j.skip(w, bad)
	}
	j.skippedInARow = 0
	j.examples += int64(w.batch.N)
	j.learnt(w)
	j.layout.gradients(w.denseGrads, w.result.ParamGrads)
	j.emit(EventStep, nil)
	return true, nil
}
