package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

const (
	// sweepPatience bounds the wait for a shard without a leader.
	sweepPatience = time.Minute
	// sweepTimeout bounds one call of SweepSlots.
	sweepTimeout = 30 * time.Second
)

// Sweeps is the service that shrinks tables. The operation lives as long as its call. Each sweep of some slots is an
// entry in the log of the shard, and rows that it removed stay removed when the call ends early.
type Sweeps struct {
	rowraftv1.UnimplementedSweepsServer
	g *group
}

// Sweeps returns the service.
func (s *Scheduler) Sweeps() *Sweeps { return &Sweeps{g: s.group} }

// ShrinkTable sweeps all shards concurrently, some slots per call in each.
func (w *Sweeps) ShrinkTable(req *rowraftv1.ShrinkTableRequest,
	stream grpc.ServerStreamingServer[rowraftv1.ShrinkTableReply]) error {
	if _, _, err := w.g.leading(); err != nil {
		return err
	}
	m := w.g.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	i := slices.IndexFunc(m.Tables, func(t rowraft.Schema) bool { return t.Name == req.GetTable() })
	if i < 0 {
		return rowraft.Errorf(rowraft.CodeTableNotFound, "there is no table %q", req.GetTable())
	}
	op := &shrinking{g: w.g, m: m, table: m.Tables[i].ID, req: req, stream: stream}
	err := op.run(stream.Context())
	if !req.GetDryRun() {
		w.g.logger.Info("shrank a table", "table", req.GetTable(), "removed", op.removed.Load(), "err", err)
	}
	if err != nil {
		return fmt.Errorf("shrink table %s: %w", req.GetTable(), err)
	}
	last := op.sofar()
	last.Done = true
	return stream.Send(last)
}

// shrinking is the state of one ShrinkTable.
type shrinking struct {
	g      *group
	m      *clustermap.Map
	table  rowraft.TableID
	req    *rowraftv1.ShrinkTableRequest
	stream grpc.ServerStreamingServer[rowraftv1.ShrinkTableReply]

	slots, rows, removed, candidates atomic.Uint64
}

func (op *shrinking) sofar() *rowraftv1.ShrinkTableReply {
	return &rowraftv1.ShrinkTableReply{Slots: op.slots.Load(), SlotsTotal: uint64(op.m.SlotCount()), Rows: op.rows.Load(),
		Removed: op.removed.Load(), Candidates: op.candidates.Load()}
}

// run sweeps all shards and reports progress.
func (op *shrinking) run(ctx context.Context) error {
	defer rpc.Report(func() error { return op.stream.Send(op.sofar()) })()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(maxEnsureCalls)
	for _, sh := range op.m.Shards {
		g.Go(func() error {
			if err := op.shard(ctx, sh); err != nil {
				return fmt.Errorf("shard %d: %w", sh.ID, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// shard sweeps the slots of one shard.
func (op *shrinking) shard(ctx context.Context, sh clustermap.Shard) error {
	slots := op.m.SlotsOf(sh.ID)
	for next := uint32(0); next < uint32(op.m.SlotCount()); {
		reply, err := op.piece(ctx, sh, next)
		if err != nil {
			return err
		}
		// A server that reports no progress would keep this loop running forever.
		if reply.GetNextSlot() <= next {
			return rowraft.Errorf(rowraft.CodeInternal, "a sweep from slot %d on came to slot %d", next, reply.GetNextSlot())
		}
		next = reply.GetNextSlot()
		for len(slots) > 0 && uint32(slots[0]) < next {
			slots = slots[1:]
			op.slots.Add(1)
		}
		op.rows.Add(reply.GetRows())
		op.removed.Add(reply.GetRemoved())
		op.candidates.Add(reply.GetCandidates())
	}
	return nil
}

// piece sweeps some slots from first on. If its reply was lost, the repetition finds nothing more to remove.
func (op *shrinking) piece(ctx context.Context, sh clustermap.Shard,
	first uint32) (reply *rowraftv1.SweepSlotsReply, err error) {
	req := &rowraftv1.SweepSlotsRequest{
		Shard: uint32(sh.ID), Table: uint64(op.table), TableEpoch: uint64(op.m.Epoch), FirstSlot: first,
		Conditions: op.req.GetConditions(), DryRun: op.req.GetDryRun(),
	}
	err = op.g.onLeader(ctx, sh, sweepPatience, func(conn *grpc.ClientConn) (err error) {
		call, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		reply, err = rowraftv1.NewReplicasClient(conn).SweepSlots(call, req)
		return err
	})
	return reply, err
}
