package scheduler

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
)

// Status describes the whole cluster.
func (s *Scheduler) Status(ctx context.Context, _ *rowraftv1.StatusRequest) (*rowraftv1.StatusReply, error) {
	l, err := s.leadingInSync(ctx)
	if err != nil {
		return nil, err
	}
	m := s.view.Map()
	if m == nil {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the scheduler has no map yet")
	}
	leader, _, _ := l.Leader()
	seats, err := l.Members()
	if err != nil {
		return nil, err
	}
	reply := &rowraftv1.StatusReply{Map: rpc.MapToProto(m), Jobs: s.machine.JobStatuses(),
		ExpectedServers: uint32(s.opts.Servers)}
	for _, n := range m.Nodes {
		alive := s.liveness(n.ID)
		reply.Nodes = append(reply.Nodes, &rowraftv1.NodeStatus{
			Node: rpc.NodeToProto(n), State: alive.state, SinceHeartbeatNs: uint64(alive.silence),
			InStateNs: uint64(alive.inState),
			Replicas:  alive.beat.replicas, MetadataLeader: n.ID == leader, Unheard: !alive.seen,
			Stopping: alive.beat.stopping, Version: alive.beat.version, UptimeNs: uint64(alive.beat.uptime),
			Disk: alive.beat.disk, CertificateEnds: alive.beat.certEnds, Profile: alive.beat.profile,
			Slowness: alive.beat.slowness, MetadataStandby: s.placeLoop.standby(&seats, &n, &alive),
			MetadataRolledBack: alive.beat.metaRolledBack,
		})
	}
	reply.ReplaceAfterNs = uint64(max(s.opts.ReplaceAfter, 0))
	s.driver.addMoves(reply)
	s.placeLoop.addOperations(m, reply)
	s.addTrainers(reply)
	reply.Findings = s.findings(m, reply)
	reply.Problems = textsOf(reply.Findings)
	return reply, nil
}

func stateAfter(silence time.Duration) string {
	switch {
	case silence >= DownAfter:
		return diagnosis.Down
	case silence >= SuspectAfter:
		return diagnosis.Suspect
	}
	return diagnosis.Up
}

// findings returns the problems of the cluster: those of the complete status, and those that only the scheduler knows.
func (s *Scheduler) findings(m *clustermap.Map, st *rowraftv1.StatusReply) []*rowraftv1.Problem {
	out := diagnosis.Of(st, time.Now())
	if len(m.Shards) == 0 {
		out = append(out, diagnosis.Problem(rowraftv1.Severity_SEVERITY_CRITICAL, "no-shards", "",
			"start the servers that are missing, with the same --join or --scheduler", "The cluster has no shards yet: %s.",
			s.waitingFor()))
	} else {
		for _, t := range m.Tables {
			if missing := s.tables.shardsWithout(m, t); len(missing) > 0 {
				out = append(out, diagnosis.Problem(rowraftv1.Severity_SEVERITY_WARNING, "table-missing", "table "+t.Name,
					"it ends by itself once those shards have a leader",
					"Table %s is not yet known to be in shard(s) %s; the scheduler is driving it there.", t.Name,
					strings.Join(missing, ", ")))
			}
		}
	}
	for _, p := range s.checkpoints.PolicyStatuses() {
		out = append(out, diagnosis.Policy(p, time.Now())...)
	}
	for _, r := range s.machine.Runs() {
		out = append(out, diagnosis.Job(s.jobs.Info(r), time.Now())...)
	}
	diagnosis.Sort(out)
	return out
}

// textsOf returns the texts of the findings above a note.
func textsOf(findings []*rowraftv1.Problem) (out []string) {
	for _, p := range findings {
		if p.GetSeverity() > rowraftv1.Severity_SEVERITY_NOTE {
			out = append(out, p.GetText())
		}
	}
	return out
}

// addTrainers adds the connected trainers and the restored checkpoints to the status.
func (s *Scheduler) addTrainers(reply *rowraftv1.StatusReply) {
	sources, _ := s.machine.Sources()
	for _, from := range sources {
		r := &rowraftv1.RestoredFrom{Id: from.GetId(), Destination: from.GetDestination(), Name: from.GetName()}
		for _, t := range s.view.Map().Tables {
			if slices.Contains(from.GetTables(), uint64(t.ID)) {
				r.Tables = append(r.Tables, t.Name)
			}
		}
		for _, t := range from.GetTrained() {
			r.Trained = append(r.Trained, &rowraftv1.TrainerId{Job: t.GetJob(), Rank: t.GetRank()})
		}
		reply.Restored = append(reply.Restored, r)
	}
	reply.Trainers = s.jobs.Trainers().Connected()
}
