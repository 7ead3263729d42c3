package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// policyState is what `checkpoint policy describe -o json` prints.
type policyState struct {
	State       string
	Failures    int
	Error       string
	Next        string
	Checkpoints []string
}

func (c *cluster) describePolicy(name string) (v struct{ Policy policyState }) {
	c.t.Helper()
	out := c.must("checkpoint", "policy", "describe", name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	return v
}

// must runs a command that succeeds, and may be run again.
func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, errout, code := c.patiently(args...)
	if code != 0 {
		c.t.Fatalf("rowraft %s: exit code %d: %s", strings.Join(args, " "), code, errout)
	}
	return out
}

// deletePolicy deletes a policy; it is gone when a try finds none.
func (c *cluster) deletePolicy(name string) {
	c.t.Helper()
	err := poll(deadline(c.t, patience), func() error {
		_, errout, code := c.patiently("checkpoint", "policy", "delete", name)
		if code != 0 && !strings.Contains(errout, "there is no checkpoint policy") {
			return fmt.Errorf("exit code %d: %s", code, errout)
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// clusterStatus is what `rowraft cluster status` prints; whether all is well is the
// caller's to read.
func (c *cluster) clusterStatus() string {
	c.t.Helper()
	out, errout, code := c.patiently("cluster", "status")
	if code != 0 && code != 3 {
		c.t.Fatalf("rowraft cluster status: exit code %d: %s", code, errout)
	}
	return out
}

// metaLeader is the server that leads the metadata group.
func (c *cluster) metaLeader() (leader *localcluster.Server) {
	c.t.Helper()
	err := poll(deadline(c.t, patience), func() error {
		for _, s := range c.Servers() {
			if leads(c.t, s) {
				leader = s
				return nil
			}
		}
		return fmt.Errorf("nobody leads the metadata group")
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return leader
}

// leads reports that a server answers as the leader of the metadata group.
func leads(t testing.TB, s *localcluster.Server) bool {
	t.Helper()
	conn, err := rpc.Dial(s.Addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = rowraftv1.NewClusterClient(conn).Status(deadline(t, patience), &rowraftv1.StatusRequest{})
	return err == nil
}

// TestAPolicyMakesCheckpoints: every second one, through the death of the scheduler's
// leader; two are kept, and what others made stays. A destination that fails is told,
// and tried again.
func TestAPolicyMakesCheckpoints(t *testing.T) {
	beforeRelease(t)
	c, dest, _ := filled(t, localcluster.Options{}, 2000) // made checkpoint "a"
	c.must("checkpoint", "policy", "set", "often", "--to", dest, "--every", "1s", "--keep", "2")
	seen := map[string]bool{}
	made := func(n int) {
		t.Helper()
		err := poll(deadline(t, patience), func() error {
			for _, name := range c.describePolicy("often").Policy.Checkpoints {
				seen[name] = true
			}
			if len(seen) < n {
				return fmt.Errorf("%d checkpoints were made, want %d", len(seen), n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	made(3)
	victim := c.metaLeader()
	c.killAll([]*localcluster.Server{victim})
	made(len(seen) + 2)
	c.restartAll([]*localcluster.Server{victim})
	if out := c.must("checkpoint", "policy", "run-now", "often"); !strings.Contains(out, "made "+dest+"/often-") {
		t.Errorf("run-now says %q", out)
	}
	c.deletePolicy("often")

	found := listed(t, dest)
	if found["a"] != "complete" {
		t.Errorf("a checkpoint that the policy did not make is %q: %v", found["a"], found)
	}
	left := completeOf(found, "often-")
	if len(left) < 2 || len(left) > 3 { // one may have been under way when the policy was deleted
		t.Errorf("%v are left, want the last two", left)
	}
	if code, out := verifies(t, dest+"/"+left[len(left)-1]); code != 0 {
		t.Errorf("verify: %d: %s", code, out)
	}

	blocked := filepath.Join(t.TempDir(), "blocked")
	if err := os.WriteFile(blocked, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.must("checkpoint", "policy", "set", "broken", "--to", blocked, "--every", "1s", "--keep", "1", "--full-every", "3")
	var v struct{ Policy policyState }
	err := poll(deadline(t, patience), func() error {
		// While the next try is under way the policy is said to run.
		if v = c.describePolicy("broken"); v.Policy.Failures < 2 || v.Policy.State == "running" {
			return fmt.Errorf("%d failures, %s", v.Policy.Failures, v.Policy.State)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if v.Policy.State != "failing" || v.Policy.Error == "" || v.Policy.Next == "" || len(v.Policy.Checkpoints) > 0 {
		t.Errorf("%+v", v.Policy)
	}
	if out := c.clusterStatus(); !strings.Contains(out, "Checkpoint policy broken has failed") {
		t.Errorf("cluster status does not tell:\n%s", out)
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	err = poll(deadline(t, patience), func() error {
		if v = c.describePolicy("broken"); v.Policy.Failures > 0 || len(v.Policy.Checkpoints) < 2 {
			return fmt.Errorf("%+v", v.Policy)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if out := c.must("checkpoint", "policy", "run-now", "broken"); !strings.Contains(out, "made "+blocked+"/broken-") {
		t.Errorf("run-now says %q", out)
	}
	c.deletePolicy("broken") // until then the next ones replaced what run-now made
	left = completeOf(listed(t, blocked), "broken-")
	if len(left) == 0 {
		t.Fatal("nothing is left of what the policy made")
	}
	if code, out := verifies(t, blocked+"/"+left[len(left)-1]); code != 0 {
		t.Errorf("verify %v: %d: %s", left, code, out)
	}
}

// completeOf are the names of complete checkpoints that a policy made, the newest last.
func completeOf(found map[string]string, prefix string) (names []string) {
	for name, state := range found {
		if strings.HasPrefix(name, prefix) && state == "complete" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
