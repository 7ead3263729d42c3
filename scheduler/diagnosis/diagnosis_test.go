package diagnosis

import (
	"math"
	"strings"
	"testing"
	"time"

	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// TestJobsThatDoNotGoOn: what is said of a training job, and of those that are well nothing.
func TestJobsThatDoNotGoOn(t *testing.T) {
	worker := func(name string, state rowraftv1.MemberState, heard time.Duration, steps float64) *rowraftv1.MemberInfo {
		return &rowraftv1.MemberInfo{
			Member: &rowraftv1.RunMember{Worker: name, State: state, Reason: "its lease ran out"}, SinceHeardNs: uint64(heard),
			Beat: &rowraftv1.WorkerBeat{StepsPerSecond: steps},
		}
	}
	const (
		trains  = rowraftv1.MemberState_MEMBER_STATE_TRAINING
		lost    = rowraftv1.MemberState_MEMBER_STATE_LOST
		running = rowraftv1.JobState_JOB_STATE_RUNNING
	)
	for _, tc := range []struct {
		name    string
		state   rowraftv1.JobState
		members []*rowraftv1.MemberInfo
		kind    string
		says    string
	}{
		{"two at work", running, []*rowraftv1.MemberInfo{worker("w0", trains, time.Second, 5),
			worker("w1", trains, time.Second, 0)}, "", ""},
		{"a speed that is not known", running, []*rowraftv1.MemberInfo{worker("w0", trains, time.Second, math.NaN())}, "",
			""},
		{"a silent one", running, []*rowraftv1.MemberInfo{worker("w0", trains, time.Second, 5),
			worker("w1", trains, 6*time.Second, 5)}, "job-worker-silent", "nothing is heard of w1 (6s)"},
		{"a lost one", running, []*rowraftv1.MemberInfo{worker("w0", trains, time.Second, 5), worker("w1", lost, 0, 0)},
			"job-short-of-workers", "1 of 2 workers train; gone: w1"},
		{"no worker steps", running, []*rowraftv1.MemberInfo{worker("w0", trains, time.Second, 0),
			worker("w1", trains, time.Second, 0)}, "job-stalled", "none of its 2 workers"},
		{"failed", rowraftv1.JobState_JOB_STATE_FAILED, nil, "job-failed", "Job ctr has failed: out of memory."},
		{"done", rowraftv1.JobState_JOB_STATE_DONE, []*rowraftv1.MemberInfo{worker("w0", lost, 0, 0)}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Unix(1_800_000_000, 0)
			info := &rowraftv1.JobInfo{Job: "ctr", Workers: 2, State: tc.state, Members: tc.members,
				LeaseNs: uint64(10 * time.Second), Reason: "out of memory.",
				IdleSinceNs: uint64(now.Add(-23 * time.Hour).UnixNano())}
			found := Job(info, now)
			if later := Job(info, now.Add(time.Hour)); tc.state == rowraftv1.JobState_JOB_STATE_FAILED && len(later) > 0 {
				t.Errorf("after 24 hours it still shows %v", later)
			}
			switch {
			case tc.kind == "" && len(found) > 0:
				t.Errorf("found %v, want nothing", found)
			case tc.kind == "":
			case len(found) != 1 || found[0].Kind != tc.kind || !strings.Contains(found[0].Text, tc.says) ||
				found[0].Next == "" || found[0].Subject != "job ctr":
				t.Errorf("found %v, want %s: %s", found, tc.kind, tc.says)
			}
		})
	}
}

// TestDiskAndCertificateLimits: the first that is a problem, and the last that is none.
func TestDiskAndCertificateLimits(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		name string
		free uint64
		ends time.Duration
		want string
	}{
		{"room and time", 2000, certificateSoon, ""},
		{"nearly full", 1999, certificateSoon, "disk-nearly-full"},
		{"as much as the reserve", 1000, certificateSoon, "disk-nearly-full"},
		{"full", 999, certificateSoon, "disk-full"},
		{"two weeks less a second", 2000, certificateSoon - time.Second, "certificate-expires"},
		{"a second left", 2000, time.Second, "certificate-expires"},
		{"over", 2000, 0, "certificate-expired"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := Of(&rowraftv1.StatusReply{Nodes: []*rowraftv1.NodeStatus{{
				Node: &rowraftv1.Node{Id: "a", Name: "n1"}, State: Up,
				Disk: &rowraftv1.Disk{FreeBytes: tc.free, ReserveBytes: 1000}, CertificateEnds: uint64(now.Add(tc.ends).Unix()),
			}}}, now)
			got := ""
			for _, p := range found {
				got += p.GetKind()
			}
			if got != tc.want {
				t.Errorf("found %q, want %q", got, tc.want)
			}
		})
	}
}

