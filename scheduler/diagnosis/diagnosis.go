// Package diagnosis finds the problems of a cluster in its status. It is pure. The leader of the scheduler uses it, and
// the command line when no scheduler answers.
package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/placement"
)

// Roles of a replica and states of a server in a status.
const (
	Leader  = "leader"
	Stopped = "stopped"

	Up      = "up"
	Suspect = "suspect"
	Down    = "down"
)

// maxLag is the number of entries by which a replica may be behind its leader without a finding.
const maxLag = 1000

// Severities of a problem.
const (
	aNote    = rowraftv1.Severity_SEVERITY_NOTE
	warning  = rowraftv1.Severity_SEVERITY_WARNING
	critical = rowraftv1.Severity_SEVERITY_CRITICAL
)

// certificateSoon is the remaining life of a server's certificate below which it is a problem.
const certificateSoon = 14 * 24 * time.Hour

// NearlyFull: a disk with less than NearlyFull times its reserve free is nearly full.
const NearlyFull = 2

// shownShards bounds the shards that one sentence names.
const shownShards = 8

// Of returns the problems of a cluster that its status shows, the worst first. The leader of the scheduler adds
// those of tables, jobs and policies, which are not in the status.
func Of(st *rowraftv1.StatusReply, now time.Time) []*rowraftv1.Problem {
	d := &diagnosis{st: st, nodes: make(map[string]*rowraftv1.NodeStatus, len(st.GetNodes()))}
	for _, n := range st.GetNodes() {
		d.nodes[n.GetNode().GetId()] = n
	}
	d.servers(now)
	d.schedulers()
	d.versions()
	for _, sh := range st.GetMap().GetShards() {
		d.shard(sh)
	}
	d.majorities()
	d.redundancy()
	d.work()
	Sort(d.out)
	return d.out
}

// Sort sorts problems by severity, the worst first, and keeps the order of equal ones.
func Sort(problems []*rowraftv1.Problem) {
	slices.SortStableFunc(problems, func(a, b *rowraftv1.Problem) int {
		return cmp.Compare(b.GetSeverity(), a.GetSeverity())
	})
}

// diagnosis collects the problems of one status.
type diagnosis struct {
	st    *rowraftv1.StatusReply
	nodes map[string]*rowraftv1.NodeStatus
	thin  []uint32 // shards with a replica that does not work
	cut   []uint32 // shards whose majority does not answer
	away  []string // servers with replicas of the shards in cut that do not answer
	out   []*rowraftv1.Problem
}

func (d *diagnosis) add(s rowraftv1.Severity, kind, subject, next, text string, args ...any) {
	d.out = append(d.out, Problem(s, kind, subject, next, text, args...))
}

// Problem returns a problem. next is what to do about it.
func Problem(s rowraftv1.Severity, kind, subject, next, text string, args ...any) *rowraftv1.Problem {
	return &rowraftv1.Problem{Severity: s, Kind: kind, Subject: subject, Next: next, Text: fmt.Sprintf(text, args...)}
}

// servers checks each server: heartbeats, disk, certificate, intent.
func (d *diagnosis) servers(now time.Time) {
	for _, n := range d.st.GetNodes() {
		name, subject := NodeLabel(n.GetNode()), "server "+NodeLabel(n.GetNode())
		switch n.GetState() {
		case Up:
		case Suspect:
			d.add(warning, "server-suspect", subject, "look at its process, its machine and its network",
				"Server %s at %s is suspect, with %s: %s.", name, n.GetNode().GetAddr(), d.held(n), quietFor(n))
		default:
			d.add(warning, "server-down", subject, d.afterDown(n),
				"Server %s at %s is down, with %s: %s.", name, n.GetNode().GetAddr(), d.held(n), quietFor(n))
			continue
		}
		d.disk(n)
		d.slow(n)
		d.certificate(n, now)
		if i := n.GetNode().GetIntent(); i != rowraftv1.NodeIntent_NODE_INTENT_UNSPECIFIED {
			how, back := "is drained: it leads nothing and gets no replica", "rowraft node undrain "+name
			if i == rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION {
				how, back = "is decommissioned: what it holds moves away", "rowraft node recommission "+name
			}
			d.add(aNote, "server-leaving", subject, "to take it back: "+back, "Server %s %s.", name, how)
		}
	}
}

