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

// EnterResult is the result of the command enter_job.
type EnterResult struct {
	Identity   *rowraftv1.JobIdentity
	Generation uint64
	Began      bool
	Data       *rowraftv1.JobData
	BaseStep   uint64 // of the run
	Done       bool   // the run ended without this worker, which is no member
	First      bool   // no other worker trains
	Workers    uint32 // number of workers of the run
	Steps      uint64 // steps of the earlier runs on these tables, and of the members that left this run
}

// enterJob makes a worker a member of the job's run. It begins a new run, of tables of that epoch, if there is none
// that the worker can enter (beginsRun).
func (g *registry) enterJob(c *rowraftv1.MetaEnterJob, epoch rowraft.TableEpoch) (*EnterResult, error) {
	q := c.GetRequest()
	if err := checkEnter(c); err != nil {
		return nil, err
	}
	old := g.run(q.GetJob())
	// A call that was delayed in the network must not make the process a member again: it trains no more, and the run
	// would wait for its lease to expire.
	if hasLeft(old, q.GetInstance()) {
		return nil, rowraft.Errorf(rowraft.CodeSessionExpired,
			"this process of worker %s has left job %s: this call is older than the leave", q.GetWorker(), q.GetJob())
	}
	if endedWithout(old, q, epoch) {
		return &EnterResult{Done: true}, nil
	}
	begins := beginsRun(old, q, epoch)
	r := proto.CloneOf(old)
	if begins {
		if err := g.roomForJob(q); err != nil {
			return nil, err
		}
		r = newRun(c, old, epoch)
	} else if err := agrees(r, q); err != nil {
		return nil, err
	}
	if canGrow(r) {
		resize(r, q)
	}
	at, err := placeOf(r, q)
	if err != nil {
		return nil, err
	}
	m := r.Members[at]
	first := !slices.ContainsFunc(r.GetMembers(), func(o *rowraftv1.RunMember) bool { return o != m && IsTraining(o) })
	if !IsTraining(m) || !bytes.Equal(m.GetInstance(), q.GetInstance()) {
		// The process that had this rank does not end its parts any more, so they return to the run before the rank gets a
		// new incarnation.
		ReturnSplits(r.GetData(), m.GetIncarnation(), nil)
		m = &rowraftv1.RunMember{
			Rank: m.GetRank(), Worker: q.GetWorker(), Instance: q.GetInstance(), Incarnation: uint64(g.issueIncarnation()),
			State: rowraftv1.MemberState_MEMBER_STATE_TRAINING, Attending: m.GetAttending(),
			AnyTable: m.GetAnyTable(),
		}
		// Otherwise the first worker that returns would begin a generation alone.
		if r.GetGather() && r.GetState() == rowraftv1.JobState_JOB_STATE_STOPPED {
			r.Gathering = true
		}
		r.Members[at] = m
		r.State, r.Reason, r.Stopping, r.IdleSinceNs = rowraftv1.JobState_JOB_STATE_RUNNING, "", false, 0
		nextGeneration(r)
	}
	// All checks are behind us: an error must leave the earlier run alone.
	if begins && !bytes.Equal(old.GetRun(), r.GetPrevious().GetRun()) {
		g.endRun(old)
	}
	g.putRun(r)
	id := &rowraftv1.JobIdentity{Job: r.GetJob(), Run: r.GetRun(), Rank: m.GetRank(), Incarnation: m.GetIncarnation()}
	return &EnterResult{Identity: id, Generation: r.GetGeneration(), Began: begins, Data: r.GetData(),
		BaseStep: r.GetBaseStep(), First: first, Workers: r.GetWorkers(), Steps: r.GetStepsBefore() + r.GetSteps()}, nil
}

// accept ends the run before r, if r still has it: a member of r trains, so the earlier run never is the job's again.
func (g *registry) accept(r *rowraftv1.MetaRun) {
	if r.GetPrevious() != nil {
		g.endRun(r.Previous)
		r.Previous = nil
	}
}

// hasLeft reports whether a process was a member of a run and has left it.
func hasLeft(r *rowraftv1.MetaRun, instance []byte) bool {
	return slices.ContainsFunc(r.GetMembers(), func(m *rowraftv1.RunMember) bool {
		return bytes.Equal(m.GetInstance(), instance) && !IsTraining(m)
	})
}

