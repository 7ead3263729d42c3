package meta

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

func cmdStopJob(run []byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StopJob{StopJob: &rowraftv1.MetaStopJob{Job: "ctr",
		Run: run}}}
}

const (
	ended   = rowraftv1.MemberState_MEMBER_STATE_ENDED
	stopped = rowraftv1.MemberState_MEMBER_STATE_STOPPED
	lost    = rowraftv1.MemberState_MEMBER_STATE_LOST
	failed  = rowraftv1.MemberState_MEMBER_STATE_FAILED
)

func (a *applier) enter(c *rowraftv1.MetaCommand) *EnterResult {
	a.t.Helper()
	e, ok := a.do(c).(*EnterResult)
	if !ok {
		a.t.Fatalf("%v was refused", c)
	}
	return e
}

func (a *applier) ok(c *rowraftv1.MetaCommand) {
	a.t.Helper()
	if err, refused := a.do(c).(error); refused {
		a.t.Fatalf("%v was refused: %v", c, err)
	}
}

func (a *applier) wantJob(st rowraftv1.JobState, generation uint64, ranks ...uint32) {
	a.t.Helper()
	r := a.m.RunOf("ctr")
	if r.GetState() != st || r.GetGeneration() != generation || !slices.Equal(TrainingRanks(r), ranks) {
		a.t.Fatalf("the job is %v in generation %d with ranks %v, want %v, %d, %v", r.GetState(), r.GetGeneration(),
			TrainingRanks(r), st, generation, ranks)
	}
}

const (
	running    = rowraftv1.JobState_JOB_STATE_RUNNING
	jobStopped = rowraftv1.JobState_JOB_STATE_STOPPED
	done       = rowraftv1.JobState_JOB_STATE_DONE
	jobFailed  = rowraftv1.JobState_JOB_STATE_FAILED
)

// A worker has a rank, an incarnation of its own and a place in the next generation,
// and who comes after it under its name or rank fences it.
func TestWorkersEnterAndLeave(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	one := a.enter(metacmd.EnterJob("a", 1, nil))
	if !one.Began || one.Generation != 1 || one.Identity.Rank != 0 {
		t.Errorf("the first worker has %v", one)
	}
	two := a.enter(metacmd.EnterJob("b", 2, nil))
	if two.Began || two.Generation != 2 || two.Identity.Rank != 1 || two.Identity.Incarnation <= one.Identity.Incarnation {
		t.Errorf("the second worker has %v after %v", two, one)
	}
	a.refused(metacmd.EnterJob("c", 3, nil), rowraft.CodeInvalidArgument, "all of its 2 workers", "c would be number 3")
	if again := a.enter(metacmd.EnterJob("a", 1, nil)); !proto.Equal(again.Identity, one.Identity) ||
		again.Generation != 2 {
		t.Errorf("asked again it has %v, was %v", again, one)
	}
	back := a.enter(metacmd.EnterJob("a", 4, nil))
	if back.Identity.Rank != 0 || back.Identity.Incarnation <= two.Identity.Incarnation || back.Generation != 3 {
		t.Errorf("a worker that returned has %v", back)
	}
	if err := a.m.CheckMember(one.Identity); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("the zombie is told %v", err)
	}
	a.ok(metacmd.LeaveJob(one.Identity, failed)) // the zombie has no say
	a.wantJob(running, 3, 0, 1)
	a.ok(metacmd.LeaveJob(back.Identity, lost))
	a.wantJob(running, 4, 1)
	if err := a.m.CheckMember(back.Identity); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a worker that was lost is told %v", err)
	}
	if next := a.enter(metacmd.EnterJob("c", 5, nil)); next.Identity.Rank != 0 || next.Generation != 5 {
		t.Errorf("who takes the place of a lost one has %v", next)
	}
	a.ok(metacmd.LeaveJob(two.Identity, ended))
	if err := a.m.CheckMember(two.Identity); err != nil {
		t.Errorf("a worker that has ended is told %v", err)
	}
	a.wantJob(running, 6, 0)
}

