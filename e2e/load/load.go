package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/e2e/history"
)

// Guests are client numbers, from Options.Clients on, for goroutines that push in addition to the
// load: each has a dimension of its own.
const Guests = 4

// TableName is the table of counters.
const TableName = "counters"

// togetherEvery is the time between two moments at which clients push together.
const togetherEvery = 200 * time.Millisecond

// Options of a load. All but Dial and PerSecond are required.
type Options struct {
	Endpoints []string
	Dial      func(ctx context.Context, addr string) (net.Conn, error) // nil: TCP
	Clients   int
	Rows      int
	Seed      uint64
	PerSecond int // calls a second and client at most; 0: no limit
	Recorder  *history.Recorder

	// PushPatience is after how long without an answer a push counts as stuck.
	PushPatience time.Duration
}

// Load is clients at work. Methods are safe for concurrent use.
type Load struct {
	opts  Options
	keys  []rowraft.Key
	stuck context.Context // ends pushes in Close
	end   context.CancelFunc
	wg    sync.WaitGroup

	workers []*worker
	stream  *stream
	guests  [Guests]*Counter

	acks, pulls, refused, unknown, streamed atomic.Int64

	mu          sync.Mutex
	problems    []string
	lastSent    []int64       // by client: Call of its newest acknowledged push
	mark        int64         // of FirstAcks
	first       []int64       // by shard: Return of the first push called after mark and acknowledged; 0: none
	stopping    chan struct{} // closed while no new call may be made
	ballastRows int
	lastAck     int64 // when the newest answer came, or the load was started
	gap         int64 // longest time without one, while the load ran
}

type worker struct {
	*Counter
	rng *rand.Rand
}

// Counter is one client number: its pushes and what is known of them. One call at
// a time.
type Counter struct {
	l      *Load
	Number int
	// Fenced says that a later incarnation has opened its sessions in all shards:
	// from then on CodeSessionExpired means that nothing was applied.
	Fenced bool

	c     *client.Client
	table *client.Table

	mu    sync.Mutex
	acked []int64 // by row
	maybe []int64 // by row: pushes with an unknown outcome

	owned []owned // rows that this one alone changes, and deletes
}

// New creates the table and connects the clients; Start lets them run.
func New(ctx context.Context, opts Options) (*Load, error) {
	l := &Load{opts: opts, lastSent: make([]int64, opts.Clients)}
	l.stuck, l.end = context.WithCancel(context.Background())
	l.stopping = make(chan struct{})
	close(l.stopping)
	for i := range opts.Clients {
		c, err := l.Dial(ctx, i, client.Options{AttemptTimeout: patience(i)})
		if err != nil {
			l.Close()
			return nil, err
		}
		l.workers = append(l.workers, &worker{c, rand.New(rand.NewPCG(opts.Seed, uint64(i)))})
	}
	var err error
	if l.stream, err = l.dialStream(ctx); err != nil {
		l.Close()
		return nil, err
	}
	for g := range l.guests {
		l.guests[g] = l.counter(opts.Clients + g)
	}
	for _, w := range l.workers {
		for i := range ownedEach {
			w.owned = append(w.owned, owned{row: opts.Rows + ownedEach*w.Number + i})
		}
	}
	l.keys = spread(l.workers[0].c, l.workers[0].table, opts.Rows+ownedEach*opts.Clients)
	l.first = make([]int64, len(l.workers[0].c.Map().Shards))
	return l, nil
}

// patience of a client with one server. Half of the clients turn to another soon,
// the others wait: so there are pushes to a new leader while reads still wait for
// the old one, which may wake up and answer.
func patience(i int) time.Duration {
	if i%2 == 0 {
		return 250 * time.Millisecond
	}
	return 3 * time.Second
}

// Keys returns the keys of n rows, in turn from every shard: see shardOf. slots has
// the shard of each slot of the cluster. Of a shard's keys two of four are in the same slot, because
// rows of one slot depend on the order in which they are updated: they draw their
// versions from one counter.
func Keys(table rowraft.TableID, slots []uint16, shards, n int) []rowraft.Key {
	shared := make([]rowraft.Slot, shards)
	var keys []rowraft.Key
	for k := rowraft.Key(1); len(keys) < n; k++ {
		turn, shard := len(keys)/shards, len(keys)%shards
		slot := clustermap.SlotOf(table, rowraft.Sparse, k, rowraft.SlotCount(len(slots)))
		if int(slots[slot]) != shard || turn > 0 && turn%4 < 2 && slot != shared[shard] {
			continue
		}
		if turn == 0 {
			shared[shard] = slot
		}
		keys = append(keys, k)
	}
	return keys
}

