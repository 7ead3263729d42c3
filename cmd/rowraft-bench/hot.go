package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/scaffold"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer/data/zipf"
)

// The bars hold at the last of skews.
const (
	hotMinFall    = 2.0
	hotMaxOver    = 1.3
	hotPushEvery  = 20 * time.Millisecond
	hotMinServers = 4
	hotTables     = 3 // one table puts the hottest keys on one leader by chance
)

// hotResult is the JSON of `bench hot`; the field names are a contract.
type hotResult struct {
	Schema  string    `json:"schema"`
	Op      string    `json:"op"`
	Batch   int       `json:"batch"`
	Keys    int       `json:"keys"`
	Servers int       `json:"servers"`
	Shards  int       `json:"shards"`
	MaxAge  float64   `json:"max_age_seconds"`
	Skews   []hotSkew `json:"skews"`
	scaffold.Bars
	scaffold.Host
}

// hotSkew compares leader reads with bounded reads of the same keys.
type hotSkew struct {
	Zipf    float64 `json:"zipf"` // 0: uniform
	Leader  hotLoad `json:"leader"`
	Bounded hotLoad `json:"bounded"`
	// Fall is the part of the rows that the hottest server returned in leader reads, over that in bounded reads.
	Fall float64 `json:"fall"`
}

// hotLoad is what the servers did, as the mean of several tables.
type hotLoad struct {
	Rows      float64   `json:"rows_per_second"` // that clients asked for
	Served    []float64 `json:"served"`          // by table and server, relative to the rows that clients asked for, also to servers
	Hottest   float64   `json:"hottest"`         // the highest of them
	OverMean  float64   `json:"max_over_mean"`
	Copies    float64   `json:"from_copies"` // part of the rows that came from copies
	Fetched   float64   `json:"fetched"`     // part that servers without a replica fetched
	Sent      float64   `json:"sent"`        // rows that leaders sent ahead, relative to the rows that clients asked for
	OldestAge float64   `json:"oldest_age_seconds"`
}

// benchHot counts the rows that each server returns to small reads, by the skew of their keys.
func benchHot(ctx context.Context, cfg benchConfig, progress io.Writer) (r *hotResult, err error) {
	if cfg.servers < hotMinServers {
		return nil, cli.Usagef("--servers %d: want %d or more, so that some have no replica of a shard", cfg.servers,
			hotMinServers)
	}
	cfg.replicas = cfg.servers
	fmt.Fprintf(progress, "starting %s …\n", cli.Plural(cfg.servers, "server"))
	cluster, dir, err := cfg.own().Start(ctx, 2*time.Minute, func(_ string, o *localcluster.Options) {
		o.Args = []string{"--log-level", "warn", "--ops-listen", "127.0.0.1:0"}
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop(), os.RemoveAll(dir)) }()
	r = &hotResult{Schema: cli.JSONSchema, Op: cfg.op, Batch: cfg.batch, Keys: cfg.rows, Servers: cfg.servers,
		Shards: cfg.shards, MaxAge: cfg.maxAge.Seconds(), Host: scaffold.ThisHost()}
	b := &hotBench{cfg: cfg}
	for _, s := range cluster.Servers() {
		st, err := localcluster.AwaitStatus(ctx, s.Addr)
		if err != nil {
			return nil, err
		}
		b.ops = append(b.ops, st.GetOpsAddr())
	}
	b.endpoints = cluster.Endpoints()
	if err := b.create(ctx); err != nil {
		return nil, err
	}
	for _, s := range skews {
		one := hotSkew{Zipf: s}
		if one.Leader, err = b.measure(ctx, s, client.Read{}); err != nil {
			return nil, err
		}
		if one.Bounded, err = b.measure(ctx, s, client.Read{Mode: client.Bounded, MaxAge: cfg.maxAge}); err != nil {
			return nil, err
		}
		one.Fall = one.Leader.Hottest / one.Bounded.Hottest
		fmt.Fprintf(progress, "%s: hottest server %.1f %% of the rows by leader reads, %.1f %% by bounded reads\n",
			skewName(s), 100*one.Leader.Hottest, 100*one.Bounded.Hottest)
		r.Skews = append(r.Skews, one)
	}
	last := r.Skews[len(r.Skews)-1]
	if last.Fall < hotMinFall {
		r.Miss("rows of the hottest server fall %.2f ×, want %.1f × or more", last.Fall, hotMinFall)
	}
	if last.Bounded.OverMean > hotMaxOver {
		r.Miss("the most loaded server has %.2f times the mean, want %.1f or less", last.Bounded.OverMean, hotMaxOver)
	}
	r.Passed = len(r.Failed) == 0
	return r, nil
}