// A run knows how many steps its job had when it began: who enters later is told, whatever it
// believes itself.
func TestARunKnowsItsBaseStep(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	base := func(step uint64) func(*rowraftv1.EnterRequest) {
		return func(q *rowraftv1.EnterRequest) { q.BaseStep = step }
	}
	one := a.enter(metacmd.EnterJob("a", 1, base(500)))
	two := a.enter(metacmd.EnterJob("b", 2, base(0)))
	a.ok(metacmd.LeaveJob(two.Identity, lost))
	if back := a.enter(metacmd.EnterJob("b", 3, base(7))); one.BaseStep != 500 || two.BaseStep != 500 ||
		back.BaseStep != 500 {
		t.Errorf("the workers are told %d, %d and, after a restart, %d, want 500", one.BaseStep, two.BaseStep, back.BaseStep)
	}
	a.refused(metacmd.EnterJob("c", 4, base(1<<62+1)), rowraft.CodeInvalidArgument, "at most 2^62")
}

// The state of a run without training workers, and the entries that begin the next one.
func TestRunsEnd(t *testing.T) {
	for _, tc := range []struct {
		name    string
		leave   []rowraftv1.MemberState // of a and b; 0: b never came
		stop    bool
		want    rowraftv1.JobState
		restart func(*rowraftv1.EnterRequest) // of a, afterwards
		begins  bool
	}{
		{"both end", []rowraftv1.MemberState{ended, ended}, false, done, nil, true},
		{"one is lost", []rowraftv1.MemberState{ended, lost}, false, jobFailed, nil, false},
		{"one fails", []rowraftv1.MemberState{stopped, failed}, false, jobFailed, nil, false},
		{"they are stopped", []rowraftv1.MemberState{stopped, stopped}, true, jobStopped, nil, false},
		{"signals stop them", []rowraftv1.MemberState{stopped, stopped}, false, jobStopped, nil, false},
		{"one ends, one is signalled", []rowraftv1.MemberState{ended, stopped}, false, jobStopped, nil, false},
		{"the other has not come", []rowraftv1.MemberState{ended, 0}, false, running, nil, false},
		{"stopped, then with other settings", []rowraftv1.MemberState{stopped, stopped}, true, jobStopped,
			func(q *rowraftv1.EnterRequest) { q.Settings = nil }, true},
		{"stopped, then from the beginning", []rowraftv1.MemberState{stopped, stopped}, true, jobStopped,
			func(q *rowraftv1.EnterRequest) { q.Restart = true }, true},
		{"stopped, then from a checkpoint", []rowraftv1.MemberState{stopped, stopped}, true, jobStopped,
			func(q *rowraftv1.EnterRequest) { q.Checkpoint = "x" }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := newApplier(t)
			a.do(cmdInit("c"))
			ids := []*rowraftv1.JobIdentity{a.enter(metacmd.EnterJob("a", 1, nil)).Identity}
			if tc.leave[1] != 0 {
				ids = append(ids, a.enter(metacmd.EnterJob("b", 2, nil)).Identity)
			}
			if tc.stop {
				a.ok(cmdStopJob(ids[0].Run))
				a.refused(metacmd.EnterJob("b", 9, nil), rowraft.CodePrecondition, "being stopped")
			}
			for i, id := range ids {
				if a.m.RunOf("ctr").GetState() != running {
					t.Fatalf("it has ended before worker %d has", i)
				}
				a.ok(metacmd.LeaveJob(id, tc.leave[i]))
			}
			if r := a.m.RunOf("ctr"); r.GetState() != tc.want || r.GetStopping() ||
				(r.GetReason() != "") != (tc.want == jobFailed) {
				t.Fatalf("the job is %v (%q), want %v", r.GetState(), r.GetReason(), tc.want)
			}
			next := a.enter(metacmd.EnterJob("a", 7, tc.restart))
			if next.Began != tc.begins || next.Began == bytes.Equal(next.Identity.Run, ids[0].Run) {
				t.Errorf("who enters then begins another run: %v, want %v", next.Began, tc.begins)
			}
			if r := a.m.RunOf("ctr"); r.GetState() != running || r.GetReason() != "" {
				t.Errorf("then the job is %v (%q)", r.GetState(), r.GetReason())
			}
		})
	}
}

