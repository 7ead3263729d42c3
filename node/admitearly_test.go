package node

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// pusher is a client with its own connection that sends each push once.
type pusher struct {
	stub    rowraftv1.TableClient
	id      rowraft.ClientID
	payload []byte
	says    bool // it announces the size of a part
	seq     atomic.Uint64
}

// newPusher opens a session of client id in shard 0.
func (c *testCluster) newPusher(ctx context.Context, id byte, payload []byte, says bool) *pusher {
	c.t.Helper()
	p := &pusher{stub: rowraftv1.NewTableClient(connect(c.t, c.nodes[0].addr, nil)), id: rowraft.ClientID{id},
		payload: payload, says: says}
	if _, err := p.stub.OpenSession(ctx, &rowraftv1.OpenSessionRequest{ClientId: p.id[:], Incarnation: 1 << 40,
		Ticket: 1}); err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (p *pusher) push(ctx context.Context) error {
	if p.says {
		ctx = rpc.WithBatchSizes(ctx, rpc.BatchSize{Bytes: len(p.payload)})
	}
	_, err := p.stub.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: anyMapVersion,
		ClientId: p.id[:], Incarnation: 1 << 40, Seq: p.seq.Add(1), Payload: p.payload})
	return err
}

// TestAFloodLeavesRoomForOthers: a client that sends without end gets half of a shard. Other clients get
// their shares while it continues, and none of their pushes is refused. A refused push was not applied;
// every other one was applied once.
func TestAFloodLeavesRoomForOthers(t *testing.T) {
	const flood, others = 200, 4
	limits := admit.Limits{InFlight: 64 << 10, Shard: 32 << 10, Client: 64 << 10}
	var held atomic.Pointer[chan struct{}] // until it is closed, no entry is applied, and admitted pushes stay in flight
	c := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Limits = limits
		cfg.tamper(func(_ *applier, entry []byte) []byte {
			if h := held.Load(); h != nil {
				<-*h
			}
			return entry
		})
	})
	ctx, n := testutil.Context(t), c.nodes[0]
	table, err := c.dial().CreateTable(ctx, counterSchema("flooded"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, 16)
	ones := make([]float32, 4*len(keys))
	for i := range ones {
		keys[i/4], ones[i] = uint64(i/4), -1
	}
	payload := segment(wire.Segment{Table: table.Schema().ID, N: len(keys), Dim: 4, DType: rowraft.Float32}, keys, ones)
	size := wire.PartHeaderSize + len(payload)
	share := int(limits.Shard) / 2 / (others + 1) / size // concurrent pushes
	acked := 0

	for round, says := range []bool{false, true} {
		greedy := c.newPusher(ctx, byte(10*round+1), payload, says)
		var modest []*pusher
		for i := range others {
			modest = append(modest, c.newPusher(ctx, byte(10*round+2+i), payload, says))
		}
		hold := make(chan struct{})
		held.Store(&hold)
		release := sync.OnceFunc(func() { held.Store(nil); close(hold) })
		t.Cleanup(release)
		inFlight := func() int { return int(n.metric(t, `rowraft_in_flight_bytes{op="push"}`)) }

		answers := make(chan error, flood)
		for range flood {
			go func() { answers <- greedy.push(ctx) }()
		}
		refused := 0
		testutil.Eventually(t, "each push of the flood is refused, or in flight", func() bool {
			for len(answers) > 0 {
				if err := <-answers; rowraft.CodeOf(err) != rowraft.CodeOverloaded {
					t.Fatalf("a push of the flood, while nothing is applied: %v", err)
				}
				refused++
			}
			return inFlight() == (flood-refused)*size
		})
		half := int(limits.Shard) / 2 / size * size
		if got := inFlight(); got != half {
			t.Errorf("the flood has %d bytes in flight, want half of the shard's %d in pushes of %d", got, limits.Shard, size)
		}

		flooding, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; i < 500 && flooding.Err() == nil; i++ {
				// Use ctx, not flooding: a cancelled push has no answer, and may find room after the
				// release.
				if err := greedy.push(ctx); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
					t.Errorf("the flood goes on: %v", err)
				}
			}
		})
		served := make(chan error, others*share)
		for _, m := range modest {
			for range share {
				go func() { served <- m.push(ctx) }()
			}
		}
		testutil.Eventually(t, "all pushes of the others are in flight", func() bool {
			if len(served) > 0 {
				t.Fatalf("a push within its client's share, next to the flood: %v", <-served)
			}
			return inFlight() == half+others*share*size
		})
		// The server refuses a write without a client id for that reason, after it has read the part.
		unknown := &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: anyMapVersion, Payload: payload}
		_, err := greedy.stub.Write(rpc.WithBatchSizes(ctx, rpc.BatchSize{Bytes: len(payload)}), unknown)
		_, late := greedy.stub.Write(ctx, unknown)
		if rowraft.CodeOf(err) != rowraft.CodeOverloaded || rowraft.CodeOf(late) != rowraft.CodeInvalidArgument {
			t.Errorf("a part whose size is said is answered %v before it is read, another one %v", err, late)
		}
		stop()
		wg.Wait()
		release()
		for range flood - refused {
			if err := <-answers; err != nil {
				t.Errorf("a push of the flood that got in: %v", err)
			}
		}
		for range others * share {
			if err := <-served; err != nil {
				t.Errorf("a push of the others: %v", err)
			}
		}
		acked += flood - refused + others*share
		n.awaitMetric(t, `rowraft_in_flight_bytes{op="push"}`, func(v float64) bool { return v == 0 })
		var row [4]float32
		if err := table.Pull(ctx, []rowraft.Key{7}, row[:]); err != nil || row[0] != float32(acked) {
			t.Errorf("the row counts %v pushes (%v), %d were acknowledged", row[0], err, acked)
		}
	}
}

