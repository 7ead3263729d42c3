package shard

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/shard/expand"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// The live state of sessions and jobs, and the records of them in a snapshot (docs/formats/snapshot.md), are types of
// their own. The functions here are the only conversion between them.

func convert[A, B any](list []A, to func(A) B) (out []B) {
	for _, a := range list {
		out = append(out, to(a))
	}
	return out
}

func storedSession(s *session) checkpoint.Session {
	return checkpoint.Session{
		Client: s.Client, Incarnation: s.Incarnation, Floor: s.Floor, LastUsed: s.LastUsed, Window: s.Window,
		Refused: convert(s.Refused, func(r refusal) checkpoint.Refusal { return checkpoint.Refusal(r) }),
	}
}

func liveSession(s *checkpoint.Session) *session {
	return &session{
		Client: s.Client, Incarnation: s.Incarnation, Floor: s.Floor, LastUsed: s.LastUsed, Window: s.Window,
		Refused: convert(s.Refused, func(r checkpoint.Refusal) refusal { return refusal(r) }),
	}
}

func storedEnded(e *ended) checkpoint.Ended {
	return checkpoint.Ended{
		Floor: e.floor, List: convert(e.list, func(s endedSession) checkpoint.EndedSession {
			return checkpoint.EndedSession(s)
		}),
	}
}

func storedJob(j *Job) checkpoint.Job {
	return checkpoint.Job{
		ID: j.ID, Generation: j.Generation, First: j.First, Deadline: j.Deadline, Quorum: j.Quorum,
		Members:    convert(j.Members, func(w JobMember) checkpoint.JobMember { return checkpoint.JobMember(w) }),
		LastClosed: j.LastClosed,
		Closed:     convert(j.Closed, func(s ClosedStep) checkpoint.ClosedStep { return checkpoint.ClosedStep(s) }),
		Open:       (*checkpoint.OpenStep)(j.Open), Positions: j.Positions,
	}
}

func liveJob(j *checkpoint.Job) *Job {
	return &Job{
		ID: j.ID, Generation: j.Generation, First: j.First, Deadline: j.Deadline, Quorum: j.Quorum,
		Members:    convert(j.Members, func(w checkpoint.JobMember) JobMember { return JobMember(w) }),
		LastClosed: j.LastClosed,
		Closed:     convert(j.Closed, func(s checkpoint.ClosedStep) ClosedStep { return ClosedStep(s) }),
		Open:       (*OpenStep)(j.Open), Positions: j.Positions,
	}
}

func storedColdFile(table rowraft.TableID, r *rowstore.TierRef) checkpoint.ColdFile {
	return checkpoint.ColdFile{
		Table: table, ID: r.File.ID, RecordBytes: r.File.RecordBytes, PerExtent: r.File.PerExtent, Cut: r.File.Cut,
		Secret: r.Secret, Seeds: r.File.Seeds,
	}
}

func liveColdFile(f *checkpoint.ColdFile) *rowstore.TierRef {
	return &rowstore.TierRef{Secret: f.Secret, File: expand.RefOf(f)}
}