// Who disagrees with those who train is told in what, with both values.
func TestWorkersMustAgree(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	a.enter(metacmd.EnterJob("a", 1, nil))
	set := func(list ...string) func(*rowraftv1.EnterRequest) {
		return func(q *rowraftv1.EnterRequest) {
			q.Settings = nil
			for i := 0; i < len(list); i += 2 {
				q.Settings = append(q.Settings, &rowraftv1.JobSetting{Name: list[i], Value: list[i+1]})
			}
		}
	}
	for _, tc := range []struct {
		change func(*rowraftv1.EnterRequest)
		says   []string
	}{
		{set("batch", "256", "mode", "async"), []string{"batch is 512 in the job, and 256 at the worker"}},
		{set("batch", "256", "mode", "sync"), []string{"batch is 512", "mode is async in the job, and sync"}},
		{set("mode", "async"), []string{"batch is 512 in the job, and not set at the worker"}},
		{set("batch", "512", "mode", "async", "seed", "7"), []string{"seed is not set in the job, and 7 at the worker"}},
		{func(q *rowraftv1.EnterRequest) { q.Workers = 3 }, []string{"trainers is 2 in the job, and 3"}},
		{func(q *rowraftv1.EnterRequest) { q.LeaseNs = uint64(time.Minute) }, []string{"lease is 10s in the job, and 1m0s"}},
	} {
		a.refused(metacmd.EnterJob("b", 2, tc.change), rowraft.CodeInvalidArgument, tc.says...)
	}
	for what, change := range map[string]func(*rowraftv1.EnterRequest){
		"a rank beyond the workers": func(q *rowraftv1.EnterRequest) { q.WantRank = 3 },
		"too many for the shards": func(q *rowraftv1.EnterRequest) {
			q.Job, q.Workers, q.InShards = "other", rowraft.MaxRanks+1, true
		},
		"a long name":            func(q *rowraftv1.EnterRequest) { q.Worker = string(make([]byte, 129)) },
		"no instance":            func(q *rowraftv1.EnterRequest) { q.Instance = nil },
		"a short lease":          func(q *rowraftv1.EnterRequest) { q.LeaseNs = 1 },
		"a lease that overflows": func(q *rowraftv1.EnterRequest) { q.LeaseNs = 1 << 63 },
		"settings out of order":  set("mode", "async", "batch", "512"),
		"too many parts": func(q *rowraftv1.EnterRequest) {
			q.Data = &rowraftv1.JobData{Examples: 1 << 40, SplitExamples: 1}
		},
		"parts of nothing": func(q *rowraftv1.EnterRequest) { q.Data = &rowraftv1.JobData{SplitExamples: 1} },
	} {
		t.Run(what, func(*testing.T) { a.refused(metacmd.EnterJob("b", 2, change), rowraft.CodeInvalidArgument) })
	}
	rank := func(n uint32) func(*rowraftv1.EnterRequest) {
		return func(q *rowraftv1.EnterRequest) { q.WantRank = n + 1 }
	}
	a.refused(metacmd.EnterJob("b", 2, rank(0)), rowraft.CodeAlreadyExists, "rank 0 of job ctr is that of worker a")
	a.refused(metacmd.EnterJob("a", 2, rank(1)), rowraft.CodeAlreadyExists, "worker a of job ctr has rank 0")
	if b := a.enter(metacmd.EnterJob("b", 2, rank(1))); b.Identity.Rank != 1 {
		t.Errorf("it has rank %d", b.Identity.Rank)
	}
}

