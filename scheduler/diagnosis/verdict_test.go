package diagnosis

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// present is the time of the states below.
var present = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// state is an observed state of a cluster of three servers: n1 leads shard 0, n2 leads shard 1.
type state struct {
	*rowraftv1.StatusReply
	policies []*rowraftv1.PolicyStatus
}

func healthyState() *state {
	s := &state{StatusReply: &rowraftv1.StatusReply{Map: &rowraftv1.Map{}, ExpectedServers: 3}}
	for i := range 3 {
		s.addServer(fmt.Sprintf("n%d", i+1))
	}
	for shard := range uint32(2) {
		sh := &rowraftv1.Shard{Id: shard}
		for i, n := range s.Nodes[:3] {
			r := &rowraftv1.ReplicaStatus{Shard: shard, ReplicaId: fmt.Sprintf("r%d%d", shard, i), Role: "follower", Term: 3,
				CommitIndex: 500, AppliedIndex: 500, ProvedIndex: 490, Rows: 1000}
			if int(shard) == i {
				r.Role = Leader
			}
			n.Replicas = append(n.Replicas, r)
			sh.Replicas = append(sh.Replicas, &rowraftv1.Replica{Id: r.ReplicaId, Node: n.Node.Id})
		}
		s.Map.Shards = append(s.Map.Shards, sh)
	}
	return s
}

func (s *state) addServer(name string) *rowraftv1.NodeStatus {
	n := &rowraftv1.NodeStatus{State: Up, SinceHeartbeatNs: 1e8, Version: "v1.0.0", Profile: "fast",
		Node:            &rowraftv1.Node{Id: "id-" + name, Name: name, Addr: name + ":7070", Scheduler: true},
		Disk:            &rowraftv1.Disk{FreeBytes: 100 << 30, ReserveBytes: 512 << 20},
		Slowness:        &rowraftv1.Slowness{FsyncNs: 1e6, FsyncLimitNs: 50e6, LatenessNs: 1e6, LatenessLimitNs: 125e6},
		CertificateEnds: uint64(present.AddDate(1, 0, 0).Unix()),
	}
	s.Nodes = append(s.Nodes, n)
	s.Map.Nodes = append(s.Map.Nodes, n.Node)
	return n
}

// gone makes a server silent for so long.
func (s *state) gone(i int, silence time.Duration) *rowraftv1.NodeStatus {
	n := s.Nodes[i]
	n.State, n.SinceHeartbeatNs = Down, uint64(silence)
	if silence < 6*time.Second {
		n.State = Suspect
	}
	for _, r := range n.Replicas { // another replica has been elected
		if r.Role == Leader {
			o := s.Nodes[(i+1)%3].Replicas[r.Shard]
			o.Role, o.Term = Leader, r.Term+1
		}
	}
	return n
}

func (s *state) policy(change func(*rowraftv1.PolicyStatus)) {
	at := func(ago time.Duration) uint64 { return uint64(present.Add(-ago).UnixNano()) }
	p := &rowraftv1.PolicyStatus{State: "waiting",
		Policy: &rowraftv1.CheckpointPolicy{Name: "hourly", Destination: "s3://b/ctr", EveryNs: uint64(time.Hour)},
		Record: &rowraftv1.PolicyRecord{SetNs: at(100 * time.Hour), BegunNs: at(30 * time.Minute),
			Made: []*rowraftv1.PolicyCheckpoint{{Name: "hourly-1", BegunNs: at(30 * time.Minute)}}}}
	change(p)
	s.policies = append(s.policies, p)
}

