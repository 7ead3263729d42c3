package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// stoppedRead is a read that a stopped server finds when it wakes up.
type stoppedRead struct {
	req   *rowraftv1.PullRequest
	reply *rowraftv1.PullReply
	err   error
	count float32 // pushes that it saw
}

// A leader is stopped, another one takes pushes, and reads of every mode wait at the
// stopped one: when it wakes up it believes that it leads, that nothing has happened, and
// that what it proved of its age was a moment ago. It may refuse; what it answers must hold.
func TestAStoppedLeaderAnswersNothingOld(t *testing.T) {
	const asleep, before, during, each = 2 * time.Second, 5, 7, 20
	c := start(t, localcluster.Options{Servers: 3, Shards: 1})
	ctx := deadline(t, patience)
	cl, err := client.Dial(ctx, client.Options{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	table, err := cl.CreateTable(ctx, rowraft.Schema{
		Name: "t", Kind: rowraft.Sparse, Dim: 1,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	push := func(n int) {
		t.Helper()
		for range n {
			if _, err := table.Push(ctx, []rowraft.Key{1}, []float32{-1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	seg := wire.Segment{Table: table.Schema().ID, N: 1, Dim: 1, DType: rowraft.Float32, Flags: wire.FlagNoValues}
	payload := make([]byte, seg.Size())
	binary.LittleEndian.PutUint64(seg.Put(payload).Keys, 1)
	request := func(mode rowraftv1.ReadMode, maxAge time.Duration, minIndex rowraft.Index) *stoppedRead {
		return &stoppedRead{req: &rowraftv1.PullRequest{MapVersion: math.MaxUint64, Mode: mode, MaxAgeNs: uint64(maxAge),
			MinIndex: uint64(minIndex), Payload: payload}}
	}
	push(before)
	leads, err := c.leaders(ctx)
	if err != nil {
		t.Fatal(err)
	}
	victim := leads[0]
	conn, err := rpc.Dial(victim.Addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stub := rowraftv1.NewTableClient(conn)
	// It proves its age now, and so remembers that it was young.
	young := request(rowraftv1.ReadMode_READ_MODE_BOUNDED, time.Minute, cl.Position().Shards[0])
	// it gives up after 300 ms
	for young.ask(ctx, stub) != nil && rowraft.CodeOf(young.err).Retryable() && ctx.Err() == nil {
	}
	if young.err != nil || young.count != before {
		t.Fatalf("a bounded read of the leader: %v, %v, want %d pushes", young.count, young.err, before)
	}
	if err := victim.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	push(during)
	awake := time.NewTimer(asleep) // after the last push: longer than the shortest bound
	index := cl.Position().Shards[0]
	var reads []*stoppedRead
	for range each {
		reads = append(reads,
			request(rowraftv1.ReadMode_READ_MODE_LINEARIZABLE, 0, 0),
			request(rowraftv1.ReadMode_READ_MODE_LEADER, 0, index),
			request(rowraftv1.ReadMode_READ_MODE_BOUNDED, time.Second, 0),
			request(rowraftv1.ReadMode_READ_MODE_BOUNDED, time.Minute, index))
	}
	var wg sync.WaitGroup
	for _, r := range reads {
		wg.Go(func() { r.ask(ctx, stub) })
	}
	<-awake.C
	if err := victim.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	refused := 0
	for _, r := range reads {
		switch {
		case r.err != nil && !rowraft.CodeOf(r.err).Retryable():
			t.Errorf("mode %v: %v, want rows or an error that passes", r.req.Mode, r.err)
		case r.err != nil:
			refused++
		case r.count != before+during:
			t.Errorf("mode %v, at most %v old, at least index %d: %v pushes (claimed age %v) long after %d were acknowledged",
				r.req.Mode, time.Duration(r.req.MaxAgeNs), r.req.MinIndex, r.count, time.Duration(r.reply.AgeNs), before+during)
		}
	}
	t.Logf("%d reads waited for the leader to wake up, %d were refused", len(reads), refused)
}

// ask sends the read and counts what it shows.
func (r *stoppedRead) ask(ctx context.Context, stub rowraftv1.TableClient) error {
	if r.reply, r.err = stub.Pull(ctx, r.req); r.err != nil {
		return r.err
	}
	got, body, _, err := wire.ParseSegment(r.reply.Payload)
	if err != nil || got.N != 1 {
		r.err = errors.Join(err, rowraft.Errorf(rowraft.CodeCorrupt, "the reply has %d rows", got.N))
		return r.err
	}
	var v [1]float32
	wire.GetFloats(v[:], got.DType, body.Values)
	r.count = v[0]
	return nil
}
