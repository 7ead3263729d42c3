package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// tmpfs puts a file system of its own, of size, on dir until the test ends, when
// whatever was started before it was mounted has ended.
func tmpfs(t testing.TB, dir *string) (mount func(size string), resize func(size string)) {
	t.Helper()
	run := func(must bool, args ...string) {
		if out, err := exec.Command("mount", append(args, *dir)...).CombinedOutput(); err != nil {
			if must {
				t.Fatalf("mount %v: %v: %s", args, err, out)
			}
			t.Skipf("no tmpfs of its own: %v: %s", err, out)
		}
	}
	t.TempDir() // what is on it is unmounted before these go
	mounted := false
	t.Cleanup(func() {
		if !mounted {
			return
		}
		if out, err := exec.Command("umount", *dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return func(size string) {
			run(false, "-t", "tmpfs", "-o", "size="+size, "tmpfs")
			mounted = true
		}, func(size string) {
			run(true, "-o", "remount,size="+size)
		}
}

// TestSnapshotOnAFullDisk: where the snapshots of a shard go there is no room. Pushes
// are acknowledged, the server says why its log goes on growing, and takes the
// snapshot when there is room; a restart from it has everything.
func TestSnapshotOnAFullDisk(t *testing.T) {
	var dir string
	mount, resize := tmpfs(t, &dir) // before the servers, so that it goes after them
	rng := seed(t)
	c := start(t, localcluster.Options{Servers: 3, Shards: 1, Args: []string{
		"--snapshot-every-bytes", "4000000", "--trailing-log-bytes", "500000", "--log-segment-bytes", "1000000",
	}})
	l := startLoad(c, rng, loadOptions{clients: 2, workers: 2, keys: 2048, perPush: 512, dim: 64})
	l.more(5)
	leads, err := c.leaders(deadline(t, patience))
	if err != nil {
		t.Fatal(err)
	}
	victim := leads[0]
	dir = filepath.Join(victim.DataDir, "raft", "groups", "shard-0", "snapshots")
	mount("256k")
	l.more(100) // 135 kB each
	const failed, reason = "snapshot failed, so the log continues to grow", "no space left on device"
	if err := poll(deadline(t, patience), func() error {
		if !logHas(t, victim, failed) || !logHas(t, victim, reason) {
			return errors.New("the server says nothing of the snapshot that failed")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.more(20)
	resize("64m")
	if err := poll(deadline(t, patience), func() error {
		whole, err := filepath.Glob(filepath.Join(dir, "*[0-9]", "meta"))
		if err == nil && len(whole) == 0 {
			err = errors.New("there is room, and no snapshot")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	l.more(20)
	c.killAll(c.Servers())
	c.restartAll(c.Servers())
	l.more(20)
	l.check(c)
	if err := poll(deadline(t, patience), func() error { // one may be written just now
		left, err := filepath.Glob(filepath.Join(dir, "*.tmp"))
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %v", left)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
