package serving

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/dense"
	"github.com/rowraft/rowraft/trainer/models"
	"github.com/rowraft/rowraft/trainer/pool"
	"github.com/rowraft/rowraft/trainer/tables"
)

// sum is a model whose prediction is the row of the example's key plus the dense weight. Predict waits at gate.
type sum struct {
	gate chan struct{} // closed: open
	ran  *atomic.Int64
}

var sumParams = []models.Param{{Name: "bias", Shape: []int{1}}}

func (m *sum) Params() []models.Param { return sumParams }

func (m *sum) Step(*models.Batch, []float32, *models.Result) error { panic("serving trains nothing") }

func (m *sum) Predict(b *models.Batch, flat []float32, out *models.Result) error {
	<-m.gate
	m.ran.Add(int64(b.N))
	out.Predictions = out.Predictions[:0]
	for i := range b.N {
		out.Predictions = append(out.Predictions, b.Fields[i]+flat[0])
	}
	return nil
}

// fakeRows has the row k for key k, and 1000 as the dense weight. While away it does not answer. The row of key lost
// never comes. It keeps copies, as a client does.
type fakeRows struct {
	mu     sync.Mutex
	away   bool
	lost   rowraft.Key
	copies map[rowraft.Key]time.Time
	pulls  int
}

func (f *fakeRows) PullAged(ctx context.Context, segs []tables.Segment) (time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pulls++
	for _, s := range segs {
		for i, k := range s.Keys {
			at, ok := f.copies[k]
			if s.Reuse.MaxAge == 0 || !ok || time.Since(at) > s.Reuse.MaxAge {
				if f.away || k == f.lost && s.Table == embeddings {
					f.mu.Unlock()
					<-ctx.Done()
					f.mu.Lock()
					return 0, rowraft.Errorf(rowraft.CodeDeadline, "no server answers: %w", ctx.Err())
				}
				f.copies[k] = time.Now()
			}
			s.Values[i*s.Dim] = float32(k)
			if s.Table == denseTable {
				s.Values[i*s.Dim] = 1000
			}
		}
	}
	return 0, nil
}

func (f *fakeRows) set(change func(*fakeRows)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

const embeddings, denseTable rowraft.TableID = 1, 2

// start starts a scorer of the model sum with batches of four examples. With gate nil, Predict does not wait.
func start(t *testing.T, rows Rows, o Options, gate chan struct{}) (*Scorer, *atomic.Int64) {
	t.Helper()
	layout, err := dense.New(sumParams, []dense.Place{dense.Seeded}, 1, rowraft.Schema{})
	if err != nil {
		t.Fatal(err)
	}
	if err := layout.Open(t.Context(), nil, rowraft.Schema{ID: denseTable}, time.Minute); err != nil {
		t.Fatal(err)
	}
	if gate == nil {
		gate = make(chan struct{})
		close(gate)
	}
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	if o.Queue == 0 {
		o.Queue = 1000
	}
	ran := new(atomic.Int64)
	m := Model{Shape: data.Shape{Categorical: 1}, Batch: 4, Dense: layout,
		Fields: &pool.Fields{Features: []pool.Field{{Width: 1}}, Width: 1,
			Tables: []rowraft.Schema{{ID: embeddings, Dim: 1}}},
		New: func() (models.Model, error) { return &sum{gate, ran}, nil }}
	s, err := New(t.Context(), m, rows, o)
	if err != nil {
		t.Fatal(err)
	}
	return s, ran
}

// request has an example for each key.
func request(keys ...rowraft.Key) *data.Batch {
	b := data.NewBatch(len(keys), data.Shape{Categorical: 1})
	for i, k := range keys {
		b.Keys = append(b.Keys, k)
		b.Offsets[i+1] = int32(i + 1)
	}
	b.N = len(keys)
	return b
}

func (f *fakeRows) pulled() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pulls
}

// until waits until ok returns true.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	end, tick := time.After(20*time.Second), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-end:
			t.Fatal("it did not happen within 20 s")
		case <-tick.C:
		}
	}
}

func newRows() *fakeRows { return &fakeRows{copies: make(map[rowraft.Key]time.Time)} }

