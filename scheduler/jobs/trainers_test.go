package jobs

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// fakeTrainer answers pauses.
type fakeTrainer struct {
	*jobs.Stream
	mu       sync.Mutex
	content  string
	step     int64
	fail     error
	notNow   int           // pauses that fail with ErrNotNow, before all others
	hold     chan struct{} // not nil: Pause waits for it
	asked    chan struct{} // gets one for each Pause
	standing int
	boundary int64 // not 0: it announces this one
	stands   int64 // not 0: the boundary at which it stands, whatever was agreed
	told     int64 // what was agreed
	parts    []jobs.SplitReached
	member   *jobs.Member
	stopped  chan stoppedAt // not nil: gets how it stands when it is told to stop
}

// stoppedAt is how a trainer stands: so many pauses, behind a boundary.
type stoppedAt struct {
	standing int
	boundary int64
}

func (f *fakeTrainer) onStop(string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped <- stoppedAt{f.standing, f.told}
}

func (f *fakeTrainer) pause(ctx context.Context, agree jobs.Agree) (*jobs.Paused, error) {
	f.asked <- struct{}{}
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	target := int64(0)
	if f.boundary != 0 {
		var err error
		if target, err = agree(ctx, f.boundary); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.told = target; f.stands != 0 {
		target = f.stands
	}
	if f.notNow > 0 {
		f.notNow--
		return nil, jobs.ErrNotNow
	}
	if f.fail != nil {
		return nil, f.fail
	}
	f.standing++
	return &jobs.Paused{Step: f.step, Boundary: target, Splits: f.parts, Size: int64(len(f.content)), Release: func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.standing--
	}, Write: func(w io.Writer) error {
		_, err := io.WriteString(w, f.content)
		return err
	}}, nil
}

func (f *fakeTrainer) isStill() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.standing > 0
}

// expectedTrainers returns the trainers for which a checkpoint of no job waits if none of them is connected.
func expectedTrainers(s *cluster) (out []meta.TrainerID) {
	for _, r := range s.machine.Runs() {
		for _, rank := range meta.ExpectedRanks(r, false, false) {
			out = append(out, meta.TrainerID{Job: r.GetJob(), Rank: rank})
		}
	}
	return out
}

