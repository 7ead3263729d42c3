package failover

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

const (
	failoverDim   = 16
	failoverBatch = 64
	// failoverPace is between two pushes, and two reads, of the whole load: that is how
	// exact the times are.
	failoverPace = 5 * time.Millisecond
	// failoverPatience is when a shard that takes no push fails the benchmark.
	failoverPatience = 60 * time.Second
)

// failoverLoad pushes to every shard and reads bounded, all the time.
type failoverLoad struct {
	client *client.Client
	table  *client.Table
	reads  *readTally
	shards []*shardAcks

	pushes atomic.Int64
	end    context.CancelFunc
	wg     sync.WaitGroup
}

// shardAcks are the acknowledged pushes of one shard since the last mark.
type shardAcks struct {
	keys []rowraft.Key

	mu    sync.Mutex
	acks  []ack
	err   error
	moved chan struct{} // closed at the next acknowledgement
}

type ack struct{ begin, end time.Time }

// startFailoverLoad makes a table and begins.
func startFailoverLoad(ctx context.Context, opts client.Options, reads *readTally) (*failoverLoad, error) {
	setup, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	c, err := client.Dial(setup, opts)
	if err != nil {
		return nil, err
	}
	t, err := c.CreateTable(setup, rowraft.Schema{
		Name: "bench.failover", Kind: rowraft.Sparse, Dim: failoverDim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	l := &failoverLoad{client: c, table: t, reads: reads}
	for range c.Map().Shards {
		l.shards = append(l.shards, &shardAcks{moved: make(chan struct{})})
	}
	for k, missing := rowraft.Key(1), len(l.shards)*failoverBatch; missing > 0; k++ {
		if s := l.shards[c.Map().ShardOf(t.Slot(k))]; len(s.keys) < failoverBatch {
			s.keys = append(s.keys, k)
			missing--
		}
	}
	ctx, l.end = context.WithCancel(ctx)
	pace := failoverPace * time.Duration(len(l.shards))
	for _, s := range l.shards {
		l.wg.Go(func() { l.push(ctx, s, pace) })
	}
	l.wg.Go(func() { l.read(ctx) })
	return l, nil
}

func (l *failoverLoad) close() error {
	l.end()
	l.wg.Wait()
	return l.client.Close()
}

// push sends one push after the other to one shard.
func (l *failoverLoad) push(ctx context.Context, s *shardAcks, pace time.Duration) {
	grads := make([]float32, len(s.keys)*failoverDim)
	t := time.NewTicker(pace)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		begin := time.Now()
		try, cancel := context.WithTimeout(ctx, failoverPatience)
		_, err := l.table.Push(try, s.keys, grads)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.note(ack{begin, time.Now()}, err)
		if err != nil {
			return
		}
		l.pushes.Add(1)
	}
}

func (s *shardAcks) note(a ack, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.err = err
	} else {
		s.acks = append(s.acks, a)
	}
	close(s.moved)
	s.moved = make(chan struct{})
}

// mark forgets all acknowledgements so far, except the last of each shard.
func (l *failoverLoad) mark() {
	for _, s := range l.shards {
		s.mu.Lock()
		s.acks = s.acks[max(0, len(s.acks)-1):]
		s.mu.Unlock()
	}
}

// recovered waits for the first acknowledged push that was begun after a moment, and
// returns how long after it that was.
func (s *shardAcks) recovered(ctx context.Context, after time.Time) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, failoverPatience)
	defer cancel()
	for {
		s.mu.Lock()
		for _, a := range s.acks {
			if a.begin.After(after) {
				s.mu.Unlock()
				return a.end.Sub(after), nil
			}
		}
		err, moved := s.err, s.moved
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, fmt.Errorf("no push was acknowledged for %v: %w", time.Since(after), context.Cause(ctx))
		}
	}
}

// longestGap is the longest time without an acknowledgement since the mark.
func (s *shardAcks) longestGap() (begin, end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < len(s.acks); i++ {
		if from, to := s.acks[i-1].end, s.acks[i].end; to.Sub(from) > end.Sub(begin) {
			begin, end = from, to
		}
	}
	return begin, end
}

// read asks for rows of one shard after the other.
func (l *failoverLoad) read(ctx context.Context) {
	rng := rand.New(rand.NewPCG(1, 1))
	values := make([]float32, failoverBatch*failoverDim)
	t := time.NewTicker(failoverPace)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		keys := l.shards[rng.IntN(len(l.shards))].keys
		begin := time.Now()
		try, cancel := context.WithTimeout(ctx, failoverReadLimit)
		met, err := l.client.PullWith(try, client.Read{Mode: client.Bounded, MaxAge: failoverMaxAge},
			client.Segment{Table: l.table, Keys: keys, Values: values})
		cancel()
		if ctx.Err() == nil {
			l.reads.note(met.Age, time.Since(begin), err)
		}
	}
}

// readTally counts bounded reads.
type readTally struct {
	mu sync.Mutex
	failoverReads
}

func (t *readTally) note(age, took time.Duration, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.Reads++
	if err != nil {
		if t.Error == "" {
			t.Error = err.Error()
		}
		return
	}
	t.Served++
	t.Oldest, t.Slowest = max(t.Oldest, age.Seconds()), max(t.Slowest, took.Seconds())
}

func (t *readTally) result() *failoverReads {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.failoverReads
	out.MaxAge = failoverMaxAge.Seconds()
	if out.Reads > 0 {
		out.Share = float64(out.Served) / float64(out.Reads)
	}
	return &out
}
