package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// Run starts the control loops and returns when ctx ends. It also runs the loop of reconcile itself. All loops act only
// while this member leads the metadata group, and they try again in the next round after an error.
func (s *Scheduler) Run(ctx context.Context) {
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	s.pulse.begin()
	wg.Go(func() { s.beatPulse(ctx) })
	wg.Go(func() { s.drive(ctx) })
	wg.Go(func() { s.place(ctx) })
	wg.Go(func() { s.checkpoints.RunPolicies(ctx) })
	wg.Go(func() { s.jobs.Run(ctx) })
	var lastErr string
	for {
		err := s.reconcile(ctx)
		// Log the same error once.
		if msg := errorText(err); msg != lastErr && ctx.Err() == nil {
			if lastErr = msg; err != nil {
				s.logger.Warn("cannot bring the cluster to its wanted state; trying again", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.kick:
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// reconcile is one round of the main loop. It names the cluster, creates the shards once enough servers have
// registered, raises the format version, finishes restores, removes dead trainers, and creates and drops tables in the
// shards.
func (s *Scheduler) reconcile(ctx context.Context) error {
	if _, _, err := s.leading(); err != nil {
		return nil // another member's work
	}
	m := s.view.Map()
	if m == nil || m.Cluster == "" {
		cluster := s.opts.Identity.Identity().Cluster
		c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Init{Init: &rowraftv1.MetaInit{ClusterId: string(cluster)}}}
		if _, err := s.propose(ctx, c); err != nil {
			return fmt.Errorf("name the cluster: %w", err)
		}
		m = s.view.Map()
	}
	if m == nil {
		return nil
	}
	if len(m.Shards) == 0 {
		if len(m.Servers()) < s.opts.Servers {
			return nil
		}
		if wait, err := s.awaitVersions(ctx, m); err != nil || wait {
			return err
		}
		return s.makeShards(ctx, s.view.Map())
	}
	ctx, cancel := context.WithTimeout(ctx, repairTimeout)
	defer cancel()
	if _, err := s.raiseVersion(ctx, m); err != nil {
		return err
	}
	if err := s.checkpoints.Reconcile(ctx, m); err != nil {
		return err
	}
	return errors.Join(s.ensureTables(ctx, m.Tables), s.ensureDrops(ctx))
}

func (s *Scheduler) makeShards(ctx context.Context, m *clustermap.Map) error {
	servers := m.Servers()
	shards := placement.NewShards(servers, s.opts.Shards, uuid.NewString)
	if n := len(shards[0].Replicas); n < placement.ReplicasPerShard {
		s.logger.Warn(fmt.Sprintf("DATA IS NOT SAFE: %d replica(s) per shard, because the cluster starts with %d server(s). "+
			"With fewer than 3 a machine that dies stops training, and a disk that dies loses rows.", n, len(servers)), "replicas", n, "servers", len(servers))
	}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateShards{CreateShards: &rowraftv1.MetaCreateShards{
		Shards: meta.ShardsToProto(shards), Slots: rpc.SlotsToProto(clustermap.EvenSlots(len(shards), s.opts.Slots)),
	}}}
	if _, err := s.propose(ctx, c); err != nil {
		return fmt.Errorf("make the shards: %w", err)
	}
	s.logger.Info("Cluster is successfully initialized.", "cluster", m.Cluster, "servers", len(servers), "shards", len(shards), "replicas", len(shards[0].Replicas))
	return nil
}

// maxEnsureCalls bounds the shards that are called concurrently.
const maxEnsureCalls = 16

// ensureTables returns after every shard has created every table in tables. It skips the shards that have confirmed a
// table in this term.
func (s *Scheduler) ensureTables(ctx context.Context, tables []rowraft.Schema) error {
	m := s.view.Map()
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
		todo := s.notEnsured(sh.ID, tables)
		if len(todo) == 0 {
			continue
		}
		g.Go(func() error {
			for _, t := range todo {
				if err := s.ensureTable(ctx, sh, t, m.Epoch); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func (s *Scheduler) notEnsured(shard rowraft.ShardID, tables []rowraft.Schema) []rowraft.Schema {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	var out []rowraft.Schema
	for _, t := range tables {
		if _, done := s.soft.ensured[ensuredKey{t.ID, shard, false}]; !done {
			out = append(out, t)
		}
	}
	return out
}

// ensureTable asks the leader of one shard to create one table, until the shard has it, the shard refuses it, or ctx
// ends.
func (s *Scheduler) ensureTable(ctx context.Context, sh clustermap.Shard, t rowraft.Schema, epoch rowraft.TableEpoch) error {
	_, term, err := s.leading()
	if err != nil {
		return err
	}
	for w := s.walk(sh); ; {
		node := rowraft.NodeID(w.Addr())
		there, err := s.callEnsureTable(ctx, node, sh.ID, t, epoch)
		if !there {
			return nil // dropped, or replaced by a restore
		}
		if err == nil {
			s.markEnsured(term, ensuredKey{t.ID, sh.ID, false})
			return nil
		}
		err = fmt.Errorf("shard %d: table %s: node %s: %w", sh.ID, t.Name, node, err)
		if !w.Again(ctx, err) {
			return err
		}
		// Another member may lead the metadata group now, and then does this work.
		if _, now, lerr := s.leading(); lerr != nil || now != term {
			return rowraft.Errorf(rowraft.CodeLeadershipLost, "the metadata leader changed while table %s was driven into shard %d", t.Name, sh.ID)
		}
	}
}

func (s *Scheduler) markEnsured(term rowraft.Term, key ensuredKey) {
	s.soft.mu.Lock()
	defer s.soft.mu.Unlock()
	if s.soft.term == term {
		s.soft.ensured[key] = struct{}{}
	}
}

// comesByRestore reports whether a decided restore of single tables brings the table. No shard may create an empty one.
func (s *Scheduler) comesByRestore(id rowraft.TableID) bool {
	return slices.ContainsFunc(s.machine.PendingRestore().GetTables(), func(t *rowraftv1.TableSchema) bool { return rowraft.TableID(t.GetId()) == id })
}

const ensureCallTimeout = 2 * time.Second

// callEnsureTable asks node to create a table and reports whether the map still has the table. It holds driving, so
// that no drop is sent in between: a shard must not create the table again after the drop.
func (s *Scheduler) callEnsureTable(ctx context.Context, node rowraft.NodeID, shard rowraft.ShardID, t rowraft.Schema, epoch rowraft.TableEpoch) (there bool, err error) {
	s.driving.RLock()
	defer s.driving.RUnlock()
	if m := s.view.Map(); !meta.HasTable(m.Tables, t.ID) || s.comesByRestore(t.ID) {
		return false, nil
	}
	return true, s.callReplicas(ctx, node, s.ensureCallTimeout, func(ctx context.Context, a rowraftv1.ReplicasClient) error {
		_, err := a.EnsureTable(ctx, &rowraftv1.EnsureTableRequest{Shard: uint32(shard), Table: rpc.SchemaToProto(&t), TableEpoch: uint64(epoch)})
		return err
	})
}