func checkEnter(c *rowraftv1.MetaEnterJob) error {
	q := c.GetRequest()
	name := func(s string) bool { return s != "" && len(s) <= maxNameLength }
	d := q.GetData()
	switch lease := time.Duration(q.GetLeaseNs()); {
	case !name(q.GetJob()) || !name(q.GetWorker()):
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %q, worker %q: want 1 to %d bytes each", q.GetJob(),
			q.GetWorker(), maxNameLength)
	case q.GetWorkers() < 1 || q.GetWorkers() > MaxWorkers || q.GetWantRank() > q.GetWorkers():
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: %d workers, rank %d: want 1 to %d, and a rank below",
			q.GetJob(), q.GetWorkers(), int(q.GetWantRank())-1, MaxWorkers)
	case q.GetInShards() && q.GetWorkers() > rowraft.MaxRanks:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: %d workers in step, or with clocks: want at most %d",
			q.GetJob(), q.GetWorkers(), rowraft.MaxRanks)
	case len(c.GetRun()) != 16 || len(q.GetInstance()) != 16:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: a run of %d bytes, an instance of %d: want 16",
			q.GetJob(), len(c.GetRun()), len(q.GetInstance()))
	case q.GetLeaseNs() > uint64(MaxLease) || lease < MinLease:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: a lease of %v: want %v to %v", q.GetJob(),
			time.Duration(min(q.GetLeaseNs(), uint64(MaxLease)+1)), MinLease, MaxLease)
	case !(q.GetQuorum() >= 0 && q.GetQuorum() <= 1):
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: a quorum of %v: want a share of its workers", q.GetJob(),
			q.GetQuorum())
	case q.GetBaseStep() > maxBaseStep:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"job %s: it had %d steps before this run: at most 2^62 are possible", q.GetJob(), q.GetBaseStep())
	case len(q.GetCheckpoint()) > maxNameLength:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: the id of a checkpoint of %d bytes", q.GetJob(),
			len(q.GetCheckpoint()))
	}
	if err := checkSettings(q.GetSettings()); err != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: %w", q.GetJob(), err)
	}
	if err := checkData(d); err != nil {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s: %w", q.GetJob(), err)
	}
	return nil
}

func checkSettings(list []*rowraftv1.JobSetting) error {
	if len(list) > maxSettings {
		return fmt.Errorf("%d settings, at most %d are possible", len(list), maxSettings)
	}
	for i, x := range list {
		if n := len(x.GetName()); n < 1 || n > maxNameLength || len(x.GetValue()) > maxSettingBytes {
			return fmt.Errorf("a setting's name of %d bytes, its value of %d: want 1 to %d, and at most %d", n,
				len(x.GetValue()), maxNameLength, maxSettingBytes)
		}
		if i > 0 && list[i-1].GetName() >= x.GetName() {
			return fmt.Errorf("settings are out of order at %s", x.GetName())
		}
	}
	return nil
}

// beginsRun reports whether a worker that enters begins a new run. A run with training members never ends in this way.
func beginsRun(r *rowraftv1.MetaRun, q *rowraftv1.EnterRequest, epoch rowraft.TableEpoch) bool {
	switch {
	case r == nil:
		return true
	case len(TrainingRanks(r)) > 0:
		return false
	case r.GetState() == rowraftv1.JobState_JOB_STATE_DONE, r.GetTableEpoch() != uint64(epoch), agrees(r, q) != nil:
		return true
	case q.GetCheckpoint() != "" && q.GetCheckpoint() != r.GetCheckpoint():
		return true
	}
	// The worker starts its share of the data again, so the other workers must do the same.
	return q.GetRestart() && slices.ContainsFunc(r.GetMembers(), func(m *rowraftv1.RunMember) bool {
		return m.GetWorker() == q.GetWorker() || m.GetRank()+1 == q.GetWantRank()
	})
}

// endedWithout reports whether the run is done and the entering worker is a member that was lost or failed before. The
// other workers have then read its share of the data.
func endedWithout(r *rowraftv1.MetaRun, q *rowraftv1.EnterRequest, epoch rowraft.TableEpoch) bool {
	if r.GetState() != rowraftv1.JobState_JOB_STATE_DONE || r.GetTableEpoch() != uint64(epoch) || agrees(r, q) != nil ||
		q.GetCheckpoint() != "" && q.GetCheckpoint() != r.GetCheckpoint() {
		return false
	}
	at := slices.IndexFunc(r.GetMembers(), func(m *rowraftv1.RunMember) bool { return m.GetWorker() == q.GetWorker() })
	if at < 0 && q.GetWantRank() > 0 {
		i, found := FindMember(r, q.GetWantRank()-1)
		if !found {
			return false
		}
		at = i
	}
	if at < 0 {
		return false
	}
	st := r.GetMembers()[at].GetState()
	return st == rowraftv1.MemberState_MEMBER_STATE_LOST || st == rowraftv1.MemberState_MEMBER_STATE_FAILED
}

