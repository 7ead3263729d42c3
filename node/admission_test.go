package node

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// metric reads a metric without labels, or with exactly the given ones.
func (n *testNode) metric(t testing.TB, name string) float64 {
	t.Helper()
	_, text := n.get(t, "/metrics")
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no metric %s", name)
	}
	v, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (n *testNode) awaitMetric(t testing.TB, name string, ok func(float64) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		v := n.metric(t, name)
		if ok(v) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is %v after a minute", name, v)
		}
	}
}

// TestRepliesCountUntilTheyAreTaken: a client that sends requests and does not read gets no more than its
// limit, and the server serves other clients concurrently. Replies that the client has not read count until
// its connection ends.
func TestRepliesCountUntilTheyAreTaken(t *testing.T) {
	limits := admit.Limits{InFlight: 16 << 20, Client: 4 << 20, Shard: 16 << 20}
	c := startClusterWith(t, 1, 1, func(cfg *Config) { cfg.Limits = limits })
	ctx, n := testutil.Context(t), c.nodes[0]
	schema := counterSchema("wide")
	schema.Dim = 256
	cl := c.dial()
	table, err := cl.CreateTable(ctx, schema, false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 1024) // 1 MiB of weights
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	ids := make([]uint64, len(keys))
	for i := range ids {
		ids[i] = uint64(i)
	}
	ask := &rowraftv1.PullRequest{MapVersion: anyMapVersion,
		Payload: segment(wire.Segment{Table: table.Schema().ID, N: len(ids), Dim: 256, DType: rowraft.Float32,
			Flags: wire.FlagNoValues}, ids, nil)}

	// The client's windows are small and each reply is larger, so the server cannot send what the client
	// does not read. The connection itself works and answers the server's pings.
	const window = 64 << 10
	greedy, err := grpc.NewClient("passthrough:///"+n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(16*window))
	if err != nil {
		t.Fatal(err)
	}
	more := func() {
		pull, err := greedy.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, rowraftv1.Table_Pull_FullMethodName,
			grpc.WaitForReady(true))
		if err == nil {
			err = pull.SendMsg(ask)
		}
		if err == nil {
			err = pull.CloseSend()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	n.awaitMetric(t, `rowraft_in_flight_bytes{op="pull"}`, func(held float64) bool {
		if held > float64(limits.Client) {
			t.Fatalf("a client that takes nothing has %v bytes in flight, at most %d", held, limits.Client)
		}
		if held > float64(limits.Client)-1<<20 {
			return true
		}
		more()
		return false
	})
	for range 4 {
		more()
	}
	n.awaitMetric(t, `rowraft_refused_total{reason="client"}`, func(v float64) bool { return v > 0 })
	for range 5 {
		if err := table.Pull(ctx, keys, make([]float32, len(keys)*256)); err != nil {
			t.Errorf("next to it: %v", err)
		}
	}
	if held := n.metric(t, `rowraft_in_flight_bytes{op="pull"}`); held <= float64(limits.Client)-1<<20 {
		t.Errorf("%v bytes are in flight, though no client has taken them or left", held)
	}
	if err := greedy.Close(); err != nil {
		t.Error(err)
	}
	n.awaitMetric(t, `rowraft_in_flight_bytes{op="pull"}`, func(v float64) bool { return v == 0 })
	n.awaitMetric(t, `rowraft_in_flight_clients`, func(v float64) bool { return v == 0 })
}

// TestPushesBeyondTheLimitAreAskedAgain: with limits far below the pushed bytes, every push is applied
// once, and no bytes stay counted.
func TestPushesBeyondTheLimitAreAskedAgain(t *testing.T) {
	c := startClusterWith(t, 3, 2, func(cfg *Config) {
		cfg.Limits = admit.Limits{InFlight: 8 << 10, Shard: 4 << 10, Client: 2 << 10}
	})
	ctx := testutil.Context(t)
	const clients, pushes = 4, 25
	keys := make([]rowraft.Key, 64)
	grads := make([]float32, len(keys)*4)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	for i := range grads {
		grads[i] = -1
	}
	if _, err := c.dial().CreateTable(ctx, counterSchema("audit"), false); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range clients {
		cl := c.dial()
		table, err := cl.Table(ctx, "audit")
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			wg.Go(func() {
				got := make([]float32, len(grads))
				for range pushes / 4 {
					if _, err := table.Push(ctx, keys, grads); err != nil {
						t.Error(err)
					}
					if err := table.Pull(ctx, keys, got); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	cl := c.dial()
	table, err := cl.Table(ctx, "audit")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, len(grads))
	if err := table.Pull(ctx, keys, got); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := float32(clients * 4 * (pushes / 4)); v != want {
			t.Fatalf("key %d was pushed %v times, want %v", i/4, v, want)
		}
	}
	refused := 0.0
	for _, n := range c.nodes {
		for _, why := range []string{"client", "share", "shard", "server"} {
			refused += n.metric(t, fmt.Sprintf(`rowraft_refused_total{reason=%q}`, why))
		}
		for _, op := range []string{"push", "pull"} {
			n.awaitMetric(t, fmt.Sprintf(`rowraft_in_flight_bytes{op=%q}`, op), func(v float64) bool { return v == 0 })
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the limits were not reached")
	}
}
