package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	loads "github.com/rowraft/rowraft/e2e/load" // this package has a type load
	"github.com/rowraft/rowraft/internal/localcluster"
)

// restored is what `checkpoint restore -o json` prints.
type restored struct {
	Epoch  uint64
	Tables []struct {
		Table                               string
		Written, Restored, Filtered, Failed uint64
	}
	Shards []struct {
		Rows   uint64
		Digest string
	}
}

// restore tries once.
func (c *cluster) restore(path string, args ...string) (restored, string, int) {
	c.t.Helper()
	out, errout, code := c.rowraft(deadline(c.t, patience),
		append([]string{"checkpoint", "restore", path, "--yes", "-o", "json"}, args...)...)
	return c.wasRestored(out), errout, code
}

func (c *cluster) wasRestored(out string) (v restored) {
	c.t.Helper()
	if out != "" {
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			c.t.Fatalf("%v: %s", err, out)
		}
	}
	return v
}

// mustRestore restores, again if a leader was lost: that restore may be decided all the same,
// so the next one replaces its rows, and has a later epoch.
func (c *cluster) mustRestore(path string, args ...string) restored {
	c.t.Helper()
	args = append([]string{"checkpoint", "restore", path, "--yes", "-o", "json"}, args...)
	out, errout, code := c.rowraft(deadline(c.t, patience), args...)
	if code == 4 {
		c.t.Logf("%s is restored again: %s", path, errout)
		out, errout, code = c.patiently(append(args, "--replace")...)
	}
	if code != 0 {
		c.t.Fatalf("checkpoint restore: exit code %d: %s", code, errout)
	}
	return c.wasRestored(out)
}

// filled starts a cluster with rows of two optimizers and returns the checkpoint
// "a" of it.
func filled(t testing.TB, opts localcluster.Options, rows int) (c *cluster, dest string, m *checkpoint.Manifest) {
	t.Helper()
	c = start(t, opts)
	if err := loads.Fill(deadline(t, patience), c.dial(client.Options{}), rows); err != nil {
		t.Fatal(err)
	}
	dest = t.TempDir()
	return c, dest, c.createCheckpoint(dest, "a")
}