// TestPartsAreRefusedBeforeTheyAreRead: without memory, the leader refuses a part with an announced size
// before it reads the part. The other servers name the leader, and deletes are accepted.
func TestPartsAreRefusedBeforeTheyAreRead(t *testing.T) {
	var used atomic.Int64
	c := startClusterWith(t, 3, 1, func(cfg *Config) {
		cfg.Limits.Memory = 1 << 30
		cfg.memoryUse = func() admit.MemoryUse { return admit.MemoryUse{Anonymous: used.Load(), GoRuntime: -1, Left: -1} }
	})
	ctx := testutil.Context(t)
	var stubs []rowraftv1.TableClient
	for _, n := range c.nodes {
		stubs = append(stubs, rowraftv1.NewTableClient(connect(t, n.addr, nil)))
	}
	// Without a client id, the server refuses each call after it has read it.
	calls := map[string]func(context.Context, rowraftv1.TableClient) error{
		"push": func(ctx context.Context, s rowraftv1.TableClient) error {
			_, err := s.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: anyMapVersion})
			return err
		},
		"assign": func(ctx context.Context, s rowraftv1.TableClient) error {
			_, err := s.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_ASSIGN, MapVersion: anyMapVersion})
			return err
		},
		"delete": func(ctx context.Context, s rowraftv1.TableClient) error {
			_, err := s.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_DELETE, MapVersion: anyMapVersion})
			return err
		},
		"shared call": func(ctx context.Context, s rowraftv1.TableClient) error {
			stream, err := s.WriteMany(ctx,
				&rowraftv1.WriteManyRequest{Batches: []*rowraftv1.WriteRequest{{Op: rowraftv1.WriteOp_WRITE_OP_PUSH,
					MapVersion: anyMapVersion}}})
			if err != nil {
				return err
			}
			reply, err := stream.Recv()
			if err != nil {
				return rpc.FromStatus(err)
			}
			return rpc.FromDetail(reply.Error)
		},
	}
	early := func(ctx context.Context, name string) (overloaded int) {
		for _, s := range stubs {
			switch err := calls[name](ctx, s); rowraft.CodeOf(err) {
			case rowraft.CodeOverloaded:
				overloaded++
			case rowraft.CodeInvalidArgument:
			default:
				t.Fatalf("%s without a client id: %v", name, err)
			}
		}
		return overloaded
	}
	says := rpc.WithBatchSizes(ctx, rpc.BatchSize{Bytes: 1000})
	saysDelete := rpc.WithBatchSizes(ctx, rpc.BatchSize{Bytes: 1000, Delete: true})
	for name := range calls {
		if n := early(says, name); n != 0 {
			t.Errorf("%s with memory: %d servers refuse it early", name, n)
		}
	}
	used.Store(1 << 30)
	for _, n := range c.nodes {
		n.awaitMetric(t, "rowraft_memory_full", func(v float64) bool { return v == 1 })
	}
	for _, name := range []string{"push", "assign", "shared call"} {
		testutil.Eventually(t, "only the leader refuses early: "+name, func() bool { return early(says, name) == 1 })
	}
	if n := early(saysDelete, "delete"); n != 0 {
		t.Errorf("%d servers refuse a delete that gives memory back", n)
	}
	mixed := rpc.WithBatchSizes(ctx, rpc.BatchSize{Bytes: 1000}, rpc.BatchSize{Bytes: 1000, Delete: true})
	if n := early(mixed, "shared call"); n != 0 {
		t.Errorf("%d servers refuse a call of which one batch has room", n)
	}
	for name, ctx := range map[string]context.Context{"nothing": ctx,
		"a part of a shard that is not there": rpc.WithBatchSizes(ctx, rpc.BatchSize{Shard: 5, Bytes: 1000})} {
		if n := early(ctx, "push"); n != 0 {
			t.Errorf("who says %s is refused early by %d servers", name, n)
		}
	}
	// Clients of other makes do not announce the size: they get the same error, later.
	id := rowraft.ClientID{9}
	testutil.Eventually(t, "a push that is read is refused", func() bool {
		overloaded := 0
		for _, s := range stubs {
			_, err := s.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH, MapVersion: anyMapVersion,
				ClientId: id[:]})
			if rowraft.CodeOf(err) == rowraft.CodeOverloaded {
				overloaded++
			}
		}
		return overloaded == 1
	})
}