// right returns what is wrong with the predictions of keys, or "".
func right(scores []float32, err error, keys ...rowraft.Key) string {
	if err != nil || len(scores) != len(keys) {
		return "wrong"
	}
	for i, k := range keys {
		if scores[i] != float32(k)+1000 {
			return "wrong"
		}
	}
	return ""
}

// TestRequestsAreJoined: the requests that wait while all workers are busy share batches, larger ones are divided, and
// a queue above its limit refuses further ones. Close answers what waits, and refuses what comes later.
func TestRequestsAreJoined(t *testing.T) {
	gate := make(chan struct{})
	var mu sync.Mutex
	var batches []Batch
	rows := newRows()
	s, ran := start(t, rows, Options{MaxAge: time.Minute, Queue: 30, OnBatch: func(b Batch) {
		mu.Lock()
		defer mu.Unlock()
		batches = append(batches, b)
	}}, gate)
	var all sync.WaitGroup
	ask := func(keys ...rowraft.Key) {
		all.Go(func() {
			got, err := s.Score(t.Context(), request(keys...))
			if why := right(got, err, keys...); why != "" {
				t.Errorf("the predictions of %v are %v, %v", keys, got, err)
			}
		})
	}
	busy := runtime.GOMAXPROCS(0) + pullers
	for i := range busy { // each worker takes one at once
		before := rows.pulled()
		ask(rowraft.Key(i))
		until(t, func() bool { return rows.pulled() > before })
	}
	for i := range 20 {
		ask(rowraft.Key(100 + i))
	}
	ask(1, 2, 3, 4, 5, 6, 7, 8, 9, 1)
	until(t, func() bool { return s.Waiting() == 30 })
	if _, err := s.Score(t.Context(), request(1)); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a request above the limit: %v, want CodeOverloaded", err)
	}
	late := make(chan error)
	go func() {
		s.Close()
		_, err := s.Score(context.Background(), request(1))
		late <- err
	}()
	until(t, func() bool {
		s.queue.mu.Lock()
		defer s.queue.mu.Unlock()
		return s.queue.closed
	})
	close(gate)
	all.Wait()
	if err := <-late; rowraft.CodeOf(err) != rowraft.CodeClosing {
		t.Errorf("a request after Close: %v", err)
	}
	requests, examples, largest := 0, 0, 0
	for _, b := range batches {
		requests, examples, largest = requests+b.Requests, examples+b.Examples, max(largest, b.Examples)
	}
	if examples != busy+30 || ran.Load() != int64(examples) || largest != 4 || len(batches) > busy+30/4+2 {
		t.Errorf("%d batches of up to %d with %d examples of %d parts; the model saw %d", len(batches), largest, examples,
			requests, ran.Load())
	}
}

// TestDeadlinesAreHonoured: a request whose time is over returns, and is not computed if no worker has begun.
func TestDeadlinesAreHonoured(t *testing.T) {
	gate := make(chan struct{})
	s, ran := start(t, newRows(), Options{MaxAge: time.Minute, Timeout: 50 * time.Millisecond}, gate)
	var all sync.WaitGroup
	const requests = 40
	for i := range requests {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*5*time.Millisecond)
			defer cancel()
			if _, err := s.Score(ctx, request(rowraft.Key(i))); rowraft.CodeOf(err) != rowraft.CodeDeadline {
				t.Errorf("request %d: %v, want CodeDeadline", i, err)
			}
		})
	}
	all.Wait()
	close(gate)
	s.Close()
	if n := ran.Load(); n > int64(4*(runtime.GOMAXPROCS(0)+pullers)) || n == requests {
		t.Errorf("%d of %d requests were computed after their end", n, requests)
	}
	if _, err := s.Score(t.Context(), request()); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a request without examples: %v", err)
	}
}