// spread is Keys by what a client knows.
func spread(c *client.Client, t *client.Table, n int) []rowraft.Key {
	m := c.Map()
	return Keys(t.Schema().ID, m.Slots(), len(m.Shards), n)
}

// Dims is the number of dimensions of a row.
func (l *Load) Dims() int { return l.opts.Clients + Guests }

// Keys lists the keys by row number: CounterRows, then those that clients have for themselves.
func (l *Load) Keys() []rowraft.Key { return l.keys }

// CounterRows is the number of rows that all clients push to: the first ones.
func (l *Load) CounterRows() int { return l.opts.Rows }

func (l *Load) counter(number int) *Counter {
	return &Counter{l: l, Number: number, acked: make([]int64, l.opts.Rows), maybe: make([]int64, l.opts.Rows)}
}

// Dial connects a new client that counts in dimension number.
func (l *Load) Dial(ctx context.Context, number int, opts client.Options) (*Counter, error) {
	opts.Endpoints, opts.Dial = l.opts.Endpoints, l.opts.Dial
	opts.ConnsPerNode, opts.CacheBytes = 1, cache.MinBytes
	c, err := client.Dial(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("client %d: %w", number, err)
	}
	out := l.counter(number)
	out.c = c
	out.table, err = c.CreateTable(ctx, rowraft.Schema{
		Name: TableName, Kind: rowraft.Sparse, Dim: l.Dims(),
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		Memory:      rowraft.MinMemory, // of one row or two on each replica: the others are on disk
	}, true)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("client %d: %w", number, err)
	}
	return out, nil
}

// Guest connects a client under guest number g: another one each time, the counts
// go on. The caller closes it.
func (l *Load) Guest(ctx context.Context, g int, opts client.Options) (*Counter, error) {
	c, err := l.Dial(ctx, l.opts.Clients+g, opts)
	if err != nil {
		return nil, err
	}
	c.acked, c.maybe = l.guests[g].acked, l.guests[g].maybe
	return c, nil
}

// Client connects a client that does not count. The caller closes it.
func (l *Load) Client(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, client.Options{Endpoints: l.opts.Endpoints, Dial: l.opts.Dial, ConnsPerNode: 1})
}

// Close ends the counter's client.
func (c *Counter) Close() error { return c.c.Close() }

// Start lets the clients run, for the first time or after Quiesce.
func (l *Load) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopping = make(chan struct{})
	l.lastAck = l.opts.Recorder.Now()
	for _, w := range l.workers {
		stopping := l.stopping
		l.wg.Go(func() { l.work(w, stopping) })
	}
	stopping := l.stopping
	l.wg.Go(func() { l.flow(l.stream, stopping) })
}

// Quiesce stops the load and waits until every call has its answer, or ctx ends.
func (l *Load) Quiesce(ctx context.Context) error {
	l.stop()
	done := make(chan struct{})
	go func() { l.wg.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("calls of the load have no answer: %w", context.Cause(ctx))
	}
}

func (l *Load) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.stopping:
	default:
		close(l.stopping)
	}
}

