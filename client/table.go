package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// Table is a handle to one table. Safe for concurrent use.
type Table struct {
	c       *Client
	cluster rowraft.ClusterID
	schema  rowraft.Schema
	seed    uint64 // clustermap.TableSeed
	slots   rowraft.SlotCount
	copies  cache.Table
}

// Schema returns the schema of the table, as it was created.
func (t *Table) Schema() rowraft.Schema { return t.schema }

// Dim returns the number of weights of a row.
func (t *Table) Dim() int { return t.schema.Dim }

// Slot returns the slot of key.
func (t *Table) Slot(key rowraft.Key) rowraft.Slot {
	return clustermap.SlotOfHash(t.hash(key), t.slots)
}

// hash returns the hash that selects the slot of key.
func (t *Table) hash(key rowraft.Key) uint64 {
	return clustermap.Mix64(uint64(t.schema.Kind.PlacementKey(key)) ^ t.seed)
}

// Pull copies the weights of keys into dst.
//
// keys may repeat and come in any order. dst is len(keys) × dim float32,
// row-major: row i belongs to keys[i]. The caller owns both; Pull keeps neither.
// A key never pushed reads as the table's initializer and is not created. The
// rows are never older than this client's acknowledged pushes.
//
// Errors: CodeInvalidArgument if len(dst) ≠ len(keys)·dim; otherwise the last
// answer of the cluster when ctx ends.
func (t *Table) Pull(ctx context.Context, keys []rowraft.Key, dst []float32) error {
	_, err := t.c.PullWith(ctx, Read{}, Segment{Table: t, Keys: keys, Values: dst})
	return err
}

// Push applies grads (len(keys) × dim float32, row-major) exactly once and returns when they are on a
// majority of disks. Push sums the gradients of a repeated key in the order of keys. The caller owns keys
// and grads; Push keeps neither.
//
// Errors: CodeInvalidArgument, CodeTableNotFound: nothing was applied, in any shard. CodeDeadline: ctx
// ended, and the outcome is unknown; the client continues to send it, so do not push the same gradients
// again: Flush waits for the result. CodeSessionExpired: the outcome is unknown and stays so. CodeUnknown:
// some shards applied their batches, others refused theirs. CodeNotSent, CodeOverloaded: nothing of this
// push was sent, push again. CodePrecondition: nothing of this push was sent, because an earlier push that
// had returned CodeDeadline failed since, or because the servers form another cluster now.
func (t *Table) Push(ctx context.Context, keys []rowraft.Key, grads []float32) (Ack, error) {
	return t.c.write(ctx, wire.OpPush, Segment{Table: t, Keys: keys, Values: grads})
}

// Assign sets weights, with the guarantees of Push. It keeps the optimizer state. The last value of a
// repeated key counts. After CodeDeadline the client still resends the Assign, which may then take effect
// after a later one: call Flush first.
func (t *Table) Assign(ctx context.Context, keys []rowraft.Key, weights []float32) (Ack, error) {
	return t.c.write(ctx, wire.OpAssign, Segment{Table: t, Keys: keys, Values: weights})
}

// Delete removes the rows of keys, with the guarantees of Push. It ignores a key without a row; keys may
// repeat. A deleted row reads as the initializer, and its next push creates it again. After CodeDeadline,
// as with Assign, a Delete may take effect after later calls: call Flush first.
func (t *Table) Delete(ctx context.Context, keys []rowraft.Key) (Ack, error) {
	return t.c.write(ctx, wire.OpDelete, Segment{Table: t, Keys: keys})
}

// Table returns a handle to the table called name. Errors: CodeTableNotFound.
func (c *Client) Table(ctx context.Context, name string) (*Table, error) {
	m := c.cluster.Load()
	if s, err := m.Table(name); err == nil {
		return c.tables.of(c, m, s), nil
	}
	// This map may be older than the table, and so may the map of a server that has just restarted: ask all
	// servers.
	var errs []error
	for _, addr := range c.cluster.addrs() {
		if err := c.cluster.fetch(ctx, addr, 0); err != nil {
			errs = append(errs, err)
		}
	}
	m = c.cluster.Load()
	s, err := m.Table(name)
	if err != nil {
		if len(errs) == len(c.cluster.addrs()) {
			return nil, errors.Join(errs...)
		}
		return nil, err
	}
	return c.tables.of(c, m, s), nil
}