func TestGatheringWaitsForAll(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	gather := func(q *rowraftv1.EnterRequest) { q.Gather = true }
	first := a.enter(metacmd.EnterJob("a", 1, gather))
	a.wantJob(running, 0, 0)
	a.ok(metacmd.LeaveJob(first.Identity, lost))
	a.wantJob(jobFailed, 0)
	a.enter(metacmd.EnterJob("a", 2, gather))
	if e := a.enter(metacmd.EnterJob("b", 3, gather)); e.Generation != 1 {
		t.Errorf("with all workers there the generation is %d", e.Generation)
	}
	a.ok(metacmd.LeaveJob(a.enter(metacmd.EnterJob("b", 3, gather)).Identity, lost))
	a.wantJob(running, 2, 0)
}

// A table that is dropped takes with it the run that cannot go on without it.
func TestDroppedTablesForgetRuns(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	a.do(cmdTable(metacmd.SGD("ctr.embeddings", 4), 7, false))
	a.do(cmdTable(metacmd.SGD("ctr.dense", 4), 8, false))
	e := a.enter(metacmd.EnterJob("a", 1, nil))
	a.ok(metacmd.DropTable("ctr.dense", 8))
	a.wantJob(running, 1, 0)
	a.ok(metacmd.LeaveJob(e.Identity, stopped))
	a.ok(metacmd.DropTable("ctr.embeddings", 7))
	if r := a.m.RunOf("ctr"); r != nil {
		t.Errorf("the job is still %v", r)
	}
}

// Whatever workers do, at most so many train as there are, each under its own rank and
// with the highest incarnation, and the state survives a snapshot.
func TestRegistryModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := newApplier(t)
		a.do(cmdInit("c"))
		var known []*rowraftv1.JobIdentity
		instance := byte(0)
		for range rapid.IntRange(1, 40).Draw(t, "commands") {
			before := a.m.RunOf("ctr")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1, 2:
				instance++
				worker := fmt.Sprint("w", rapid.IntRange(0, 4).Draw(t, "worker"))
				last := a.m.state.registry.lastIncarnation
				if e, ok := a.do(metacmd.EnterJob(worker, instance, nil)).(*EnterResult); ok {
					if e.Identity.GetIncarnation() <= uint64(last) {
						t.Fatalf("incarnation %d after %d", e.Identity.GetIncarnation(), last)
					}
					known = append(known, e.Identity)
				} else if len(TrainingRanks(before)) < 2 && !before.GetStopping() {
					t.Fatal("a worker was refused although there is a place")
				}
			case 3, 4:
				if len(known) > 0 {
					how := rapid.SampledFrom([]rowraftv1.MemberState{ended, stopped, lost, failed}).Draw(t, "how")
					a.ok(metacmd.LeaveJob(rapid.SampledFrom(known).Draw(t, "who"), how))
				}
			case 5:
				if before != nil {
					a.ok(cmdStopJob(before.GetRun()))
				}
			}
			r := a.m.RunOf("ctr")
			if len(TrainingRanks(r)) > 2 || r.GetGeneration() < before.GetGeneration() &&
				bytes.Equal(r.GetRun(), before.GetRun()) {
				t.Fatalf("%v after %v", r, before)
			}
			if before != nil && bytes.Equal(r.GetRun(), before.GetRun()) && r.GetGeneration() == before.GetGeneration() &&
				!slices.Equal(TrainingRanks(r), TrainingRanks(before)) {
				t.Fatalf("generation %d had %v, and has %v", r.GetGeneration(), TrainingRanks(before), TrainingRanks(r))
			}
			for _, m := range r.GetMembers() {
				if !IsTraining(m) {
					continue
				}
				for _, id := range known {
					newest := bytes.Equal(id.GetRun(), r.GetRun()) && id.GetRank() == m.GetRank() &&
						id.GetIncarnation() == m.GetIncarnation()
					if err := a.m.CheckMember(id); id.GetRank() == m.GetRank() && (err == nil) != newest {
						t.Fatalf("%v is a member: %v; the member is %v", id, err, m)
					}
				}
			}
			b := New(NewView())
			if err := b.Restore(bytes.NewReader(snapshotBytes(t, a.m))); err != nil ||
				!bytes.Equal(snapshotBytes(t, b), snapshotBytes(t, a.m)) {
				t.Fatalf("the state does not survive a snapshot: %v", err)
			}
		}
	})
}

