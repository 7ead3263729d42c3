package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// shard checks one shard by the last heartbeats of its nodes.
func (d *diagnosis) shard(sh *rowraftv1.Shard) {
	leader, up, unheard := d.leader(sh)
	subject := fmt.Sprintf("shard %d", sh.GetId())
	add := func(s rowraftv1.Severity, kind, next, text string, args ...any) {
		d.add(s, kind, subject, next, fmt.Sprintf("Shard %d: ", sh.GetId())+text, args...)
	}
	describe := fmt.Sprintf("rowraft shard describe %d", sh.GetId())
	if leader == nil {
		switch most := len(sh.GetReplicas())/2 + 1; {
		case len(up) < most:
			d.cut = append(d.cut, sh.GetId())
			d.addAway(sh, up)
		case !unheard: // otherwise one of those that have not reported yet may lead it
			add(critical, "no-leader", "an election takes a second or two; if it does not end: "+describe,
				"no leader has reported; its rows cannot be pulled or pushed until there is one.")
		}
	}
	complete, explained := 0, 0 // explained: away for a reason that has a finding of its own, a planned stop
	for _, r := range sh.GetReplicas() {
		n := d.nodes[r.GetNode()]
		if n == nil {
			add(warning, "replica-unreachable", describe, "the replica on %s is unreachable.", r.GetNode())
			continue
		}
		if n.GetState() != Up { // reported once per server, not for each of its replicas
			if n.GetStopping() {
				explained++
			}
			continue
		}
		if n.GetUnheard() {
			explained++
			continue
		}
		name, st := NodeLabel(n.GetNode()), replicaOf(n, rowraft.ReplicaID(r.GetId()))
		switch {
		case st == nil:
			add(warning, "replica-silent", "it starts, or the server's log says why not",
				"the replica on %s has not reported yet.", name)
		case strings.Contains(st.Fenced, raftstore.RolledBack):
			add(warning, "replica-rolled-back",
				"it is rebuilt like one whose disk was lost; if its whole data directory came from a copy, start "+name+
					" with an empty one (runbook rolled-back-disk)",
				"the replica on %s returned with an older disk, it serves nothing and has no vote: %s.", name,
				strings.TrimSuffix(st.Fenced, "."))
		case st.Fenced != "":
			add(critical, "replica-fenced",
				"keep its disk; it is rebuilt elsewhere where a server has room (runbook fenced-replica)",
				"replica hash mismatch (critical): the replica on %s is fenced, it serves nothing and has no vote: %s.", name,
				strings.TrimSuffix(st.Fenced, "."))
		case st.DividedIndex != 0:
			add(critical, "shard-divided", "restore a checkpoint, or choose a replica (runbook fenced-replica)",
				"replica hash mismatch (critical): no majority of its replicas has the same rows at index %d, so no replica "+
					"serves it (seen by %s).", st.DividedIndex, name)
		case st.Error != "" || st.Role == Stopped:
			add(warning, "replica-stopped", "read the error, remove its cause, then restart server "+name,
				"the replica on %s has stopped: %s.", name, strings.TrimSuffix(st.Error, "."))
		case leader != nil && lacksRows(st, leader):
			add(warning, "replica-incomplete", "it catches up by itself; if it does not: runbook lagging-replica",
				"the replica on %s does not have the rows of the others yet: it has %d, the leader %d.", name, st.Rows, leader.Rows)
		case leader != nil && leader.CommitIndex > st.AppliedIndex+maxLag:
			complete++
			add(warning, "replica-lags", "it catches up by itself; if the distance grows: runbook lagging-replica",
				"the replica on %s trails the leader by %d entries.", name, leader.CommitIndex-st.AppliedIndex)
		default:
			complete++
		}
	}
	if leader == nil {
		return
	}
	d.sessions(leader, add)
	if want := max(len(sh.GetReplicas()), d.wanted()); complete+explained < want {
		if len(d.thin) == 0 || complete < d.least {
			d.least = complete
		}
		d.thin = append(d.thin, sh.GetId())
	}
}

// lacksRows reports whether a replica has not yet received the rows that a majority has: its disk was emptied.
// A replica that starts with its disk has them at once.
func lacksRows(st, leader *rowraftv1.ReplicaStatus) bool {
	behind := st.GetAppliedIndex() < leader.GetCommitIndex()
	return behind && st.GetProvedIndex() == 0 &&
		(st.GetAppliedIndex() < leader.GetProvedIndex() || st.GetRows() < leader.GetRows()/2)
}

// wanted returns how many replicas a shard should have with the servers that the cluster has.
func (d *diagnosis) wanted() int {
	servers := 0
	for _, n := range d.st.GetNodes() {
		if !n.GetNode().GetNoShards() && n.GetNode().GetIntent() == rowraftv1.NodeIntent_NODE_INTENT_UNSPECIFIED {
			servers++
		}
	}
	return min(placement.ReplicasPerShard, servers)
}