// attend registers a trainer. It enters the job first, unless change sets its membership.
func attend(t *testing.T, c *client.Client, job string, rank, trainers int, change func(*fakeTrainer)) *fakeTrainer {
	t.Helper()
	f := &fakeTrainer{content: strings.Repeat(fmt.Sprintf("state of %s/%d ", job, rank), 40000), step: int64(100 + rank),
		asked: make(chan struct{}, 16)}
	if change != nil {
		change(f)
	}
	var err error
	if f.member == nil {
		f.member, err = enter(t, c, fmt.Sprint("rank-", rank), trainers, func(e *jobs.Entry) { e.Job, e.Rank = job, &rank })
		if err != nil {
			t.Fatal(err)
		}
	}
	a := jobs.Registration{Pause: f.pause, Announces: f.boundary != 0}
	if f.stopped != nil {
		a.OnStop = f.onStop
	}
	if f.Stream, err = f.member.Register(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// A cut stops all trainers at once and lets them go on; their states follow, and are
// what they were told to be.
func TestTrainersStandStillForACut(t *testing.T) {
	s, c := served(t)
	list := []*fakeTrainer{attend(t, c, "b", 0, 1, nil), attend(t, c, "a", 1, 2, nil), attend(t, c, "a", 0, 2, nil)}
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range list {
		if !f.isStill() {
			t.Errorf("trainer %d does not stand still", i)
		}
	}
	if err := m.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, f := range list {
		if f.isStill() {
			t.Errorf("trainer %d does not go on", i)
		}
	}
	d, err := depot.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Store(t.Context(), d, "x", []byte{1, 2, 3, 4}); err != nil || len(m.left) > 0 {
		t.Fatal(err, m.left)
	}
	var names []string
	for _, p := range m.members {
		names = append(names, p.blob.Name)
		b, err := checkpoint.ReadFile(t.Context(), depot.At(d, "x"), p.blob.File, nil)
		want := strings.Repeat(fmt.Sprintf("state of %s/%d ", p.a.id.Job, p.a.id.Rank), 40000)
		if err != nil || string(b) != want {
			t.Errorf("%s: %d bytes, %v", p.blob.Name, len(b), err)
		}
	}
	if got := strings.Join(names, " "); got != "trainer/a/0 trainer/a/1 trainer/b/0" {
		t.Errorf("states of %s", got)
	}
	if told := m.Attended(); len(told) != 3 || told[1].GetStep() != 101 || told[1].GetPausedNs() == 0 ||
		told[1].GetBytes() == 0 {
		t.Errorf("attended: %v", told)
	}
	m.End()
}

// Without an expected trainer a cut fails, unless absent trainers are skipped. No trainer is paused afterwards.
func TestAnAbsentTrainer(t *testing.T) {
	for name, absent := range map[string]func(t *testing.T, s *cluster, c *client.Client){
		"it never came": func(*testing.T, *cluster, *client.Client) {},
		"it went without a word": func(t *testing.T, s *cluster, c *client.Client) {
			attend(t, c, "a", 1, 2, nil).Close()
			testutil.Eventually(t, "its call is over", func() bool { return len(s.trainers.list()) == 1 })
		},
		"it has failed": func(t *testing.T, s *cluster, c *client.Client) {
			attend(t, c, "a", 1, 2, func(f *fakeTrainer) {
				f.fail = rowraft.Errorf(rowraft.CodeSessionExpired, "its session is gone")
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := served(t)
			s.trainers.patience.absent = 50 * time.Millisecond
			f := attend(t, c, "a", 0, 2, nil)
			absent(t, s, c)
			if _, err := s.pauseTrainers(t.Context(), "a", false, true, make(map[string]error)); rowraft.CodeOf(
				err) != rowraft.CodePrecondition || !strings.Contains(fmt.Sprint(err), "trainer 1 of job a") {
				t.Errorf("%v, want Precondition that names the trainer", err)
			}
			for f.isStill() { // it is told to go on, and not waited for
				if t.Context().Err() != nil {
					t.Fatal("it stands still for ever")
				}
			}
			m, err := s.pauseTrainers(t.Context(), "", true, true, make(map[string]error))
			if err != nil {
				t.Fatal(err)
			}
			if len(m.members) != 1 || m.members[0].a.id.Rank != 0 {
				t.Errorf("members: %v, want trainer 0", m.Attended())
			}
			if err := m.Release(t.Context()); err != nil {
				t.Error(err)
			}
			m.End()
			if _, err := s.pauseTrainers(t.Context(), "other", true, true,
				make(map[string]error)); rowraft.CodeOf(err) != rowraft.CodePrecondition {
				t.Errorf("a job that does not train, and must: %v", err)
			}
		})
	}
}

// A cut does not wait for the state of a trainer that was lost, or failed, if others read its part of the data. If it
// had a share of its own, its state is needed.
func TestACutWithoutWhoWasLost(t *testing.T) {
	for _, how := range []rowraftv1.MemberState{rowraftv1.MemberState_MEMBER_STATE_LOST,
		rowraftv1.MemberState_MEMBER_STATE_FAILED} {
		for _, divided := range []bool{true, false} {
			s, _ := served(t)
			if !divided {
				s.trainers.patience.absent = 50 * time.Millisecond
			}
			var members [2]*jobs.Member
			for rank := range members {
				var err error
				members[rank], err = enter(t, another(t, s), fmt.Sprint("w", rank), 2, func(e *jobs.Entry) {
					if divided {
						e.Splits = jobs.SplitPlan{Examples: 100, SplitExamples: 10, Epochs: 1}
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				at, err := members[rank].Register(t.Context(),
					jobs.Registration{Pause: (&fakeTrainer{asked: make(chan struct{}, 8)}).pause})
				if err != nil {
					t.Fatal(err)
				}
				defer at.Close()
				if rank > 0 {
					continue
				}
				at.Close()
				for changed := s.trainers.watch(); len(s.trainers.list()) > 0; changed = s.trainers.watch() {
					<-changed
				}
			}
			gone := &rowraftv1.JobIdentity{Job: "ctr", Run: s.machine.RunOf("ctr").GetRun(),
				Incarnation: uint64(members[0].Incarnation())}
			if err := s.leave(t.Context(), &rowraftv1.MetaLeaveJob{Identity: gone, State: how, Reason: "it died"}); err != nil {
				t.Fatal(err)
			}
			left := make(map[string]error)
			m, err := s.pauseTrainers(t.Context(), "", false, true, left)
			if err != nil || divided != (left["ctr"] == nil) || divided != (len(m.members) == 1) {
				t.Errorf("%v, divided %v: %v, left out: %v; want the job left out as a whole where it was not divided", how,
					divided, err, left)
			}
			m.Cancel()
			for _, job := range []string{"ctr"} {
				m, err := s.pauseTrainers(t.Context(), job, false, true, make(map[string]error))
				if divided != (err == nil) || !divided && rowraft.CodeOf(err) != rowraft.CodePrecondition {
					t.Errorf("%v, divided %v, job %q: %v", how, divided, job, err)
				}
				m.Cancel()
			}
		}
	}
}

// TestOnlyAMemberSendsItsState: a caller that does not know the run cannot send a state for a trainer.
func TestOnlyAMemberSendsItsState(t *testing.T) {
	id := func(run byte, incarnation uint64) *rowraftv1.JobIdentity {
		return &rowraftv1.JobIdentity{Job: "ctr", Run: metacmd.ID(run), Rank: 1, Incarnation: incarnation}
	}
	list := newRegistry()
	a := &trainer{id: meta.TrainerID{Job: "ctr", Rank: 1}, member: id(1, 7), gone: make(chan struct{})}
	list.add(a)
	if list.find(id(1, 7)) != a {
		t.Error("the member is not found")
	}
	for _, other := range []*rowraftv1.JobIdentity{id(2, 7), id(1, 8), {Job: "ctr", Rank: 1, Incarnation: 7}} {
		if list.find(other) != nil {
			t.Errorf("%v is taken for the member", other)
		}
	}
}

// TestAJobThatAnotherCheckpointPauses: its trainers are there, so the error is temporary and says what has them.
func TestAJobThatAnotherCheckpointPauses(t *testing.T) {
	s, c := served(t)
	s.trainers.patience.absent = 50 * time.Millisecond
	attend(t, c, "a", 0, 1, nil)
	if !s.trainers.claim("a") {
		t.Fatal("the job is claimed")
	}
	_, err := s.pauseTrainers(t.Context(), "a", false, true, make(map[string]error))
	if !rowraft.CodeOf(err).Retryable() || !strings.Contains(err.Error(),
		"trainers of job a are paused for another checkpoint") {
		t.Errorf("%v, want a temporary error that says that another checkpoint has them", err)
	}
	s.trainers.unclaim("a")
	m, err := s.pauseTrainers(t.Context(), "a", false, true, make(map[string]error))
	if err != nil {
		t.Errorf("when the other checkpoint is over: %v", err)
	}
	m.Cancel()
}

// A new leader waits for trainers that have ended their training and are not connected yet. Later it does not. The
// checkpoint lacks their state and says so in both cases.
func TestANewLeaderWaitsForTrainersThatHaveEnded(t *testing.T) {
	s, c := served(t)
	s.trainers.patience.absent = 50 * time.Millisecond
	f := attend(t, c, "a", 0, 1, nil)
	if err := f.member.Leave(t.Context(), jobs.LeaveEnded, "", nil); err != nil {
		t.Fatal(err)
	}
	f.Close()
	testutil.Eventually(t, "its call is over", func() bool { return len(s.trainers.list()) == 0 })
	for _, test := range []struct {
		leads time.Duration
		want  string
	}{{-time.Hour, "trainer 0 of job a is not connected"}, {time.Hour, "no worker of job a trains"}} {
		s.setLeadsFor(test.leads)
		left := make(map[string]error)
		if _, err := s.pauseTrainers(t.Context(), "", false, true, left); err != nil ||
			!strings.Contains(fmt.Sprint(left["a"]), test.want) {
			t.Errorf("leads for %v: %v, left out: %v; want %q", test.leads, err, left, test.want)
		}
	}
}

// A checkpoint waits for a trainer that disconnects without a word, until its lease has ended. Each checkpoint without
// its state says so.
func TestALoneTrainerThatWentWithoutAWord(t *testing.T) {
	s, c := served(t)
	s.trainers.patience.absent = 50 * time.Millisecond
	f := attend(t, c, "a", 0, 1, nil)
	f.Close()
	testutil.Eventually(t, "its call is over", func() bool { return len(s.trainers.list()) == 0 })
	if _, err := s.pauseTrainers(t.Context(), "a", false, true,
		make(map[string]error)); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("%v, want Precondition", err)
	}
	left := make(map[string]error)
	if _, err := s.pauseTrainers(t.Context(), "", false, true, left); err != nil || left["a"] == nil {
		t.Errorf("%v, left out: %v; want a checkpoint without the job, which may still train", err, left)
	}
	s.round(t.Context()) // begins the leader's term
	s.leases.mu.Lock()
	s.leases.list[uint64(f.member.Incarnation())] = lastHeard{heard: time.Now().Add(-time.Hour)}
	s.leases.mu.Unlock()
	s.round(t.Context())
	s.setLeadsFor(time.Hour)
	left = make(map[string]error)
	if _, err := s.pauseTrainers(t.Context(), "", false, true, left); err != nil ||
		!strings.Contains(fmt.Sprint(left["a"]), "no worker of job a trains") {
		t.Errorf("%v, left out: %v; want a checkpoint that does not wait for the job, in which no worker trains, and says "+
			"that it lacks its state", err, left)
	}
}

// A trainer that goes while it stands still is noticed: it may have gone on.
func TestATrainerThatGoesDuringTheCut(t *testing.T) {
	s, c := served(t)
	f := attend(t, c, "a", 0, 1, nil)
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := m.Release(t.Context()); err == nil || !strings.Contains(err.Error(), "has disconnected") {
		t.Errorf("released: %v, though the trainer has gone", err)
	}
	m.End()
	f2 := attend(t, c, "a", 0, 1, func(f *fakeTrainer) { f.hold = make(chan struct{}) })
	done := make(chan error, 1)
	go func() {
		_, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
		done <- err
	}()
	<-f2.asked
	f2.Close()
	if err := <-done; !rowraft.CodeOf(err).Retryable() || !strings.Contains(fmt.Sprint(err), "has disconnected") {
		t.Errorf("it went before it stood still: %v, want one to try again after", err)
	}
}

// A trainer goes to the next leader by itself, which knows of it before it comes.
func TestTrainersFindTheNextLeader(t *testing.T) {
	s, c := served(t)
	f := attend(t, c, "a", 0, 1, nil)
	changed := s.trainers.watch()
	s.leader.Elect(false)
	<-changed // gone
	s.leader.Elect(true)
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.members) != 1 {
		t.Error("the cut does not wait for the trainer")
	}
	if err := m.Release(t.Context()); err != nil {
		t.Error(err)
	}
	m.End()
	if got := expectedTrainers(s); len(got) != 1 {
		t.Errorf("%v attend, want the trainer", got)
	}

	// A trainer of tables that are no more does not come back.
	for _, c := range []*rowraftv1.MetaCommand{metacmd.BeginRestore(1), metacmd.DecideRestore(metacmd.Restore(1, 2, 1))} {
		if _, err := s.leader.ProposeResult(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	changed = s.trainers.watch()
	s.leader.Elect(false)
	<-changed
	s.leader.Elect(true)
	<-f.Ended()
	if err := f.Err(); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("after a restore: %v, want SessionExpired", err)
	}
}
