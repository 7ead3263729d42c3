package replica

import (
	"cmp"
	"slices"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// roleLearner is the role that a follower without a vote reports.
const roleLearner = "learner"

// Status describes the replicas, also the fenced ones, by shard.
func (h *Host) Status() []*rowraftv1.ReplicaStatus {
	replicas := h.runningReplicas()
	slices.SortFunc(replicas, func(a, b *replica) int { return cmp.Compare(a.shard, b.shard) })
	out := make([]*rowraftv1.ReplicaStatus, len(replicas))
	for i, r := range replicas {
		out[i] = r.status()
	}
	return append(out, h.fences.status()...)
}

func (r *replica) status() *rowraftv1.ReplicaStatus {
	g := r.group.Status()
	st := &rowraftv1.ReplicaStatus{
		Shard: uint32(r.shard), ReplicaId: string(g.Replica), Role: string(g.Role), Term: uint64(g.Term),
		CommitIndex: uint64(g.CommitIndex), AppliedIndex: uint64(g.AppliedIndex), LastIndex: uint64(g.LastIndex),
		SummedPushes: r.packer.Sums().Pushes.Load(),
		LeaderNode:   string(g.Leader), LogBytes: uint64(max(g.LogBytes, 0)), HeartbeatNs: uint64(g.Heartbeat),
	}
	if g.Err != nil {
		st.Error = g.Err.Error()
	}
	for _, m := range g.Members {
		if m.Replica == r.id && !m.Voter && st.Role == string(raftstore.RoleFollower) {
			st.Role = roleLearner
		}
	}
	st.ProvedIndex, st.DividedIndex = uint64(r.machine.Rounds.AgreedAt()), uint64(r.machine.Rounds.NoMajority())
	if e := r.whyFenced(); e != nil {
		st.Fenced, st.Error = e.Error(), e.Error()
	}
	reportMembers(r.group, st)
	use := r.machine.Sessions.Use(r.logTime())
	st.Sessions, st.SessionsInUse, st.OwnerSessionsInUse = uint32(use.All), uint32(use.InUse), uint32(use.OwnerInUse)
	if id, ok := r.machine.StageID(); ok {
		st.StagedRestore = id[:]
	}
	for _, t := range r.machine.Stats() {
		st.Rows += t.Rows
		st.MemoryBytes += t.Bytes
		stats := &rowraftv1.TableStats{
			Table: uint64(t.ID), Rows: t.Rows, MemoryBytes: t.Bytes,
			Admitted: t.Counters.Admitted, Rejected: t.Counters.Rejected, Evicted: t.Counters.Evicted,
			Expired: t.Counters.Expired, Candidates: t.Counters.Candidates,
			ColdRows: uint64(t.Tier.Records), ColdFileBytes: uint64(t.Tier.FileBytes), ColdRowsRead: uint64(t.Tier.Read),
			ColdRowsWritten: uint64(t.Tier.Written),
		}
		if t.TierError != nil {
			stats.ColdError = t.TierError.Error()
			st.Error = cmp.Or(st.Error, stats.ColdError)
		}
		st.Tables = append(st.Tables, stats)
	}
	return st
}

// reportMembers adds the members to a leader's report.
func reportMembers(g *raftstore.Group, st *rowraftv1.ReplicaStatus) {
	if _, _, leads := g.Leader(); !leads {
		return
	}
	m, err := g.Members()
	if err != nil {
		return // the leader has just started: the next report contains them
	}
	st.ConfigIndex, st.Members = uint64(m.Index), membersToProto(&m)
}

// runningReplicas returns the replicas that run here.
func (h *Host) runningReplicas() []*replica {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make([]*replica, 0, len(h.replicas))
	for _, r := range h.replicas {
		out = append(out, r)
	}
	return out
}
