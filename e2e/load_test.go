package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// seed returns the seed of a test's random moments: printed, and the same again
// with ROWRAFT_E2E_SEED.
func seed(t testing.TB) *rand.Rand {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("ROWRAFT_E2E_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("ROWRAFT_E2E_SEED: %v", err)
		}
	}
	t.Logf("seed: ROWRAFT_E2E_SEED=%d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// loadOptions say who pushes what.
type loadOptions struct {
	clients int
	workers int    // goroutines of each client, each with one push under way
	keys    int    // rows in the table
	perPush int    // rows in one push; enough of them touch every shard
	dim     int    // 0: as many as clients
	memory  uint64 // of a tiered table; 0: all rows are in memory
}

// load is clients that push counters and read them back.
type load struct {
	t    testing.TB
	opts loadOptions
	keys []rowraft.Key

	cancel  context.CancelFunc // fails pushes that do not end
	stopped chan struct{}      // closed by stop: no new push
	ending  sync.Once
	wg      sync.WaitGroup
	clients []*loadClient

	mu       sync.Mutex
	progress *sync.Cond
	acks     int
	lastSent time.Time // the latest start of a push that was acknowledged
	err      error     // first failure
}

// loadClient is one client. Dimension rank of the rows is its own.
type loadClient struct {
	rank  int
	c     *client.Client
	table *client.Table

	mu     sync.Mutex
	sent   []int // by key: pushes begun
	acked  []int // by key: pushes acknowledged
	pushes int   // acknowledged
}

const counters = "counters"

// startLoad creates the table and begins to push.
func startLoad(c *cluster, rng *rand.Rand, opts loadOptions) *load {
	c.t.Helper()
	if opts.dim == 0 {
		opts.dim = opts.clients
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: c.t, opts: opts, cancel: cancel, stopped: make(chan struct{})}
	l.progress = sync.NewCond(&l.mu)
	for range opts.keys {
		l.keys = append(l.keys, rowraft.Key(rng.Uint64()))
	}
	for rank := range opts.clients {
		cl := &loadClient{rank: rank, c: c.dial(client.Options{}), sent: make([]int, opts.keys),
			acked: make([]int, opts.keys)}
		var err error
		cl.table, err = cl.c.CreateTable(deadline(c.t, patience), rowraft.Schema{
			Name: counters, Kind: rowraft.Sparse, Dim: opts.dim,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
			Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
			Memory:      opts.memory,
		}, true)
		if err != nil {
			c.t.Fatal(err)
		}
		l.clients = append(l.clients, cl)
	}
	c.t.Cleanup(func() { l.cancel(); l.end() }) // before the clients close
	for _, cl := range l.clients {
		for range opts.workers {
			mine := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
			l.wg.Go(func() { l.work(ctx, cl, mine) })
		}
	}
	return l
}

// work pushes, and now and then reads, until the load is stopped or fails.
func (l *load) work(ctx context.Context, cl *loadClient, rng *rand.Rand) {
	keys := make([]rowraft.Key, l.opts.perPush)
	at := make([]int, l.opts.perPush)
	values := make([]float32, l.opts.perPush*l.opts.dim)
	for i := range at {
		values[i*l.opts.dim+cl.rank] = -1
	}
	rows := make([]float32, len(values))
	for n := 0; ; n++ {
		select {
		case <-l.stopped:
			return
		default:
		}
		first := rng.IntN(len(l.keys))
		for i := range at {
			at[i] = (first + i) % len(l.keys) // distinct
			keys[i] = l.keys[at[i]]
		}
		cl.note(cl.sent, at)
		sent := time.Now()
		if _, err := cl.table.Push(ctx, keys, values); err != nil {
			l.fail(fmt.Errorf("client %d: %w", cl.rank, err))
			return
		}
		cl.note(cl.acked, at)
		l.ack(cl, sent)
		if n%4 == 0 {
			if err := l.read(ctx, cl, keys, at, rows); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// read pulls keys and compares them with what may be there.
func (l *load) read(ctx context.Context, cl *loadClient, keys []rowraft.Key, at []int, rows []float32) error {
	least := make([]int, len(at))
	cl.mu.Lock()
	for i, k := range at {
		least[i] = cl.acked[k]
	}
	cl.mu.Unlock()
	if err := cl.table.Pull(ctx, keys, rows); err != nil {
		return fmt.Errorf("client %d: %w", cl.rank, err)
	}
	for _, other := range l.clients {
		other.mu.Lock()
		defer other.mu.Unlock()
	}
	for i, k := range at {
		for _, other := range l.clients {
			got := rows[i*l.opts.dim+other.rank]
			if other == cl && got < float32(least[i]) {
				return fmt.Errorf("client %d reads %v of key %d, older than its own %d acknowledged pushes", cl.rank, got, keys[i],
					least[i])
			}
			if got > float32(other.sent[k]) {
				return fmt.Errorf("client %d reads %v of key %d, dimension %d: only %d pushes were ever sent", cl.rank, got,
					keys[i], other.rank, other.sent[k])
			}
		}
	}
	return nil
}

func (cl *loadClient) note(counts []int, at []int) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for _, k := range at {
		counts[k]++
	}
}

func (l *load) ack(cl *loadClient, sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks++
	cl.pushes++
	if sent.After(l.lastSent) {
		l.lastSent = sent
	}
	l.progress.Broadcast()
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
	l.progress.Broadcast()
}

// await waits until done says so, under mu, and fails the test when the load has
// failed or after patience.
func (l *load) await(patience time.Duration, what string, done func() bool) {
	l.t.Helper()
	late := false
	timer := time.AfterFunc(patience, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		late = true
		l.progress.Broadcast()
	})
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !done() {
		if l.err != nil {
			l.t.Fatalf("while waiting for %s: %v", what, l.err)
		}
		if late {
			l.t.Fatalf("no %s after %v; %d pushes are acknowledged", what, patience, l.acks)
		}
		l.progress.Wait()
	}
}

// more waits until n more pushes are acknowledged.
func (l *load) more(n int) {
	l.t.Helper()
	l.mu.Lock()
	want := l.acks + n
	l.mu.Unlock()
	l.await(patience, fmt.Sprintf("%d more acknowledged pushes", n), func() bool { return l.acks >= want })
}

// recovered waits for the first acknowledged push that was sent after a moment,
// and returns how long after it that was.
func (l *load) recovered(since time.Time) time.Duration {
	l.t.Helper()
	l.await(patience, "push acknowledged after the fault", func() bool { return l.lastSent.After(since) })
	return time.Since(since)
}

// end stops the load and waits for the pushes under way.
func (l *load) end() {
	l.ending.Do(func() { close(l.stopped) })
	l.wg.Wait()
}

// check stops the load and compares every row with what was acknowledged.
func (l *load) check(c *cluster) {
	l.t.Helper()
	ended := make(chan struct{})
	go func() { l.end(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		l.t.Fatalf("the pushes under way have no answer after %v", patience)
	}
	if l.err != nil {
		l.t.Fatal(l.err)
	}
	reader := c.dial(client.Options{})
	ctx := deadline(l.t, patience)
	table, err := reader.Table(ctx, counters)
	if err != nil {
		l.t.Fatal(err)
	}
	rows := make([]float32, len(l.keys)*l.opts.dim)
	if err := table.Pull(ctx, l.keys, rows); err != nil {
		l.t.Fatal(err)
	}
	var lost, doubled, pushes int
	for _, cl := range l.clients {
		pushes += cl.pushes
		for k, want := range cl.acked {
			got := int(rows[k*l.opts.dim+cl.rank])
			lost += max(want-got, 0)
			doubled += max(got-want, 0)
			if cl.sent[k] != want {
				l.t.Errorf("key %d: client %d has sent %d pushes and has an answer to %d", l.keys[k], cl.rank, cl.sent[k], want)
			}
		}
	}
	l.t.Logf("%d pushes of %d rows acknowledged, %d row updates lost, %d doubled", pushes, l.opts.perPush, lost, doubled)
	if lost > 0 || doubled > 0 {
		l.t.Errorf("%d updates of acknowledged pushes were lost, %d were applied twice", lost, doubled)
	}
	if rows, want := c.sameDigests(), uint64(l.pushed()); rows != want {
		l.t.Errorf("the shards hold %d rows, want %d", rows, want)
	}
}

// pushed is how many of the keys were pushed by anybody, once the load has ended: all of them if it
// had the time.
func (l *load) pushed() (n int) {
	for k := range l.keys {
		if slices.ContainsFunc(l.clients, func(cl *loadClient) bool { return cl.acked[k] > 0 }) {
			n++
		}
	}
	return n
}

// compare compares saved rows with what was acknowledged, once the load has ended.
func (l *load) compare(t testing.TB, saved map[rowraft.Key][]float32) {
	t.Helper()
	for _, cl := range l.clients {
		for k, want := range cl.acked {
			w := saved[l.keys[k]]
			if w == nil && want > 0 || w != nil && int(w[cl.rank]) != want {
				t.Fatalf("key %d has %v, client %d has %d acknowledged pushes", l.keys[k], w, cl.rank, want)
			}
		}
	}
}