// afterDown describes what to do about a server that is down.
func (d *diagnosis) afterDown(n *rowraftv1.NodeStatus) string {
	if n.GetNode().GetNoShards() {
		return "start it again"
	}
	after := time.Duration(d.st.GetReplaceAfterNs())
	if after == 0 {
		return "start it again, or replace it (runbook replace-a-node)"
	}
	return fmt.Sprintf("start it again; after %v of silence its replicas are rebuilt on other servers that have room",
		after)
}

func (d *diagnosis) disk(n *rowraftv1.NodeStatus) {
	free, reserve := n.GetDisk().GetFreeBytes(), n.GetDisk().GetReserveBytes()
	if n.GetDisk() == nil || reserve == 0 {
		return
	}
	subject, name := "server "+NodeLabel(n.GetNode()), NodeLabel(n.GetNode())
	const next = "make room on its disk, or add servers (runbook full-disk)"
	switch {
	case free < reserve:
		d.add(critical, "disk-full", subject, next,
			"The disk of server %s has %s free, less than its reserve of %s: the shards that it leads refuse pushes.", name,
			mebibytes(free), mebibytes(reserve))
	case free < NearlyFull*reserve:
		d.add(warning, "disk-nearly-full", subject, next,
			"The disk of server %s has %s free; below %s the shards that it leads refuse pushes.", name, mebibytes(free),
			mebibytes(reserve))
	}
}

// slow reports why the Raft timers of a server are longer than those of its profile.
func (d *diagnosis) slow(n *rowraftv1.NodeStatus) {
	s, name := n.GetSlowness(), NodeLabel(n.GetNode())
	profile := cmp.Or(n.GetProfile(), "default")
	asks := ""
	if s.GetHeartbeatNs() > 0 {
		asks = fmt.Sprintf(" Its shards have Raft timers of %v, so an election takes longer.",
			time.Duration(s.GetHeartbeatNs()))
	}
	if s.GetFsyncNs() > s.GetFsyncLimitNs() {
		d.add(warning, "disk-slow", "server "+name,
			"give its logs a faster disk, or take what else writes to it away (runbook slow-disk)",
			"The disk of server %s is slow: fsync takes %s, profile %s needs ≤ %s.%s", name, millis(s.GetFsyncNs()), profile,
			millis(s.GetFsyncLimitNs()), asks)
	}
	if s.GetLatenessNs() > s.GetLatenessLimitNs() {
		d.add(warning, "cpu-starved", "server "+name,
			"give it CPU of its own, or take what else runs there away (runbook slow-disk)",
			"Server %s gets too little CPU: its timers fire %s late, profile %s needs ≤ %s.%s", name, millis(s.GetLatenessNs()),
			profile, millis(s.GetLatenessLimitNs()), asks)
	}
}

func millis(ns uint64) string {
	return fmt.Sprintf("%d ms", time.Duration(ns).Round(time.Millisecond).Milliseconds())
}

func mebibytes(n uint64) string { return fmt.Sprintf("%d MiB", n>>20) }

func (d *diagnosis) certificate(n *rowraftv1.NodeStatus, now time.Time) {
	if n.GetCertificateEnds() == 0 {
		return
	}
	subject, name := "server "+NodeLabel(n.GetNode()), NodeLabel(n.GetNode())
	const next = "put new files in the place of the old ones, no restart is needed (runbook certificates-expire)"
	ends := time.Unix(int64(n.GetCertificateEnds()), 0)
	switch left := ends.Sub(now); {
	case left <= 0:
		d.add(critical, "certificate-expired", subject, next, "The certificate of server %s expired at %s.", name,
			ends.UTC().Format(time.RFC3339))
	case left < certificateSoon:
		d.add(warning, "certificate-expires", subject, next, "The certificate of server %s expires in %d days, at %s.", name,
			int(left/(24*time.Hour)), ends.UTC().Format(time.RFC3339))
	}
}