// TestOldWeightsAreRefused: without servers, rows that were used last are there for a while, others are not, and then
// nothing is; with servers all is there again.
func TestOldWeightsAreRefused(t *testing.T) {
	rows := newRows()
	const maxAge = time.Second
	s, _ := start(t, rows, Options{MaxAge: maxAge, Timeout: 3 * time.Second}, nil)
	defer s.Close()
	score := func(k rowraft.Key) error {
		got, err := s.Score(t.Context(), request(k))
		if err == nil && right(got, err, k) != "" {
			t.Errorf("the prediction of %d is %v", k, got)
		}
		return err
	}
	if err := score(7); err != nil {
		t.Fatal(err)
	}
	rows.set(func(f *fakeRows) { f.away = true })
	left := time.Now()
	if err := score(7); err != nil {
		t.Errorf("a row that was there a moment ago: %v", err)
	}
	until(t, func() bool {
		err, gone := score(7), time.Since(left)
		if err == nil && gone > maxAge+maxAge/4 {
			t.Fatalf("a prediction %v after the servers were gone", gone)
		}
		return err != nil
	})
	if err := score(8); rowraft.CodeOf(err) != rowraft.CodeNoLeader || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("a row that was never there: %v", err)
	}
	until(t, func() bool { return s.Ready() != nil })
	if gone := time.Since(left); gone > 4*maxAge {
		t.Errorf("ready for %v after the servers were gone", gone)
	}
	begun := time.Now()
	if err := score(7); !rowraft.CodeOf(err).Retryable() || time.Since(begun) > maxAge {
		t.Errorf("%v after %v: want a refusal at once", err, time.Since(begun))
	}
	rows.set(func(f *fakeRows) { f.away = false })
	until(t, func() bool { return s.Ready() == nil })
	if err := score(8); err != nil {
		t.Errorf("after the servers are back: %v", err)
	}
}

// TestALostRowHoldsUpItsRequestOnly: a request for a row that does not come fails alone.
func TestALostRowHoldsUpItsRequestOnly(t *testing.T) {
	rows := newRows()
	gate := make(chan struct{})
	s, _ := start(t, rows, Options{MaxAge: time.Minute, Timeout: 4 * time.Second}, gate)
	defer s.Close()
	var busy, all sync.WaitGroup
	for i := range runtime.GOMAXPROCS(0) + pullers {
		before := rows.pulled()
		busy.Go(func() { _, _ = s.Score(t.Context(), request(rowraft.Key(i%3))) })
		until(t, func() bool { return rows.pulled() > before })
	}
	rows.set(func(f *fakeRows) { f.lost = 666 })
	for _, k := range []rowraft.Key{1, 666, 2} { // one batch
		all.Go(func() {
			got, err := s.Score(t.Context(), request(k))
			if k == 666 && !rowraft.CodeOf(err).Retryable() || k != 666 && right(got, err, k) != "" {
				t.Errorf("the prediction of %d is %v, %v", k, got, err)
			}
		})
	}
	until(t, func() bool { return s.Waiting() == 3 })
	close(gate)
	busy.Wait()
	all.Wait()
}

// TestModesWithoutABoundPullEachBatch: each batch reads the dense weights, and uses no copy.
func TestModesWithoutABoundPullEachBatch(t *testing.T) {
	for _, tc := range []struct {
		job    tables.ReadConfig
		mode   string
		maxAge time.Duration
	}{{tables.ReadConfig{}, "bounded", tables.DefaultMaxAge}, {tables.ReadConfig{Mode: "leader"}, "leader", 0},
		{tables.ReadConfig{Mode: "bounded", MaxAge: 4 * time.Second, MaxLag: 9}, "bounded", 4 * time.Second}} {
		reads, maxAge := Reads(tc.job)
		if reads.Mode != tc.mode || maxAge != tc.maxAge || reads.MaxLag != tc.job.MaxLag || reads.MaxAge > maxAge/2 ||
			reads.Validate() != nil {
			t.Errorf("%+v: %+v with %v", tc.job, reads, maxAge)
		}
	}
	rows := newRows()
	s, _ := start(t, rows, Options{}, nil)
	for range 3 {
		if got, err := s.Score(t.Context(), request(5)); right(got, err, 5) != "" {
			t.Errorf("%v, %v", got, err)
		}
	}
	s.Close()
	if rows.pulls != 3 || len(rows.copies) != 2 {
		t.Errorf("%d pulls of %d rows", rows.pulls, len(rows.copies))
	}
}