func cmdBeginGeneration(run []byte, generation, first uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_StartGeneration{
		StartGeneration: &rowraftv1.MetaStartGeneration{Job: "ctr", Run: run, Generation: generation, FirstStep: first}}}
}

// Of two leaders that begin a generation the first counts, and shards are to forget what
// is over.
func TestGenerationsBeginOnce(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	inShards := func(q *rowraftv1.EnterRequest) { q.InShards = true }
	one := a.enter(metacmd.EnterJob("a", 1, inShards)).Identity
	a.refused(cmdBeginGeneration(one.Run, 2, 5), rowraft.CodePrecondition)
	a.refused(cmdBeginGeneration(metacmd.ID(9), 1, 5), rowraft.CodePrecondition)
	for _, first := range []uint64{5, 7} {
		if r, ok := a.do(cmdBeginGeneration(one.Run, 1, first)).(*rowraftv1.MetaRun); !ok || r.GetFirstStep() != 5 ||
			r.GetStarted() != 1 {
			t.Errorf("asked for %d it is %v", first, r)
		}
	}
	a.ok(metacmd.LeaveJob(one, lost))
	a.refused(cmdBeginGeneration(one.Run, 2, 4), rowraft.CodeInvalidArgument, "begins at step 4")
	if got := a.m.EndedRuns(); len(got) != 0 {
		t.Errorf("to be forgotten: %x, and it can go on", got)
	}
	next := a.enter(metacmd.EnterJob("a", 2, func(q *rowraftv1.EnterRequest) {
		q.InShards, q.Restart = true, true
	})).Identity
	other := a.enter(metacmd.EnterJob("b", 3, inShards)).Identity
	if got := a.m.EndedRuns(); len(got) != 1 || !bytes.Equal(got[0], one.Run) {
		t.Errorf("to be forgotten: %x, want %x", got, one.Run)
	}
	a.ok(metacmd.LeaveJob(next, ended))
	a.ok(metacmd.LeaveJob(other, ended))
	a.ok(
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_ForgetRun{ForgetRun: &rowraftv1.MetaForgetRun{Run: one.Run}}})
	if got := a.m.EndedRuns(); len(got) != 1 || !bytes.Equal(got[0], next.Run) {
		t.Errorf("to be forgotten: %x, want %x", got, next.Run)
	}
}

