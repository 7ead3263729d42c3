package serving

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/elapsed"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/pool"
	"github.com/rowraft/rowraft/trainer/tables"
)

// Rows is where the weights of a model are, such as [tables.Cluster]. Safe for concurrent use.
type Rows interface {
	// PullAged fills the Values of segs, and returns how old the rows that came from servers may have been.
	PullAged(ctx context.Context, segs []tables.Segment) (age time.Duration, err error)
}

// Still makes Rows of tables that do not change while they are served, such as a model in files. They never age.
func Still(t tables.Tables) Rows { return still{t} }

type still struct{ tables.Tables }

// PullAged implements Rows.
func (s still) PullAged(ctx context.Context, segs []tables.Segment) (time.Duration, error) {
	return 0, s.Pull(ctx, segs)
}

// Model is what a scorer computes with.
type Model struct {
	Shape  data.Shape
	Batch  int // examples of one computation, at most
	Fields *pool.Fields
	Dense  *dense.Layout
	New    func() (models.Model, error)
}

// Options of a Scorer.
type Options struct {
	// MaxAge bounds the age of weights, but for those of Still. 0: each batch pulls all of its rows and the dense weights
	// from the servers.
	MaxAge time.Duration
	// Timeout bounds a request without a deadline of its own.
	Timeout time.Duration
	// Queue is how many examples may wait; further ones are refused with CodeOverloaded.
	Queue int
	// OnBatch, unless nil, is called after each batch that was computed. It must return soon.
	OnBatch func(Batch)
}

// Batch describes a batch that was computed.
type Batch struct {
	Requests, Examples, Rows int
	Pull, Compute            time.Duration
	Age                      time.Duration // how old the dense weights are
}

// pullAge is the bound of the age of rows at their servers, and copyAge that of copies of them: both together are at
// most MaxAge. A replica that hears its leader is much newer than a quarter of it. A copy is used up to half of
// copyAge, and up to the whole while the cluster does not answer: so the rows of recent requests are there for half of
// copyAge or longer.
func (o *Options) pullAge() time.Duration { return o.MaxAge / 4 }

func (o *Options) copyAge() time.Duration { return o.MaxAge - o.pullAge() }

// Reads returns the reads that a scorer expects of its rows, for a job with these reads: bounded unless the job says
// otherwise.
func Reads(job tables.ReadConfig) (reads tables.ReadConfig, maxAge time.Duration) {
	if job.Mode != "" && job.Mode != "bounded" {
		return job, 0
	}
	maxAge = job.MaxAge
	if maxAge == 0 {
		maxAge = tables.DefaultMaxAge
	}
	o := Options{MaxAge: maxAge}
	return tables.ReadConfig{Mode: "bounded", MaxAge: o.pullAge(), MaxLag: job.MaxLag}, maxAge
}

// Scorer computes predictions. Safe for concurrent use.
type Scorer struct {
	model Model
	rows  Rows
	opt   Options
	still bool // the rows never age
	tasks int
	queue *queue
	clock *elapsed.Clock

	compute chan struct{} // holds a token for each worker that computes
	late    chan struct{} // holds a token for each worker that waits for rows that did not come soon
	now     atomic.Pointer[weights]
	away    atomic.Pointer[error] // why the last try to renew the dense weights failed; nil: it succeeded
	renew   chan struct{}         // asks for a try now

	ctx    context.Context // ends after the workers
	cancel context.CancelFunc
	work   sync.WaitGroup
	rest   sync.WaitGroup
}

// weights are dense weights. Immutable.
type weights struct {
	flat []float32
	asOf uint64 // on the scorer's clock: no older than this
}

// pullers is how many workers beyond the number of processors pull while others compute.
const pullers = 2

// New pulls the dense weights and starts the workers. Close the result.
//
// Errors: those of the pull and of Model.New.
func New(ctx context.Context, m Model, rows Rows, o Options) (*Scorer, error) {
	s := &Scorer{model: m, rows: rows, opt: o, tasks: max(m.Shape.Labels, 1), queue: newQueue(o.Queue),
		clock: elapsed.NewClock(elapsed.BootTime), compute: make(chan struct{}, runtime.GOMAXPROCS(0)),
		late: make(chan struct{}, pullers), renew: make(chan struct{}, 1)}
	_, s.still = rows.(still)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var workers []*worker
	for range cap(s.compute) + pullers {
		w, err := s.newWorker()
		if err != nil {
			s.cancel()
			return nil, err
		}
		workers = append(workers, w)
	}
	if !s.pulledEach() {
		if err := s.pullDense(ctx); err != nil {
			s.cancel()
			return nil, fmt.Errorf("dense weights: %w", err)
		}
		if !s.still {
			s.rest.Go(s.keepDense)
		}
	}
	for _, w := range workers {
		s.work.Go(w.run)
	}
	return s, nil
}

