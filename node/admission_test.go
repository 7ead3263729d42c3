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
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// A push that waits for a new leader to begin uses memory: without room for it, the server refuses it at
// once.
func TestPushesThatWaitForTheLeadCount(t *testing.T) {
	applies := make(chan *replica, 1)
	c := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Limits = admit.Limits{InFlight: 1 << 20, Client: 1 << 10}
		cfg.tamper = func(r *replica, _ rowraft.Index, entry []byte) []byte {
			select {
			case applies <- r:
			default:
			}
			return entry
		}
	})
	if _, err := c.dial().CreateTable(testContext(t), counterSchema("emb"), false); err != nil {
		t.Fatal(err)
	}
	r := <-applies
	push := func() error {
		_, _, err := r.push(t.Context(), wire.Part{Op: wire.OpPush, Payload: rpc.Pool.Bytes(100)})
		return err
	}
	held, err := r.admit.Admit(t.Context(), 0, admit.Push, 1000)
	if err != nil {
		t.Fatal(err)
	}
	term := r.leading.Swap(0)
	if err := push(); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
		t.Errorf("a push to a leader that has not begun, and has no room: %v", err)
	}
	held.Release()
	if err := push(); err == nil { // it waits for its turn; then no caller waits for it
		t.Error("a push of no session is taken")
	}
	r.leading.CompareAndSwap(0, term)
	if used := r.admit.InFlight(admit.Push); used != 0 {
		t.Errorf("%d bytes stay counted", used)
	}
}

// TestPullsThatWaitCount: a pull that waits for a leader to begin uses memory for its keys and for the
// requested reply. Without room for both, the server refuses it at once. The admission gets the bytes of a
// waiting pull back in the end. The server also refuses at once a pull that waits for an entry that does
// not exist.
func TestPullsThatWaitCount(t *testing.T) {
	applies := make(chan *replica, 1)
	c := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Limits = admit.Limits{InFlight: 1 << 20, Client: 4 << 10}
		cfg.tamper = func(r *replica, _ rowraft.Index, entry []byte) []byte {
			select {
			case applies <- r:
			default:
			}
			return entry
		}
	})
	ctx := testContext(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("emb"), false)
	if err != nil {
		t.Fatal(err)
	}
	r := <-applies
	conn := connect(t, c.nodes[0].addr, nil)
	pull := func(minIndex uint64) error {
		ids := make([]uint64, 100) // 800 bytes, and 1600 bytes of weights in the reply
		seg := wire.Segment{Table: table.Schema().ID, N: len(ids), Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
		_, err := rowraftv1.NewTableClient(conn).Pull(ctx, &rowraftv1.PullRequest{MapVersion: anyMapVersion, MinIndex: minIndex, Payload: segment(seg, ids, nil)})
		return rpc.FromStatus(err)
	}
	if err := pull(0); err != nil {
		t.Fatalf("a pull with room for it: %v", err)
	}

	term := r.leading.Swap(0) // pulls wait
	waits := make(chan error, 1)
	go func() { waits <- pull(0) }()
	stillWaits := func() {
		select {
		case <-waits: // it has waited for one second
			go func() { waits <- pull(0) }()
		default:
		}
	}
	eventually(t, ctx, "a pull that waits is counted, with its reply", func() bool {
		stillWaits()
		return r.admit.InFlight(admit.Pull) > 2400
	})
	eventually(t, ctx, "a pull next to one that waits has no room", func() bool {
		stillWaits()
		return rowraft.CodeOf(pull(0)) == rowraft.CodeOverloaded
	})
	r.leading.CompareAndSwap(0, term)
	<-waits
	eventually(t, ctx, "all is given back", func() bool { return r.admit.InFlight(admit.Pull) == 0 })

	// Each of these calls would wait for a second.
	for range 500 {
		if err := pull(1 << 62); rowraft.CodeOf(err) != rowraft.CodeTooStale {
			t.Fatalf("a pull that wants entry 2^62: %v, want TooStale", err)
		}
	}
}

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
	ctx, n := testContext(t), c.nodes[0]
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
	ask := &rowraftv1.PullRequest{MapVersion: anyMapVersion, Payload: segment(wire.Segment{Table: table.Schema().ID, N: len(ids), Dim: 256, DType: rowraft.Float32, Flags: wire.FlagNoValues}, ids, nil)}

	// The client's windows are small and each reply is larger, so the server cannot send what the client
	// does not read. The connection itself works and answers the server's pings.
	const window = 64 << 10
	greedy, err := grpc.NewClient("passthrough:///"+n.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(16*window))
	if err != nil {
		t.Fatal(err)
	}
	more := func() {
		pull, err := greedy.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, rowraftv1.Table_Pull_FullMethodName, grpc.WaitForReady(true))
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
	n.awaitMetric(t, `rowraft_admission_refused_total{reason="client"}`, func(v float64) bool { return v > 0 })
	for range 5 {
		if err := table.Pull(ctx, keys, make([]float32, len(keys)*256)); err != nil {
			t.Errorf("beside it: %v", err)
		}
	}
	if held := n.metric(t, `rowraft_in_flight_bytes{op="pull"}`); held <= float64(limits.Client)-1<<20 {
		t.Errorf("%v bytes are in flight, though nobody has taken them or left", held)
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
	c := startClusterWith(t, 3, 2, func(cfg *Config) { cfg.Limits = admit.Limits{InFlight: 8 << 10, Shard: 4 << 10, Client: 2 << 10} })
	ctx := testContext(t)
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
		for _, why := range []string{"client", "share", "shard", "node"} {
			refused += n.metric(t, fmt.Sprintf(`rowraft_admission_refused_total{reason=%q}`, why))
		}
		for _, op := range []string{"push", "pull"} {
			n.awaitMetric(t, fmt.Sprintf(`rowraft_in_flight_bytes{op=%q}`, op), func(v float64) bool { return v == 0 })
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the limits were not reached")
	}
}
