package meta

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// EnterResult is the result of the command enter_job.
type EnterResult struct {
	Identity   *rowraftv1.JobIdentity
	Generation uint64
	Began      bool
	Data       *rowraftv1.JobData
	BaseStep   uint64 // steps of the job before this run
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
		ReturnSplits(r.GetData(), m.GetIncarnation(), nil, false)
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
				"rank %d of job %s is that of worker %[3]s, which trains; it cannot be %[4]s's too: if %[3]s has "+
					"died, its rank is free when its lease of %[5]v ends, and at once for a worker with its name (--worker)",
				rank, q.GetJob(), r.GetMembers()[i].GetWorker(), q.GetWorker(), time.Duration(r.GetLeaseNs()))
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