// schedulers reports members of the metadata group that are down or rolled back.
func (d *diagnosis) schedulers() {
	all, up, standby := 0, 0, ""
	var down, lost []string
	for _, n := range d.st.GetNodes() {
		if why, name := n.GetMetadataRolledBack(), NodeLabel(n.GetNode()); why != "" && n.GetState() == Up {
			d.add(critical, "scheduler-member-rolled-back", "server "+name,
				"a standby takes its seat, if there is one; else start "+name+" with an empty data directory (runbook "+
					"rolled-back-disk)",
				"The scheduler's member on %s returned with an older disk and has no vote: %s.", name, strings.TrimSuffix(why, "."))
		}
	}
	for _, n := range d.st.GetNodes() {
		switch name := NodeLabel(n.GetNode()); {
		case n.GetMetadataStandby():
			if n.GetState() == Up {
				standby = name
			}
			continue
		case !n.GetNode().GetScheduler():
			continue
		case n.GetMetadataRolledBack() != "":
		case n.GetState() == Up:
			up++
		case n.GetNode().GetIntent() == rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION:
			lost = append(lost, name)
		default:
			down = append(down, name)
		}
		all++
	}
	const runbook = " (runbook lost-scheduler-member)"
	var next []string
	if len(down) > 0 {
		next = append(next, "start "+strings.Join(down, ", ")+" again, or, if the disk is lost, replace it"+runbook)
	}
	switch {
	case len(lost) > 0 && standby != "":
		next = append(next, standby+" takes the seat of "+strings.Join(lost, ", ")+" by itself")
	case len(lost) > 0:
		next = append(next, "start a server with --with-scheduler: it takes the seat of "+strings.Join(lost, ", ")+runbook)
	}
	if len(next) > 0 {
		d.add(warning, "scheduler-member-down", "scheduler",
			strings.Join(next, "; ")+"; pulls and pushes go on without the scheduler",
			"%d of %d members of the scheduler answer; %d are needed to move replicas and make tables.", up, all, all/2+1)
	}
}

// versions reports servers of different versions.
func (d *diagnosis) versions() {
	by := make(map[string][]string)
	var order []string
	for _, n := range d.st.GetNodes() {
		v := n.GetVersion()
		if v == "" || n.GetState() == Down {
			continue
		}
		if by[v] == nil {
			order = append(order, v)
		}
		by[v] = append(by[v], NodeLabel(n.GetNode()))
	}
	if len(order) < 2 {
		return
	}
	slices.Sort(order)
	for i, v := range order {
		order[i] = v + " (" + strings.Join(by[v], ", ") + ")"
	}
	d.add(warning, "version-mix", "", "finish the upgrade (runbook upgrade)", "Servers run %d versions: %s.", len(order),
		strings.Join(order, "; "))
}

