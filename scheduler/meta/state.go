package meta

import (
	"errors"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// Limits of the state, so that its snapshot stays small.
const (
	MaxNodes      = 1024
	MaxTables     = 1024
	MaxJobs       = 4096
	MaxWorkers    = 4096
	maxNameLength = 128
)

// state is everything that the scheduler's group stores, in parts that know nothing of each other. A command is a
// method of the part that it concerns, or of state if it concerns several. It checks everything before it changes
// anything, so an error means that nothing changed. All members must get the same result: no clock, no random number,
// no map iteration order.
//
// Fields marked immutable are replaced, never changed in place, because readers hold them outside Machine.mu.
type state struct {
	index    rowraft.Index
	topology topology
	catalog  catalog
	registry registry
	policies policyList
	tokens   tokenList
}

// apply runs a command at the part that it concerns and returns its result.
func (s *state) apply(command *rowraftv1.MetaCommand) (any, error) {
	nowNs := command.GetAtNs()
	switch c := command.Command.(type) {
	case *rowraftv1.MetaCommand_Init:
		return nil, s.init(rowraft.ClusterID(c.Init.GetClusterId()))
	case *rowraftv1.MetaCommand_PutNode:
		return nil, s.topology.putNode(rpc.NodeFromProto(c.PutNode.GetNode()))
	case *rowraftv1.MetaCommand_CreateShards:
		slots, err := rpc.SlotsFromProto(c.CreateShards.GetSlots())
		if err != nil {
			return nil, err
		}
		return nil, s.topology.createShards(shardsFromProto(c.CreateShards.GetShards()), slots)
	case *rowraftv1.MetaCommand_CreateTable:
		schema, created, err := s.catalog.create(rpc.SchemaFromProto(c.CreateTable.GetTable()),
			c.CreateTable.GetIfNotExists(), len(s.topology.slots))
		// Only a table that is new changes the map. A repeated request must not raise the version: every client would fetch a
		// map that is the same.
		if created {
			s.topology.cluster.Version++
		}
		return TableResult{schema, created}, err
	case *rowraftv1.MetaCommand_DropTable:
		return nil, s.dropTable(c.DropTable.GetName(), rowraft.TableID(c.DropTable.GetId()))
	case *rowraftv1.MetaCommand_IssueIncarnation:
		if id := c.IssueIncarnation.GetMember(); id != nil {
			// Refuse a worker that was replaced: its next incarnation would fence the current member.
			if _, _, err := s.registry.member(id); err != nil {
				return nil, err
			}
		}
		return s.registry.issueIncarnation(), nil
	case *rowraftv1.MetaCommand_StartMove:
		return s.topology.startMove(c.StartMove, nowNs)
	case *rowraftv1.MetaCommand_AdvanceMove:
		return s.topology.advanceMove(c.AdvanceMove.GetMoveId(), c.AdvanceMove.GetFrom(), c.AdvanceMove.GetTo(),
			nowNs)
	case *rowraftv1.MetaCommand_ForgetReplica:
		return nil, s.topology.forgetReplica(rowraft.ShardID(c.ForgetReplica.GetShard()),
			rowraft.ReplicaID(c.ForgetReplica.GetReplicaId()))
	case *rowraftv1.MetaCommand_BeginRestore:
		return nil, s.catalog.begin(c.BeginRestore)
	case *rowraftv1.MetaCommand_Restore:
		return nil, s.decideRestore(c.Restore)
	case *rowraftv1.MetaCommand_EndRestore:
		return nil, s.catalog.end(c.EndRestore)
	case *rowraftv1.MetaCommand_Attend:
		return nil, s.attend(c.Attend)
	case *rowraftv1.MetaCommand_Detach:
		return nil, s.registry.detach(c.Detach)
	case *rowraftv1.MetaCommand_SetPolicy:
		return nil, s.policies.set(c.SetPolicy, nowNs)
	case *rowraftv1.MetaCommand_DeletePolicy:
		return nil, s.policies.remove(c.DeletePolicy.GetName())
	case *rowraftv1.MetaCommand_BeginPolicyRun:
		return nil, s.policies.begin(c.BeginPolicyRun, nowNs)
	case *rowraftv1.MetaCommand_EndPolicyRun:
		return nil, s.policies.end(c.EndPolicyRun)
	case *rowraftv1.MetaCommand_ForgetCheckpoint:
		return nil, s.policies.forget(c.ForgetCheckpoint)
	case *rowraftv1.MetaCommand_EnterJob:
		return s.registry.enterJob(c.EnterJob, s.catalog.epoch)
	case *rowraftv1.MetaCommand_LeaveJob:
		return nil, s.leaveJob(c.LeaveJob, nowNs)
	case *rowraftv1.MetaCommand_TakeSplit:
		return s.registry.takeSplit(c.TakeSplit)
	case *rowraftv1.MetaCommand_EndSplit:
		return nil, s.registry.endSplit(c.EndSplit)
	case *rowraftv1.MetaCommand_SettleSplits:
		return nil, s.registry.settleSplits(c.SettleSplits)
	case *rowraftv1.MetaCommand_StopJob:
		return nil, s.registry.stopJob(c.StopJob)
	case *rowraftv1.MetaCommand_ReportScore:
		return s.registry.reportScore(c.ReportScore)
	case *rowraftv1.MetaCommand_ForgetJob:
		return nil, s.registry.forgetJob(c.ForgetJob, nowNs)
	case *rowraftv1.MetaCommand_StartGeneration:
		return s.registry.startGeneration(c.StartGeneration)
	case *rowraftv1.MetaCommand_RaiseVersion:
		return nil, s.topology.raiseVersion(c.RaiseVersion)
	case *rowraftv1.MetaCommand_ForgetRun:
		s.registry.forgetRun(c.ForgetRun.GetRun())
		return nil, nil
	case *rowraftv1.MetaCommand_SetIntent:
		return s.topology.setIntent(c.SetIntent, nowNs)
	case *rowraftv1.MetaCommand_EndOperation:
		return nil, s.topology.endOperation(c.EndOperation.GetId(), nowNs)
	case *rowraftv1.MetaCommand_RetireNode:
		return nil, s.topology.retireNode(rowraft.NodeID(c.RetireNode.GetNode()), nowNs)
	case *rowraftv1.MetaCommand_CreateToken:
		return nil, s.tokens.create(c.CreateToken)
	case *rowraftv1.MetaCommand_UseToken:
		return nil, s.tokens.use(c.UseToken)
	case *rowraftv1.MetaCommand_DeleteToken:
		return nil, s.tokens.remove(c.DeleteToken.GetId())
	}
	return nil, &raftstore.FatalError{Err: rowraft.Errorf(rowraft.CodeVersionTooNew,
		"command %T of the scheduler is unknown to this binary", command.Command)}
}

// init forms the cluster.
func (s *state) init(cluster rowraft.ClusterID) error {
	switch {
	case cluster == "":
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "the cluster id is empty")
	case s.topology.cluster.Cluster == cluster:
		return nil
	case s.topology.cluster.Cluster != "":
		return rowraft.Errorf(rowraft.CodeIdentity, "the scheduler belongs to cluster %s, not to %s",
			s.topology.cluster.Cluster, cluster)
	}
	s.topology.cluster.Cluster = cluster
	s.catalog.epoch = 1
	s.topology.cluster.Version++
	return nil
}