func TestGoldenBytesOfRuns(t *testing.T) {
	instance, run := make([]byte, 16), make([]byte, 16)
	for i := range instance {
		instance[i], run[i] = byte(i+1), byte(i+17)
	}
	settings := []*rowraftv1.JobSetting{{Name: "batch", Value: "512"}, {Name: "mode", Value: "async"}}
	me := &rowraftv1.JobIdentity{Job: "ctr", Run: run, Rank: 1, Incarnation: 6}
	for name, c := range map[string]*rowraftv1.MetaCommand{
		"enter_job": {Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Run: run,
			Request: &rowraftv1.EnterRequest{
				Job: "ctr", Worker: "w-0", Instance: instance, Workers: 2, Settings: settings, LeaseNs: 10e9,
				Data: &rowraftv1.JobData{Examples: 1000, SplitExamples: 100, Epochs: 2},
			}}}},
		"enter_dealt": {Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Run: run,
			Request: &rowraftv1.EnterRequest{
				Job: "ctr", Worker: "w-0", Instance: instance, Workers: 2, Settings: settings, LeaseNs: 10e9,
				Data: &rowraftv1.JobData{Examples: 1000, SplitExamples: 100, Epochs: 2, ByRank: true, InLog: true},
			}}}},
		"enter_base": {Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Run: run,
			Request: &rowraftv1.EnterRequest{
				Job: "ctr", Worker: "w-0", Instance: instance, Workers: 2, Settings: settings, LeaseNs: 10e9, BaseStep: 500,
				Data: &rowraftv1.JobData{Examples: 1000, SplitExamples: 100, Epochs: 2, ByRank: true, InLog: true},
			}}}},
		"settle_splits": cmdSettle(run, &rowraftv1.SplitSettled{Incarnation: 5, Acknowledged: 7, Applied: 9},
			&rowraftv1.SplitSettled{Split: 1, Incarnation: 6, Unknown: true}),
		"leave_job": {Command: &rowraftv1.MetaCommand_LeaveJob{LeaveJob: &rowraftv1.MetaLeaveJob{
			Identity: me, State: lost, Reason: "silent",
			Splits: []*rowraftv1.SplitReached{{Split: 1, Acknowledged: 40, Read: 50}},
		}}},
		"take_split": {Command: &rowraftv1.MetaCommand_TakeSplit{TakeSplit: &rowraftv1.MetaTakeSplit{Identity: me,
			Take: 2}}},
		"end_split": {Command: &rowraftv1.MetaCommand_EndSplit{
			EndSplit: &rowraftv1.MetaEndSplit{Identity: me, Split: 1}}},
		"stop_job":         cmdStopJob(run),
		"start_generation": cmdBeginGeneration(run, 3, 41),
		"report_score": {Command: &rowraftv1.MetaCommand_ReportScore{ReportScore: &rowraftv1.ReportScoreRequest{
			Identity: me, Score: &rowraftv1.JobScore{Metric: "auc", Value: .75, Step: 900}, LowerIsBetter: true,
			MinDelta: .001}}},
		"forget_run": {Command: &rowraftv1.MetaCommand_ForgetRun{ForgetRun: &rowraftv1.MetaForgetRun{Run: run}}},
	} {
		goldenCommand(t, name, c)
	}
	if ended := goldenMachine(t, "ended_runs").EndedRuns(); len(ended) != 1 || !bytes.Equal(ended[0], run) {
		t.Errorf("ended runs: %x", ended)
	}
	wantRunOf(t, "dealt", &rowraftv1.MetaRun{
		Job: "ctr", Run: run, Workers: 2, Generation: 3, LeaseNs: 10e9, State: running, TableEpoch: 1, Gathering: true,
		Members: []*rowraftv1.RunMember{{Worker: "w-0", Incarnation: 5, Instance: instance, State: lost, Reason: "silent",
			Taken: 1}},
		Data: &rowraftv1.JobData{
			Examples: 1000, SplitExamples: 100, Epochs: 2, Split: 1, ByRank: true, InLog: true,
			Open: []*rowraftv1.JobSplit{{Offset: 7, Unsettled: 5}},
		},
	})
	wantRunOf(t, "readings", &rowraftv1.MetaRun{
		Job: "ctr", Run: run, Workers: 2, Generation: 3, LeaseNs: 10e9, State: running, TableEpoch: 1,
		Members: []*rowraftv1.RunMember{{Rank: 1, Worker: "w-1", Incarnation: 6, Instance: instance,
			State: rowraftv1.MemberState_MEMBER_STATE_TRAINING, Taken: 1}},
		Data: &rowraftv1.JobData{
			Examples: 1000, SplitExamples: 100, Epochs: 2, Split: 1, ByRank: true, InLog: true,
			Open: []*rowraftv1.JobSplit{{Offset: 7, Incarnation: 6, Take: 1, Reading: 3}},
		},
	})
	wantRunOf(t, "base", &rowraftv1.MetaRun{
		Job: "ctr", Run: run, Workers: 2, Generation: 3, LeaseNs: 10e9, State: running, TableEpoch: 1, BaseStep: 500,
		Members: []*rowraftv1.RunMember{{Worker: "w-0", Incarnation: 5, Instance: instance, State: lost, Reason: "silent",
			Taken: 1}},
		Data: &rowraftv1.JobData{Examples: 1000, SplitExamples: 100, Epochs: 2, Split: 1},
	})
	best := &rowraftv1.JobScore{Metric: "auc", Value: .75, Step: 900, Checkpoint: "/c/best"}
	wantRunOf(t, "scores", &rowraftv1.MetaRun{
		Job: "ctr", Run: run, Workers: 2, Generation: 3, LeaseNs: 10e9, State: running, TableEpoch: 1,
		Members: []*rowraftv1.RunMember{{Rank: 1, Worker: "w-1", Incarnation: 6, Instance: instance,
			State: rowraftv1.MemberState_MEMBER_STATE_TRAINING, Taken: 1}},
		Data: &rowraftv1.JobData{Examples: 1000, SplitExamples: 100, Epochs: 2},
		Scores: &rowraftv1.JobScores{Best: best, Saved: best, Last: &rowraftv1.JobScore{Metric: "auc", Value: .5, Step: 1000},
			LastIncarnation: 6, SinceBest: 1},
	})
	wantRunOf(t, "runs", &rowraftv1.MetaRun{
		Job: "ctr", Run: run, Workers: 2, Settings: settings, Generation: 3, LeaseNs: 10e9, State: running, TableEpoch: 1,
		Members: []*rowraftv1.RunMember{
			{Worker: "w-0", Incarnation: 5, Instance: instance, State: lost, Reason: "silent", Taken: 1},
			{Rank: 1, Worker: "w-1", Incarnation: 6, Instance: instance, State: rowraftv1.MemberState_MEMBER_STATE_TRAINING,
				Taken: 1},
		},
		Data: &rowraftv1.JobData{Examples: 1000, SplitExamples: 100, Epochs: 2, Split: 2, AgainKnown: 3, AgainMost: 93,
			Open: []*rowraftv1.JobSplit{{Offset: 7}, {Split: 1, Incarnation: 6, Take: 1}}},
	})
}