// TestSlowDisksAndLateTimersAreFound: the first figure that is a problem, and the last that is none.
func TestSlowDisksAndLateTimersAreFound(t *testing.T) {
	const ms = uint64(time.Millisecond)
	for _, tc := range []struct {
		name                   string
		fsync, late, heartbeat uint64
		kind, says             string
	}{
		{"a usual disk, and timers as late as the profile bears", 19, 125, 250, "", ""},
		{"a slow disk", 210, 0, 2000, "disk-slow", "The disk of server n2 is slow: fsync takes 210 ms, profile fast needs " +
			"≤ 50 ms. Its shards have Raft timers of 2s, so an election takes longer."},
		{"little CPU", 0, 300, 1000, "cpu-starved", "Server n2 gets too little CPU: its timers fire 300 ms late, profile " +
			"fast needs ≤ 125 ms. Its shards have Raft timers of 1s, so an election takes longer."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			found := Of(&rowraftv1.StatusReply{Nodes: []*rowraftv1.NodeStatus{{
				Node: &rowraftv1.Node{Id: "b", Name: "n2"}, State: Up, Profile: "fast",
				Slowness: &rowraftv1.Slowness{FsyncNs: tc.fsync * ms, FsyncLimitNs: 50 * ms, LatenessNs: tc.late * ms,
					LatenessLimitNs: 125 * ms, HeartbeatNs: tc.heartbeat * ms},
			}}}, time.Now())
			switch {
			case tc.kind == "" && len(found) > 0:
				t.Errorf("found %v, want nothing", found)
			case tc.kind == "":
			case len(found) != 1 || found[0].GetKind() != tc.kind || found[0].GetText() != tc.says || found[0].GetNext() == "" ||
				found[0].GetSubject() != "server n2":
				t.Errorf("found %v, want %s: %s", found, tc.kind, tc.says)
			}
		})
	}
}

// TestSessionsThatRunOut: three quarters of what a shard, or an owner in it, may have are a
// problem, and all of it is a worse one.
func TestSessionsThatRunOut(t *testing.T) {
	for _, tc := range []struct {
		used, owner uint32
		want        string
	}{
		{3071, 1535, ""},
		{3072, 100, "sessions-running-out"},
		{4096, 100, "sessions-full"},
		{100, 1536, "sessions-running-out"},
		{100, 2048, "sessions-full"},
	} {
		st := &rowraftv1.StatusReply{
			Map: &rowraftv1.Map{Shards: []*rowraftv1.Shard{{Id: 3, Replicas: []*rowraftv1.Replica{{Id: "r", Node: "a"}}}}},
			Nodes: []*rowraftv1.NodeStatus{{
				Node: &rowraftv1.Node{Id: "a", Name: "n1"}, State: Up,
				Replicas: []*rowraftv1.ReplicaStatus{{Shard: 3, ReplicaId: "r", Role: Leader, SessionsInUse: tc.used,
					OwnerSessionsInUse: tc.owner}},
			}},
		}
		got := ""
		for _, p := range Of(st, time.Unix(0, 0)) {
			if strings.HasPrefix(p.GetKind(), "sessions-") {
				got += p.GetKind()
			}
		}
		if got != tc.want {
			t.Errorf("%d in use, %d of one owner: %q, want %q", tc.used, tc.owner, got, tc.want)
		}
	}
}

// TestARolledBackDiskIsNamed: a replica, and a member of the scheduler, whose disk was rolled back are
// findings of their own, which name the server.
func TestARolledBackDiskIsNamed(t *testing.T) {
	const why = "group shard-0, replica r1: " + raftstore.RolledBack + ": its log ends at entry 3"
	nodes := []*rowraftv1.NodeStatus{
		{Node: &rowraftv1.Node{Id: "a", Name: "n1", Scheduler: true}, State: Up, MetadataRolledBack: why,
			Replicas: []*rowraftv1.ReplicaStatus{{Shard: 0, ReplicaId: "r1", Role: "fenced", Fenced: why}}},
		{Node: &rowraftv1.Node{Id: "b", Name: "n2", Scheduler: true}, State: Up,
			Replicas: []*rowraftv1.ReplicaStatus{{Shard: 0, ReplicaId: "r2", Role: "leader", Term: 2, LeaderNode: "b"}}},
	}
	st := &rowraftv1.StatusReply{Nodes: nodes,
		Map: &rowraftv1.Map{Shards: []*rowraftv1.Shard{{Replicas: []*rowraftv1.Replica{{Id: "r1", Node: "a"},
			{Id: "r2", Node: "b"}}}}}}
	got := map[string]string{}
	for _, p := range Of(st, time.Now()) {
		got[p.Kind] = p.Text
		if strings.Contains(p.Kind, "rolled-back") && (p.Severity != warning || !strings.Contains(p.Text, "n1") ||
			!strings.Contains(p.Next, "runbook rolled-back-disk")) {
			t.Errorf("found %v", p)
		}
	}
	if got["replica-rolled-back"] == "" || got["scheduler-member-rolled-back"] == "" || got["replica-fenced"] != "" {
		t.Errorf("found %v", got)
	}
}

// The record of a policy says what is wrong with it, and the diagnosis reports that.
func TestFailuresOfAPolicyAreFound(t *testing.T) {
	for want, record := range map[string]*rowraftv1.PolicyRecord{
		"":                       {},
		"policy-fails":           {Failures: 2, Error: "no disk"},
		"policy-retention-fails": {RetentionError: "1 of 2 checkpoints cannot be restored"},
	} {
		found := Policy(&rowraftv1.PolicyStatus{Policy: &rowraftv1.CheckpointPolicy{Name: "nightly"}, Record: record},
			present)
		if got := len(found); got != min(1, len(want)) || got > 0 && found[0].GetKind() != want {
			t.Errorf("%v: found %v, want %q", record, found, want)
		}
	}
}
