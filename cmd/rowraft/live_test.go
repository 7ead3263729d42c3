package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// live is a cluster of one server in this process, for commands that need real shards.
type live struct {
	t    *testing.T
	addr string
}

// startLive returns a cluster whose shards all have a leader. more are flags of the server.
func startLive(t *testing.T, shards int, more ...string) *live {
	t.Helper()
	s := serve(t, append([]string{"--insecure", "--with-scheduler", "--shards", fmt.Sprint(shards),
		"--disk-reserve-bytes", "1", "--disk-stall-limit", "60s"}, more...)...)
	c := &live{t, s.Addr}
	testutil.Eventually(t, "every shard has a leader", func() bool {
		leads := 0
		for _, r := range c.replicas() {
			if r.Role == "leader" {
				leads++
			}
		}
		return leads == shards
	})
	return c
}

// args adds the flags that reach the cluster.
func (c *live) args(args ...string) []string {
	return append(args, "--insecure", "--endpoints", c.addr)
}

// run runs a command, and repeats it while it finds no leader: on a busy machine a leader steps down now and then.
func (c *live) run(args ...string) (got outcome) {
	c.t.Helper()
	testutil.Eventually(c.t, "rowraft "+strings.Join(args, " ")+" reaches a leader", func() bool {
		got = rowraftCmd(c.t, c.args(args...)...)
		return got.code != cli.ExitUnavailable
	})
	return got
}

// must returns the output of a command that succeeds.
func (c *live) must(args ...string) string {
	c.t.Helper()
	got := c.run(args...)
	if got.code != cli.ExitDone {
		c.t.Fatalf("rowraft %s: %+v", strings.Join(args, " "), got)
	}
	return got.out
}

func (c *live) dial() *client.Client {
	c.t.Helper()
	cl, err := client.Dial(testutil.Context(c.t), client.Options{Endpoints: []string{c.addr}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	return cl
}

// fill creates the tables of load.Fill.
func (c *live) fill(rows int) {
	c.t.Helper()
	if err := load.Fill(testutil.Context(c.t), c.dial(), rows); err != nil {
		c.t.Fatal(err)
	}
}

// createCheckpoint makes a checkpoint and returns its manifest. A trainer may need longer to reach a new leader than a
// checkpoint waits.
func (c *live) createCheckpoint(dest, name string, flags ...string) *checkpoint.Manifest {
	c.t.Helper()
	args := append([]string{"checkpoint", "create", dest, "--name", name}, flags...)
	var got outcome
	testutil.Eventually(c.t, "checkpoint "+name+" is made", func() bool {
		got = c.run(args...)
		return got.code == cli.ExitDone || !strings.Contains(got.errout, "is not connected to the scheduler")
	})
	if got.code != cli.ExitDone {
		c.t.Fatalf("checkpoint create %s: %+v", name, got)
	}
	d, err := depot.Open(dest)
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := checkpoint.ReadManifest(testutil.Context(c.t), depot.At(d, name))
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// restore restores a checkpoint.
func (c *live) restore(path string, flags ...string) {
	c.t.Helper()
	c.must(append([]string{"checkpoint", "restore", path, "--yes"}, flags...)...)
}

// ask calls the server.
func (c *live) ask(call func(rowraftv1.ReplicasClient) error) {
	c.t.Helper()
	conn, err := rpc.Dial(c.addr, nil, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	if err := call(rowraftv1.NewReplicasClient(conn)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *live) replicas() (all []*rowraftv1.ReplicaStatus) {
	c.t.Helper()
	c.ask(func(stub rowraftv1.ReplicasClient) error {
		st, err := stub.NodeStatus(testutil.Context(c.t), &rowraftv1.NodeStatusRequest{})
		all = st.GetReplicas()
		return err
	})
	return all
}

// digest returns the sum of the digests of all shards. Nothing may write meanwhile.
func (c *live) digest() (sum checkpoint.Digest) {
	c.t.Helper()
	for _, r := range c.replicas() {
		c.ask(func(stub rowraftv1.ReplicasClient) error {
			d, err := stub.Digest(testutil.Context(c.t), &rowraftv1.DigestRequest{Shard: r.Shard, MinIndex: r.LastIndex})
			if err == nil {
				sum = sum.Add(checkpoint.Digest(d.Digest))
			}
			return err
		})
	}
	return sum
}
