package node

import (
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler"
)

// While one server is of a binary from before versions were told, nothing is logged that
// it would stop at, and the refusal names it. Once it is upgraded everything goes; then
// there is no way back.
func TestNobodyLogsWhatAMemberDoesNotKnow(t *testing.T) {
	old := scheduler.Versions{Apply: 2, Metadata: 6}
	i := 0
	c := startClusterWith(t, 3, 2, func(cfg *Config) {
		if cfg.Profile = "default"; i == 2 {
			cfg.announce = old
		}
		i++
	})
	cl, ctx := c.dial(), testContext(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := []rowraft.Key{1, 2, 3, 4, 5, 6, 7, 8}
	if _, err := table.Push(ctx, keys, make([]float32, 32)); err != nil {
		t.Errorf("a push that every binary knows: %v", err)
	}
	if _, err := table.Delete(ctx, keys); err != nil {
		t.Errorf("a delete, which the old binary knows: %v", err)
	}
	ftrl := counterSchema("ftrl")
	ftrl.Optimizer = rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.1, InitialAccumulator: 0.1, Beta: 1}
	refused := func(what string, err error) {
		t.Helper()
		if rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "n3") || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("%s: %v, want a refusal that names n3", what, err)
		}
	}
	_, err = cl.CreateTable(ctx, ftrl, false)
	refused("a table of apply version 3", err)
	_, err = cl.EnterJob(ctx, client.Entry{Job: "j", Worker: "w", Workers: 1})
	refused("metadata of version 7", err)
	ensure := func(shard uint32) (err error) {
		eventually(t, ctx, "the leader of a shard answers, and knows what all servers understand", func() bool {
			for i := range c.nodes {
				_, err = c.admin(i).EnsureJob(ctx, &rowraftv1.EnsureJobRequest{
					Shard: shard, Job: testJob[:], Generation: 1, FirstStep: 1, Members: []*rowraftv1.JobMember{{Rank: 0, Incarnation: 1}},
				})
				if err == nil || !rowraft.CodeOf(err).Retryable() {
					return true
				}
			}
			return false
		})
		return err
	}
	refused("a membership in shard 0", ensure(0))
	refused("a membership in shard 1", ensure(1))

	c.stopNode(2)
	c.nodes[2].cfg.announce = scheduler.Versions{}
	c.restart(2)
	eventually(t, ctx, "the upgraded cluster takes a table of apply version 3", func() bool {
		_, err := cl.CreateTable(ctx, ftrl, true) // it may be there, and not yet in every shard
		return err == nil
	})
	for shard := range uint32(2) {
		eventually(t, ctx, "the shard takes a membership", func() bool { return ensure(shard) == nil })
	}
	if _, err := cl.EnterJob(ctx, client.Entry{Job: "j", Worker: "w", Workers: 1}); err == nil || rowraft.CodeOf(err) == rowraft.CodeVersionTooNew {
		t.Errorf("this client has pushed, so its job is refused, and not for a version: %v", err)
	}

	c.stopNode(2)
	n := c.nodes[2]
	n.cfg.announce = old
	n.start(t)
	select {
	case err := <-n.done:
		n.cancel()
		n.cancel = nil
		if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("a server that the cluster has left behind ended with %v", err)
		}
	case <-time.After(3 * time.Minute):
		t.Error("a server that the cluster has left behind runs")
	}
}

// A server that knows of nobody who holds the cluster back has an old map: the call is to
// come again, and a job does not end for it.
func TestARefusalForAnOldMapIsNotFinal(t *testing.T) {
	n := &Node{}
	n.cluster.Store(&clustermap.Map{})
	if err := n.mayLog(0, 3); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("before anything was heard: %v", err)
	}
	n.heldBack.Store("server n3 understands log entries up to version 2: upgrade it")
	if err := n.mayLog(0, 3); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "n3") {
		t.Errorf("while n3 holds it back: %v", err)
	}
	n.heldBack.Store("")
	if err := n.mayLog(0, 3); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("when nobody does: %v", err)
	}
	if err := n.mayLog(0, 2); err != nil {
		t.Errorf("what every binary knows: %v", err)
	}
}
