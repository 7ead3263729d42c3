package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// listedNode is what the test reads of `server list -o json`.
type listedNode struct {
	Name, ID, State, Doing string
	Replicas, Leads        int
}

func (c *cluster) nodes() map[string]listedNode {
	c.t.Helper()
	var v struct{ Servers []listedNode }
	if err := json.Unmarshal([]byte(c.must("server", "list", "-o", "json")), &v); err != nil {
		c.t.Fatal(err)
	}
	out := make(map[string]listedNode)
	for _, n := range v.Servers {
		out[n.Name] = n
	}
	return out
}

// until waits for the list of servers to look as wanted.
func (c *cluster) until(what string, ok func(map[string]listedNode) bool) {
	c.t.Helper()
	began := time.Now()
	err := poll(deadline(c.t, patience), func() error {
		if n := c.nodes(); !ok(n) {
			return fmt.Errorf("not yet: %+v", n)
		}
		return nil
	})
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", what, err, c.must("operation", "list", "--all"))
	}
	c.t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
}

// change tells a server what to do and waits until it has. It is told again when that was
// refused: on a busy machine another server may be late with its heartbeat.
func (c *cluster) change(what, node string, flags ...string) {
	c.t.Helper()
	args := append([]string{"server", what, node}, flags...)
	err := poll(deadline(c.t, patience), func() error {
		_, errout, code := c.rowraft(deadline(c.t, patience), args...)
		if code != 0 && !c.changed(what, node) {
			return fmt.Errorf("exit code %d: %s", code, errout)
		}
		return nil
	})
	if err != nil {
		c.t.Fatalf("rowraft %s: %v", strings.Join(args, " "), err)
	}
}

// changed reports that a server is as it was told to be, by a try whose answer was lost.
func (c *cluster) changed(what, node string) bool {
	n, known := c.nodes()[node]
	switch what {
	case "undrain":
		return n.Doing == "serving"
	case "decommission":
		return !known
	}
	return false
}

// even reports that the named servers, and no others, hold all replicas, each as many as
// any other, give or take one, and that nothing moves.
func (c *cluster) even(shards int, names ...string) func(map[string]listedNode) bool {
	return func(nodes map[string]listedNode) bool {
		least, most, all := 1<<20, 0, 0
		for name, n := range nodes {
			if slices.Contains(names, name) {
				least, most = min(least, n.Replicas), max(most, n.Replicas)
			}
			all += n.Replicas
		}
		held := 0
		for _, name := range names {
			held += nodes[name].Replicas
		}
		return held == 3*shards && all == held && most-least <= 1 &&
			strings.Contains(c.must("operation", "list"), "No operation runs")
	}
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

// pusher counts in a row of each shard until it is stopped.
type pusher struct {
	tables []*client.Table
	keys   []rowraft.Key
	pulses []*pulse
	stop   func()
}

func (c *cluster) startPusher(shards int) *pusher {
	c.t.Helper()
	p := &pusher{}
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for shard := range shards {
		cl := c.dial(client.Options{AttemptTimeout: time.Second})
		table, err := cl.CreateTable(deadline(c.t, patience), rowraft.Schema{
			Name: "grow", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
			Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		}, true)
		if err != nil {
			c.t.Fatal(err)
		}
		key, err := cl.Map().KeyInShard(table.Schema().ID, rowraft.ShardID(shard))
		if err != nil {
			c.t.Fatal(err)
		}
		beat := &pulse{last: time.Now()}
		p.tables, p.keys, p.pulses = append(p.tables, table), append(p.keys, key), append(p.pulses, beat)
		wg.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				if _, err := table.Push(c.t.Context(), []rowraft.Key{key}, []float32{-1}); err != nil {
					c.t.Errorf("shard %d: push: %v", shard, err)
					return
				}
				beat.beat()
				<-tick.C
			}
		})
	}
	p.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	c.t.Cleanup(p.stop)
	return p
}