// TestRestoreInPlace: rows, sessions and read positions of the time before are gone
// or refused, and everything survives a restart.
func TestRestoreInPlace(t *testing.T) {
	c, dest, m := filled(t, localcluster.Options{}, 500)
	ctx := deadline(t, patience)
	cl := c.dial(client.Options{})
	table, err := cl.Table(ctx, "emb")
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 300)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	grads := make([]float32, len(keys)*8)
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	c.must("table", "create", "other", "--dim", "1", "--optimizer", "sgd", "--lr", "1", "--init", "zeros")
	other, err := cl.Table(ctx, "other") // the checkpoint does not have it
	if err != nil {
		t.Fatal(err)
	}
	otherKeys, otherGrads := []rowraft.Key{5}, []float32{1}
	if _, err := other.Push(ctx, otherKeys, otherGrads); err != nil {
		t.Fatal(err)
	}
	if out, errout, code := c.patiently("checkpoint", "restore", dest+"/a", "--replace"); code != 5 ||
		!strings.Contains(errout, "other, 1 row: REMOVED") || !strings.Contains(errout, "--yes") {
		t.Errorf("without a terminal and --yes: exit code %d: %s%s", code, out, errout)
	}
	if _, errout, code := c.patiently("checkpoint", "restore", dest+"/a"); code != 5 ||
		!strings.Contains(errout, "--replace") {
		t.Errorf("over rows that are there: exit code %d: %s", code, errout)
	}
	v := c.mustRestore(dest+"/a", "--replace", "--table", "emb")
	for _, table := range v.Tables {
		if want := map[bool]uint64{true: 500}[table.Table == "emb"]; table.Restored != want ||
			table.Restored+table.Filtered != table.Written {
			t.Errorf("%+v", v.Tables)
		}
	}
	out := make([]float32, len(grads))
	if _, err := table.Push(ctx, keys, grads); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("a push to the table as it was: %v, want TableNotFound", err)
	}
	// The other table, and its session, have noticed nothing.
	if _, err := other.Push(ctx, otherKeys, otherGrads); err != nil {
		t.Errorf("a push to the table that was left out: %v", err)
	}
	if err := other.Pull(ctx, otherKeys, otherGrads); err != nil || otherGrads[0] != -2 {
		t.Errorf("the table that was left out has %v after two pushes of 1, %v; want -2", otherGrads[0], err)
	}
	fresh := c.dial(client.Options{})
	if table, err = fresh.Table(ctx, "emb"); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Errorf("a push to the table that was restored: %v", err)
	}
	c.mustRestore(dest+"/a", "--replace")
	if _, err := table.Push(ctx, keys, grads); rowraft.CodeOf(err) != rowraft.CodeSessionExpired &&
		rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("a push of the session from before: %v, want SessionExpired", err)
	}
	if err := table.Pull(ctx, keys, out); rowraft.CodeOf(err) != rowraft.CodeSessionExpired &&
		rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("a read with positions from before: %v, want SessionExpired", err)
	}
	c.killAll(c.Servers())
	c.restartAll(c.Servers())
	if table, err = c.dial(client.Options{}).Table(ctx, "emb"); err != nil {
		t.Fatal(err)
	}
	if err := table.Pull(ctx, keys, out); err != nil { // every shard has a leader that knows its log
		t.Fatal(err)
	}
	sum := checkpoint.Digest{}
	for _, p := range m.Shards {
		sum = sum.Add(p.Digest)
	}
	if rows := c.sameDigests(); rows != m.Rows() {
		t.Errorf("%d rows, want %d", rows, m.Rows())
	}
	if got := c.digestOfAll(); got != sum {
		t.Errorf("the shards have digest %x, the checkpoint %x", got, sum)
	}
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Errorf("a new session: %v", err)
	}
}

// TestKillsDuringRestore kills the leaders of shards and of the scheduler
// while a restore runs, then repeats it until it says that it succeeded.
func TestKillsDuringRestore(t *testing.T) {
	const rows = 60_000
	_, dest, m := filled(t, localcluster.Options{Servers: 1, Shards: 4}, rows)
	c := start(t, localcluster.Options{})
	rng := seed(t)
	succeeded := false
	for round := 0; !succeeded; round++ {
		if round == 12 {
			t.Fatal("no restore succeeded")
		}
		victim := c.Servers()[round%3]
		done := make(chan int, 1)
		go func() {
			_, errout, code := c.restore(dest+"/a", "--replace")
			t.Logf("round %d: exit code %d: %s", round, code, errout)
			done <- code
		}()
		if round < 6 {
			select {
			case code := <-done:
				succeeded = code == 0
				continue
			case <-time.After(time.Duration(100+rng.IntN(700)) * time.Millisecond): // any moment of it
			}
			c.killAll([]*localcluster.Server{victim})
			succeeded = <-done == 0
			c.restartAll([]*localcluster.Server{victim})
			continue
		}
		succeeded = <-done == 0
	}
	if got := c.sameDigests(); got != m.Rows() {
		t.Errorf("%d rows, want %d", got, m.Rows())
	}
	sum := checkpoint.Digest{}
	for _, p := range m.Shards {
		sum = sum.Add(p.Digest)
	}
	if got := c.digestOfAll(); got != sum {
		t.Errorf("the shards have digest %x, the checkpoint %x", got, sum)
	}
	// Nothing is staged any more: a checkpoint needs a snapshot, which a stage forbids.
	if again := c.createCheckpoint(dest, "again"); again.Rows() != m.Rows() {
		t.Errorf("%d rows, want %d", again.Rows(), m.Rows())
	}
}