// sessions reports a shard whose clients use nearly all sessions.
func (d *diagnosis) sessions(leader *rowraftv1.ReplicaStatus,
	add func(s rowraftv1.Severity, kind, next, text string, args ...any)) {
	const next = "find what starts so many clients (rowraft_shard_sessions_in_use), and end those that are done: a " +
		"client that is closed gives its sessions back (runbook sessions-running-out)"
	report := func(used, limit uint32, whose string) {
		switch {
		case used >= limit:
			add(critical, "sessions-full", next, "%s has %d sessions in use, the limit: a new client cannot push.", whose, used)
		case used >= limit/4*3:
			add(warning, "sessions-running-out", next,
				"%s has %d of %d sessions in use; when all are, a new client cannot push.", whose, used, limit)
		}
	}
	report(leader.GetSessionsInUse(), rowraft.MaxSessions, "the shard")
	report(leader.GetOwnerSessionsInUse(), rowraft.MaxOwnerSessions, "one owner of clients")
}

// findLeaders counts the shards that each server leads.
func (d *diagnosis) findLeaders() {
	d.leads = make(map[string]int)
	for _, sh := range d.st.GetMap().GetShards() {
		leader, _, _ := d.leader(sh)
		for _, r := range sh.GetReplicas() {
			if leader != nil && r.GetId() == leader.GetReplicaId() {
				d.leads[r.GetNode()]++
			}
		}
	}
}

// leader returns the last report of the leader of a shard, nil if there is none, and the servers of its replicas that
// are up; unheard: one of these has not reported to the scheduler's leader yet.
func (d *diagnosis) leader(sh *rowraftv1.Shard) (leader *rowraftv1.ReplicaStatus, up []string, unheard bool) {
	for _, r := range sh.GetReplicas() {
		n := d.nodes[r.GetNode()]
		if n.GetState() != Up {
			continue
		}
		up = append(up, r.GetNode())
		unheard = unheard || n.GetUnheard()
		if st := replicaOf(n, rowraft.ReplicaID(r.GetId())); st.GetRole() == Leader &&
			(leader == nil || st.GetTerm() > leader.GetTerm()) {
			leader = st
		}
	}
	return leader, up, unheard
}

// addAway adds the servers of a shard that do not answer to d.away.
func (d *diagnosis) addAway(sh *rowraftv1.Shard, up []string) {
	for _, r := range sh.GetReplicas() {
		if label := d.label(r.GetNode()); !slices.Contains(up, r.GetNode()) && !slices.Contains(d.away, label) {
			d.away = append(d.away, label)
		}
	}
	slices.Sort(d.away)
}

// majorities reports the shards without a majority in one finding: the remedy is the same for all, and it comes before
// all others.
func (d *diagnosis) majorities() {
	if len(d.cut) == 0 {
		return
	}
	subject := ""
	if len(d.cut) == 1 {
		subject = fmt.Sprintf("shard %d", d.cut[0])
	}
	d.add(critical, "no-majority", subject,
		"start them again: a server that returns with its data ends this, and nothing is lost; only if too many disks are "+
			"gone for good: runbook lose-a-majority",
		"%s: no majority of the replicas answers, so the rows can be neither pulled nor pushed. Away: %s.", shardList(d.cut),
		strings.Join(d.away, ", "))
}

// redundancy reports, in one finding for all shards, that shards have less redundancy than they should.
func (d *diagnosis) redundancy() {
	shards := d.st.GetMap().GetShards()
	if want := d.wanted(); len(shards) > 0 && want < placement.ReplicasPerShard &&
		len(shards[0].GetReplicas()) < placement.ReplicasPerShard {
		d.add(warning, "few-replicas", "", fmt.Sprintf("start more servers: with %d each shard gets %d replicas",
			placement.ReplicasPerShard, placement.ReplicasPerShard),
			"Data is not safe: %d replica(s) per shard, because the cluster has fewer than %d servers.",
			len(shards[0].GetReplicas()), placement.ReplicasPerShard)
	}
	if len(d.thin) > 0 {
		d.add(warning, "under-replicated", "",
			"bring back what is down or fenced; replicas that are rebuilt elsewhere: rowraft operation list",
			"%s: not every replica is complete (%d of %d), and a further loss may stop pulls and pushes.", shardList(d.thin),
			d.least, max(d.wanted(), len(shards[0].GetReplicas())))
	}
}

// shardList formats shards: "Shard 3", "2 shards (0, 1)".
func shardList(shards []uint32) string {
	if len(shards) == 1 {
		return fmt.Sprintf("Shard %d", shards[0])
	}
	words := make([]string, min(len(shards), shownShards))
	for i := range words {
		words[i] = fmt.Sprint(shards[i])
	}
	if len(shards) > len(words) {
		words = append(words, "…")
	}
	return fmt.Sprintf("%d shards (%s)", len(shards), strings.Join(words, ", "))
}
