package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// Bounded reads from any server return nothing older than their bound while leaders are killed. A row counts its
// pushes, so each row that is read states how old it is. A read needs no leader.
func TestServersAnswerWithinTheBound(t *testing.T) {
	beforeRelease(t)
	const keys, reads, age = 200, 1000, 600 * time.Millisecond
	c := start(t, localcluster.Options{Servers: 5, Shards: 4})
	writer := c.dial(client.Options{})
	ctx := deadline(t, patience)
	table, err := writer.CreateTable(ctx, rowraft.Schema{
		Name: "counts", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	counts := &acknowledgedCounts{now: make([]float32, keys)}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { counts.push(ctx, t, table) })
	var killed atomic.Int64
	all.Go(func() {
		for patient := deadline(t, patience); ctx.Err() == nil; killed.Add(1) {
			if err := c.killAndRestart(patient, rowraft.ShardID(killed.Load()%4)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer func() { stop(); all.Wait() }()
	from, err := c.dial(client.Options{}).Table(ctx, "counts")
	if err != nil {
		t.Fatal(err)
	}
	reader := c.dial(client.Options{})
	r, how := rand.New(rand.NewPCG(1, 2)), client.Read{Mode: client.Bounded, MaxAge: age}
	checked, refused := 0, 0
	for read := uint64(1); read < reads || killed.Load() < 4; read++ {
		seg := client.Segment{Table: from, Values: make([]float32, 20)}
		for range 20 {
			seg.Keys = append(seg.Keys, rowraft.Key(r.IntN(keys)))
		}
		counts.mark(read)
		least := counts.before(time.Now().Add(-age))
		met, err := reader.PullWith(ctx, how, seg)
		if code := rowraft.CodeOf(err); err != nil && code == rowraft.CodeTooStale {
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if met.Age > age {
			t.Fatalf("read %d: age %v, want %v at most", read, met.Age, age)
		}
		for i, key := range seg.Keys {
			if least[key] > 0 {
				checked++
			}
			if seg.Values[i] < least[key] {
				t.Fatalf("read %d: row %d has %v pushes, and had %v acknowledged at the bound", read, key, seg.Values[i],
					least[key])
			}
		}
	}
	copied := c.copied(ctx, table)
	t.Logf("%d rows checked, %d reads refused, %d leaders killed, %d reads answered by copies alone", checked, refused,
		killed.Load(), copied)
	if checked < 5_000 || refused > reads/2 || copied == 0 {
		t.Errorf("%d rows checked, %d of %d reads refused, %d of copies", checked, refused, reads, copied)
	}
}

// killAndRestart kills the leader of a shard, starts it again, and waits until its replicas have what the others have.
// A server has some of the shards.
func (c *cluster) killAndRestart(ctx context.Context, shard rowraft.ShardID) error {
	leads, err := c.leaders(ctx)
	if err != nil {
		return err
	}
	victim := leads[shard]
	before, err := nodeStatus(ctx, victim)
	if err != nil {
		return err
	}
	if err := victim.Kill(); err != nil {
		return err
	}
	if err := c.Restart(ctx, victim); err != nil {
		return err
	}
	want, err := c.greatest(ctx, victim, (*rowraftv1.ReplicaStatus).GetCommitIndex)
	if err != nil {
		return err
	}
	return poll(ctx, func() error {
		st, err := nodeStatus(ctx, victim)
		if err != nil || len(st.Replicas) < len(before.Replicas) {
			return fmt.Errorf("%d replicas run (%w)", len(st.GetReplicas()), err)
		}
		for _, r := range st.Replicas {
			if r.CommitIndex < want[r.Shard] {
				return fmt.Errorf("shard %d is at %d, others at %d", r.Shard, r.CommitIndex, want[r.Shard])
			}
		}
		return nil
	})
}

// copied reads a row twice from every server, and counts the replies that are of copies alone.
func (c *cluster) copied(ctx context.Context, table *client.Table) (n int) {
	c.t.Helper()
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 1, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	payload := make([]byte, seg.Size())
	seg.Put(payload) // key 0
	for _, s := range c.Servers() {
		conn, err := grpc.NewClient("passthrough:///"+s.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			c.t.Fatal(err)
		}
		defer conn.Close()
		for shard := range uint32(4) {
			for range 2 { // a shard that does not have the row refuses
				reply, err := rowraftv1.NewTableClient(conn).Pull(ctx, &rowraftv1.PullRequest{Shard: shard,
					MapVersion: ^uint64(0), Mode: rowraftv1.ReadMode_READ_MODE_BOUNDED, MaxAgeNs: uint64(time.Minute),
					Payload: payload})
				if err == nil && reply.WithoutReplica && reply.Fetched == 0 {
					n++
				}
			}
		}
	}
	return n
}
