package redisload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// result is what mget and mset print. Times are per call, from the first byte
// written to the last one read, queueing behind the connection's other calls
// included.
type result struct {
	Command       string  `json:"command"`
	RowsPerSecond float64 `json:"rows_per_second"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	Calls         int     `json:"calls"`
	Conns         int     `json:"conns"`
	Depth         int     `json:"depth"`
	Batch         int     `json:"batch"`
	ValueBytes    int     `json:"value_bytes"`
	Rows          int     `json:"rows"`
	Wait          int     `json:"wait"`
}

// fill sets every key once.
func fill(c config) error {
	cn, err := dial(c.addr)
	if err != nil {
		return err
	}
	defer cn.Close()
	value := make([]byte, c.value)
	keys := make([]uint64, 0, c.batch)
	for k := 0; k < c.rows; {
		keys = keys[:0]
		for ; k < c.rows && len(keys) < c.batch; k++ {
			keys = append(keys, uint64(k))
		}
		if err := cn.mset(keys, value, 0); err != nil {
			return err
		}
		if err := cn.ok(); err != nil {
			return err
		}
	}
	return nil
}

// load runs one command on all connections for the warm-up and the measured
// time, and counts the calls that ended within the latter.
func load(ctx context.Context, c config, command string) (*result, error) {
	var measuring atomic.Bool
	running, stop := context.WithCancel(ctx)
	defer stop()
	g, running := errgroup.WithContext(running)
	times := make([][]time.Duration, c.conns)
	for i := range c.conns {
		g.Go(func() error {
			cn, err := dial(c.addr)
			if err != nil {
				return err
			}
			defer cn.Close()
			times[i], err = drive(running, c, cn, command, c.seed+uint64(i), &measuring)
			return err
		})
	}
	sleep(running, c.warmup)
	measuring.Store(true)
	start := time.Now()
	sleep(running, c.duration)
	measuring.Store(false)
	elapsed := time.Since(start)
	stop()
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	all := slices.Sorted(slices.Values(slices.Concat(times...)))
	if len(all) == 0 {
		return nil, fmt.Errorf("no call ended within %v", c.duration)
	}
	return &result{
		Command:       command,
		RowsPerSecond: float64(len(all)*c.batch) / elapsed.Seconds(),
		P50:           quantile(all, 0.50), P99: quantile(all, 0.99),
		Calls: len(all), Conns: c.conns, Depth: c.depth, Batch: c.batch, ValueBytes: c.value, Rows: c.rows, Wait: c.wait,
	}, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func quantile(sorted []time.Duration, q float64) float64 {
	return float64(sorted[int(q*float64(len(sorted)-1))]) / float64(time.Millisecond)
}

// drive keeps c.depth calls in flight on one connection until ctx ends, and
// returns the times of those that ended while measuring.
func drive(ctx context.Context, c config, cn *conn, command string, seed uint64,
	measuring *atomic.Bool) ([]time.Duration, error) {
	sent := make(chan time.Time, c.depth-1) // the reader holds one more
	free := make(chan struct{}, c.depth)
	g, ctx := errgroup.WithContext(ctx)

	g.Go(func() error {
		defer close(sent)
		draw := newDrawer(c.rows, c.batch, seed)
		value := make([]byte, c.value)
		for {
			select {
			case <-ctx.Done():
				return nil
			case free <- struct{}{}:
			}
			keys := draw.keys()
			start := time.Now()
			var err error
			if command == "mget" {
				err = cn.mget(keys)
			} else {
				err = cn.mset(keys, value, c.wait)
			}
			if err != nil {
				return err
			}
			sent <- start
		}
	})

	var times []time.Duration
	g.Go(func() error {
		values := make([]byte, c.batch*c.value)
		for start := range sent {
			if err := receive(c, cn, command, values); err != nil {
				cn.Close() // the writer's next write fails
				<-free
				for range sent {
					<-free
				}
				return err
			}
			if measuring.Load() {
				times = append(times, time.Since(start))
			}
			<-free
		}
		return nil
	})
	err := g.Wait()
	return times, err
}

func receive(c config, cn *conn, command string, values []byte) error {
	if command == "mget" {
		return cn.values(values, c.batch)
	}
	if err := cn.ok(); err != nil {
		return err
	}
	if c.wait == 0 {
		return nil
	}
	n, err := cn.number(':')
	if err == nil && n < c.wait {
		err = fmt.Errorf("WAIT answered %d replicas, want %d", n, c.wait)
	}
	return err
}

// drawer draws batches of different keys, uniformly.
type drawer struct {
	rng  *rand.Rand
	rows uint64
	out  []uint64
	seen []uint32 // by key: the last batch that had it
	n    uint32
}

func newDrawer(rows, batch int, seed uint64) *drawer {
	return &drawer{rng: rand.New(rand.NewPCG(seed, 0)), rows: uint64(rows), out: make([]uint64, batch),
		seen: make([]uint32, rows)}
}

func (d *drawer) keys() []uint64 {
	d.n++
	for i := range d.out {
		k := d.rng.Uint64N(d.rows)
		for d.seen[k] == d.n {
			k = d.rng.Uint64N(d.rows)
		}
		d.seen[k], d.out[i] = d.n, k
	}
	return d.out
}

var replicaLine = regexp.MustCompile(`(?m)^slave\d+:.*state=online,offset=(\d+)`)
var offsetLine = regexp.MustCompile(`(?m)^master_repl_offset:(\d+)`)

// ready returns once the server answers and c.replicas replicas have all of its
// writes.
func ready(ctx context.Context, c config) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		ok, err := inStep(c)
		if ok {
			return nil
		}
		last = err
		if c.pid != 0 && !running(c.pid) {
			return fmt.Errorf("process %d has ended", c.pid)
		}
		sleep(ctx, 50*time.Millisecond)
	}
	return fmt.Errorf("%s is not ready after a minute: %w", c.addr, last)
}

// running reports whether a process exists and is no zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func inStep(c config) (bool, error) {
	cn, err := dial(c.addr)
	if err != nil {
		return false, err
	}
	defer cn.Close()
	cn.command("INFO", "replication")
	if err := cn.w.Flush(); err != nil {
		return false, err
	}
	info, err := cn.text()
	if err != nil {
		return false, err // still loading
	}
	info = strings.ReplaceAll(info, "\r", "")
	offset := offsetLine.FindStringSubmatch(info)
	if offset == nil {
		return false, fmt.Errorf("no offset in INFO replication")
	}
	want, err := strconv.Atoi(offset[1])
	if err != nil {
		return false, err
	}
	online := 0
	for _, m := range replicaLine.FindAllStringSubmatch(info, -1) {
		if at, err := strconv.Atoi(m[1]); err == nil && at >= want {
			online++
		}
	}
	if online < c.replicas {
		return false, fmt.Errorf("%d of %d replicas are in step", online, c.replicas)
	}
	return true, nil
}