// shard checks one shard by the last heartbeats of its nodes.
func (d *diagnosis) shard(sh *rowraftv1.Shard) {
	leader, up := d.leader(sh)
	subject := fmt.Sprintf("shard %d", sh.GetId())
	add := func(s rowraftv1.Severity, kind, next, text string, args ...any) {
		d.add(s, kind, subject, next, fmt.Sprintf("Shard %d: ", sh.GetId())+text, args...)
	}
	describe := fmt.Sprintf("rowraft shard describe %d", sh.GetId())
	if leader == nil {
		if most := len(sh.GetReplicas())/2 + 1; len(up) < most {
			d.cut = append(d.cut, sh.GetId())
			d.addAway(sh, up)
		} else {
			add(critical, "no-leader", "an election takes a second or two; if it does not end: "+describe,
				"no leader has reported; its rows cannot be pulled or pushed until there is one.")
		}
	}
	works := 0
	for _, r := range sh.GetReplicas() {
		n := d.nodes[r.GetNode()]
		if n == nil {
			add(warning, "replica-unreachable", describe, "the replica on %s is unreachable.", r.GetNode())
			continue
		}
		if n.GetState() != Up {
			continue // reported once per server, not for each of its replicas
		}
		name, st := NodeLabel(n.GetNode()), replicaOf(n, rowraft.ReplicaID(r.GetId()))
		switch {
		case st == nil:
			add(warning, "replica-silent", "it starts, or the server's log says why not",
				"the replica on %s has not reported yet.", name)
		case strings.Contains(st.Fenced, raftstore.RolledBack):
			add(critical, "replica-rolled-back",
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
			add(warning, "replica-stopped", "see to what it says, then restart server "+name,
				"the replica on %s has stopped: %s.", name, strings.TrimSuffix(st.Error, "."))
		case leader != nil && leader.CommitIndex > st.AppliedIndex+maxLag:
			works++
			add(warning, "replica-lags", "it catches up by itself; if the distance grows: runbook lagging-replica",
				"the replica on %s trails the leader by %d entries.", name, leader.CommitIndex-st.AppliedIndex)
		default:
			works++
		}
	}
	if leader != nil {
		d.sessions(leader, add)
	}
	if works < len(sh.GetReplicas()) && leader != nil {
		d.thin = append(d.thin, sh.GetId())
	}
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

// leader returns the last report of the leader of a shard, nil if there is none, and the nodes of its replicas that are
// up.
func (d *diagnosis) leader(sh *rowraftv1.Shard) (leader *rowraftv1.ReplicaStatus, up []string) {
	for _, r := range sh.GetReplicas() {
		n := d.nodes[r.GetNode()]
		if n.GetState() != Up {
			continue
		}
		up = append(up, r.GetNode())
		if st := replicaOf(n, rowraft.ReplicaID(r.GetId())); st.GetRole() == Leader &&
			(leader == nil || st.GetTerm() > leader.GetTerm()) {
			leader = st
		}
	}
	return leader, up
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
	if len(shards) > 0 {
		if r := len(shards[0].GetReplicas()); r < placement.ReplicasPerShard {
			d.add(warning, "few-replicas", "", fmt.Sprintf("make a cluster of %d servers for data that must not be lost",
				placement.ReplicasPerShard),
				"Data is not safe: %d replica(s) per shard, because the cluster was made with fewer than %d servers.", r,
				placement.ReplicasPerShard)
		}
	}
	if len(d.thin) > 0 {
		d.add(warning, "under-replicated", "",
			"bring back what is down or fenced; replicas that are rebuilt elsewhere: rowraft operation list",
			"%s: not every replica works, and a further loss may stop pulls and pushes.", shardList(d.thin))
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

// work reports running operations and moves.
func (d *diagnosis) work() {
	for _, o := range d.st.GetOperations() {
		if o.GetState() != rowraftv1.OperationState_OPERATION_STATE_RUNNING {
			continue
		}
		d.add(aNote, "operation-runs", fmt.Sprintf("operation %d", o.GetId()),
			fmt.Sprintf("rowraft operation watch %d", o.GetId()),
			"Operation %d, %s of %s, has %d of %d left%s.", o.GetId(), OperationName(o.GetKind()),
			cmp.Or(o.GetName(), o.GetNode()), o.GetLeft(), o.GetTotal(), waits(o.GetWaitingFor()))
	}
	for _, m := range d.st.GetMoves() {
		mv := m.GetMove()
		way := "from " + d.label(mv.GetFrom().GetNode()) + " to " + d.label(mv.GetTo().GetNode())
		switch {
		case mv.GetFrom() == nil:
			way = "new on " + d.label(mv.GetTo().GetNode())
		case mv.GetTo() == nil:
			way = "off " + d.label(mv.GetFrom().GetNode())
		}
		d.add(aNote, "move-runs", fmt.Sprintf("shard %d", mv.GetShard()),
			fmt.Sprintf("rowraft operation watch %d", mv.GetId()),
			"Shard %d: a replica moves, %s, in phase %s%s.", mv.GetShard(), way, meta.PhaseName(mv.GetPhase()),
			waits(m.GetWaitingFor()))
	}
}

// Job returns the problems of a training job.
func Job(j *rowraftv1.JobInfo) []*rowraftv1.Problem {
	d := &diagnosis{}
	if j.GetState() != rowraftv1.JobState_JOB_STATE_RUNNING {
		if j.GetState() == rowraftv1.JobState_JOB_STATE_FAILED {
			d.add(aNote, "job-failed", "job "+j.GetJob(),
				"start its trainers again; it goes on from its last checkpoint if it has one", "Job %s has failed: %s.", j.GetJob(),
				strings.TrimSuffix(j.GetReason(), "."))
		}
		return d.out
	}
	var silent, lost []string
	training, idle := 0, 0
	for _, m := range j.GetMembers() {
		switch m.GetMember().GetState() {
		case rowraftv1.MemberState_MEMBER_STATE_TRAINING:
			training++
			if j.GetLeaseNs() > 0 && m.GetSinceHeardNs() > j.GetLeaseNs()/2 {
				silent = append(silent, fmt.Sprintf("%s (%s)", m.GetMember().GetWorker(), rounded(m.GetSinceHeardNs())))
			}
			if m.GetBeat() != nil && m.GetBeat().GetStepsPerSecond() == 0 {
				idle++
			}
		case rowraftv1.MemberState_MEMBER_STATE_LOST, rowraftv1.MemberState_MEMBER_STATE_FAILED:
			lost = append(lost, m.GetMember().GetWorker())
		}
	}
	describe := "rowraft job describe " + j.GetJob()
	switch add := func(kind, next, text string, args ...any) {
		d.add(warning, kind, "job "+j.GetJob(), next, "Job "+j.GetJob()+": "+text, args...)
	}; {
	case len(silent) > 0:
		add("job-worker-silent", describe, "nothing is heard of %s.", strings.Join(silent, ", "))
	case len(lost) > 0:
		add("job-short-of-workers", "start them again under the same names; "+describe, "%d of %d workers train; gone: %s.",
			training, j.GetWorkers(), strings.Join(lost, ", "))
	case training > 0 && idle == training:
		add("job-stalled", describe+"; a shard without a leader, or a step that waits for a worker, holds it",
			"none of its %d workers makes steps.", training)
	}
	return d.out
}

// Policy returns the problems of a checkpoint policy.
func Policy(p *meta.Policy) []*rowraftv1.Problem {
	d := &diagnosis{}
	name, r := p.GetPolicy().GetName(), p.GetRecord()
	if n := r.GetFailures(); n > 0 {
		last := "none was ever made"
		if made := r.GetMade(); len(made) > 0 {
			last = "the last one is " + made[len(made)-1].GetName()
		}
		d.add(warning, "policy-fails", "policy "+name, "see to what it says; rowraft checkpoint policy describe "+name,
			"Checkpoint policy %s has failed %d time(s) in a row, %s: %s.", name, n, last, r.GetError())
	}
	if r.GetRetentionError() != "" {
		d.add(warning, "policy-retention-fails", "policy "+name,
			"see to what it says, with rowraft checkpoint list "+p.GetPolicy().GetDestination(),
			"The retention of checkpoint policy %s reports: %s.", name, r.GetRetentionError())
	}
	return d.out
}

func waits(reason string) string {
	if reason == "" {
		return ""
	}
	return ", waits for: " + reason
}

func (d *diagnosis) label(id string) string {
	if n := d.nodes[id]; n != nil {
		return NodeLabel(n.GetNode())
	}
	return id
}

// held describes the number of replicas of a node.
func (d *diagnosis) held(n *rowraftv1.NodeStatus) string {
	count := 0
	for _, sh := range d.st.GetMap().GetShards() {
		for _, r := range sh.GetReplicas() {
			if r.GetNode() == n.GetNode().GetId() {
				count++
			}
		}
	}
	if count == 1 {
		return "the replica it holds"
	}
	return fmt.Sprintf("the %d replicas it holds", count)
}

// quietFor describes the silence of a server. Its length is unknown if the status was made without the scheduler.
func quietFor(n *rowraftv1.NodeStatus) string {
	if n.GetSinceHeartbeatNs() == 0 {
		return "it does not answer"
	}
	return fmt.Sprintf("its last heartbeat came %v ago", rounded(n.GetSinceHeartbeatNs()))
}

func rounded(ns uint64) time.Duration { return time.Duration(ns).Round(100 * time.Millisecond) }

func replicaOf(n *rowraftv1.NodeStatus, id rowraft.ReplicaID) *rowraftv1.ReplicaStatus {
	for _, r := range n.GetReplicas() {
		if r.GetReplicaId() == string(id) {
			return r
		}
	}
	return nil
}

// NodeLabel returns the name of a node for messages, or its id.
func NodeLabel(n *rowraftv1.Node) string {
	return cmp.Or(n.GetName(), n.GetId())
}

// OperationName returns the name of an operation's kind for messages.
func OperationName(k rowraftv1.OperationKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "OPERATION_KIND_"))
}