// Close ends everything; pushes under way stay unknown.
func (l *Load) Close() error {
	l.stop()
	l.end()
	l.wg.Wait()
	var first error
	if l.stream != nil {
		first = l.stream.c.Close()
	}
	for _, w := range l.workers {
		if err := w.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// work reads about as often as it pushes.
func (l *Load) work(w *worker, stopping <-chan struct{}) {
	var pace <-chan time.Time
	if l.opts.PerSecond > 0 {
		tick := time.NewTicker(time.Second / time.Duration(l.opts.PerSecond))
		defer tick.Stop()
		pace = tick.C
	}
	for {
		select {
		case <-stopping:
			return
		default:
		}
		var err error
		switch w.rng.IntN(10) {
		case 0:
			_, err = w.Pull(l.stuck, l.pick(w.rng, len(l.keys)), false)
		case 1:
			_, err = w.Pull(l.stuck, l.pick(w.rng, len(l.keys)), true)
		case 2:
			err = l.readBounded(w, l.pick(w.rng, len(l.keys)), false)
		case 3, 4:
			err = l.readBounded(w, l.pick(w.rng, len(l.keys)), true)
		case 5:
			err = w.changeOwned(l.stuck)
		case 6:
			err = l.pushTogether(w, stopping)
		default:
			_, err = w.Push(l.stuck, l.pick(w.rng, l.opts.Rows))
		}
		if err != nil {
			if l.stuck.Err() == nil {
				// A client that keeps its session has no reason to see any error.
				l.problem("client %d: %v", w.Number, err)
			}
			return
		}
		if pace != nil {
			<-pace
		}
	}
}

// pushTogether pushes to all rows at a moment at which the other clients do so too, so that the leader sums the pushes.
func (l *Load) pushTogether(w *worker, stopping <-chan struct{}) error {
	moment := time.NewTimer(togetherEvery - time.Duration(l.opts.Recorder.Now())%togetherEvery)
	defer moment.Stop()
	select {
	case <-moment.C:
	case <-stopping:
		return nil
	}
	all := make([]int, l.opts.Rows)
	for r := range all {
		all[r] = r
	}
	_, err := w.Push(l.stuck, all)
	return err
}

// readBounded reads on any replica, or with copies of such reads. Faults may last longer than any age that a replica
// can prove, so a refusal is no problem.
func (l *Load) readBounded(w *worker, rows []int, copies bool) (err error) {
	age := []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[w.rng.IntN(3)]
	if copies {
		_, err = w.PullReusing(l.stuck, rows, age)
	} else {
		_, err = w.PullBounded(l.stuck, rows, age, []uint64{0, 100}[w.rng.IntN(2)], w.rng.IntN(2) == 0)
	}
	if rowraft.CodeOf(err) == rowraft.CodeTooStale {
		return nil
	}
	return err
}

// pick chooses one of the first rows, or up to half of these.
func (l *Load) pick(rng *rand.Rand, of int) []int {
	n := 1
	if rng.IntN(2) == 0 {
		n = 1 + rng.IntN(max(of/2, 1))
	}
	first := rng.IntN(of)
	in := make([]bool, of)
	for i := range n {
		in[(first+i)%of] = true
	}
	var rows []int
	for r, is := range in {
		if is {
			rows = append(rows, r)
		}
	}
	return rows
}

func (l *Load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// Problems lists the errors that clients have seen.
func (l *Load) Problems() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.problems...)
}

// Counts are the load's calls so far, guests included, and the rows that its clients took from copies.
type Counts struct{ Acks, Pulls, Refused, Unknown, Streamed, Reused int64 }

// Counts returns how much has been done.
func (l *Load) Counts() Counts {
	c := Counts{l.acks.Load(), l.pulls.Load(), l.refused.Load(), l.unknown.Load(), l.streamed.Load(), 0}
	for _, w := range l.workers {
		c.Reused += int64(w.c.Copies().Hits)
	}
	return c
}

// Since reports whether every client has had a push acknowledged that it sent after
// a moment of the history.
func (l *Load) Since(moment int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sent := range l.lastSent {
		if sent <= moment {
			return false
		}
	}
	return true
}

// shardOf returns the shard of a row.
func (l *Load) shardOf(row int) int { return row % len(l.first) }

// Mark makes FirstAcks look at pushes called after a moment of the history.
func (l *Load) Mark(moment int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mark = moment
	clear(l.first)
}

// FirstAcks returns, by shard, how long after the mark a push that was called after
// it was acknowledged for the first time; 0: not yet.
func (l *Load) FirstAcks() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]time.Duration, len(l.first))
	for i, at := range l.first {
		if at > 0 {
			out[i] = time.Duration(at - l.mark)
		}
	}
	return out
}

func (l *Load) counters() []*Counter {
	var out []*Counter
	for _, w := range l.workers {
		out = append(out, w.Counter)
	}
	return append(out, l.guests[:]...)
}

// LongestGap is the longest time in which no push of any client was acknowledged,
// while the load ran.
func (l *Load) LongestGap() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.gap)
}

// TableID is the id of the table of counters.
func (l *Load) TableID() rowraft.TableID { return l.workers[0].table.Schema().ID }