type hotBench struct {
	cfg       benchConfig
	endpoints []string
	ops       []string // addresses with the servers' metrics
	c         *client.Client
	t         *client.Table
}

// create makes the tables.
func (b *hotBench) create(ctx context.Context) (err error) {
	c, err := client.Dial(ctx, client.Options{Endpoints: b.endpoints})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for i := range hotTables {
		schema, err := benchSchema(b.cfg)
		if err != nil {
			return err
		}
		schema.Name = fmt.Sprintf("hot.%d", i)
		if _, err := c.CreateTable(ctx, schema, false); err != nil {
			return err
		}
	}
	return nil
}

// draw returns a function that draws keys, repetitions included: the keys of a read are those of many users.
func (b *hotBench) draw(skew float64, seed uint64) (func(keys []rowraft.Key), error) {
	rng := rand.New(rand.NewPCG(b.cfg.seed, seed))
	rank := func() uint64 { return rng.Uint64N(uint64(b.cfg.rows)) }
	if skew > 0 {
		z, err := zipf.New(int64(b.cfg.rows), skew)
		if err != nil {
			return nil, err
		}
		rank = func() uint64 { return uint64(z.Draw(rng.Float64)) }
	}
	return func(keys []rowraft.Key) {
		for i := range keys {
			keys[i] = rowraft.Key(clustermap.Mix64(rank()))
		}
	}, nil
}

// measure returns the mean of all tables.
func (b *hotBench) measure(ctx context.Context, skew float64, how client.Read) (sum hotLoad, err error) {
	for i := range hotTables {
		l, err := b.measureTable(ctx, fmt.Sprintf("hot.%d", i), skew, how)
		if err != nil {
			return sum, err
		}
		sum.Rows += l.Rows / hotTables
		sum.Hottest += l.Hottest / hotTables
		sum.OverMean += l.OverMean / hotTables
		sum.Copies += l.Copies / hotTables
		sum.Fetched += l.Fetched / hotTables
		sum.Sent += l.Sent / hotTables
		sum.OldestAge = max(sum.OldestAge, l.OldestAge)
		sum.Served = append(sum.Served, l.Served...)
	}
	return sum, nil
}

// measureTable reads for some seconds, next to one writer of the same keys, and counts the rows of each server. The
// client is new: it has learned nothing about the servers.
func (b *hotBench) measureTable(ctx context.Context, name string, skew float64,
	how client.Read) (l hotLoad, err error) {
	if b.c, err = client.Dial(ctx, client.Options{Endpoints: b.endpoints}); err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, b.c.Close()) }()
	if b.t, err = b.c.Table(ctx, name); err != nil {
		return l, err
	}
	if err := b.run(ctx, skew, how, b.cfg.warmup, new(readCount)); err != nil {
		return l, err
	}
	before, err := b.scrape(ctx)
	if err != nil {
		return l, err
	}
	var n readCount
	if err := b.run(ctx, skew, how, b.cfg.seconds, &n); err != nil {
		return l, err
	}
	after, err := b.scrape(ctx)
	if err != nil {
		return l, err
	}
	rows, sum := float64(n.rows), 0.0
	l.Rows, l.OldestAge = rows/b.cfg.seconds, n.oldest.Seconds()
	for i := range after {
		d := func(name string) float64 { return (after[i][name] - before[i][name]) / rows }
		served := d("pull") + d("copy_rows")
		l.Served, sum, l.Hottest = append(l.Served, served), sum+served, max(l.Hottest, served)
		l.Copies, l.Fetched, l.Sent = l.Copies+d("copy"), l.Fetched+d("fetched"), l.Sent+d("sent")
	}
	l.OverMean = l.Hottest / (sum / float64(len(after)))
	return l, nil
}

// readCount is what the readers of one measurement got.
type readCount struct {
	mu     sync.Mutex
	rows   int
	oldest time.Duration
}

