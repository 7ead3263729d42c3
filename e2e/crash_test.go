package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// Every process, schedulers included, dies by kill −9 in the middle of pushes,
// again and again. The clients know nothing of it: they go on resending under the
// same numbers, and any error they see fails the test, a lost session above all.
func TestKillAllServers(t *testing.T) {
	for _, tc := range []struct {
		name, backend string
		memory        uint64
	}{{"rowlog", "rowlog", 0}, {"tiered", "rowlog", rowraft.MinMemory}, {"bolt", "bolt", 0}} {
		t.Run(tc.name, func(t *testing.T) {
			rng := seed(t)
			c := start(t, localcluster.Options{Backend: tc.backend})
			l := startLoad(c, rng, loadOptions{clients: 3, workers: 3, keys: 512, perPush: 48, memory: tc.memory})
			for round := range rounds(4) {
				l.more(20 + rng.IntN(300))
				killed := time.Now()
				c.killAll(c.Servers())
				c.restartAll(c.Servers())
				served := time.Since(killed)
				t.Logf("round %d: all servers serve %.2f s after the kill, pushes are acknowledged after %.2f s",
					round+1, served.Seconds(), l.recovered(killed).Seconds())
			}
			l.more(50)
			if now, read := c.coldRows(); tc.memory > 0 && (now < 512 || read == 0) {
				t.Errorf("%d rows are on disk, and %d were read from there since the last start: want most of the rows", now,
					read)
			}
			l.check(c)
		})
	}
}

// coldRows returns how many rows lie in the files of tiered tables, and how many were read from there.
func (c *cluster) coldRows() (now, read uint64) {
	c.t.Helper()
	for _, s := range c.Servers() {
		st, err := localcluster.Status(c.t.Context(), s.Addr)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, r := range st.Replicas {
			for _, table := range r.Tables {
				now, read = now+table.ColdRows, read+table.ColdRowsRead
			}
		}
	}
	return now, read
}

// Each leader in turn is killed under pushes and pulls; it comes back while the
// next is killed.
func TestKillLeaders(t *testing.T) {
	rng := seed(t)
	c := start(t, localcluster.Options{})
	l := startLoad(c, rng, loadOptions{clients: 4, workers: 2, keys: 512, perPush: 64})
	var failovers []time.Duration
	for range rounds(4) {
		l.more(50 + rng.IntN(200))
		leads, err := c.leaders(deadline(t, patience))
		if err != nil {
			t.Fatal(err)
		}
		victim := leads[rng.IntN(len(leads))]
		killed := time.Now()
		c.killAll([]*localcluster.Server{victim})
		took := l.recovered(killed)
		failovers = append(failovers, took)
		t.Logf("%s led %d shards: kill −9 to the next acknowledged push %.2f s", victim.Name, countOf(leads, victim),
			took.Seconds())
		if took > time.Minute {
			t.Errorf("no push was acknowledged for %v after the kill of one leader", took)
		}
		l.more(20)
		c.restartAll([]*localcluster.Server{victim})
		if err := c.caughtUp(deadline(t, patience), victim); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(failovers)
	t.Logf("failover: median %.2f s, longest %.2f s", failovers[len(failovers)/2].Seconds(),
		failovers[len(failovers)-1].Seconds())
	l.check(c)
}

// rounds returns how often a test repeats its fault: n times before a release, half as often in `make test`.
func rounds(n int) int {
	if !everyTest() {
		return n / 2
	}
	return n
}

func countOf(leads []*localcluster.Server, s *localcluster.Server) (n int) {
	for _, l := range leads {
		if l == s {
			n++
		}
	}
	return n
}
