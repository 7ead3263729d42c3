package scheduler

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/optim"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// tables creates tables in all shards, and drops them. Run calls ensure and ensureDrops in each round.
type tables struct {
	*group
	callTimeout time.Duration // the constant ensureCallTimeout, except in tests

	// driving is held for reading while the scheduler creates a table in a shard. ensureDrops locks it to wait until
	// these calls have ended.
	driving sync.RWMutex
	// dropping is held while the scheduler logs the drop of a table.
	dropping *semaphore.Weighted // of 1: a mutex whose waiters honour their context

	mu   sync.Mutex
	term rowraft.Term // of ensured
	// ensured holds what the shards have confirmed to the leader of this term. It is never logged: a new leader asks
	// all shards again.
	ensured map[ensuredKey]struct{}
}

type ensuredKey struct {
	table rowraft.TableID
	shard rowraft.ShardID
	gone  bool // true: the shard dropped the table; false: the shard created it
}

func newTables(g *group) *tables {
	return &tables{group: g, callTimeout: ensureCallTimeout, dropping: semaphore.NewWeighted(1)}
}

// create logs a table and returns after every shard has created it. The scheduler continues after an error: the
// table is logged, and the control loop creates it in the remaining shards.
func (ts *tables) create(ctx context.Context, req *rowraftv1.CreateTableRequest) (*rowraftv1.CreateTableReply, error) {
	schema := rpc.SchemaFromProto(req.GetTable())
	if schema.ID != 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: the id is chosen by the scheduler, %d was given",
			schema.Name, schema.ID)
	}
	if err := schema.Validate(); err != nil {
		return nil, err
	}
	if err := rpc.CallerOf(ctx).CheckTable(schema.Name); err != nil {
		return nil, err
	}
	if _, _, err := ts.leading(); err != nil {
		return nil, err
	}
	m := ts.view.Map()
	if m == nil || len(m.Shards) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "table %s: the cluster has no shards yet: %s", schema.Name,
			ts.waitingFor())
	}
	if _, hasDeadline := ctx.Deadline(); !hasDeadline {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, createTableTimeout)
		defer cancel()
	}
	var err error
	if schema.ID, err = newTableID(); err != nil {
		return nil, err
	}
	schema.Initializer.NameHash = optim.NameHash(schema.Name)
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{
		Table: rpc.SchemaToProto(&schema), IfNotExists: req.GetIfNotExists(),
	}}}
	result, err := proposeResult[meta.TableResult](ctx, ts.group, c)
	if err != nil {
		return nil, err // the caller names the call
	}
	if err := ts.ensure(ctx, []rowraft.Schema{result.Schema}); err != nil {
		err = fmt.Errorf("table %s is created, but not yet in every shard; the scheduler continues with it: %w", schema.Name,
			err)
		if rowraft.CodeOf(err) == rowraft.CodeNotLeader { // NotLeader would mean that nothing was created
			err = rowraft.Errorf(rowraft.CodeLeadershipLost, "%w", err)
		}
		return nil, err
	}
	return &rowraftv1.CreateTableReply{Table: rpc.SchemaToProto(&result.Schema), Created: result.Created,
		MapVersion: ts.mapVersion()}, nil
}

func newTableID() (rowraft.TableID, error) {
	for {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, rowraft.Errorf(rowraft.CodeInternal, "table id: %w", err)
		}
		if id := rowraft.TableID(binary.LittleEndian.Uint64(b[:])).Origin(); id != 0 {
			return id, nil
		}
	}
}

// maxEnsureCalls bounds the shards that are called concurrently.
const maxEnsureCalls = 16