// dropTable drops a table and ends its runs.
func (s *state) dropTable(name string, id rowraft.TableID) error {
	dropped, err := s.catalog.drop(name, id)
	if dropped {
		s.registry.forgetRuns(name, id)
		s.topology.cluster.Version++
	}
	return err
}

// decideRestore decides a restore. Trainers of a replaced table must be started again. After a restore of single
// tables, other trainers continue without interruption.
func (s *state) decideRestore(r *rowraftv1.MetaRestore) error {
	epoch, before := s.catalog.epoch, s.catalog.tables
	replaced, err := s.catalog.decide(r, len(s.topology.cluster.Shards), s.registry.trainersOfAll())
	if err != nil || replaced == nil {
		return err
	}
	// The catalog is asked first because only decide can refuse: the registry must not change for a restore that is
	// refused.
	for _, t := range r.GetTables() {
		if epoch == s.catalog.epoch { // a run of another epoch ends by itself
			s.registry.renewRuns(t.GetName(), idOf(before, t.GetName()))
		}
	}
	s.registry.detachRuns(replaced) // after renewRuns, which asks for the tables of the runs
	s.topology.cluster.Version++
	return nil
}

// attend records that checkpoints need the state of a member, and that it may train its tables.
func (s *state) attend(a *rowraftv1.MetaAttend) error {
	r, i, err := s.registry.member(a.GetIdentity())
	if err != nil {
		return err
	}
	m := r.GetMembers()[i]
	trained := &rowraftv1.MetaTrained{Job: r.GetJob(), Rank: m.GetRank(), Incarnation: m.GetIncarnation(),
		Owner: OwnerOf(r)}
	if err := s.catalog.attend(a, trained, m.GetAttending() == m.GetIncarnation()); err != nil {
		return err
	}
	s.registry.attend(r, i, a.GetTables(), s.catalog.has)
	return nil
}

// leaveJob takes a member out of its run. If the run is done then, its regular checkpoints end.
func (s *state) leaveJob(l *rowraftv1.MetaLeaveJob, nowNs uint64) error {
	err := s.registry.leaveJob(l, nowNs)
	job := l.GetIdentity().GetJob()
	if r := s.registry.run(job); r.GetState() == rowraftv1.JobState_JOB_STATE_DONE {
		s.policies.endJob(job)
	}
	return err
}

// newMap returns the cluster map of the state as an immutable copy.
func (s *state) newMap() (*clustermap.Map, error) {
	m := s.topology.cluster
	// clustermap.New keeps what it gets, and clients of the View read it without a lock, while later commands change
	// t.cluster.Nodes in place.
	m.Nodes, m.Shards = slices.Clone(m.Nodes), slices.Clone(m.Shards) // replica lists never change in place
	m.Tables, m.Epoch = slices.Clone(s.catalog.tables), s.catalog.epoch
	return clustermap.New(m, s.topology.slots)
}

// toProto returns the state as a snapshot stores it. It shares only immutable memory with the state.
func (s *state) toProto() (*rowraftv1.MetaState, error) {
	newest, err := s.newMap()
	if err != nil {
		return nil, err
	}
	p := &rowraftv1.MetaState{AppliedIndex: uint64(s.index), Map: rpc.MapToProto(newest),
		Policies: slices.Clone(s.policies), Tokens: s.tokens}
	if s.topology.slots == nil {
		p.Map.Slots = nil
	}
	s.topology.save(p)
	s.catalog.save(p)
	s.registry.save(p)
	return p, nil
}

func stateFromProto(p *rowraftv1.MetaState) (*state, error) {
	m, err := rpc.MapFromProto(p.GetMap())
	if err != nil {
		return nil, err
	}
	s := &state{index: rowraft.Index(p.GetAppliedIndex())}
	return s, errors.Join(s.topology.load(p, m), s.catalog.load(p, m), s.registry.load(p), s.policies.load(p),
		s.tokens.load(p))
}
