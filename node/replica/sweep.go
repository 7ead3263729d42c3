package replica

import (
	"context"
	"math"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

const (
	// sweepPiece is the number of rows that one sweep entry looks at: apply takes one or two milliseconds
	// for them.
	sweepPiece = 16384
	// sweepPause is the pause between two pieces, so that the search takes at most a few per cent of a
	// core.
	sweepPause = 20 * time.Millisecond
)

// sweep removes expired rows in the shards that this server leads, until ctx ends. Apply decides by logged
// time which rows have expired; sweep only finds slots to log.
func (h *Host) sweep(ctx context.Context) {
	if h.opts.SweepEvery < 0 {
		return
	}
	tick := time.NewTicker(h.opts.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, r := range h.runningReplicas() {
			if err := r.sweepExpired(ctx); err != nil && ctx.Err() == nil {
				r.log.Info("a sweep for expired rows ends early, the next one continues", "err", err)
			}
		}
	}
}

// sweepExpired searches all tables with an expiry once, as the leader.
func (r *replica) sweepExpired(ctx context.Context) error {
	if r.mustServe() != nil {
		return nil
	}
	for _, s := range r.machine.Tables() {
		if s.Expire == 0 {
			continue
		}
		w := wire.Sweep{Table: s.ID, Conditions: wire.SweepExpire}
		for w.First < rowraft.Slot(r.machine.SlotCount()) {
			p, _, err := r.sweepPiece(ctx, w, false)
			if err != nil {
				return err
			}
			w.First = p.Next
			select {
			case <-time.After(sweepPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// sweepPiece searches some slots from w.First on. If there are rows to remove, and it is not a dry run, it
// logs a sweep of those slots. It returns what was removed, or would be.
func (r *replica) sweepPiece(ctx context.Context, w wire.Sweep,
	dryRun bool) (p shard.SweepPreview, swept shard.Swept, err error) {
	if err := r.mustServe(); err != nil {
		return p, swept, err
	}
	h := r.header()
	p, err = r.machine.PreviewSweep(&w, rowraft.TickOf(h.LogTime), sweepPiece)
	if err != nil || dryRun || p.Slots == 0 {
		return p, p.Found, err
	}
	w.First, w.Slots = p.First, p.Slots
	a, err := r.result(ctx, r.group.Propose(wire.SweepEntry(h, &w)))
	if err == nil {
		err = a.Parts[0].Err
	}
	if err != nil {
		return p, swept, err
	}
	return p, a.Swept, nil
}

// SweepSlots sweeps the next slots of a table, as the leader.
func (s *replicaService) SweepSlots(ctx context.Context,
	req *rowraftv1.SweepSlotsRequest) (*rowraftv1.SweepSlotsReply, error) {
	r, err := s.h.replicaFor(req.GetShard(), anyMapVersion, req.GetTableEpoch())
	if err != nil {
		return nil, err
	}
	w := wire.Sweep{Table: rowraft.TableID(req.GetTable()), First: rowraft.Slot(min(req.GetFirstSlot(), math.MaxUint16)),
		Slots: 1}
	c := req.GetConditions()
	if c != nil && c.UnseenTicks != nil {
		w.Conditions, w.Unseen = wire.SweepUnseen, c.GetUnseenTicks()
	}
	if n := c.GetCountBelow(); n > 0 {
		w.Conditions, w.Count = w.Conditions|wire.SweepCount, n
	}
	if x := c.GetNormBelow(); x != 0 {
		w.Conditions, w.Norm = w.Conditions|wire.SweepNorm, x
	}
	if err := w.Validate(); err != nil {
		return nil, err
	}
	if err := r.mustServe(); err != nil {
		return nil, err
	}
	// A former leader would count and refuse by old rows.
	if _, err := r.confirm(ctx); err != nil {
		return nil, err
	}
	p, swept, err := r.sweepPiece(ctx, w, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	return &rowraftv1.SweepSlotsReply{NextSlot: uint32(p.Next), Rows: p.Looked, Removed: swept.Rows,
		Candidates: swept.Candidates}, nil
}