// wantRunOf reads a snapshot, wants that of job ctr in it, and the same bytes again.
func wantRunOf(t *testing.T, name string, want *rowraftv1.MetaRun) {
	t.Helper()
	if got := goldenMachine(t, name).RunOf("ctr"); !proto.Equal(got, want) {
		t.Errorf("read: %v, want %v", got, want)
	}
}

// A worker that was lost and comes when the others have done its share is told so; one that
// ended, or that has other settings, begins the job again.
func TestWhoWasLostIsToldThatTheJobIsDone(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	plan := func(q *rowraftv1.EnterRequest) {
		metacmd.WithData(10, 10, 1)(q)
	}
	one, two := a.enter(metacmd.EnterJob("a", 1, plan)).Identity, a.enter(metacmd.EnterJob("b", 2, plan)).Identity
	a.ok(metacmd.LeaveJob(one, lost))
	p := a.take(two, 1)
	a.ok(cmdEndSplit(two, p.Split))
	a.ok(metacmd.LeaveJob(two, ended))
	a.wantJob(done, 4)
	before := a.m.state.registry.runs
	for name, change := range map[string]func(*rowraftv1.EnterRequest){
		"by its name": plan,
		"by its rank": func(q *rowraftv1.EnterRequest) { plan(q); q.Worker, q.WantRank = "another", 1 },
	} {
		if e := a.enter(metacmd.EnterJob("a", 3, change)); !e.Done || e.Identity != nil {
			t.Errorf("%s: %+v", name, e)
		}
	}
	a.wantJob(done, 4)
	next := a.enter(metacmd.EnterJob("b", 4, plan)) // a worker that enters after another one began the next run takes part
	if e := a.enter(metacmd.EnterJob("a", 5, plan)); e.Done || e.Began ||
		!bytes.Equal(e.Identity.GetRun(), next.Identity.GetRun()) {
		t.Errorf("in the next run it is %+v", e)
	}
	a.m.state.registry.runs = before
	for name, c := range map[string]*rowraftv1.MetaCommand{
		"who ended":         metacmd.EnterJob("b", 4, plan),
		"another batch":     metacmd.EnterJob("a", 4, func(q *rowraftv1.EnterRequest) { plan(q); q.Settings[0].Value = "8" }),
		"from a checkpoint": metacmd.EnterJob("a", 4, func(q *rowraftv1.EnterRequest) { plan(q); q.Checkpoint = "x" }),
	} {
		if e := a.enter(c); e.Done || !e.Began {
			t.Errorf("%s: %+v", name, e)
		}
		a.m.state.registry.runs = before
	}
}