// Close refuses further requests, answers those that wait, and ends the goroutines.
func (s *Scorer) Close() {
	s.queue.close()
	s.work.Wait()
	s.cancel()
	s.rest.Wait()
}

// Tasks returns the numbers of a prediction.
func (s *Scorer) Tasks() int { return s.tasks }

// Waiting returns how many examples no worker has taken yet.
func (s *Scorer) Waiting() int { return s.queue.waiting() }

// Score returns the predictions of b's examples, [b.N, Tasks], row-major. It keeps b until it returns, and afterwards
// if it returns an error: the caller must not use b again.
//
// Errors: CodeOverloaded if the queue is full, CodeClosing after Close, CodeTooStale if the weights are older than
// MaxAge, CodeDeadline when ctx ends or the weights could not be pulled in time; otherwise those of the pull.
func (s *Scorer) Score(ctx context.Context, b *data.Batch) ([]float32, error) {
	if b.N == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "no examples")
	}
	ctx, cancel := context.WithTimeout(ctx, s.opt.Timeout)
	defer cancel()
	c := newCall(ctx, b, s.tasks)
	if err := s.queue.put(c); err != nil {
		return nil, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		select {
		case <-c.done:
		default:
			c.finish(0, ctx.Err())
		}
	}
	<-c.done
	switch {
	case c.err == nil:
		return c.scores, nil
	case errors.Is(c.err, context.DeadlineExceeded) && s.away.Load() != nil:
		return nil, rowraft.Errorf(rowraft.CodeNoLeader, "no predictions in time%s: %w", s.why(), c.err)
	case errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, context.Canceled):
		return nil, rowraft.Errorf(rowraft.CodeDeadline, "no predictions in time: %w", c.err)
	}
	return nil, c.err
}

// why describes what keeps the weights from being renewed; "" if they are.
func (s *Scorer) why() string {
	if err := s.away.Load(); err != nil {
		return fmt.Sprintf(" (the cluster does not answer: %v)", *err)
	}
	return ""
}

// pulledEach reports whether each batch pulls the dense weights.
func (s *Scorer) pulledEach() bool { return s.opt.MaxAge == 0 && !s.still }

// Ready returns why requests cannot be answered; nil if they can.
func (s *Scorer) Ready() error {
	if s.pulledEach() {
		return nil
	}
	_, _, err := s.current()
	return err
}

// current returns the dense weights and their age.
func (s *Scorer) current() (*weights, time.Duration, error) {
	d := s.now.Load()
	if s.still {
		return d, 0, nil
	}
	age := time.Duration(s.clock.Now() - d.asOf)
	if age > s.opt.MaxAge {
		return nil, age, rowraft.Errorf(rowraft.CodeTooStale, "the dense weights are %v old, older than %v (reads.max_age)%s",
			age.Round(time.Millisecond), s.opt.MaxAge, s.why())
	}
	return d, age, nil
}

// pullDense renews the dense weights.
func (s *Scorer) pullDense(ctx context.Context) error {
	begun := s.clock.Now()
	rows, flat := make([]float32, s.model.Dense.Rows*dense.Width), make([]float32, len(s.model.Dense.Initial))
	age := time.Duration(0)
	if segs := s.model.Dense.Segments(nil, rows); len(segs) > 0 {
		var err error
		if age, err = s.rows.PullAged(ctx, segs); err != nil {
			return err
		}
	}
	s.model.Dense.Weights(flat, rows)
	s.now.Store(&weights{flat: flat, asOf: begun - uint64(age)})
	return nil
}

const (
	renewTries = 4               // in MaxAge
	tryTimeout = time.Second     // one try may take so long
	tryAgain   = time.Second / 4 // after a try that failed
)

// keepDense renews the dense weights until the scorer is closed.
func (s *Scorer) keepDense() {
	wait := s.opt.MaxAge / renewTries
	for {
		t := time.NewTimer(wait)
		select {
		case <-s.ctx.Done():
			t.Stop()
			return
		case <-s.renew:
			t.Stop()
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(s.ctx, max(tryTimeout, s.opt.MaxAge/renewTries))
		err := s.pullDense(ctx)
		cancel()
		if err != nil {
			s.away.Store(&err)
			wait = min(tryAgain, s.opt.MaxAge/renewTries)
			continue
		}
		s.away.Store(nil)
		wait = s.opt.MaxAge / renewTries
	}
}

// askToRenew makes keepDense find out whether the servers answer.
func (s *Scorer) askToRenew() {
	select {
	case s.renew <- struct{}{}:
	default:
	}
}
