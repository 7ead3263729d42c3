package e2e

import (
	"fmt"
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

// must runs a command that succeeds, and may be run again.
func (c *cluster) must(args ...string) string {
	c.t.Helper()
	out, errout, code := c.patiently(args...)
	if code != 0 {
		c.t.Fatalf("rowraft %s: exit code %d: %s", strings.Join(args, " "), code, errout)
	}
	return out
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

// metaLeader is the server that leads the scheduler.
func (c *cluster) metaLeader() (leader *localcluster.Server) {
	c.t.Helper()
	err := poll(deadline(c.t, patience), func() error {
		for _, s := range c.Servers() {
			if leads(c.t, s) {
				leader = s
				return nil
			}
		}
		return fmt.Errorf("no server leads the scheduler")
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return leader
}

// leads reports that a server answers as the scheduler's leader.
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