// A call to enter that comes when its process has left, since an earlier try of it has got through,
// neither makes that process a member again nor begins the job again.
func TestACallToEnterThatComesTooLateChangesNothing(t *testing.T) {
	for name, leaves := range map[string]rowraftv1.MemberState{"it ended": ended, "it was lost": lost} {
		t.Run(name, func(t *testing.T) {
			a := newApplier(t)
			a.do(cmdInit("c"))
			alone := func(q *rowraftv1.EnterRequest) { q.Workers = 1 }
			call := metacmd.EnterJob("a", 1, alone)
			one := a.enter(call)
			if again := a.enter(call); !proto.Equal(again.Identity, one.Identity) {
				t.Errorf("while it trains the call is answered %v, want %v", again.Identity, one.Identity)
			}
			a.ok(metacmd.LeaveJob(one.Identity, leaves))
			was := a.m.RunOf("ctr")
			a.refused(call, rowraft.CodeSessionExpired, "older than the leave")
			if now := a.m.RunOf("ctr"); !proto.Equal(now, was) {
				t.Errorf("after the late call the run is %v, was %v", now, was)
			}
			if other := a.enter(metacmd.EnterJob("a", 2, alone)); len(TrainingRanks(a.m.RunOf("ctr"))) != 1 ||
				other.Identity.GetIncarnation() <= one.Identity.GetIncarnation() {
				t.Errorf("another process enters as %v", other)
			}
		})
	}
}

// A stopped job whose workers gather goes on when they are all there again, but for who
// has ended.
func TestAStoppedJobGathersAgain(t *testing.T) {
	a := newApplier(t)
	a.do(cmdInit("c"))
	gathers := func(q *rowraftv1.EnterRequest) { q.Gather = true }
	one, two := a.enter(metacmd.EnterJob("a", 1, gathers)).Identity, a.enter(metacmd.EnterJob("b", 2, gathers)).Identity
	a.wantJob(running, 1, 0, 1)
	a.ok(cmdStopJob(one.GetRun()))
	a.ok(metacmd.LeaveJob(one, stopped))
	a.ok(metacmd.LeaveJob(two, stopped))
	a.wantJob(jobStopped, 3)
	one = a.enter(metacmd.EnterJob("a", 3, gathers)).Identity
	a.wantJob(running, 3, 0)
	if again := New(NewView()); again.Restore(bytes.NewReader(snapshotBytes(t, a.m))) != nil ||
		!again.RunOf("ctr").GetGathering() {
		t.Error("a snapshot does not hold that the job gathers")
	}
	a.ok(metacmd.LeaveJob(one, lost)) // on its way
	a.wantJob(jobFailed, 3)
	a.enter(metacmd.EnterJob("a", 4, gathers))
	two = a.enter(metacmd.EnterJob("b", 5, gathers)).Identity
	a.wantJob(running, 4, 0, 1)
	a.ok(metacmd.LeaveJob(two, ended)) // from here on who comes counts at once
	a.wantJob(running, 5, 0)
	one = a.enter(metacmd.EnterJob("a", 6, gathers)).Identity
	a.wantJob(running, 6, 0)
	a.ok(cmdStopJob(one.GetRun()))
	a.ok(metacmd.LeaveJob(one, stopped))
	a.enter(metacmd.EnterJob("a", 7, gathers))
	a.wantJob(running, 8, 0)
}
