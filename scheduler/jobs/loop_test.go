package jobs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// A worker with a call keeps its lease, one without loses it: the others are told of the
// generation without it, and it is refused from then on.
func TestASilentWorkerIsLost(t *testing.T) {
	s, c := served(t)
	runLoop(t, s)
	brief := func(e *jobs.Entry) { e.Lease = 8 * time.Second }
	alive, err := enter(t, c, "alive", 2, brief)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan jobs.Members, 16)
	at, err := alive.Register(t.Context(), jobs.Registration{
		OnMembers: func(m jobs.Members) { told <- m },
		Beat:      func() jobs.Beat { return jobs.Beat{Step: 7, Loss: 0.5} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	other := another(t, s)
	silent, err := enter(t, other, "silent", 2, brief)
	if err != nil {
		t.Fatal(err)
	}
	other.Close() // its process dies
	testutil.Eventually(t, "the silent worker is lost", func() bool { return memberState(s, 1) == lost })
	var last jobs.Members
	testutil.Eventually(t, "the generation without it is told", func() bool {
		select {
		case last = <-told:
		default:
		}
		return last.Generation == 3
	})
	if !slices.Equal(last.Ranks, []int{0}) {
		t.Errorf("told of %v", last)
	}
	if memberState(s, 0) != rowraftv1.MemberState_MEMBER_STATE_TRAINING {
		t.Error("the worker with a call is lost, too")
	}
	zombie := &rowraftv1.JobIdentity{Job: "ctr", Run: s.machine.RunOf("ctr").GetRun(), Rank: 1,
		Incarnation: uint64(silent.Incarnation())}
	for what, call := range map[string]func() error{
		"next part": func() (err error) {
			_, err = s.NextSplit(t.Context(), &rowraftv1.NextSplitRequest{Identity: zombie, Take: 1})
			return err
		},
		"end of a part": func() (err error) {
			_, err = s.EndSplit(t.Context(), &rowraftv1.EndSplitRequest{Identity: zombie})
			return err
		},
		"renewal": func() (err error) {
			_, err = s.Renew(t.Context(), &rowraftv1.RenewRequest{Identity: zombie})
			return err
		},
	} {
		if err := call(); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
			t.Errorf("the zombie's %s: %v", what, err)
		}
	}
	stream, err := rowraftv1.NewCheckpointsClient(s.leader.Conn).Attend(t.Context())
	if err == nil {
		err = stream.Send(
			&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Hello{Hello: &rowraftv1.AttendHello{Member: zombie}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); rowraft.CodeOf(rpc.FromStatus(err)) != rowraft.CodeSessionExpired {
		t.Errorf("the zombie attends: %v", err)
	}
	testutil.Eventually(t, "the job is described as it is", func() bool {
		info, err := s.DescribeJob(t.Context(), &rowraftv1.DescribeJobRequest{Job: "ctr"})
		if err != nil {
			t.Fatal(err)
		}
		m := info.GetJob().GetMembers()[0]
		return m.GetConnected() && m.GetBeat().GetStep() == 7 && m.GetBeat().GetLoss() == 0.5 &&
			info.GetJob().GetGenerationInShards() == 3
	})
}

// A worker that was followed by another process of its name learns it on its call.
func TestAFollowedWorkerEnds(t *testing.T) {
	s, c := served(t)
	runLoop(t, s)
	old, err := enter(t, c, "w", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	at, err := old.Register(t.Context(), jobs.Registration{})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	next, err := enter(t, another(t, s), "w", 1, nil)
	if err != nil || next.Incarnation() <= old.Incarnation() || next.Rank() != 0 {
		t.Fatalf("the next process has %v, %v", next, err)
	}
	select {
	case <-at.Ended():
	case <-time.After(time.Minute):
		t.Fatal("it was not told")
	}
	if err := at.Err(); rowraft.CodeOf(err) != rowraft.CodeSessionExpired ||
		!strings.Contains(err.Error(), "rank 0 of job ctr is worker w of incarnation") {
		t.Errorf("it was told %v", err)
	}
}

// The next leader gives every worker a fresh lease, and a call that finds it is kept.
func TestTheNextLeaderGivesFreshLeases(t *testing.T) {
	s, _ := served(t)
	if _, err := s.Enter(t.Context(), metacmd.EnterJob("w", 1, nil).GetEnterJob().GetRequest()); err != nil {
		t.Fatal(err)
	}
	m := s.machine.RunOf("ctr").GetMembers()[0]
	s.round(t.Context())
	s.leases.mu.Lock()
	s.leases.list[m.GetIncarnation()] = lastHeard{heard: time.Now().Add(-time.Hour)}
	s.leases.mu.Unlock()
	s.leader.Elect(false)
	s.round(t.Context())
	s.leader.Elect(true)
	s.round(t.Context())
	if st := memberState(s, 0); st != rowraftv1.MemberState_MEMBER_STATE_TRAINING {
		t.Fatalf("under the next leader the worker is %v", st)
	}
	s.leases.mu.Lock()
	s.leases.list[m.GetIncarnation()] = lastHeard{heard: time.Now().Add(-time.Hour)}
	s.leases.mu.Unlock()
	s.round(t.Context())
	if st := memberState(s, 0); st != lost {
		t.Errorf("silent for an hour it is %v", st)
	}
}

// Each worker of a job that is stopped is told once per call, also by the next leader, and the job is stopped when they
// have left.
func TestAJobIsStopped(t *testing.T) {
	s, c := served(t)
	runLoop(t, s)
	w, err := enter(t, c, "w", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan struct{}, 4)
	at, err := w.Register(t.Context(), jobs.Registration{OnStop: func(string) { told <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	if _, err := s.StopJob(t.Context(), &rowraftv1.StopJobRequest{Job: "x"}); rowraft.CodeOf(err) != rowraft.CodeNotFound {
		t.Errorf("a job that is not there: %v", err)
	}
	reply, err := s.StopJob(t.Context(), &rowraftv1.StopJobRequest{Job: "ctr"})
	if err != nil || !reply.GetJob().GetStopping() {
		t.Fatalf("%v, %v", reply, err)
	}
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Fatal("it was not told")
	}
	s.leader.Elect(false)
	testutil.Eventually(t, "its call is over", func() bool { return len(s.trainers.list()) == 0 })
	s.leader.Elect(true)
	testutil.Eventually(t, "the next leader has told it", func() bool {
		here := s.trainers.list()
		return len(here) == 1 && here[0].toldToStop.Load()
	})
	if err := w.Leave(t.Context(), jobs.LeaveStopped, "", nil); err != nil {
		t.Fatal(err)
	}
	if r := s.machine.RunOf("ctr"); r.GetState() != jobStopped {
		t.Errorf("the job is %v", r.GetState())
	}
	if _, err := at.Park(t.Context(), jobs.Parking{}); err != nil { // its answer comes behind all that it was told
		t.Error(err)
	}
	if len(told) > 0 {
		t.Error("it was told twice")
	}
}

// No worker learns of a generation that the shards need before the shards have it.
func TestGenerationsReachTheShardsFirst(t *testing.T) {
	s, c := served(t)
	var refuse error = rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
	var driven []uint64
	s.generations.drive = func(_ context.Context, r *rowraftv1.MetaRun) (uint64, error) {
		driven = append(driven, r.GetGeneration(), uint64(len(meta.TrainingRanks(r))))
		return 41, refuse
	}
	m, err := enter(t, c, "w", 1, func(e *jobs.Entry) { e.InShards = true })
	if err != nil {
		t.Fatal(err)
	}
	run := m.Run()
	s.round(t.Context())
	if g := s.generations.of(run[:]); g.number != 0 {
		t.Errorf("generation %d is told, and the shards do not have it", g.number)
	}
	refuse = nil
	s.round(t.Context())
	s.round(t.Context())
	if g := s.generations.of(run[:]); g.number != 1 || g.firstStep != 41 || !slices.Equal(driven, []uint64{1, 1, 1, 1}) {
		t.Errorf("generation %+v, driven %v", g, driven)
	}
}

// firstTold attends as a member whose generation the shards do not have yet, and returns
// what it is told of the members once they have it. Before, it must be told of none.
func firstTold(t *testing.T, s *cluster, c *client.Client, rank int, member *jobs.Member) jobs.Members {
	t.Helper()
	told, stopped := make(chan jobs.Members, 4), make(chan struct{})
	at, err := member.Register(t.Context(), jobs.Registration{
		OnMembers: func(m jobs.Members) { told <- m }, OnStop: func(string) { close(stopped) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	// On the same call, behind what there was to tell when it began.
	if _, err := s.StopJob(t.Context(), &rowraftv1.StopJobRequest{Job: "ctr"}); err != nil {
		t.Fatal(err)
	}
	<-stopped
	if len(told) > 0 {
		t.Errorf("before the shards have its generation it is told of %+v", <-told)
	}
	s.round(t.Context())
	return <-told
}

// A worker that joins is told of no generation before its own: it is no member of those
// that the shards have until then.
func TestAWorkerIsToldOfNoGenerationBeforeItsOwn(t *testing.T) {
	s, c := served(t)
	s.generations.drive = func(_ context.Context, r *rowraftv1.MetaRun) (uint64, error) {
		return 7 * r.GetGeneration(), nil
	}
	inShards := func(e *jobs.Entry) { e.InShards = true }
	if _, err := enter(t, c, "first", 2, inShards); err != nil {
		t.Fatal(err)
	}
	s.round(t.Context())
	c = another(t, s)
	joins, err := enter(t, c, "joins", 2, inShards)
	if err != nil {
		t.Fatal(err)
	}
	if m := firstTold(t, s, c, 1, joins); m.Generation != 2 || m.FirstStep != 14 || !slices.Equal(m.Ranks, []int{0, 1}) {
		t.Errorf("told of %+v", m)
	}
}

// Who comes back to a stopped job first is told of no generation before the others are back:
// the shards have forgotten the job, and would refuse what it pushes.
func TestWhoComesBackFirstWaitsForTheOthers(t *testing.T) {
	s, c := served(t)
	s.generations.drive = func(_ context.Context, r *rowraftv1.MetaRun) (uint64, error) {
		return 7 * r.GetGeneration(), nil
	}
	s.generations.rest = func(context.Context, *rowraftv1.MetaRun) error { return nil }
	gather := func(e *jobs.Entry) { e.InShards, e.Gather = true, true }
	both := func(first *client.Client) (list [2]*jobs.Member) {
		t.Helper()
		for i, c := range []*client.Client{first, another(t, s)} {
			var err error
			if list[i], err = enter(t, c, fmt.Sprint("w", i), 2, gather); err != nil {
				t.Fatal(err)
			}
		}
		return list
	}
	were := both(c)
	s.round(t.Context())
	for _, m := range were {
		if err := m.Leave(t.Context(), jobs.LeaveStopped, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	s.round(t.Context())
	c = another(t, s)
	back := both(c)
	if m := firstTold(t, s, c, 0, back[0]); m.Generation != 4 || m.FirstStep != 28 || !slices.Equal(m.Ranks, []int{0, 1}) {
		t.Errorf("told of %+v", m)
	}
}

// While shards cannot be told that runs are over, a turn waits for one of them only.
func TestEndedRunsDoNotHoldUpATurn(t *testing.T) {
	s, _ := served(t)
	s.leader.EditState(t, func(p *rowraftv1.MetaState) {
		p.EndedRuns = [][]byte{metacmd.ID(1), metacmd.ID(2), metacmd.ID(3)}
	})
	var refuse error = rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
	tried := 0
	s.generations.end = func(context.Context, []byte) error { tried++; return refuse }
	if s.round(t.Context()); tried != 1 {
		t.Errorf("%d runs were tried in a turn", tried)
	}
	refuse = nil
	if s.round(t.Context()); tried != 4 || len(s.machine.EndedRuns()) != 0 {
		t.Errorf("%d runs were tried, %d are left", tried, len(s.machine.EndedRuns()))
	}
}

// A scheduler that was suspended received nothing: no worker loses its lease by that, also if the suspension was in the
// middle of a round, before a worker could send a beat.
func TestAPausedSchedulerLosesNobody(t *testing.T) {
	s, c := served(t)
	var silent, asleep time.Duration
	s.generations.drive = func(context.Context, *rowraftv1.MetaRun) (uint64, error) {
		s.leases.mu.Lock()
		for incarnation, w := range s.leases.list {
			w.heard = time.Now().Add(-silent)
			s.leases.list[incarnation] = w
		}
		s.leases.mu.Unlock()
		s.mu.Lock()
		s.pause = asleep
		s.mu.Unlock()
		return 0, rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
	}
	if _, err := enter(t, c, "w", 1, func(e *jobs.Entry) { e.InShards = true }); err != nil {
		t.Fatal(err)
	}
	silent = time.Hour
	asleep = time.Hour
	for range 3 {
		s.round(t.Context())
	}
	if st := memberState(s, 0); st != rowraftv1.MemberState_MEMBER_STATE_TRAINING {
		t.Errorf("after an hour of suspension the worker is %v", st)
	}
	asleep = 0
	testutil.Eventually(t, "the worker is lost after an hour of silence", func() bool { // it beats in between
		s.round(t.Context())
		return memberState(s, 0) == lost
	})
}

// The shards forget a run without training workers once per generation, and learn of it again when a worker enters.
func TestARunIsPutToRestOnce(t *testing.T) {
	s, c := served(t)
	var done []uint64
	var refuse error = rowraft.Errorf(rowraft.CodeNoLeader, "no leader")
	s.generations.drive = func(context.Context, *rowraftv1.MetaRun) (uint64, error) { return 1, nil }
	s.generations.rest = func(_ context.Context, r *rowraftv1.MetaRun) error {
		if refuse == nil {
			done = append(done, r.GetGeneration())
		}
		return refuse
	}
	inShards := func(e *jobs.Entry) { e.InShards, e.Workers = true, 1 }
	m, err := enter(t, c, "w", 1, inShards)
	if err != nil {
		t.Fatal(err)
	}
	s.round(t.Context())
	if err := m.Leave(t.Context(), jobs.LeaveStopped, "", nil); err != nil {
		t.Fatal(err)
	}
	s.round(t.Context())
	refuse = nil
	for range 3 {
		s.round(t.Context())
	}
	if !slices.Equal(done, []uint64{2}) {
		t.Errorf("put to rest in generations %d, want 2 alone", done)
	}
	if m, err = enter(t, another(t, s), "w", 1, inShards); err != nil {
		t.Fatal(err)
	}
	s.round(t.Context())
	if err := m.Leave(t.Context(), jobs.LeaveStopped, "", nil); err != nil {
		t.Fatal(err)
	}
	s.round(t.Context())
	if !slices.Equal(done, []uint64{2, 4}) {
		t.Errorf("put to rest in generations %d, want 2 and 4", done)
	}
}

// A job that the shards have no place for is refused at the door, and says what to do.
func TestTooManyJobsInShards(t *testing.T) {
	s, c := served(t)
	for i := range checkpoint.MaxJobs {
		q := metacmd.EnterJob("w", byte(i), nil)
		q.GetEnterJob().Request.Job, q.GetEnterJob().Request.InShards = fmt.Sprint("job", i), true
		if _, err := s.leader.ProposeResult(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	inShards := func(e *jobs.Entry) { e.InShards = true }
	if _, err := enter(t, c, "w", 1, inShards); rowraft.CodeOf(err) != rowraft.CodePrecondition ||
		!strings.Contains(err.Error(), "rowraft job stop") {
		t.Errorf("job %d in the shards: %v, want a refusal that says what to do", checkpoint.MaxJobs+1, err)
	}
	if _, err := enter(t, another(t, s), "w", 1, nil); err != nil {
		t.Errorf("a job that needs no place: %v", err)
	}
}