// tableHandles has one handle for each table, so that equal handles mean the same table.
type tableHandles struct {
	mu   sync.RWMutex
	byID map[rowraft.TableID]*Table // of the client's cluster
}

// dropCluster drops the handles of the client's cluster.
func (h *tableHandles) dropCluster() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.byID)
}

// of returns the handle to a table of the cluster of m.
func (h *tableHandles) of(c *Client, m *clustermap.Map, s rowraft.Schema) *Table {
	h.mu.RLock()
	t := h.byID[s.ID]
	h.mu.RUnlock()
	if t != nil && t.cluster == m.Cluster {
		return t
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.byID[s.ID]; t != nil && t.cluster == m.Cluster {
		return t
	}
	if h.byID == nil {
		h.byID = make(map[rowraft.TableID]*Table)
	}
	t = &Table{c: c, cluster: m.Cluster, schema: s, seed: clustermap.TableSeed(s.ID), slots: m.SlotCount()}
	h.byID[s.ID] = t
	return t
}

// CreateTable creates the table and returns when every shard has it. It ignores s.ID. Errors:
// CodeTableExists if a table of that name has another shape or, without ifNotExists, if there is any table
// of that name.
func (c *Client) CreateTable(ctx context.Context, s rowraft.Schema, ifNotExists bool) (*Table, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	s.ID = 0
	var reply *rowraftv1.CreateTableReply
	retried, home := false, c.cluster.Load()
	err := c.control.callCluster(ctx, fmt.Sprintf("create table %s", s.Name),
		func(ctx context.Context, stub rowraftv1.ClusterClient) (err error) {
			// A retry may find the table that an earlier try created. A table of another shape is refused in
			// any case.
			reply, err = stub.CreateTable(ctx, &rowraftv1.CreateTableRequest{Table: rpc.SchemaToProto(&s),
				IfNotExists: ifNotExists || retried})
			// After the table is logged, a shard without a leader still makes the call fail.
			if err != nil && rowraft.CodeOf(err) != rowraft.CodeNotLeader {
				retried = true
			}
			return err
		})
	if err != nil {
		return nil, err
	}
	return c.tables.of(c, home, rpc.SchemaFromProto(reply.Table)), nil
}

// Restored describes the checkpoints that a cluster's tables come from.
type Restored struct {
	Sources  []Source  // the last restore first
	Training []Trainer // trainers that are connected to the scheduler
}

// Source is a checkpoint that tables come from.
type Source struct {
	ID, Destination, Name string
	Tables                []string
	Trained               []Trainer // trainers that may have changed these tables since the restore
}

// Of returns the checkpoint that a table comes from; the zero Source if there is none.
func (r *Restored) Of(table string) Source {
	for _, s := range r.Sources {
		if slices.Contains(s.Tables, table) {
			return s
		}
	}
	return Source{}
}

// Trainer identifies a trainer of a job.
type Trainer struct {
	Job  string
	Rank int
}

// Restored returns the checkpoints that the cluster's tables come from.
func (c *Client) Restored(ctx context.Context) (r Restored, err error) {
	err = c.control.callCluster(ctx, "status", func(ctx context.Context, stub rowraftv1.ClusterClient) error {
		reply, err := stub.Status(ctx, &rowraftv1.StatusRequest{})
		r = Restored{}
		for _, from := range reply.GetRestored() {
			r.Sources = append(r.Sources, Source{from.GetId(), from.GetDestination(), from.GetName(), from.GetTables(),
				trainersFromProto(from.GetTrained())})
		}
		r.Training = trainersFromProto(reply.GetTrainers())
		return err
	})
	return r, err
}

func trainersFromProto(list []*rowraftv1.TrainerId) (out []Trainer) {
	for _, t := range list {
		out = append(out, Trainer{t.GetJob(), int(t.GetRank())})
	}
	return out
}

// DropTable removes the table with all its rows and returns when no shard has it. The id is never used
// again: calls with it get CodeTableNotFound. A later table of the same name is another table. Errors:
// CodeTableNotFound; CodeOverloaded if a restore runs until ctx ends.
func (c *Client) DropTable(ctx context.Context, t *Table) error {
	return c.control.callCluster(ctx, fmt.Sprintf("drop table %s", t.schema.Name),
		func(ctx context.Context, stub rowraftv1.ClusterClient) error {
			_, err := stub.DropTable(ctx, &rowraftv1.DropTableRequest{Name: t.schema.Name, Id: uint64(t.schema.ID)})
			if err == nil {
				t.copies.Free()
			}
			return err
		})
}
