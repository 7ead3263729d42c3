package node

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/replica"
	"github.com/rowraft/rowraft/wire"
)

// While one server understands only the first version, no shard logs an entry of a second one, and the
// refusal names the server. After its upgrade the entry is logged. From then on a server that understands
// only the first version is refused.
func TestNoShardLogsWhatAMemberDoesNotKnow(t *testing.T) {
	next, forget := wire.InventVersion()
	t.Cleanup(forget) // after the servers have ended
	type place struct{ node, shard string }
	var replicas sync.Map // place → *applier, those that have applied an entry
	i := 0
	c := startClusterWith(t, 3, 2, func(cfg *Config) {
		cfg.tamper(func(r *applier, entry []byte) []byte {
			replicas.Store(place{r.node, r.shard}, r)
			return entry
		})
		if cfg.Profile = "default"; i == 2 {
			cfg.announce = wire.FirstVersion
		}
		i++
	})
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	push := func(when string) {
		t.Helper()
		if _, err := table.Push(ctx, []rowraft.Key{1, 2, 3, 4, 5, 6, 7, 8}, make([]float32, 32)); err != nil {
			t.Errorf("a push, which every binary understands, %s: %v", when, err)
		}
	}
	// logNext proposes an entry of the next version: a drop of a table that does not exist.
	logNext := func(shard rowraft.ShardID) (err error) {
		testutil.Eventually(t, "the leader of a shard answers, and knows what all servers understand", func() bool {
			final := false
			replicas.Range(func(at, value any) bool {
				r := value.(*applier)
				if at.(place).shard != fmt.Sprintf("shard-%d", shard) || !r.leads() {
					return true
				}
				err = r.propose(ctx, func(h wire.EntryHeader) []byte {
					h.Version = next
					return wire.DropTableEntry(h, 12345)
				})
				final = err == nil || !rowraft.CodeOf(err).Retryable()
				return !final
			})
			return final
		})
		return err
	}
	push("before the upgrade")
	for shard := range rowraft.ShardID(2) {
		if err := logNext(shard); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "n3") ||
			!strings.Contains(err.Error(), "upgrade") {
			t.Errorf("an entry of version %d in shard %d: %v, want a refusal that names n3", next, shard, err)
		}
	}

	c.stopNode(2)
	c.nodes[2].cfg.announce = 0
	c.restart(2)
	for shard := range rowraft.ShardID(2) {
		testutil.Eventually(t, "the upgraded shard takes the entry", func() bool { return logNext(shard) == nil })
	}
	push("after the upgrade")

	c.stopNode(2)
	n := c.nodes[2]
	n.cfg.announce = wire.FirstVersion
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

// A server that knows no older server has an old map: the refusal is temporary, and a job does not end
// because of it.
func TestARefusalForAnOldMapIsNotFinal(t *testing.T) {
	n := &Node{host: replica.New(replica.Options{})}
	if err := n.mayLog(0, 2); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("before anything was heard: %v", err)
	}
	n.oldest.Store("server n3 understands formats up to version 1: upgrade it")
	if err := n.mayLog(0, 2); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew || !strings.Contains(err.Error(), "n3") {
		t.Errorf("while n3 understands less: %v", err)
	}
	n.oldest.Store("")
	if err := n.mayLog(0, 2); rowraft.CodeOf(err) != rowraft.CodeStarting {
		t.Errorf("when all are equal: %v", err)
	}
	if err := n.mayLog(0, 1); err != nil {
		t.Errorf("what every binary understands: %v", err)
	}
}
