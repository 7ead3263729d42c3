package checkpoints

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// alone reports whether the restore changes only the tables that the request names.
func (op *restoration) alone() bool { return len(op.req.GetTables()) > 0 }

// epoch returns the table epoch after the restore.
func (op *restoration) epoch() rowraft.TableEpoch {
	if op.alone() {
		return op.cluster.Epoch
	}
	return op.cluster.Epoch + 1
}

// matchesTable reports whether a name or a pattern with a final "*" matches a table. Certificates use the same
// patterns.
func matchesTable(pattern, table string) bool {
	begin, open := strings.CutSuffix(pattern, "*")
	return table == pattern || open && strings.HasPrefix(table, begin)
}

// choose selects the tables of the request. A table that is restored alone gets a new id, so that calls for the old
// table fail instead of changing the restored one. last is the number of the last restore of single tables before.
func (op *restoration) choose(last uint16) error {
	asked, found := op.req.GetTables(), make(map[string]bool)
	op.rowMemory, op.targets = make(map[rowraft.TableID]uint64), make(map[rowraft.TableID]rowraft.TableID)
	op.tables = nil
	restore := meta.NextRestore(last)
	for _, t := range op.manifest.Tables {
		wanted := !op.alone()
		for _, pattern := range asked {
			if matchesTable(pattern, t.Schema.Name) {
				wanted, found[pattern] = true, true
			}
		}
		if !wanted {
			continue
		}
		schema := t.Schema
		if op.alone() {
			schema.ID = schema.ID.RestoredBy(restore)
		}
		op.tables = append(op.tables, schema)
		op.targets[t.Schema.ID] = schema.ID
		size, err := checkpoint.RecordBytes(&schema)
		if err != nil {
			return err
		}
		op.rowMemory[t.Schema.ID] = uint64(size) + indexMemory
	}
	slices.SortFunc(op.tables, func(a, b rowraft.Schema) int { return cmp.Compare(a.ID, b.ID) })
	for _, pattern := range asked {
		if !found[pattern] {
			return rowraft.Errorf(rowraft.CodeTableNotFound, "the checkpoint has no table %q", pattern)
		}
	}
	return nil
}

// wants reports whether a table of the checkpoint is restored.
func (op *restoration) wants(id rowraft.TableID) bool {
	_, ok := op.targets[id]
	return ok
}

// liveRows is the number of rows by table.
type liveRows map[rowraft.TableID]uint64

// changes lists the effect of the restore on each table, by name, given the present number of rows.
func (op *restoration) changes(rows liveRows) (out []*rowraftv1.RestoreChange) {
	brings := make(map[string]uint64)
	for _, t := range op.manifest.Tables {
		if op.wants(t.Schema.ID) {
			brings[t.Schema.Name] = t.Rows
		}
	}
	for _, t := range op.c.view.Map().Tables {
		n, comes := brings[t.Name]
		if comes || !op.alone() {
			out = append(out, &rowraftv1.RestoreChange{Name: t.Name, Id: uint64(t.ID), Rows: rows[t.ID], Comes: comes,
				Brings: n})
		}
		delete(brings, t.Name)
	}
	for name, n := range brings {
		out = append(out, &rowraftv1.RestoreChange{Name: name, Comes: true, Brings: n})
	}
	slices.SortFunc(out, func(a, b *rowraftv1.RestoreChange) int { return strings.Compare(a.GetName(), b.GetName()) })
	return out
}

// sendPlan replies to a request for the plan only.
func (op *restoration) sendPlan(ctx context.Context) error {
	_, rows, err := op.look(ctx)
	if err != nil {
		return fmt.Errorf("restore %s: %w", op.req.GetName(), err)
	}
	return op.stream.Send(&rowraftv1.RestoreCheckpointReply{Phase: "done", BytesTotal: uint64(op.chain.Bytes()),
		TableEpoch: uint64(op.epoch()), Changes: op.changes(rows), Decided: op.c.machine.Decided()})
}

// checkEmpty refuses to drop rows without replace, and to drop tables that the caller has not seen in the plan.
func (op *restoration) checkEmpty(ctx context.Context) error {
	_, rows, err := op.look(ctx)
	if err != nil {
		return err
	}
	var full, unseen []string
	for _, c := range op.changes(rows) {
		said := fmt.Sprintf("%s (%d rows)", c.GetName(), c.GetRows())
		if c.GetRows() > 0 {
			full = append(full, said)
		}
		// By id and not by name: a table that was dropped and created again in between is one that the user has not seen.
		if c.GetId() != 0 && len(op.req.GetAgreed()) > 0 && !slices.Contains(op.req.GetAgreed(), c.GetId()) {
			unseen = append(unseen, said)
		}
	}
	switch {
	case len(full) > 0 && !op.req.GetReplace():
		return rowraft.Errorf(rowraft.CodeAlreadyExists, "tables of the cluster hold rows, which the restore drops: %s; "+
			"allow that with --replace, or name the tables to restore with --table: others stay then", strings.Join(full, ", "))
	case len(unseen) > 0 && !op.req.GetDryRun():
		return rowraft.Errorf(rowraft.CodePrecondition,
			"the restore would drop tables that were made after its list was shown: %s; begin again", strings.Join(unseen, ", "))
	}
	return nil
}

// look asks the leaders of all shards for the number of rows of each table and for the free memory of their nodes.
func (op *restoration) look(ctx context.Context) (free map[rowraft.NodeID]uint64, rows liveRows, err error) {
	var mu sync.Mutex
	free, rows = make(map[rowraft.NodeID]uint64), make(liveRows)
	err = op.each(func(f *feed) error {
		reply, err := f.step(ctx,
			&rowraftv1.RestoreShardRequest{Step: &rowraftv1.RestoreShardRequest_Look{Look: &rowraftv1.RestoreShardLook{}}})
		mu.Lock()
		defer mu.Unlock()
		for _, t := range reply.GetTables() {
			rows[rowraft.TableID(t.GetId())] += t.GetRows()
		}
		if n := reply.GetFreeMemory(); n > 0 {
			free[rowraft.NodeID(reply.GetNode())] = n
		}
		return err
	})
	return free, rows, err
}

// checkMemory refuses a restore for which a node has too little memory: until the decision a node holds the staged rows
// and the live ones. It knows the free memory of those nodes only that lead a shard.
func (op *restoration) checkMemory(ctx context.Context) error {
	free, _, err := op.look(ctx)
	if err != nil {
		return err
	}
	need := make(map[rowraft.NodeID]uint64)
	for _, f := range op.feeds {
		for _, r := range f.shard.Replicas {
			need[r.Node] += f.wantBytes
		}
	}
	for _, node := range slices.Sorted(maps.Keys(free)) {
		if need[node] > free[node] {
			return rowraft.Errorf(rowraft.CodePrecondition, "server %s has %d bytes of free memory, the rows to restore need "+
				"%d next to the live rows: give it more memory, or restore fewer tables, or restore into an empty cluster", node,
				free[node], need[node])
		}
	}
	return nil
}

// stillEmpty checks again before the decision: staging may have taken minutes, in which a client created a table or
// pushed. Pushes between this check and the close of a shard, some milliseconds, are dropped.
func (op *restoration) stillEmpty(ctx context.Context) error {
	if !op.req.GetReplace() && !op.alone() && !slices.Equal(op.c.view.Map().Tables, op.cluster.Tables) {
		return rowraft.Errorf(rowraft.CodeAlreadyExists,
			"tables were made while the restore was staged, which it drops: allow that with --replace")
	}
	return op.checkEmpty(ctx)
}
