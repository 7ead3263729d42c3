package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
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

const (
	// slowFsync is the time of a log write with its fsync from which on a disk is slow, also where the Raft timers bear
	// it: each push waits for two of them. Good disks take 0.1 to 5 ms.
	slowFsync = 20 * time.Millisecond
	// slowerThanOthers: a disk that takes so many times as long as the median of the other servers is defective.
	slowerThanOthers = 5
)

// shownShards bounds the shards that one sentence names.
const shownShards = 8

// Of returns the problems of a cluster that its status shows, the worst first. The leader of the scheduler adds
// those of tables, jobs and policies, which are not in the status.
func Of(st *rowraftv1.StatusReply, now time.Time) []*rowraftv1.Problem {
	d := &diagnosis{st: st, nodes: make(map[string]*rowraftv1.NodeStatus, len(st.GetNodes()))}
	for _, n := range st.GetNodes() {
		d.nodes[n.GetNode().GetId()] = n
	}
	d.findLeaders()
	d.servers(now)
	d.schedulers()
	d.reports()
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
	leads map[string]int // shards that a server leads, by its id
	thin  []uint32       // shards with fewer complete replicas than they should have
	least int            // complete replicas of the worst shard in thin
	cut   []uint32       // shards whose majority does not answer
	away  []string       // servers with replicas of the shards in cut that do not answer
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
		if n.GetState() != Up {
			if d.silent(n, now); n.GetState() != Suspect || n.GetStopping() {
				continue
			}
		}
		if n.GetStopping() {
			d.add(aNote, "server-stopping", subject, "", "Server %s stops on purpose: it hands over its leads.", name)
		}
		d.disk(n)
		d.slow(n)
		d.certificate(n, now)
		if i := n.GetNode().GetIntent(); i != rowraftv1.NodeIntent_NODE_INTENT_UNSPECIFIED {
			how, back := "is drained: it leads nothing and gets no replica", "rowraft server undrain "+name
			if i == rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION {
				how, back = "is decommissioned: what it holds moves away", "rowraft server recommission "+name
				if d.heldBy(n) == 0 {
					how = "is decommissioned and holds no replica: its process can be stopped"
				}
			}
			d.add(aNote, "server-leaving", subject, "to take it back: "+back, "Server %s %s.", name, how)
		}
	}
}

// silent reports a server that is suspect or down.
func (d *diagnosis) silent(n *rowraftv1.NodeStatus, now time.Time) {
	name, addr, held := NodeLabel(n.GetNode()), n.GetNode().GetAddr(), d.heldBy(n)
	subject := "server " + name
	leaves := n.GetNode().GetIntent() == rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION
	successor := d.successor(n)
	switch {
	case leaves && held == 0:
		d.add(aNote, "server-left", subject, "", "Server %s at %s is decommissioned, holds no replica and is gone; the "+
			"cluster forgets it.", name, addr)
	case leaves && successor != "":
		d.add(warning, "server-wiped", "server "+successor, "rowraft operation list",
			"Server %s came back with an empty disk: %d of its replicas are not rebuilt yet.", successor, held)
	case successor != "":
		d.add(warning, "server-wiped", "server "+successor, "rowraft server decommission "+name,
			"Server %s answers at %s, the address of server %s, which is down with %s: its data directory is another one. The "+
				"replicas are not rebuilt yet.", successor, addr, name, replicas(held))
	case n.GetStopping():
		d.add(warning, "server-stopped", subject, d.afterDown(n), "Server %s was stopped on purpose at %s, %v ago, with %s.",
			name, now.Add(-time.Duration(n.GetSinceHeartbeatNs())).UTC().Format(time.RFC3339),
			time.Duration(n.GetSinceHeartbeatNs()).Round(time.Second), replicas(held))
	case n.GetState() == Suspect:
		d.add(warning, "server-suspect", subject, "look at its process, its machine and its network",
			"Server %s at %s is suspect, with %s: %s.", name, addr, replicas(held), quietFor(n))
	default:
		d.add(warning, "server-down", subject, d.afterDown(n),
			"Server %s at %s is down, with %s: %s.", name, addr, replicas(held), quietFor(n))
	}
}

// successor returns the name of another server that is up at the address of n; "" if there is none. A server whose
// data directory was emptied returns under a new id.
func (d *diagnosis) successor(n *rowraftv1.NodeStatus) string {
	for _, o := range d.st.GetNodes() {
		if o != n && o.GetState() == Up && !o.GetUnheard() && o.GetNode().GetAddr() == n.GetNode().GetAddr() {
			return NodeLabel(o.GetNode())
		}
	}
	return ""
}

