package scheduler

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// drop logs the drop of a table and returns after every shard has dropped it.
func (ts *tables) drop(ctx context.Context, req *rowraftv1.DropTableRequest) (*rowraftv1.DropTableReply, error) {
	if req.GetName() == "" || req.GetId() == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "drop table %q with id %d: want both", req.GetName(),
			req.GetId())
	}
	if _, hasDeadline := ctx.Deadline(); !hasDeadline {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, createTableTimeout)
		defer cancel()
	}
	if err := ts.logDrop(ctx, req); err != nil {
		return nil, fmt.Errorf("drop table: %w", err)
	}
	ts.logger.Info("table dropped", "table", req.GetName(), "id", req.GetId())
	if err := ts.ensureDrops(ctx); err != nil {
		return nil, fmt.Errorf("table %s is dropped, but not yet in every shard; the scheduler continues with it: %w",
			req.GetName(), err)
	}
	return &rowraftv1.DropTableReply{MapVersion: ts.mapVersion()}, nil
}

// logDrop logs a drop. It refuses if the drop would remove a table from the full list that a shard may still have: that
// shard would keep the rows forever.
func (ts *tables) logDrop(ctx context.Context, req *rowraftv1.DropTableRequest) error {
	if err := ts.dropping.Acquire(ctx, 1); err != nil { // or two calls would check the same oldest table and remove two
		return fmt.Errorf("waiting for another call: %w", err)
	}
	defer ts.dropping.Release(1)
	// Only the leader knows what the shards have confirmed. Another member must redirect the caller.
	if _, err := ts.leadingInSync(ctx); err != nil {
		return err
	}
	if err := ts.mayForget(rowraft.TableID(req.GetId())); err != nil {
		return err
	}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DropTable{
		DropTable: &rowraftv1.MetaDropTable{Name: req.GetName(), Id: req.GetId()}}}
	_, err := ts.propose(ctx, c)
	return err
}

// mayForget returns an error if a drop of table id would remove a table from the list that a shard may still have.
func (ts *tables) mayForget(id rowraft.TableID) error {
	m, dropped := ts.view.Map(), ts.machine.DroppedTables()
	if len(dropped) < meta.MaxDropped || m == nil || slices.ContainsFunc(dropped,
		func(d meta.DroppedTable) bool { return d.ID == id }) {
		return nil
	}
	d := dropped[0]
	for _, sh := range m.Shards {
		if !ts.isEnsured(ensuredKey{d.ID, sh.ID, true}) || ts.reports(sh, d.ID) {
			return &rowraft.OverloadedError{RetryAfter: time.Second, What: fmt.Sprintf("%d tables were dropped, and shard %d "+
				"may still have the first of them, %s: the scheduler continues with it as soon as the shard has a leader; then "+
				"drop more", len(dropped), sh.ID, d.Name)}
		}
	}
	return nil
}

// ensureDrops returns after every shard has dropped all tables in the list. It asks a shard again that has confirmed a
// drop only if the shard's leader reports the table.
func (ts *tables) ensureDrops(ctx context.Context) error {
	m := ts.view.Map()
	if m == nil {
		return nil
	}
	var g errgroup.Group
	g.SetLimit(maxEnsureCalls)
	waited := false
	for _, sh := range m.Shards {
		for _, d := range ts.machine.DroppedTables() {
			key := ensuredKey{d.ID, sh.ID, true}
			// A confirmed drop is not final: a late call of an earlier leader may create the table again.
			if ts.isEnsured(key) && !ts.reports(sh, d.ID) {
				continue
			}
			if !waited {
				// A running call of callEnsureTable may still create the table in a shard. Wait for it. Later calls
				// read the map, which no longer has the table.
				ts.driving.Lock()
				ts.driving.Unlock() //lint:ignore SA2001 it waits for those who hold it
				waited = true
			}
			g.Go(func() error { return ts.ensureDrop(ctx, sh, d, key) })
		}
	}
	return g.Wait()
}

// reports reports whether the last heartbeat of the shard's leader names the table.
func (ts *tables) reports(sh clustermap.Shard, id rowraft.TableID) bool {
	leader := ts.probableLeader(sh)
	ts.soft.mu.Lock()
	defer ts.soft.mu.Unlock()
	for _, r := range ts.soft.beats[leader].replicas {
		if rowraft.ShardID(r.GetShard()) == sh.ID {
			for _, t := range r.GetTables() {
				if rowraft.TableID(t.GetTable()) == id {
					return true
				}
			}
		}
	}
	return false
}

// ensureDrop asks the leader of one shard to drop one table, until the shard has done it or ctx ends. SessionExpired
// means that the shard has another table epoch: its tables are those of a restore.
func (ts *tables) ensureDrop(ctx context.Context, sh clustermap.Shard, d meta.DroppedTable, key ensuredKey) error {
	_, term, err := ts.leading()
	if err != nil {
		return err
	}
	for w := ts.walk(sh); ; {
		node := rowraft.NodeID(w.Addr())
		err := ts.callReplicas(ctx, node, ts.callTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
			_, err := a.DropShardTable(ctx, &rowraftv1.DropShardTableRequest{Shard: uint32(sh.ID), Table: uint64(d.ID),
				TableEpoch: uint64(d.Epoch)})
			return err
		})
		if err == nil || rowraft.CodeOf(err) == rowraft.CodeSessionExpired {
			ts.markEnsured(term, key)
			return nil
		}
		err = fmt.Errorf("shard %d: drop table %s: server %s: %w", sh.ID, d.Name, node, err)
		if !w.Again(ctx, err) {
			return err
		}
		if _, now, lerr := ts.leading(); lerr != nil || now != term {
			return rowraft.Errorf(rowraft.CodeLeadershipLost,
				"the scheduler's leader changed while table %s was dropped from shard %d", d.Name, sh.ID)
		}
	}
}
