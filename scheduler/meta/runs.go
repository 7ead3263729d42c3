package meta

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// Limits of the data that the machine stores for a run.
const (
	maxSettings     = 64
	maxSettingBytes = 1024
	maxReasonBytes  = 1024
	maxBaseStep     = 1 << 62
	// MaxSplits bounds the number of parts of an epoch.
	MaxSplits = 1 << 20
	// MinLease and MaxLease bound how long a worker may be silent.
	MinLease = time.Second
	MaxLease = time.Hour
)

// registry is the part of the state that has the runs of jobs with their members and their data.
//
// Invariants: a job has one run; an incarnation is issued once; a run in runs is immutable, because readers hold it
// outside the lock, and a command replaces it with a changed copy.
type registry struct {
	runs            []*rowraftv1.MetaRun // by job
	endedRuns       [][]byte             // runs that shards must forget, oldest first; immutable
	lastIncarnation rowraft.Incarnation
}

func (g *registry) issueIncarnation() rowraft.Incarnation {
	g.lastIncarnation++
	return g.lastIncarnation
}

func (g *registry) findRun(job string) (int, bool) {
	return slices.BinarySearchFunc(g.runs, job, func(r *rowraftv1.MetaRun, job string) int {
		return strings.Compare(r.GetJob(), job)
	})
}

// run returns the run of a job, nil if there is none.
func (g *registry) run(job string) *rowraftv1.MetaRun {
	if i, found := g.findRun(job); found {
		return g.runs[i]
	}
	return nil
}

// putRun replaces the run of a job, or adds it.
func (g *registry) putRun(r *rowraftv1.MetaRun) {
	i, found := g.findRun(r.GetJob())
	g.runs = slices.Clone(g.runs)
	if !found {
		g.runs = slices.Insert(g.runs, i, nil)
	}
	g.runs[i] = r
}

// IsTraining reports whether a member is in the current generation.
func IsTraining(m *rowraftv1.RunMember) bool {
	return m.GetState() == rowraftv1.MemberState_MEMBER_STATE_TRAINING
}

// TrainingRanks returns the ranks of the current generation, ascending.
func TrainingRanks(r *rowraftv1.MetaRun) (ranks []uint32) {
	for _, m := range r.GetMembers() {
		if IsTraining(m) {
			ranks = append(ranks, m.GetRank())
		}
	}
	return ranks
}

// FindMember returns the position of a rank in the members of a run, and whether it is there.
func FindMember(r *rowraftv1.MetaRun, rank uint32) (int, bool) {
	return slices.BinarySearchFunc(r.GetMembers(), rank, func(m *rowraftv1.RunMember, rank uint32) int {
		return cmp.Compare(m.GetRank(), rank)
	})
}

// nextGeneration increments the generation after a change of members. A run that gathers keeps its generation until all
// its workers have entered; members that have ended need not enter again.
func nextGeneration(r *rowraftv1.MetaRun) {
	if r.GetGathering() {
		left := 0
		for _, m := range r.GetMembers() {
			if m.GetState() == rowraftv1.MemberState_MEMBER_STATE_ENDED {
				left++
			}
		}
		if len(TrainingRanks(r))+left < int(r.GetWorkers()) {
			return
		}
		r.Gathering = false
	}
	if r.GetGeneration() > 0 || !r.GetGather() || len(TrainingRanks(r)) == int(r.GetWorkers()) {
		r.Generation++
	}
}

// member returns the run and the index of a member. It refuses a caller that is not, or no longer, a member of the run.
func (g *registry) member(id *rowraftv1.JobIdentity) (*rowraftv1.MetaRun, int, error) {
	r := g.run(id.GetJob())
	if r == nil {
		return nil, 0, rowraft.Errorf(rowraft.CodeSessionExpired, "job %s does not exist, or was deleted", id.GetJob())
	}
	if !bytes.Equal(r.GetRun(), id.GetRun()) {
		return nil, 0, rowraft.Errorf(rowraft.CodeSessionExpired,
			"a new run of job %s has begun without worker %d of incarnation %d", id.GetJob(), id.GetRank(), id.GetIncarnation())
	}
	i, found := FindMember(r, id.GetRank())
	if !found {
		return nil, 0, rowraft.Errorf(rowraft.CodeSessionExpired, "job %s has no worker of rank %d", id.GetJob(),
			id.GetRank())
	}
	m := r.GetMembers()[i]
	switch {
	case m.GetIncarnation() != id.GetIncarnation():
		return nil, 0, rowraft.Errorf(rowraft.CodeSessionExpired,
			"rank %d of job %s is worker %s of incarnation %d by now, this one is of incarnation %d", id.GetRank(), id.GetJob(),
			m.GetWorker(), m.GetIncarnation(), id.GetIncarnation())
	case m.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST:
		return nil, 0, rowraft.Errorf(rowraft.CodeSessionExpired, "worker %s has left job %s: %s; start it again",
			m.GetWorker(), id.GetJob(), m.GetReason())
	}
	return r, i, nil
}