func (b *hotBench) run(ctx context.Context, skew float64, how client.Read, seconds float64, n *readCount) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	var wg sync.WaitGroup
	for i := range b.cfg.conns {
		wg.Go(func() {
			if err := b.read(ctx, skew, how, uint64(i), end, n); err != nil {
				cancel(err)
			}
		})
	}
	wg.Go(func() {
		if err := b.write(ctx, skew, end); err != nil {
			cancel(err)
		}
	})
	wg.Wait()
	return context.Cause(ctx)
}

func (b *hotBench) read(ctx context.Context, skew float64, how client.Read, seed uint64, end time.Time,
	n *readCount) error {
	draw, err := b.draw(skew, seed)
	if err != nil {
		return err
	}
	keys := make([]rowraft.Key, b.cfg.batch)
	seg := client.Segment{Table: b.t, Keys: keys, Values: make([]float32, len(keys)*b.t.Dim())}
	for time.Now().Before(end) && ctx.Err() == nil {
		draw(keys)
		met, err := b.c.PullWith(ctx, how, seg)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		n.mu.Lock()
		n.rows, n.oldest = n.rows+len(keys), max(n.oldest, met.Age)
		n.mu.Unlock()
	}
	return nil
}

func (b *hotBench) write(ctx context.Context, skew float64, end time.Time) error {
	draw, err := b.draw(skew, 1<<32)
	if err != nil {
		return err
	}
	keys := make([]rowraft.Key, b.cfg.batch)
	tick := time.NewTicker(hotPushEvery)
	defer tick.Stop()
	for time.Now().Before(end) {
		draw(keys)
		if _, err := b.t.Push(ctx, keys, make([]float32, len(keys)*b.t.Dim())); err != nil {
			return fmt.Errorf("push: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// scrape returns the counts of each server: of rows by operation (pull, copy_rows) and by source (copy, fetched, sent).
func (b *hotBench) scrape(ctx context.Context) ([]map[string]float64, error) {
	var out []map[string]float64
	for _, addr := range b.ops {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		reply, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		n := make(map[string]float64)
		for lines := bufio.NewScanner(reply.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), "} ")
			for _, label := range []string{"op", "source"} {
				_, rest, ok := strings.Cut(name, label+`="`)
				of, _, _ := strings.Cut(rest, `"`)
				wanted := strings.HasPrefix(name, "rowraft_copies_rows_total{") ||
					strings.HasPrefix(name, "rowraft_request_keys_total{") && strings.Contains(name, `code="OK"`)
				if v, err := strconv.ParseFloat(value, 64); ok && wanted && err == nil {
					n[of] += v
				}
			}
		}
		if err := reply.Body.Close(); err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// print writes the result for a person.
func (r *hotResult) Print(w io.Writer) error {
	t := cli.NewTable(w, false, []string{"KEYS", "READS", "ROWS/s", "HOTTEST", "MAX/MEAN", "COPIES", "FETCHED", "FALL"},
		"ROWS/s", "HOTTEST", "MAX/MEAN", "COPIES", "FETCHED", "FALL")
	percent := func(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }
	for _, s := range r.Skews {
		t.AppendRow(table.Row{skewName(s.Zipf), "leader", cli.Count(uint64(s.Leader.Rows)), percent(s.Leader.Hottest),
			fmt.Sprintf("%.2f", s.Leader.OverMean), "", "", ""})
		t.AppendRow(table.Row{"", "bounded", cli.Count(uint64(s.Bounded.Rows)), percent(s.Bounded.Hottest),
			fmt.Sprintf("%.2f", s.Bounded.OverMean), percent(s.Bounded.Copies), percent(s.Bounded.Fetched),
			fmt.Sprintf("%.2f ×", s.Fall)})
	}
	t.Render()
	fmt.Fprintln(w)
	bar := "passed"
	if !r.Passed {
		bar = strings.Join(r.Failed, "; ")
	}
	return cli.Facts(w,
		"reads", fmt.Sprintf("%d keys of %s, bounded by %gs", r.Batch, cli.Count(uint64(r.Keys)), r.MaxAge),
		"servers", fmt.Sprintf("%s, %s", cli.Plural(r.Servers, "server"), cli.Plural(r.Shards, "shard")),
		"bars", bar, "machine", r.Host.String())
}
