package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
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
		if status := c.clusterStatus(); !strings.Contains(status, "3 up of 3, 3 expected") {
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

// TestTrainingInPartsOutlivesItsScheduler is the default mode of several trainers: the scheduler hands out the data in
// parts. It is killed for longer than a part takes. The trainers read the parts that they hold ahead, keep their leases,
// and train every example once; the run ends after the scheduler is back.
func TestTrainingInPartsOutlivesItsScheduler(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{Schedulers: 1})
	dir := t.TempDir()
	config := filepath.Join(dir, "job.yaml")
	const perPart, examples = 60, 16 * 60 * 64 // 8 parts of 60 batches for each trainer
	err := os.WriteFile(config, fmt.Appendf(nil, `job: parts
trainers: 2
batch: 64
in_flight: 3
audit: true
evaluate: false
generator: {examples: %d, held: 64, keys: 400, categorical: 4, dense: 3}
model: {dim: 8, sleep: 5ms}
`, examples), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	scheduler := c.Schedulers()[0]
	tr := &trainers{c: c, dir: dir, config: config, n: 2}
	tr.start()
	tr.reached(perPart / 2)
	both := func() (steps int64) {
		for rank := range tr.n {
			e, err := tr.last(rank)
			if err != nil {
				t.Fatal(err)
			}
			steps += e.Step
		}
		return steps
	}
	before := both()
	if err := scheduler.Kill(); err != nil {
		t.Fatal(err)
	}
	// More than what is left of two parts. Each has a part ahead or two, however far the one is before the other.
	if err := poll(deadline(t, patience), func() error {
		if n := both() - before; n < 2*perPart+perPart/2 {
			return fmt.Errorf("%d steps without the scheduler", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	c.restartScheduler(scheduler)
	tr.ended()
	var read int64
	var pushes []int
	for rank := range tr.n {
		e, err := tr.last(rank)
		if err != nil || e.PushesAcknowledged != e.Step {
			t.Errorf("trainer %d ends with %d pushes of %d steps acknowledged, %v", rank, e.PushesAcknowledged, e.Step, err)
		}
		read, pushes = read+e.Examples, append(pushes, int(e.PushesAcknowledged))
	}
	if read != examples {
		t.Errorf("%d examples were trained, want each of %d once", read, examples)
	}
	for shard, n := range auditCounts(c, "parts.audit", 2) {
		if !slices.Equal(n, pushes) {
			t.Errorf("shard %d counts %v pushes of the two trainers, want %v", shard, n, pushes)
		}
	}
	if out := c.must("job", "describe", "parts"); !strings.Contains(out, "done") || strings.Contains(out, "lost") {
		t.Errorf("the job ends as:\n%s", out)
	}
}

// Three processes of the scheduler go on without any one of them, and every process of
// the cluster comes back from its directory.
func TestThreeSchedulersGoOnWithoutOne(t *testing.T) {
	beforeRelease(t)
	c := start(t, localcluster.Options{Schedulers: 3, Servers: 1, Shards: 2})
	cl := c.dial(client.Options{})
	create := func(name string) {
		t.Helper()
		s := rowraft.Schema{Name: name, Kind: rowraft.Sparse, Dim: 4, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}}
		if _, err := cl.CreateTable(deadline(t, patience), s, true); err != nil {
			t.Fatalf("create table %s: %v", name, err)
		}
	}
	create("all")
	for i, s := range c.Schedulers() { // the leader is one of them
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
		create(fmt.Sprint("without", i))
		c.restartScheduler(s)
	}
	everybody := append(c.Schedulers()[:3:3], c.Servers()...)
	c.killAll(everybody)
	c.restartAll(everybody)
	if _, err := cl.Table(deadline(t, patience), "without2"); err != nil {
		t.Error(err)
	}
	create("again")
}

// What cannot be is refused before anything is written.
func TestSchedulerRefusals(t *testing.T) {
	needBinaries(t)
	for name, tc := range map[string]struct {
		args string
		want string
	}{
		"two of them":        {"scheduler --insecure --servers 1 --join a:1,b:1", "want 1 or 3"},
		"any number":         {"scheduler --insecure", "--servers"},
		"two kinds":          {"server --insecure --scheduler a:1 --with-scheduler", "--scheduler"},
		"two lists":          {"server --insecure --scheduler a:1 --join a:1", "--join"},
		"a server's own":     {"scheduler --insecure --servers 1 --with-scheduler", "--with-scheduler"},
		"a scheduler itself": {"scheduler --insecure --servers 1 --scheduler a:1", "--scheduler"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			p := spawn(t, "rowraft", append(strings.Fields(tc.args), "--data-dir", dir, "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0")...)
			if code := p.code(t, patience); code != 2 || !strings.Contains(p.stderr.String(), tc.want) {
				t.Errorf("exit code %d, want 2 and %q:\n%s", code, tc.want, &p.stderr)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the data directory was made: %v", err)
			}
		})
	}
}
