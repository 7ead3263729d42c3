package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	procs "github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	counting "github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/e2e/verdict"
	"github.com/rowraft/rowraft/internal/localcluster"
)

const (
	moveShards  = 3
	moveClients = 4
	moveKills   = 8
)

// mover is four servers with three replicas of each shard, clients that count, and
// one more client per shard whose pauses are measured.
type mover struct {
	t     testing.TB
	ctx   context.Context
	rng   *rand.Rand
	c     *procs.Cluster
	load  *counting.Load
	rec   *history.Recorder
	watch *procs.Watch
	pulse []*pulse
}

// pulse pushes to one shard all the time.
type pulse struct {
	mu     sync.Mutex
	last   time.Time
	gap    time.Duration
	pushed int
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.gap, p.last, p.pushed = max(p.gap, now.Sub(p.last)), now, p.pushed+1
}

// reset begins a new measurement.
func (p *pulse) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gap, p.last = 0, time.Now()
}

// longest is the longest pause since reset, the present one included.
func (p *pulse) longest() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.gap, time.Since(p.last))
}

func (m *mover) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func startMover(t *testing.T, dir string) *mover {
	needBinaries(t)
	m := &mover{t: t, ctx: deadline(t, 2*patience), rng: seed(t)}
	var err error
	m.c, err = procs.Start(m.ctx, localcluster.Options{
		Binary: filepath.Join(bin, "rowraft"), Dir: dir, Servers: 4, Shards: moveShards, Profile: "fast",
		// Short logs: who joins gets a snapshot.
		Args: []string{"--disk-reserve-bytes", "1", "--snapshot-every-bytes", "131072", "--trailing-log-bytes", "32768", "--log-segment-bytes", "131072"},
	})
	m.must(err)
	t.Cleanup(func() { m.finish() })
	m.rec, err = history.Create(filepath.Join(dir, verdict.HistoryFile))
	m.must(err)
	m.load, err = counting.New(m.ctx, counting.Options{
		Endpoints: m.c.Endpoints(), Clients: moveClients, Rows: 8 * moveShards, Seed: m.rng.Uint64(), PerSecond: 60, Recorder: m.rec, PushPatience: patience,
	})
	m.must(err)
	m.watch = m.c.NewWatch(m.rec.Now)
	return m
}

// finish ends everything and looks at the logs.
func (m *mover) finish() {
	if m.watch != nil {
		m.watch.Close()
	}
	if m.load != nil {
		if err := m.load.Close(); err != nil {
			m.t.Error(err)
		}
	}
	for _, name := range m.c.Dead() {
		m.t.Errorf("server %s has ended by itself", name)
	}
	if err := m.c.Close(); err != nil {
		m.t.Error(err)
	}
	for _, s := range m.c.Servers() {
		b, err := os.ReadFile(s.LogFile)
		if err != nil {
			m.t.Error(err)
		}
		for _, line := range procs.BadLines(b) {
			m.t.Errorf("log of server %s: %s", s.Name, line)
		}
		if m.t.Failed() {
			m.t.Logf("the end of the log of server %s:\n%s", s.Name, bytes.TrimSpace(b[max(0, len(b)-6<<10):]))
		}
	}
}

// startPulses pushes to a row of its own in every shard until the returned function
// is called, which compares the rows with what was acknowledged. They fail the test that
// runs now, not the part of it that m.t is while they push.
func (m *mover) startPulses() (stop func()) {
	t := m.t
	ctx, cancel := context.WithCancel(m.ctx)
	var wg sync.WaitGroup
	tables, keys := make([]*client.Table, moveShards), make([]rowraft.Key, moveShards)
	for shard := range moveShards {
		cl, err := client.Dial(m.ctx, client.Options{Endpoints: m.c.Endpoints(), AttemptTimeout: 500 * time.Millisecond})
		m.must(err)
		t.Cleanup(func() { cl.Close() })
		tables[shard], err = cl.CreateTable(m.ctx, rowraft.Schema{
			Name: "pulse", Kind: rowraft.Sparse, Dim: 1,
			Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}, true)
		m.must(err)
		keys[shard], err = cl.Map().KeyInShard(tables[shard].Schema().ID, rowraft.ShardID(shard))
		m.must(err)
		p := &pulse{last: time.Now()}
		m.pulse = append(m.pulse, p)
		wg.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				if _, err := tables[shard].Push(m.ctx, keys[shard:shard+1], []float32{-1}); err != nil {
					t.Errorf("shard %d: push: %v", shard, err)
					return
				}
				p.beat()
				<-tick.C
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
		for shard, p := range m.pulse {
			var row [1]float32
			m.must(tables[shard].Pull(m.ctx, keys[shard:shard+1], row[:]))
			if row[0] != float32(p.pushed) {
				t.Errorf("shard %d: the row holds %v after %d acknowledged pushes", shard, row[0], p.pushed)
			}
		}
	}
}

// choose picks a shard, a server to take its replica from (that of its leader, if
// asked for) and the server that has none.
func (m *mover) choose(shard rowraft.ShardID, leaders bool) (from, to, leader string, p *procs.Placement) {
	m.t.Helper()
	m.must(procs.Poll(m.ctx, func() (err error) {
		if p, err = m.c.Placement(m.ctx); err == nil && p.Scheduler == "" {
			err = errors.New("who answered for the scheduler does not lead it any more")
		}
		return err
	}))
	m.must(procs.Poll(m.ctx, func() error {
		l, ok := m.watch.Leader(shard)
		if leader = l.Server; !ok || !slices.Contains(p.Replicas[shard], leader) {
			return fmt.Errorf("shard %d: no leader among %v is known", shard, p.Replicas[shard])
		}
		return nil
	}))
	for _, name := range m.c.Names() {
		if !slices.Contains(p.Replicas[shard], name) {
			to = name
		}
	}
	for _, name := range p.Replicas[shard] {
		if (name == leader) == leaders && (from == "" || m.rng.IntN(2) == 0) {
			from = name
		}
	}
	return from, to, leader, p
}