// TestVerdicts has a row for each situation. It lists all findings, the worst first, with a part of their texts. Every
// kind and severity of the package has a row.
func TestVerdicts(t *testing.T) {
	ns := func(d time.Duration) uint64 { return uint64(d) }
	covered := make(map[string]bool)
	for _, tc := range []struct {
		name  string
		makes func(s *state)
		want  []string // severity kind: part of the text
	}{
		{"all is well", func(*state) {}, nil},
		{"more servers than expected", func(s *state) { s.addServer("n4"); s.addServer("n5") }, nil},

		{"a server is killed", func(s *state) { s.gone(2, time.Minute) }, []string{
			"warning server-down: Server n3 at n3:7070 is down, with the 2 replicas it holds: its last heartbeat came 1m0s ago",
			"warning scheduler-member-down: 2 of 3 members",
			"warning under-replicated: 2 shards (0, 1): not every replica is complete (2 of 3)"}},
		{"a server hangs", func(s *state) { s.gone(2, 3*time.Second) }, []string{
			"warning server-suspect: Server n3 at n3:7070 is suspect", "warning scheduler-member-down",
			"warning under-replicated"}},
		{"a server stops on purpose", func(s *state) { s.Nodes[2].Stopping = true }, []string{
			"note server-stopping: Server n3 stops on purpose: it hands over its leads."}},
		{"a server was stopped on purpose", func(s *state) { s.gone(2, 3*time.Second).Stopping = true }, []string{
			"warning server-stopped: Server n3 was stopped on purpose at 2026-11-21T11:59:57Z, 3s ago, with the 2 replicas"}},
		{"one of five was stopped on purpose", func(s *state) {
			s.addServer("n4")
			s.addServer("n5")
			s.gone(2, time.Hour).Stopping = true
		}, []string{"warning server-stopped: Server n3 was stopped on purpose at 2026-11-21T11:00:00Z, 1h0m0s ago"}},
		{"one was stopped on purpose, another is killed", func(s *state) {
			s.gone(2, time.Hour).Stopping = true
			s.gone(1, time.Minute)
			s.Map.Shards = s.Map.Shards[:1]
			s.Nodes[0].Replicas = s.Nodes[0].Replicas[:1]
			s.Nodes[0].Replicas[0].Role = "candidate"
		}, []string{"critical no-majority: Shard 0: no majority of the replicas answers, so the rows can be neither " +
			"pulled nor pushed. Away: n2, n3.", "warning server-down: Server n2", "warning server-stopped: Server n3",
			"warning scheduler-member-down: 1 of 3"}},
		{"a server drains", func(s *state) {
			s.Nodes[0].Node.Intent = rowraftv1.NodeIntent_NODE_INTENT_DRAIN
		}, []string{"note server-leaving: Server n1 is drained: it leads nothing and gets no replica."}},
		{"a decommissioned server is empty", func(s *state) {
			n := s.addServer("n4")
			n.Node.Intent, n.Node.Scheduler = rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION, false
		}, []string{"note server-leaving: Server n4 is decommissioned and holds no replica: its process can be stopped."}},
		{"a decommissioned server has gone", func(s *state) {
			n := s.addServer("n4")
			n.Node.Intent, n.Node.Scheduler = rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION, false
			s.gone(3, time.Minute)
		}, []string{"note server-left: Server n4 at n4:7070 is decommissioned, holds no replica and is gone"}},

		{"a wiped server took its name again", func(s *state) {
			old := s.gone(2, time.Minute)
			n := s.addServer("n3")
			n.Node.Id, n.MetadataStandby = "id-new", true
			old.Node.Name, old.Node.Intent = "", rowraftv1.NodeIntent_NODE_INTENT_DECOMMISSION
		}, []string{"warning server-wiped: Server n3 came back with an empty disk: 2 of its replicas are not rebuilt yet.",
			"warning scheduler-member-down: 2 of 3 members", "warning under-replicated"}},
		{"a wiped server has another name", func(s *state) {
			s.gone(2, time.Minute)
			s.addServer("n4").Node.Addr = "n3:7070"
		}, []string{"warning server-wiped: Server n4 answers at n3:7070, the address of server n3, which is down with " +
			"the 2 replicas it holds: its data directory is another one.", "warning scheduler-member-down",
			"warning under-replicated"}},
		{"a new replica has no rows yet", func(s *state) {
			r := s.Nodes[2].Replicas[1]
			r.AppliedIndex, r.ProvedIndex, r.Rows = 0, 0, 0
		}, []string{
			"warning replica-incomplete: Shard 1: the replica on n3 does not have the rows of the others yet: it " +
				"has 0, the leader 1000.",
			"warning under-replicated: Shard 1: not every replica is complete (2 of 3)"}},
		{"a new replica has some of the rows, and no comparison was made", func(s *state) {
			s.Nodes[1].Replicas[1].ProvedIndex = 0
			r := s.Nodes[2].Replicas[1]
			r.AppliedIndex, r.ProvedIndex, r.Rows = 100, 0, 499
		}, []string{"warning replica-incomplete: Shard 1: the replica on n3 does not have the rows",
			"warning under-replicated"}},
		{"a replica that has just restarted with its disk", func(s *state) {
			r := s.Nodes[2].Replicas[1]
			r.AppliedIndex, r.ProvedIndex = 498, 0
		}, nil},
		{"a shard lacks a replica that the servers could hold", func(s *state) {
			s.Map.Shards[1].Replicas = s.Map.Shards[1].Replicas[:2]
			s.Nodes[2].Replicas = s.Nodes[2].Replicas[:1]
		}, []string{"warning under-replicated: Shard 1: not every replica is complete (2 of 3)"}},
		{"a cluster of one server", func(s *state) {
			s.Nodes = s.Nodes[:1]
			s.Map.Nodes, s.Map.Shards = s.Map.Nodes[:1], s.Map.Shards[:1]
			s.Map.Shards[0].Replicas = s.Map.Shards[0].Replicas[:1]
		}, []string{"warning few-replicas: Data is not safe: 1 replica(s) per shard, because the cluster has fewer than 3 " +
			"servers."}},

		{"a disk is full, and its server leads", func(s *state) { s.Nodes[0].Disk.FreeBytes = 300 << 20 }, []string{
			"critical disk-full: The disk of server n1 has 300 MiB free, less than its reserve of 512 MiB: the 1 shard(s) " +
				"that it leads refuse pushes."}},
		{"a disk is full, and its server leads nothing", func(s *state) { s.Nodes[2].Disk.FreeBytes = 300 << 20 }, []string{
			"warning disk-full: The disk of server n3 has 300 MiB free, less than its reserve of 512 MiB. It leads no shard, " +
				"so pushes continue"}},
		{"a disk is nearly full", func(s *state) { s.Nodes[2].Disk.FreeBytes = 1000 << 20 }, []string{
			"warning disk-nearly-full: The disk of server n3 has 1000 MiB free; below 512 MiB"}},
		{"a disk is slower than the timers bear", func(s *state) { s.Nodes[1].Slowness.FsyncNs = ns(210 * time.Millisecond) },
			[]string{"warning disk-slow: The disk of server n2 is slow: fsync takes 210 ms, profile fast needs ≤ 50 ms."}},
		{"a disk is slower than the others", func(s *state) { s.Nodes[1].Slowness.FsyncNs = ns(30 * time.Millisecond) },
			[]string{"warning disk-slow: The disk of server n2 is slow: fsync takes 30 ms, on the other servers 1.0 ms."}},
		{"all disks are slow", func(s *state) {
			for _, n := range s.Nodes {
				n.Slowness.FsyncNs = ns(25 * time.Millisecond)
			}
		}, []string{"note disk-slow: The disk of server n1 takes 25 ms for an fsync", "note disk-slow", "note disk-slow"}},
		{"a disk is a little slower", func(s *state) { s.Nodes[1].Slowness.FsyncNs = ns(19 * time.Millisecond) }, nil},
		{"a server gets too little CPU", func(s *state) { s.Nodes[1].Slowness.LatenessNs = ns(300 * time.Millisecond) },
			[]string{"warning cpu-starved: Server n2 gets too little CPU: its timers fire 300 ms late"}},
		{"a certificate has expired", func(s *state) { s.Nodes[1].CertificateEnds = uint64(present.Unix()) - 1 },
			[]string{"critical certificate-expired: The certificate of server n2 expired at 2026-11-21T11:59:59Z"}},
		{"a certificate expires soon", func(s *state) {
			s.Nodes[1].CertificateEnds = uint64(present.AddDate(0, 0, 3).Unix())
		},
			[]string{"warning certificate-expires: The certificate of server n2 expires in 3 days"}},
		{"two versions", func(s *state) { s.Nodes[1].Version = "v1.1.0" },
			[]string{"warning version-mix: Servers run 2 versions: v1.0.0 (n1, n3); v1.1.0 (n2)."}},

		{"the scheduler has a new leader", func(s *state) {
			for _, n := range s.Nodes[1:] {
				n.Unheard, n.Replicas, n.Version, n.Slowness, n.Disk = true, nil, "", nil, nil
			}
		}, []string{"note not-reported: The leader of the scheduler has just been elected and has no report of n2, n3 yet."}},
		{"a shard has no leader", func(s *state) { s.Nodes[1].Replicas[1].Role = "candidate" }, []string{
			"critical no-leader: Shard 1: no leader has reported; its rows cannot be pulled or pushed until there is one."}},
		{"the map names an unknown server", func(s *state) {
			s.Map.Shards[0].Replicas[2].Node = "id-x"
		}, []string{"warning replica-unreachable: Shard 0: the replica on id-x is unreachable", "warning under-replicated"}},
		{"a replica has not started", func(s *state) { s.Nodes[2].Replicas = s.Nodes[2].Replicas[:1] }, []string{
			"warning replica-silent: Shard 1: the replica on n3 has not reported yet", "warning under-replicated: Shard 1"}},
		{"a replica has stopped", func(s *state) { s.Nodes[2].Replicas[1].Error = "disk is full." }, []string{
			"warning replica-stopped: Shard 1: the replica on n3 has stopped: disk is full.", "warning under-replicated"}},
		{"a replica trails", func(s *state) {
			s.Nodes[1].Replicas[1].CommitIndex = 5000
			s.Nodes[0].Replicas[1].AppliedIndex, s.Nodes[1].Replicas[1].AppliedIndex = 5000, 5000
		}, []string{"warning replica-lags: Shard 1: the replica on n3 trails the leader by 4500 entries."}},
		{"a replica differs", func(s *state) { s.Nodes[2].Replicas[1].Fenced = "its rows differ." }, []string{
			"critical replica-fenced: Shard 1: replica hash mismatch (critical): the replica on n3 is fenced",
			"warning under-replicated: Shard 1"}},
		{"a shard is divided", func(s *state) { s.Nodes[1].Replicas[1].DividedIndex = 480 }, []string{
			"critical shard-divided: Shard 1: replica hash mismatch (critical): no majority", "warning under-replicated"}},
		{"a disk returned from a copy", func(s *state) {
			s.Nodes[2].MetadataRolledBack, s.Nodes[2].Replicas[1].Fenced = "old", raftstore.RolledBack+": its log ends at 3"
		}, []string{"warning scheduler-member-rolled-back: The scheduler's member on n3 returned with an older disk",
			"warning replica-rolled-back: Shard 1: the replica on n3 returned with an older disk", "warning under-replicated"}},

		{"sessions run out", func(s *state) { s.Nodes[0].Replicas[0].SessionsInUse = 3072 }, []string{
			"warning sessions-running-out: Shard 0: the shard has 3072 of 4096 sessions in use"}},
		{"sessions have run out", func(s *state) { s.Nodes[0].Replicas[0].OwnerSessionsInUse = 2048 }, []string{
			"critical sessions-full: Shard 0: one owner of clients has 2048 sessions in use, the limit: a new client cannot " +
				"push."}},

		{"a drain and a move run", func(s *state) {
			s.Operations = []*rowraftv1.Operation{{Id: 4, Kind: rowraftv1.OperationKind_OPERATION_KIND_DRAIN, Name: "n1",
				Left: 1, Total: 2, State: rowraftv1.OperationState_OPERATION_STATE_RUNNING}}
			s.Moves = []*rowraftv1.MoveStatus{{Move: &rowraftv1.Move{Id: 5, Phase: rowraftv1.MovePhase_MOVE_PHASE_LEARN,
				To: &rowraftv1.Replica{Node: "id-n2"}}}}
		}, []string{"note operation-runs: Operation 4, drain of n1, has 1 of 2 left.",
			"note move-runs: Shard 0: a replica moves, new on n2, in phase learn."}},

		{"a policy works", func(s *state) { s.policy(func(*rowraftv1.PolicyStatus) {}) }, nil},
		{"the last checkpoint failed", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) { p.Record.Failures, p.Record.Error = 1, "no space." })
		}, []string{"warning policy-fails: Checkpoint policy hourly has failed 1 time(s) in a row, the last one, hourly-1, " +
			"is 30m0s old: no space."}},
		{"no checkpoint was ever made", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) { p.Record.Made = nil })
		}, []string{"warning checkpoint-late: Checkpoint policy hourly is due every 1h0m0s, and none was ever made."}},
		{"the last checkpoint is too old", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) {
				p.Record.Made[0].BegunNs = uint64(present.Add(-2*time.Hour - 61*time.Second).UnixNano())
			})
		}, []string{"warning checkpoint-late: Checkpoint policy hourly is due every 1h0m0s, and the last one, hourly-1, is " +
			"2h1m1s old."}},
		{"the last checkpoint is two intervals old", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) {
				p.Record.Made[0].BegunNs = uint64(present.Add(-2 * time.Hour).UnixNano())
			})
		}, nil},
		{"a checkpoint does not end", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) {
				p.State, p.Record.Running = "running", "hourly-2"
				p.Record.BegunNs = uint64(present.Add(-3 * time.Hour).UnixNano())
			})
		}, []string{"warning checkpoint-late: Checkpoint policy hourly, due every 1h0m0s, has been making hourly-2 for " +
			"3h0m0s"}},
		{"a policy whose job does not train", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) { p.State, p.Record.Made = PolicyIdle, nil })
		}, nil},
		{"a checkpoint that is kept is broken", func(s *state) {
			s.policy(func(p *rowraftv1.PolicyStatus) { p.Record.RetentionError = "hourly-1: shard 2 is damaged." })
		}, []string{"warning policy-retention-fails: The retention of checkpoint policy hourly reports: hourly-1: shard 2 " +
			"is damaged."}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := healthyState()
			tc.makes(s)
			found := Of(s.StatusReply, present)
			for _, p := range s.policies {
				found = append(found, Policy(p, present)...)
			}
			Sort(found)
			var got []string
			for _, p := range found {
				severity := strings.ToLower(strings.TrimPrefix(p.Severity.String(), "SEVERITY_"))
				got = append(got, fmt.Sprintf("%s %s: %s", severity, p.Kind, p.Text))
				covered[severity+" "+p.Kind] = true
			}
			if !slices.EqualFunc(got, tc.want, strings.HasPrefix) {
				t.Errorf("found\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tc.want, "\n  "))
			}
		})
	}
	severities := map[string]string{"aNote": "note", "warning": "warning", "critical": "critical"}
	for _, file := range []string{"diagnosis.go", "shards.go", "work.go"} {
		source, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`add\((aNote|warning|critical), "([a-z-]+)"`).FindAllSubmatch(source, -1) {
			if k := severities[string(m[1])] + " " + string(m[2]); !covered[k] && !strings.Contains(k, "job-") {
				t.Errorf("no row has %q", k)
			}
		}
	}
}