// newRun returns the run that follows old. It keeps old as its previous run: a worker whose settings are refused after
// it has entered, for example by its tables, must not turn a job that is done into one that has failed.
func newRun(c *rowraftv1.MetaEnterJob, old *rowraftv1.MetaRun, epoch rowraft.TableEpoch) *rowraftv1.MetaRun {
	q := c.GetRequest()
	data := proto.CloneOf(q.GetData())
	if data == nil {
		data = &rowraftv1.JobData{}
	}
	for _, p := range data.GetOpen() {
		p.Incarnation, p.Take, p.Unsettled, p.Reading = 0, 0, 0, 0
	}
	previous, before := old, uint64(0)
	if old.GetPrevious() != nil {
		previous = old.GetPrevious()
	} else if old != nil && !old.GetAttended() && old.GetState() == rowraftv1.JobState_JOB_STATE_FAILED {
		previous = nil // no member of it ever trained
	}
	if previous.GetTableEpoch() == uint64(epoch) && q.GetCheckpoint() == "" {
		before = previous.GetStepsBefore() + previous.GetSteps()
	}
	return &rowraftv1.MetaRun{
		Previous: previous, StepsBefore: before,
		Job: q.GetJob(), Run: c.GetRun(), Workers: q.GetWorkers(), Settings: q.GetSettings(), Gather: q.GetGather(),
		LeaseNs: q.GetLeaseNs(),
		State:   rowraftv1.JobState_JOB_STATE_RUNNING, Checkpoint: q.GetCheckpoint(), TableEpoch: uint64(epoch), Data: data,
		InShards: q.GetInShards(),
		Quorum:   q.GetQuorum(), DeadlineNs: q.GetDeadlineNs(), BaseStep: q.GetBaseStep(),
	}
}

// agrees refuses a worker whose settings differ from those of the run. The error names both values of each setting.
func agrees(r *rowraftv1.MetaRun, q *rowraftv1.EnterRequest) error {
	var differ []string
	add := func(name, has, want string) {
		differ = append(differ, fmt.Sprintf("%s is %s in the job, and %s at the worker", name, has, want))
	}
	if r.GetWorkers() != q.GetWorkers() && !canGrow(r) {
		add("trainers", fmt.Sprint(r.GetWorkers()), fmt.Sprint(q.GetWorkers()))
	}
	if r.GetLeaseNs() != q.GetLeaseNs() {
		add("lease", fmt.Sprint(time.Duration(r.GetLeaseNs())), fmt.Sprint(time.Duration(q.GetLeaseNs())))
	}
	a, b := r.GetSettings(), q.GetSettings()
	for len(a)+len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].GetName() < b[0].GetName():
			add(a[0].GetName(), a[0].GetValue(), "not set")
			a = a[1:]
		case len(a) == 0 || a[0].GetName() > b[0].GetName():
			add(b[0].GetName(), "not set", b[0].GetValue())
			b = b[1:]
		default:
			if a[0].GetValue() != b[0].GetValue() {
				add(a[0].GetName(), a[0].GetValue(), b[0].GetValue())
			}
			a, b = a[1:], b[1:]
		}
	}
	if len(differ) == 0 {
		return nil
	}
	return rowraft.Errorf(rowraft.CodeInvalidArgument,
		"worker %s does not agree with job %s: %s; all workers of a job must be started with the same configuration",
		q.GetWorker(), q.GetJob(), strings.Join(differ, "; "))
}

// fixedSetting is the setting of a run whose number of workers cannot change, for example because its audit rows have a
// dimension for each worker.
const fixedSetting = "trainers"

// canGrow reports whether more workers than expected may enter a run: the scheduler divides its data, and its settings
// do not fix the number of workers.
func canGrow(r *rowraftv1.MetaRun) bool {
	return r.GetData().GetExamples() > 0 && !slices.ContainsFunc(r.GetSettings(),
		func(x *rowraftv1.JobSetting) bool { return x.GetName() == fixedSetting })
}

// resize sets the number of workers of a run that can grow. A run without training members continues with as many as
// the first worker that enters expects, or it would wait for workers that joined only for a time.
func resize(r *rowraftv1.MetaRun, q *rowraftv1.EnterRequest) {
	if len(TrainingRanks(r)) > 0 {
		r.Workers = max(r.Workers, q.GetWorkers())
		return
	}
	r.Workers = q.GetWorkers()
	r.Members = slices.DeleteFunc(r.Members, func(m *rowraftv1.RunMember) bool { return m.GetRank() >= r.GetWorkers() })
}