// TestKillsDuringCreate: a checkpoint whose servers are killed is absent or complete. A complete one is one cut: it
// holds every push that was acknowledged before any push that it holds. The last one, without load, is what the shards
// hold.
func TestKillsDuringCreate(t *testing.T) {
	c := start(t, localcluster.Options{})
	rng := seed(t)
	l := startLoad(c, rng, loadOptions{clients: 2, workers: 2, keys: 3000, perPush: 300})
	var chains []*chain
	for i := range 4 {
		chains = append(chains, startChain(c, fmt.Sprintf("chain%d", i)))
	}
	l.more(20)
	dest := t.TempDir()
	// the lease is 1 s, and a process may stand still
	if m := c.createCheckpoint(dest, "first"); m.HeldFor <= 0 || m.HeldFor > time.Minute {
		t.Errorf("pushes were held for %v", m.HeldFor)
	}
	const most = 20 // checkpoints of a round
	made := 0
	for round := range rounds(4) {
		name := fmt.Sprintf("c%d", round)
		done := make(chan int, 1)
		go func() {
			for i := 0; ; i++ {
				_, errout, code := c.rowraft(context.Background(), "checkpoint", "create", dest, "--name",
					fmt.Sprintf("%s-%d", name, i), "--timeout", "60s")
				t.Logf("%s-%d: exit code %d: %s", name, i, code, errout)
				if code != 0 || i == most {
					done <- code
					return
				}
			}
		}()
		victim := c.Servers()[round%3]
		<-time.After(time.Duration(rng.IntN(400)) * time.Millisecond) //tidy:allow sleep any moment of one of them
		c.killAll([]*localcluster.Server{victim})
		<-done
		c.restartAll([]*localcluster.Server{victim})
		l.more(20)
	}
	for name, state := range listed(t, dest) {
		if state == "complete" {
			made++
			if code, out := verifies(t, dest+"/"+name); code != 0 {
				t.Errorf("verify %s: exit code %d: %s", name, code, out)
			}
			for i, ch := range chains {
				ch.check(t, savedRows(t, dest, name, fmt.Sprintf("chain%d", i)))
			}
		} else if state != "incomplete" {
			t.Errorf("%s is %s", name, state)
		}
	}
	t.Logf("%d checkpoints, all complete", made)
	for _, ch := range chains {
		ch.end(t)
	}
	l.end()
	c.sameDigests()
	m := c.createCheckpoint(dest, "last")
	l.compare(t, savedRows(t, dest, "last", counters))
	var sum checkpoint.Digest
	for _, p := range m.Shards {
		sum = sum.Add(p.Digest)
	}
	if got := c.digestOfAll(); got != sum {
		t.Errorf("the shards have digest %x, the checkpoint %x", got, sum)
	}
}

// TestCheckpointOnAFullDisk fills the disk of the destination.
func TestCheckpointOnAFullDisk(t *testing.T) {
	disk := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("no tmpfs of its own: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", disk).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	c, _, m := filled(t, localcluster.Options{Servers: 1, Shards: 2}, 3000)
	// A full disk may be another one tomorrow: exit code 4, as for want of a leader.
	if err := poll(deadline(t, patience), func() error {
		_, errout, code := c.rowraft(deadline(t, patience), "checkpoint", "create", disk, "--name", "full")
		if code == 0 {
			t.Fatal("there was room")
		}
		if strings.Contains(errout, "the disk of "+disk+" is full") {
			return nil
		}
		// what a try leaves that lost its leader
		c.rowraft(deadline(t, patience), "checkpoint", "delete", disk+"/full", "--yes")
		return fmt.Errorf("exit code %d: %s", code, errout)
	}); err != nil {
		t.Error(err)
	}
	if got := listed(t, disk); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
	if out, err := exec.Command("mount", "-o", "remount,size=16m", disk).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if again := c.createCheckpoint(disk, "full"); again.Rows() != m.Rows() {
		t.Errorf("%d rows, want %d", again.Rows(), m.Rows())
	}
}
