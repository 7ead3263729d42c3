package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// restartScheduler brings a scheduler back and waits until it answers for tables.
func (c *cluster) restartScheduler(s *localcluster.Server) {
	c.t.Helper()
	if err := c.Restart(deadline(c.t, patience), s); err != nil {
		c.t.Fatal(err)
	}
}

// A scheduler in a process of its own is killed in the middle of training, and a server
// with it: training goes on while both are away, every push counts once, and the
// scheduler goes on from its disk.
func TestTrainingOutlivesItsScheduler(t *testing.T) {
	c := start(t, localcluster.Options{Schedulers: 1})
	dir := t.TempDir()
	config := filepath.Join(dir, "job.yaml")
	err := os.WriteFile(config, []byte(`job: alone
trainers: 2
lease: 5m # who is lost while the scheduler is away cannot enter again
steps: 1000000000
batch: 64
in_flight: 3
audit: true
evaluate: false
generator: {examples: 0, held: 0, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, sleep: 5ms} # else what they say of so many steps is long to read
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	scheduler, victim := c.Schedulers()[0], c.Servers()[1]
	if err := poll(deadline(t, patience), func() error {
		if status := c.clusterStatus(); !strings.Contains(status, "3 up of 3\n") {
			return fmt.Errorf("the scheduler counts as a server, or one of them is down:\n%s", status)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	tr := &trainers{c: c, dir: dir, config: config, n: 2}
	tr.start()
	tr.reached(30)
	if err := scheduler.Kill(); err != nil {
		t.Fatal(err)
	}
	tr.farther(50)
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	tr.farther(50)
	c.restartScheduler(scheduler)
	c.restartAll([]*localcluster.Server{victim})
	tr.farther(50)
	c.must("job", "stop", "alone")
	tr.ended()
	var pushes []int
	for rank := range tr.n {
		e, err := tr.last(rank)
		if err != nil || e.PushesAcknowledged != e.Step || e.Step < 180 {
			t.Errorf("trainer %d ends with %d pushes of %d steps acknowledged, %v", rank, e.PushesAcknowledged, e.Step, err)
		}
		pushes = append(pushes, int(e.PushesAcknowledged))
	}
	for shard, n := range auditCounts(c, "alone.audit", 2) {
		if !slices.Equal(n, pushes) {
			t.Errorf("shard %d counts %v pushes of the two trainers, want %v", shard, n, pushes)
		}
	}
	if err := c.caughtUp(deadline(t, patience), victim); err != nil {
		t.Fatal(err)
	}
	c.sameDigests()
	c.must("table", "create", "after", "--dim", "4", "--if-not-exists")
}