// trainingMember is member for calls that require a training member.
func (g *registry) trainingMember(id *rowraftv1.JobIdentity) (*rowraftv1.MetaRun, int, error) {
	r, i, err := g.member(id)
	if err == nil && !IsTraining(r.GetMembers()[i]) {
		err = rowraft.Errorf(rowraft.CodeSessionExpired, "worker %s has left job %s", r.GetMembers()[i].GetWorker(),
			id.GetJob())
	}
	return r, i, err
}

// leaveJob removes a member from the run's next generation. It does nothing for a member that has left already or was
// replaced by another process.
func (g *registry) leaveJob(l *rowraftv1.MetaLeaveJob, nowNs uint64) error {
	switch l.GetState() {
	case rowraftv1.MemberState_MEMBER_STATE_ENDED, rowraftv1.MemberState_MEMBER_STATE_STOPPED,
		rowraftv1.MemberState_MEMBER_STATE_LOST, rowraftv1.MemberState_MEMBER_STATE_FAILED:
	default:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "a worker of job %s leaves as %v", l.GetIdentity().GetJob(),
			l.GetState())
	}
	// A worker that has left already, or was replaced, has nothing more to leave: the command was repeated, or the lease
	// ended concurrently.
	old, i, err := g.trainingMember(l.GetIdentity())
	if err != nil {
		return nil
	}
	r := proto.CloneOf(old)
	m := r.Members[i]
	m.State, m.Reason = l.GetState(), cut(l.GetReason(), maxReasonBytes)
	if steps := min(l.GetSteps(), maxBaseStep); r.GetInShards() && r.GetQuorum() > 0 {
		r.Steps = max(r.Steps, steps) // all members count the steps of the job
	} else {
		r.Steps = min(r.Steps+steps, maxBaseStep)
	}
	ReturnSplits(r.GetData(), m.GetIncarnation(), l.GetSplits(), l.GetExact())
	if replaceable(r, m) {
		m.Attending = 0
	}
	// The shards close steps by the members of a generation, so a member that left must not be waited for.
	nextGeneration(r)
	if len(TrainingRanks(r)) == 0 {
		settle(r)
		r.IdleSinceNs = nowNs
		if r.GetPrevious() != nil && !slices.ContainsFunc(r.GetMembers(), func(m *rowraftv1.RunMember) bool {
			return m.GetState() == rowraftv1.MemberState_MEMBER_STATE_ENDED
		}) {
			g.endRun(r)
			g.putRun(r.GetPrevious())
			return nil
		}
		g.accept(r)
	}
	if r.GetState() == rowraftv1.JobState_JOB_STATE_DONE {
		g.endRun(r)
	}
	g.putRun(r)
	return nil
}

// maxEndedRuns bounds the list of runs that the shards must still forget. Beyond the limit the oldest is dropped from
// the list: it costs a shard some bytes.
const maxEndedRuns = 256

// endRun records that the shards must forget a run.
func (g *registry) endRun(r *rowraftv1.MetaRun) {
	if !r.GetInShards() || slices.ContainsFunc(g.endedRuns, func(id []byte) bool { return bytes.Equal(id, r.GetRun()) }) {
		return
	}
	g.endedRuns = append(slices.Clone(g.endedRuns), r.GetRun())
	if n := len(g.endedRuns); n > maxEndedRuns {
		g.endedRuns = g.endedRuns[n-maxEndedRuns:]
	}
}

// forgetRun records that every shard has forgotten a run.
func (g *registry) forgetRun(run []byte) {
	g.endedRuns = slices.DeleteFunc(slices.Clone(g.endedRuns), func(id []byte) bool { return bytes.Equal(id, run) })
}

// startGeneration stores the first step of a run's current generation, unless it is stored already. It returns the run
// with the stored step.
func (g *registry) startGeneration(c *rowraftv1.MetaStartGeneration) (*rowraftv1.MetaRun, error) {
	old := g.run(c.GetJob())
	switch {
	case old == nil || !bytes.Equal(old.GetRun(), c.GetRun()) || old.GetGeneration() != c.GetGeneration() ||
		c.GetGeneration() == 0:
		return nil, rowraft.Errorf(rowraft.CodePrecondition, "generation %d of job %s is not the present one",
			c.GetGeneration(), c.GetJob())
	// An earlier leader has logged a first step and may have sent it to some shards. All shards must get that one.
	case old.GetStarted() == c.GetGeneration():
		return old, nil
	case c.GetFirstStep() < max(old.GetFirstStep(), 1):
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"generation %d of job %s begins at step %d, the one before began at %d", c.GetGeneration(), c.GetJob(),
			c.GetFirstStep(), old.GetFirstStep())
	}
	r := proto.CloneOf(old)
	r.Started, r.FirstStep = c.GetGeneration(), c.GetFirstStep()
	g.putRun(r)
	return r, nil
}