// reports notes the servers that a new leader of the scheduler has not heard of: their state is not known yet.
func (d *diagnosis) reports() {
	var names []string
	for _, n := range d.st.GetNodes() {
		if n.GetUnheard() && n.GetState() == Up {
			names = append(names, NodeLabel(n.GetNode()))
		}
	}
	if len(names) > 0 {
		d.add(aNote, "not-reported", "scheduler", "ask again in two seconds",
			"The leader of the scheduler has just been elected and has no report of %s yet.", strings.Join(names, ", "))
	}
}

// afterDown describes what to do about a server that is down.
func (d *diagnosis) afterDown(n *rowraftv1.NodeStatus) string {
	if n.GetNode().GetNoShards() {
		return "start it again"
	}
	after := time.Duration(d.st.GetReplaceAfterNs())
	if after == 0 {
		return "start it again, or replace it (runbook replace-a-server)"
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
	leads := d.leads[n.GetNode().GetId()]
	switch {
	case free < reserve && leads > 0:
		d.add(critical, "disk-full", subject, next,
			"The disk of server %s has %s free, less than its reserve of %s: the %d shard(s) that it leads refuse pushes.", name,
			mebibytes(free), mebibytes(reserve), leads)
	case free < reserve:
		d.add(warning, "disk-full", subject, next, "The disk of server %s has %s free, less than its reserve of %s. It "+
			"leads no shard, so pushes continue; it gets no lead until there is room.", name, mebibytes(free),
			mebibytes(reserve))
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
	const next = "give its logs a faster disk, or take what else writes to it away (runbook slow-disk)"
	others := d.fsyncOfOthers(n)
	switch fsync := time.Duration(s.GetFsyncNs()); {
	case s.GetFsyncNs() > s.GetFsyncLimitNs():
		d.add(warning, "disk-slow", "server "+name, next,
			"The disk of server %s is slow: fsync takes %s, profile %s needs ≤ %s.%s", name, millis(s.GetFsyncNs()), profile,
			millis(s.GetFsyncLimitNs()), asks)
	case fsync >= slowFsync && others > 0 && fsync >= slowerThanOthers*others:
		d.add(warning, "disk-slow", "server "+name, next, "The disk of server %s is slow: fsync takes %s, on the other "+
			"servers %s. Pushes to the shards that it leads wait for it.", name, millis(s.GetFsyncNs()), millis(uint64(others)))
	case fsync >= slowFsync:
		d.add(aNote, "disk-slow", "server "+name, next, "The disk of server %s takes %s for an fsync; a push waits for two "+
			"of them.", name, millis(s.GetFsyncNs()))
	}
	if s.GetLatenessNs() > s.GetLatenessLimitNs() {
		d.add(warning, "cpu-starved", "server "+name,
			"give it CPU of its own, or take what else runs there away (runbook slow-disk)",
			"Server %s gets too little CPU: its timers fire %s late, profile %s needs ≤ %s.%s", name, millis(s.GetLatenessNs()),
			profile, millis(s.GetLatenessLimitNs()), asks)
	}
}

// fsyncOfOthers returns the median time of an fsync on the other servers that are up; 0 if none has written.
func (d *diagnosis) fsyncOfOthers(n *rowraftv1.NodeStatus) time.Duration {
	var all []time.Duration
	for _, o := range d.st.GetNodes() {
		if f := o.GetSlowness().GetFsyncNs(); o != n && o.GetState() == Up && f > 0 {
			all = append(all, time.Duration(f))
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)-1)/2]
}

func millis(ns uint64) string {
	if d := time.Duration(ns); d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	}
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

// schedulers reports members of the scheduler that are down or rolled back. A scheduler without a leader is reported by
// its caller, since the leader makes the status.
func (d *diagnosis) schedulers() {
	all, up, standby := 0, 0, ""
	var down, lost []string
	stopped := true // each member in down was stopped on purpose, which has its own finding
	for _, n := range d.st.GetNodes() {
		if why, name := n.GetMetadataRolledBack(), NodeLabel(n.GetNode()); why != "" && n.GetState() == Up {
			d.add(warning, "scheduler-member-rolled-back", "server "+name,
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
			stopped = stopped && n.GetStopping()
		}
		all++
	}
	if stopped && len(lost) == 0 && up >= all/2+1 {
		return
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
			strings.Join(next, "; ")+"; pulls and pushes continue without the scheduler",
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

// heldBy returns the number of replicas of a server.
func (d *diagnosis) heldBy(n *rowraftv1.NodeStatus) (count int) {
	for _, sh := range d.st.GetMap().GetShards() {
		for _, r := range sh.GetReplicas() {
			if r.GetNode() == n.GetNode().GetId() {
				count++
			}
		}
	}
	return count
}

// replicas describes a number of replicas that a server holds.
func replicas(held int) string {
	if held == 1 {
		return "the replica it holds"
	}
	return fmt.Sprintf("the %d replicas it holds", held)
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