// check compares the rows with what was acknowledged.
func (p *pusher) check(t *testing.T) (pushed int) {
	t.Helper()
	for shard, table := range p.tables {
		var row [1]float32
		if err := table.Pull(deadline(t, patience), p.keys[shard:shard+1], row[:]); err != nil {
			t.Fatal(err)
		}
		if n := p.pulses[shard].pushed; row[0] != float32(n) {
			t.Errorf("shard %d: the row holds %v after %d acknowledged pushes", shard, row[0], n)
		}
		pushed += p.pulses[shard].pushed
	}
	return pushed
}

// gap is the longest pause of any shard since the last call.
func (p *pusher) gap() (worst time.Duration) {
	for _, b := range p.pulses {
		worst = max(worst, b.longest())
		b.reset()
	}
	return worst
}

// A cluster grows from three servers to five under load, one is drained, one is killed for
// good and replaced, one loses its disk, and it shrinks back to three: no push is lost or
// counts twice, and the replicas are equal.
func TestAClusterGrowsAndShrinks(t *testing.T) {
	const shards = 4
	c := start(t, localcluster.Options{Servers: 3, Shards: shards, Profile: "default",
		Args: []string{"--replace-after", "15s", "--labels", "zone={server}"}})
	p := c.startPusher(shards)
	var worst time.Duration
	gap := func(what string) {
		g := p.gap()
		worst = max(worst, g)
		t.Logf("%s: longest gap between acknowledgements of a shard %v", what, g.Round(time.Millisecond))
	}
	grow := func() *localcluster.Server {
		s, err := c.Grow(deadline(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	n4, n5 := grow(), grow()
	c.until("the new servers have their share", c.even(shards, "n1", "n2", "n3", "n4", "n5"))
	gap("grown to five")

	c.change("drain", "n2", "--yes")
	// one that stood still was about to be replaced
	c.until("n2 leads nothing, and has its replicas", func(nodes map[string]listedNode) bool {
		n := nodes["n2"]
		return n.Doing == "drained" && n.Replicas > 0 && n.Leads == 0
	})
	c.change("undrain", "n2", "--yes")
	gap("drained")

	ok(n5.Kill())
	c.Forget(n5)
	c.until("the replicas of the dead one are elsewhere", func(nodes map[string]listedNode) bool {
		return nodes["n5"].Replicas == 0
	})
	c.change("decommission", "n5", "--yes")
	c.until("the dead one is forgotten", func(nodes map[string]listedNode) bool { _, known := nodes["n5"]; return !known })
	n6 := grow()
	c.until("another one has taken its place", c.even(shards, "n1", "n2", "n3", "n4", "n6"))
	gap("one killed and replaced")

	before := n4.ID()
	ok(n4.Kill())
	ok(os.RemoveAll(n4.DataDir))
	ok(c.Restart(deadline(t, patience), n4))
	if after := n4.ID(); after == before {
		t.Errorf("a server with an empty directory has its old id %s", after)
	}
	// The list has the old one under its name until that counts as down.
	c.until("the one without its disk is a new one", func(nodes map[string]listedNode) bool {
		return nodes["n4"].ID == string(n4.ID()) && len(nodes) == 5 && c.even(shards, "n1", "n2", "n3", "n4", "n6")(nodes)
	})
	gap("one lost its disk")

	for _, s := range []*localcluster.Server{n4, n6} {
		c.change("decommission", s.Name, "--yes")
		ok(s.Stop(patience))
		c.Forget(s)
	}
	c.until("three are left", func(nodes map[string]listedNode) bool {
		return len(nodes) == 3 && c.even(shards, "n1", "n2", "n3")(nodes)
	})
	gap("shrunk to three")

	p.stop()
	pushed := p.check(t)
	c.sameDigests()
	t.Logf("%d pushes, longest gap between acknowledgements of a shard %v", pushed, worst.Round(time.Millisecond))
	if limit := 2 * time.Minute; worst > limit {
		t.Errorf("pushes of a shard waited %v, want at most %v", worst, limit)
	}
}