// Replicas of all shards, leaders' and others', move about four servers while
// clients push; then they move while the source, the target, the shard's leader or
// the scheduler's leader is killed at any moment.
func TestReplicasMoveAboutServers(t *testing.T) {
	beforeRelease(t)
	dir := t.TempDir()
	m := startMover(t, dir)
	m.load.Start()
	stopPulses := m.startPulses()

	t.Run("planned", m.planned)
	t.Run("with kills", m.withKills)
	m.t = t

	took := m.stopwatch()
	stopPulses()
	m.must(m.load.Quiesce(m.ctx))
	took("the clients are quiet")
	now := m.rec.Now()
	m.rec.Add(history.Op{Kind: history.Phase, Client: -1, Fault: "final", Call: now, Return: now, Outcome: history.OK})
	f, err := m.load.Final(m.ctx)
	m.must(err)
	if f.Lost != 0 || f.Doubled != 0 {
		t.Errorf("%d pushes lost, %d doubled: %v", f.Lost, f.Doubled, f.Details)
	}
	for shard := range rowraft.ShardID(moveShards) {
		digests, err := m.c.Digests(deadline(t, patience), shard)
		m.must(err)
		sums := make(map[procs.Digest]bool)
		for _, d := range digests {
			sums[d] = true
		}
		if len(digests) != 3 || len(sums) != 1 {
			t.Errorf("shard %d: %v, want three replicas with one digest", shard, digests)
		}
	}
	took("rows and digests are compared")
	for _, p := range m.load.Problems() {
		t.Error(p)
	}
	m.watch.Close()
	seen := m.watch.Seen()
	m.watch = nil
	m.must(m.rec.Close())
	ops, err := history.Read(filepath.Join(dir, verdict.HistoryFile))
	m.must(err)
	tally, verdicts := verdict.Judge(ops, seen, moveClients, time.Minute)
	t.Logf("%v", tally)
	for _, v := range verdicts {
		t.Log(v)
		for _, w := range v.Wrong {
			t.Errorf("%s: %s", v.Checker, w)
		}
	}
}

// stopwatch logs how long each part of the end takes: a replica that lags shows here.
func (m *mover) stopwatch() (took func(what string)) {
	began := time.Now()
	return func(what string) {
		m.t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
}

// planned moves and transfers, each with the pause that it made.
func (m *mover) planned(t *testing.T) {
	m.t = t
	var worst time.Duration
	for i := range 2 * moveShards {
		shard := rowraft.ShardID(i % moveShards)
		from, to, leader, _ := m.choose(shard, i < moveShards)
		m.pulse[shard].reset()
		began := time.Now()
		id, err := m.c.StartMove(m.ctx, shard, from, to)
		m.must(err)
		mv, err := m.c.AwaitMove(m.ctx, id)
		m.must(err)
		if !mv.Done() {
			t.Errorf("move %+v, want done", mv)
		}
		gap := m.pulse[shard].longest()
		worst = max(worst, gap)
		t.Logf("shard %d (led by %s): %s to %s in %v, longest gap between acknowledgements %v", shard, leader, from, to, time.Since(began).Round(time.Millisecond), gap.Round(time.Millisecond))
	}
	for shard := range rowraft.ShardID(moveShards) {
		_, _, leader, p := m.choose(shard, true)
		for _, to := range p.Replicas[shard] {
			if to != leader {
				m.pulse[shard].reset()
				_, err := m.c.TransferLeader(m.ctx, leader, shard, to)
				if err != nil { // it has just moved
					t.Log(err)
				}
				worst = max(worst, m.pulse[shard].longest())
				break
			}
		}
	}
	t.Logf("longest gap of planned moves and transfers: %v", worst)
	if limit := time.Minute; worst > limit { // aim: 500 ms, on a machine of its own; here whoever pushes may stand still
		t.Errorf("pushes of a shard waited %v, want at most %v", worst, limit)
	}
}

// withKills kills somebody at a random moment of each move.
func (m *mover) withKills(t *testing.T) {
	m.t = t
	for i := range moveKills {
		shard := rowraft.ShardID(i % moveShards)
		from, to, leader, p := m.choose(shard, m.rng.IntN(2) == 0)
		who := []string{"source", "target", "leader", "scheduler"}[i%4]
		victim := map[string]string{"source": from, "target": to, "leader": leader, "scheduler": p.Scheduler}[who]
		delay := time.Duration(m.rng.Int64N(int64(300 * time.Millisecond)))
		m.pulse[shard].reset()
		id, err := m.c.StartMove(m.ctx, shard, from, to)
		m.must(err)
		wait(delay)
		phase := "?"
		if p, err := m.c.Placement(m.ctx); err == nil {
			if j := slices.IndexFunc(p.Moves, func(mv procs.Move) bool { return mv.ID == id }); j >= 0 {
				phase = p.Moves[j].Phase
			}
		}
		m.must(m.c.Kill(victim))
		wait(time.Duration(m.rng.Int64N(int64(time.Second))))
		m.must(m.c.RestartAll(m.ctx, victim))
		mv, err := m.c.AwaitMove(m.ctx, id)
		m.must(err)
		if !mv.Done() {
			t.Errorf("move %+v, want done", mv)
		}
		t.Logf("shard %d: %s to %s, %s (%s) killed in %s: longest gap %v", shard, from, to, who, victim, phase, m.pulse[shard].longest().Round(time.Millisecond))
	}
}

// wait lets a random moment come.
func wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}
