package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Every process, schedulers included, dies by kill −9 in the middle of pushes,
// again and again. The clients know nothing of it: they go on resending under the
// same numbers, and any error they see fails the test, a lost session above all.
func TestKillAllServers(t *testing.T) {
	for _, backend := range []string{"rowlog", "bolt"} {
		t.Run(backend, func(t *testing.T) {
			rng := seed(t)
			c := start(t, localcluster.Options{Backend: backend})
			l := startLoad(c, rng, loadOptions{clients: 3, workers: 3, keys: 512, perPush: 48})
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
			l.check(c)
		})
	}
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
		t.Logf("%s led %d shards: kill −9 to the next acknowledged push %.2f s", victim.Name, countOf(leads, victim), took.Seconds())
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
	t.Logf("failover: median %.2f s, longest %.2f s", failovers[len(failovers)/2].Seconds(), failovers[len(failovers)-1].Seconds())
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

// A server is away while the others write so much that their logs no longer reach
// back to where it was: only a snapshot can bring it up.
func TestBehindTheLog(t *testing.T) {
	beforeRelease(t)
	for _, backend := range []string{"rowlog", "bolt"} {
		t.Run(backend, func(t *testing.T) { testBehindTheLog(t, backend) })
	}
}

func testBehindTheLog(t *testing.T, backend string) {
	rng := seed(t)
	c := start(t, localcluster.Options{Backend: backend, Servers: 3, Shards: 1, Args: []string{
		"--snapshot-every-bytes", "2000000", "--trailing-log-bytes", "500000", "--log-segment-bytes", "1000000", "--log-level", "debug",
	}})
	l := startLoad(c, rng, loadOptions{clients: 2, workers: 4, keys: 2048, perPush: 512, dim: 64})
	victim := c.Servers()[rng.IntN(3)]
	l.more(20)
	c.killAll([]*localcluster.Server{victim})
	// A push is 135 kB. A log gives an entry back, compacted or not, as long as
	// it has not dropped the segment: write many.
	l.more(100)
	behind, err := c.greatest(deadline(t, patience), victim, (*rowraftv1.ReplicaStatus).GetLastIndex)
	if err != nil {
		t.Fatal(err)
	}
	if err := poll(deadline(t, patience), func() error { return c.compactedBeyond(behind, victim) }); err != nil {
		t.Fatal(err)
	}
	before := installs(t, victim) // it may have lagged before, too
	c.restartAll([]*localcluster.Server{victim})
	if err := c.caughtUp(deadline(t, patience), victim); err != nil {
		t.Fatal(err)
	}
	if err := poll(deadline(t, patience), func() error { // it says so a moment later
		if installs(t, victim) == before {
			return errors.New("the server has caught up without a snapshot")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	l.more(50)
	l.check(c)
	// What it got serves: the same after a restart from its own disk.
	c.killAll([]*localcluster.Server{victim})
	c.restartAll([]*localcluster.Server{victim})
	c.sameDigests()
}

// installs counts the snapshots that a server got from others, in the words of raft: ours are
// missing where a replica had applied nothing yet.
func installs(t testing.TB, s *localcluster.Server) int {
	t.Helper()
	return bytes.Count(mustRead(t, s.LogFile), []byte("raft: Installed remote snapshot"))
}

// compactedBeyond tells whether the logs of all shards, on all servers but one,
// begin behind the given indices, as their own logs say.
func (c *cluster) compactedBeyond(want map[uint32]uint64, but *localcluster.Server) error {
	for _, s := range c.Servers() {
		if s == but {
			continue
		}
		b, err := os.ReadFile(s.LogFile)
		if err != nil {
			return err
		}
		first := make(map[string]uint64) // group → the log begins after it
		for line := range bytes.Lines(b) {
			var e struct {
				Msg, Group string
				To         uint64
			}
			if bytes.Contains(line, []byte("compacting logs")) && json.Unmarshal(line, &e) == nil {
				first[e.Group] = max(first[e.Group], e.To)
			}
		}
		for shard, index := range want {
			if got := first[fmt.Sprintf("shard-%d", shard)]; got <= index {
				return fmt.Errorf("the log of shard %d on %s begins after %d, want more than %d", shard, s.Name, got, index)
			}
		}
	}
	return nil
}