// placeOf returns the index in r.Members of the worker's rank. It inserts the member if the rank is new. Order: the
// requested rank, the rank with the worker's name, a rank never used, a lost or failed member, a member that left, a
// new rank of a run that can grow.
func placeOf(r *rowraftv1.MetaRun, q *rowraftv1.EnterRequest) (at int, err error) {
	// A new member would set the run to running again (enterJob), which undoes the stop.
	if r.GetStopping() && len(TrainingRanks(r)) > 0 {
		return 0, rowraft.Errorf(rowraft.CodePrecondition, "job %s is being stopped; worker %s may begin when it has",
			q.GetJob(), q.GetWorker())
	}
	named := slices.IndexFunc(r.GetMembers(), func(m *rowraftv1.RunMember) bool { return m.GetWorker() == q.GetWorker() })
	if q.GetWantRank() > 0 {
		rank := q.GetWantRank() - 1
		i, found := FindMember(r, rank)
		switch {
		case named >= 0 && named != i && IsTraining(r.GetMembers()[named]):
			return 0, rowraft.Errorf(rowraft.CodeAlreadyExists, "worker %s of job %s has rank %d, and cannot have rank %d too",
				q.GetWorker(), q.GetJob(), r.GetMembers()[named].GetRank(), rank)
		case found && IsTraining(r.GetMembers()[i]) && i != named:
			return 0, rowraft.Errorf(rowraft.CodeAlreadyExists,
				"rank %d of job %s is that of worker %s, which trains; it cannot be %s's too", rank, q.GetJob(),
				r.GetMembers()[i].GetWorker(), q.GetWorker())
		case !found:
			r.Members = slices.Insert(r.Members, i, &rowraftv1.RunMember{Rank: rank})
		}
		return i, nil
	}
	if named >= 0 {
		return named, nil
	}
	for i := range int(r.GetWorkers()) { // a rank never used
		if i == len(r.Members) || r.Members[i].GetRank() != uint32(i) {
			r.Members = slices.Insert(r.Members, i, &rowraftv1.RunMember{Rank: uint32(i)})
			return i, nil
		}
	}
	for _, gone := range []func(*rowraftv1.RunMember) bool{func(m *rowraftv1.RunMember) bool {
		return m.GetState() == rowraftv1.MemberState_MEMBER_STATE_LOST ||
			m.GetState() == rowraftv1.MemberState_MEMBER_STATE_FAILED
	}, func(m *rowraftv1.RunMember) bool { return !IsTraining(m) }} {
		if i := slices.IndexFunc(r.GetMembers(), gone); i >= 0 {
			return i, nil
		}
	}
	most := uint32(MaxWorkers)
	if r.GetInShards() {
		most = rowraft.MaxRanks
	}
	if canGrow(r) && r.GetWorkers() < most {
		r.Members = append(r.Members, &rowraftv1.RunMember{Rank: r.GetWorkers()})
		r.Workers++
		return len(r.Members) - 1, nil
	}
	why := "its data is not divided by the scheduler: start the job with splits: true, so that workers can join it"
	switch {
	case canGrow(r):
		why = fmt.Sprintf("the limit is %d", most)
	case r.GetData().GetExamples() > 0:
		why = "its settings need a fixed number (audit, or weights that the trainers keep)"
	}
	return 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "job %s has all of its %d workers, %s would be number %d, and "+
		"%s; a restarted worker must keep its name",
		q.GetJob(), r.GetWorkers(), q.GetWorker(), r.GetWorkers()+1, why)
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
func (g *registry) leaveJob(l *rowraftv1.MetaLeaveJob) error {
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
	ReturnSplits(r.GetData(), m.GetIncarnation(), l.GetSplits())
	if replaceable(r, m) {
		m.Attending = 0
	}
	// The shards close steps by the members of a generation, so a member that left must not be waited for.
	nextGeneration(r)
	if len(TrainingRanks(r)) == 0 {
		settle(r)
		r.IdleSinceNs = l.GetAtNs()
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
	r.Stopping = true
	if len(TrainingRanks(r)) == 0 {
		settle(r)
	}
	g.putRun(r)
	return nil
}

// forgetRuns deletes the runs of a dropped table in which no worker trains: these runs cannot resume.
func (g *registry) forgetRuns(table string) {
	g.runs = slices.DeleteFunc(slices.Clone(g.runs), func(r *rowraftv1.MetaRun) bool {
		forget := strings.HasPrefix(table, r.GetJob()+".") && len(TrainingRanks(r)) == 0
		if forget {
			g.endRun(r)
			g.endRun(r.GetPrevious())
		}
		return forget
	})
}

// renewRuns deletes the runs of a restored table, like those of a dropped one. The next worker of a run that still
// trains begins a new run.
func (g *registry) renewRuns(table string) {
	g.forgetRuns(table)
	for i, r := range g.runs {
		if strings.HasPrefix(table, r.GetJob()+".") {
			g.runs[i] = proto.CloneOf(r) // forgetRuns has copied the list, so the element may be replaced
			g.runs[i].TableEpoch = 0
			g.accept(g.runs[i]) // the earlier run had other tables
		}
	}
}