// ensure returns after every shard has created every table in tables. It skips the shards that have confirmed a
// table in this term.
func (ts *tables) ensure(ctx context.Context, tables []rowraft.Schema) error {
	m := ts.view.Map()
	if m == nil {
		return rowraft.Errorf(rowraft.CodeStarting, "the scheduler has no map yet")
	}
	// A restore may have replaced some of the tables.
	tables = slices.DeleteFunc(slices.Clone(tables), func(t rowraft.Schema) bool {
		return !slices.ContainsFunc(m.Tables, func(have rowraft.Schema) bool { return have.ID == t.ID })
	})
	var g errgroup.Group
	g.SetLimit(maxEnsureCalls)
	for _, sh := range m.Shards {
		todo := ts.notEnsured(sh.ID, tables)
		if len(todo) == 0 {
			continue
		}
		g.Go(func() error {
			for _, t := range todo {
				if err := ts.ensureTable(ctx, sh, t, m.Epoch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// notEnsured returns the tables that a shard has not confirmed in this term.
func (ts *tables) notEnsured(shard rowraft.ShardID, tables []rowraft.Schema) (out []rowraft.Schema) {
	for _, t := range tables {
		if !ts.isEnsured(ensuredKey{t.ID, shard, false}) {
			out = append(out, t)
		}
	}
	return out
}

// ensureTable asks the leader of one shard to create one table, until the shard has it, the shard refuses it, or ctx
// ends.
func (ts *tables) ensureTable(ctx context.Context, sh clustermap.Shard, t rowraft.Schema,
	epoch rowraft.TableEpoch) error {
	_, term, err := ts.leading()
	if err != nil {
		return err
	}
	for w := ts.walk(sh); ; {
		node := rowraft.NodeID(w.Addr())
		there, err := ts.callEnsureTable(ctx, node, sh.ID, t, epoch)
		if !there {
			return nil // dropped, or replaced by a restore
		}
		if err == nil {
			ts.markEnsured(term, ensuredKey{t.ID, sh.ID, false})
			return nil
		}
		err = fmt.Errorf("shard %d: table %s: server %s: %w", sh.ID, t.Name, node, err)
		if !w.Again(ctx, err) {
			return err
		}
		// Another member may lead the scheduler now, and then does this work.
		if _, now, lerr := ts.leading(); lerr != nil || now != term {
			return rowraft.Errorf(rowraft.CodeLeadershipLost,
				"the scheduler's leader changed while table %s was driven into shard %d", t.Name, sh.ID)
		}
	}
}

// isEnsured reports whether a shard has confirmed, in the last term of this leader, that it created a table, or dropped
// one.
func (ts *tables) isEnsured(key ensuredKey) bool {
	term := ts.lastTerm()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.startTermLocked(term)
	_, done := ts.ensured[key]
	return done
}

// markEnsured records a confirmation, unless it is of an earlier term.
func (ts *tables) markEnsured(term rowraft.Term, key ensuredKey) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.startTermLocked(term) // this may be the first that tables sees of the term
	if ts.term == term {
		ts.ensured[key] = struct{}{}
	}
}

// startTermLocked clears the memory at the first call of a new term. A call of an earlier term, by a goroutine that was
// late, changes nothing. REQUIRES: mu is held.
func (ts *tables) startTermLocked(term rowraft.Term) {
	if ts.term < term {
		ts.term, ts.ensured = term, make(map[ensuredKey]struct{})
	}
}

// comesByRestore reports whether a decided restore of single tables brings the table. No shard may create an empty one.
func (ts *tables) comesByRestore(id rowraft.TableID) bool {
	return slices.ContainsFunc(ts.machine.PendingRestore().GetTables(), func(t *rowraftv1.TableSchema) bool {
		return rowraft.TableID(t.GetId()) == id
	})
}

const ensureCallTimeout = 2 * time.Second

// callEnsureTable asks node to create a table and reports whether the map still has the table. It holds driving, so
// that no drop is sent in between: a shard must not create the table again after the drop.
func (ts *tables) callEnsureTable(ctx context.Context, node rowraft.NodeID, shard rowraft.ShardID, t rowraft.Schema,
	epoch rowraft.TableEpoch) (there bool, err error) {
	ts.driving.RLock()
	defer ts.driving.RUnlock()
	if m := ts.view.Map(); !meta.HasTable(m.Tables, t.ID) || ts.comesByRestore(t.ID) {
		return false, nil
	}
	return true, ts.callReplicas(ctx, node, ts.callTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
		_, err := a.EnsureTable(ctx, &rowraftv1.EnsureTableRequest{Shard: uint32(shard), Table: rpc.SchemaToProto(&t),
			TableEpoch: uint64(epoch)})
		return err
	})
}

func (ts *tables) shardsWithout(m *clustermap.Map, t rowraft.Schema) []string {
	var missing []string
	for _, sh := range m.Shards {
		if len(ts.notEnsured(sh.ID, []rowraft.Schema{t})) > 0 {
			missing = append(missing, fmt.Sprint(sh.ID))
		}
	}
	return missing
}
