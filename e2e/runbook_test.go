package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/tidy"
)

// runbook returns the lines that a section of docs/ops/runbooks.md tells to type: those
// behind a prompt.
func runbook(t *testing.T, section string) (lines []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/ops/runbooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(page), "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/ops/runbooks.md has no section %q", section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	prompted := regexp.MustCompile(`^(n[0-9]# |\$ )`)
	for i, block := range strings.Split(text, "\n```") {
		if i%2 == 0 || !strings.HasPrefix(block, "console\n") {
			continue
		}
		for line := range strings.Lines(block) {
			if prompted.MatchString(line) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// TestTheRunbookForALostMajority types what the page says, line by line, after two of three
// servers were lost with their disks. Only addresses, paths and the checkpoint's name are
// others.
func TestTheRunbookForALostMajority(t *testing.T) {
	needBinaries(t)
	lc, err := localcluster.Start(deadline(t, patience), localcluster.Options{
		Binary: filepath.Join(bin, "rowraft"), Dir: t.TempDir(), Servers: 3, Shards: 2, Profile: "default",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Cluster: lc, t: t}
	t.Cleanup(func() {
		if err := lc.Stop(); err != nil {
			t.Error(err)
		}
	})
	dest := t.TempDir()
	c.must("table", "create", "users", "--dim", "4", "--optimizer", "adagrad", "--lr", "0.1", "--if-not-exists")
	c.must("row", "set", "users", "1", "2", "3", "--weights", "1,1,1,3")
	c.must("checkpoint", "policy", "set", "nightly", "--to", dest, "--every", "10m")
	c.must("checkpoint", "policy", "run-now", "nightly")
	c.must("row", "set", "users", "4", "--weights", "4,4,4,4")
	made := completeOf(listed(t, dest), "nightly-") // more than one, if its leader was lost on the way
	if len(made) == 0 {
		t.Fatalf("no checkpoint: %v", listed(t, dest))
	}
	longLived := c.dial(client.Options{}) // of before, and not told of anything
	if _, err := longLived.Table(deadline(t, patience), "users"); err != nil {
		t.Fatal(err)
	}
	lost := c.Servers()[1:]
	c.killAll(lost)
	for _, s := range lost {
		if err := os.RemoveAll(s.DataDir); err != nil {
			t.Fatal(err)
		}
	}

	named := regexp.MustCompile(`nightly-[0-9TZ.]+`)
	starting := new(errgroup.Group)
	printed := make(map[string]string)
	for _, line := range runbook(t, "Lose a majority") {
		if host, command, root := strings.Cut(line, "# "); root && !strings.HasPrefix(line, "$") {
			c.asRoot(starting, host, command)
			continue
		}
		line = strings.ReplaceAll(named.ReplaceAllString(line, made[len(made)-1]), "/mnt/checkpoints", dest)
		found, err := tidy.Commands("runbooks.md", "```\n"+strings.TrimPrefix(line, "$ ")+"\n```\n", "rowraft")
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", line, found, err)
		}
		args := found[0].Args
		what := strings.Join(args[:min(len(args), 2)], " ")
		if what == "cluster status" && printed[what] == "" {
			// The scheduler's leader, if it is what is left, believes in the others for some seconds.
			if err := poll(deadline(t, patience), func() error {
				out, errout, code := c.rowraft(deadline(t, patience), args...)
				if printed[what] = out + errout; code == 0 {
					return fmt.Errorf("the cluster is well without two of three servers:\n%s", out)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if what == "cluster status" {
			if err := starting.Wait(); err != nil {
				t.Fatal(err)
			}
			c.healthy(args)
			continue
		}
		// A leader may change on a busy machine; replicas may be a moment behind.
		if err := poll(deadline(t, patience), func() error {
			out, errout, code := c.rowraft(deadline(t, patience), args...)
			switch printed[what] = out; {
			case code == 0:
				return nil
			case code == 4 || what == "shard digest":
				if what == "checkpoint restore" && !slices.Contains(args, "--replace") {
					args = append(args, "--replace", "--yes") // it may be decided all the same
				}
				return fmt.Errorf("exit code %d: %s%s", code, out, errout)
			}
			t.Fatalf("rowraft %s: exit code %d: %s%s", strings.Join(args, " "), code, out, errout)
			return nil
		}); err != nil {
			t.Fatalf("rowraft %s: %v", strings.Join(args, " "), err)
		}
	}
	for what, want := range map[string]string{
		"checkpoint verify":  "is whole: 3 rows in 1 table",
		"checkpoint restore": "restored 3 rows",
		"row get":            "1 1 1 3",
		"shard digest":       "yes",
		"checkpoint policy":  "every 10m",
		"table list":         "users",
	} {
		if !strings.Contains(printed[what], want) {
			t.Errorf("rowraft %s printed %q, want %q in it", what, printed[what], want)
		}
	}
	weights := make([]float32, 4)
	if err := poll(deadline(t, patience), func() error {
		users, err := longLived.Table(deadline(t, patience), "users")
		if err != nil {
			return err
		}
		return users.Pull(deadline(t, 10*time.Second), []rowraft.Key{3}, weights)
	}); err != nil || !slices.Equal(weights, []float32{1, 1, 1, 3}) {
		t.Errorf("a client of the old cluster reads row 3 as %v: %v", weights, err)
	}
	if !strings.Contains(printed["row get"], "4  no, initial weights") {
		t.Errorf("row 4, of after the checkpoint: %s", printed["row get"])
	}
}

// asRoot does what a line of the page does on a machine.
func (c *cluster) asRoot(starting *errgroup.Group, host, command string) {
	c.t.Helper()
	var server *localcluster.Server
	for _, s := range c.Servers() {
		if s.Name == host {
			server = s
		}
	}
	if server == nil {
		c.t.Fatalf("no server %s for %q", host, command)
	}
	var err error
	switch command {
	case "systemctl stop rowraft":
		err = server.Stop(time.Minute)
	case "mv /var/lib/rowraft /var/lib/rowraft.lost":
		err = os.Rename(server.DataDir, server.DataDir+".lost")
	case "systemctl start rowraft":
		starting.Go(func() error { return c.Restart(deadline(c.t, patience), server) })
	default:
		err = errors.New("the test does not know this line")
	}
	if err != nil {
		c.t.Fatalf("%s# %s: %v", host, command, err)
	}
}

// healthy waits until `cluster status` finds nothing wrong: its exit code says so.
func (c *cluster) healthy(args []string) {
	c.t.Helper()
	if err := poll(deadline(c.t, patience), func() error {
		out, errout, code := c.rowraft(deadline(c.t, patience), args...)
		if code != 0 {
			return fmt.Errorf("exit code %d: %s%s", code, out, errout)
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
}