// replaceable reports whether a member is lost or failed in a run whose data the scheduler assigns. The other workers
// read its parts, and a replacement starts from the shared state, so no checkpoint needs its state.
func replaceable(r *rowraftv1.MetaRun, m *rowraftv1.RunMember) bool {
	gone := m.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST ||
		m.GetState() == rowraftv1.MemberState_MEMBER_STATE_FAILED
	return gone && r.GetData().GetExamples() > 0
}

// cut returns at most n bytes of s, as valid UTF-8.
func cut(s string, n int) string { return strings.ToValidUTF8(s[:min(len(s), n)], "") }

// settle sets the final state of a run in which no worker trains.
func settle(r *rowraftv1.MetaRun) {
	ended, gone := 0, (*rowraftv1.RunMember)(nil)
	for _, m := range r.GetMembers() {
		switch m.GetState() {
		case rowraftv1.MemberState_MEMBER_STATE_ENDED:
			ended++
		case rowraftv1.MemberState_MEMBER_STATE_LOST, rowraftv1.MemberState_MEMBER_STATE_FAILED:
			gone = m
		}
	}
	divided := r.GetData().GetExamples() > 0
	switch {
	case r.GetStopping():
		r.State = rowraftv1.JobState_JOB_STATE_STOPPED
	case ended == int(r.GetWorkers()), divided && ended > 0 && allRead(r.GetData()):
		r.State = rowraftv1.JobState_JOB_STATE_DONE
	case gone != nil:
		r.State, r.Reason = rowraftv1.JobState_JOB_STATE_FAILED,
			cut(fmt.Sprintf("worker %s: %s", gone.GetWorker(), gone.GetReason()), maxReasonBytes)
	case ended == 0, len(r.GetMembers()) == int(r.GetWorkers()):
		r.State = rowraftv1.JobState_JOB_STATE_STOPPED
	} // else: other workers are still to come
	r.Stopping = false
}

// stopJob records that the members of a run must stop.
func (g *registry) stopJob(c *rowraftv1.MetaStopJob) error {
	old := g.run(c.GetJob())
	if old == nil || !bytes.Equal(old.GetRun(), c.GetRun()) {
		return rowraft.Errorf(rowraft.CodeNotFound, "there is no such run of job %s", c.GetJob())
	}
	if old.GetState() != rowraftv1.JobState_JOB_STATE_RUNNING {
		return nil
	}
	r := proto.CloneOf(old)
	if !r.Stopping {
		r.Stopping, r.Reason = true, cut(c.GetReason(), maxReasonBytes)
	}
	if len(TrainingRanks(r)) == 0 {
		settle(r)
	}
	g.putRun(r)
	return nil
}

// ownTables are the names of a job's tables behind "JOB."; a parameter with a table of its own has ownParameters and
// its name. Package trainer/tables gives these names, and no job's name has ".dense." in it.
var ownTables = []string{"embeddings", "dense", "audit", "progress"}

const ownParameters = "dense."

// trainsTable reports whether a table is one of a run: a member has said so in Attend, or the name says so. The name
// "ads.v2.dense" is that of a table of job ads.v2, not of job ads.
func trainsTable(r *rowraftv1.MetaRun, name string, id rowraft.TableID) bool {
	if slices.Contains(r.GetTables(), uint64(id)) {
		return true
	}
	own, found := strings.CutPrefix(name, r.GetJob()+".")
	return found && (slices.Contains(ownTables, own) || strings.HasPrefix(own, ownParameters))
}

// forgetRuns deletes the runs of a dropped table in which no worker trains: these runs cannot resume.
func (g *registry) forgetRuns(table string, id rowraft.TableID) {
	g.runs = slices.DeleteFunc(slices.Clone(g.runs), func(r *rowraftv1.MetaRun) bool {
		forget := trainsTable(r, table, id) && len(TrainingRanks(r)) == 0
		if forget {
			g.endRun(r)
			g.endRun(r.GetPrevious())
		}
		return forget
	})
}

// renewRuns deletes the runs of a restored table, like those of a dropped one; id is that of the table that it
// replaces. The next worker of a run that still trains begins a new run.
func (g *registry) renewRuns(table string, id rowraft.TableID) {
	g.forgetRuns(table, id)
	for i, r := range g.runs {
		if trainsTable(r, table, id) {
			g.runs[i] = proto.CloneOf(r) // forgetRuns has copied the list, so the element may be replaced
			g.runs[i].TableEpoch = 0
			g.accept(g.runs[i]) // the earlier run had other tables
		}
	}
}
