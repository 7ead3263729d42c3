package jobs

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

func announcing(boundary int64) func(*fakeTrainer) {
	return func(f *fakeTrainer) { f.boundary = boundary }
}

// Trainers that synchronize stop at the highest boundary that one of their job has announced. Other jobs have their
// own, and a trainer that announces none has none.
func TestTrainersOfAJobAgreeWhereToStand(t *testing.T) {
	s, c := served(t)
	list := []*fakeTrainer{
		attend(t, c, "a", 0, 3, announcing(5)), attend(t, c, "a", 1, 3, announcing(9)),
		attend(t, c, "a", 2, 3, announcing(7)),
		attend(t, c, "b", 0, 1, announcing(2)), attend(t, c, "c", 0, 1, nil),
	}
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{9, 9, 9, 2, 0} {
		f := list[i]
		if f.mu.Lock(); f.told != want || f.standing != 1 {
			t.Errorf("trainer %d: it was told %d, want %d; stands %d times", i, f.told, want, f.standing)
		}
		f.mu.Unlock()
	}
	if err := m.Release(t.Context()); err != nil {
		t.Error(err)
	}
	m.End()
}

// Trainers that wait for each other are told to stop when all of them stand at one boundary, and not
// before, also if one of them is not here at first; a job that goes on can be stopped again.
func TestTrainersOfAJobStopAtOneBoundary(t *testing.T) {
	s, c := served(t)
	runLoop(t, s)
	clients := []*client.Client{c, another(t, s)}
	for round := range 2 {
		var list []*fakeTrainer
		for rank := range clients {
			m, err := enter(t, clients[rank], fmt.Sprintf("w%d", rank), 2, func(e *jobs.Entry) { e.Gather = true })
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, &fakeTrainer{member: m})
		}
		stopped := make(chan stoppedAt, 4)
		for rank, f := range list {
			if rank == 1 {
				if _, err := s.StopJob(t.Context(), &rowraftv1.StopJobRequest{Job: "ctr"}); err != nil {
					t.Fatal(err)
				}
			}
			list[rank] = attend(t, clients[rank], "ctr", rank, 2, func(g *fakeTrainer) {
				g.member, g.boundary, g.stopped = f.member, int64(5+4*rank), stopped
			})
		}
		for range list {
			select {
			case at := <-stopped:
				if at != (stoppedAt{1, 9}) {
					t.Errorf("round %d: told to stop, a trainer stands %d times, at boundary %d, want once, at 9", round, at.standing,
						at.boundary)
				}
			case <-time.After(time.Minute):
				t.Fatal("it was not told")
			}
		}
		for rank, f := range list {
			f.Close()
			if err := f.member.Leave(t.Context(), jobs.LeaveStopped, "", nil); err != nil {
				t.Fatal(err)
			}
			clients[rank] = another(t, s)
		}
		if r := s.machine.RunOf("ctr"); r.GetState() != jobStopped || len(stopped) > 0 {
			t.Errorf("round %d: the job is %v, and %d were told twice", round, r.GetState(), len(stopped))
		}
	}
}

// One that dies while the others wait for its word, one that cannot stand now, or one that
// stands elsewhere ends the pause at once, with an error after which it is tried again;
// the others go on.
func TestAPauseEndsWithOneOfItsTrainers(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*fakeTrainer)
		during func(*fakeTrainer)
		want   string
	}{
		"it dies before it has announced": {
			change: func(f *fakeTrainer) { f.boundary, f.hold = 7, make(chan struct{}) },
			during: func(f *fakeTrainer) { <-f.asked; f.Close() },
			want:   "trainer 1 of job a has disconnected",
		},
		"the others are ahead of it": {
			change: func(f *fakeTrainer) { f.boundary, f.fail = 7, fmt.Errorf("%w: too late", jobs.ErrNotNow) },
			want:   "trainer 1 of job a: the trainer cannot pause now: too late",
		},
		"it stands elsewhere": {
			change: func(f *fakeTrainer) { f.boundary, f.stands = 7, 11 },
			want:   "stopped at boundary 11",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := served(t)
			first := attend(t, c, "a", 0, 2, announcing(5))
			f := attend(t, c, "a", 1, 2, tc.change)
			if tc.during != nil {
				go tc.during(f)
			}
			_, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
			if rowraft.CodeOf(err) != rowraft.CodeNoLeader || !strings.Contains(fmt.Sprint(err), tc.want) {
				t.Errorf("%v, want NoLeader and %q", err, tc.want)
			}
			for first.isStill() { // it is told to go on, and not waited for
				if t.Context().Err() != nil {
					t.Fatal("it stands still for ever")
				}
			}
		})
	}
}

// goneStream is the call of a trainer that has just gone.
type goneStream struct {
	grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]
}

func (goneStream) Send(*rowraftv1.AttendReply) error { return io.EOF }

// The others do not wait for the word of one that has gone before it could be asked: where
// absent trainers are skipped, the checkpoint goes on with the others.
func TestNobodyWaitsForTheWordOfWhoHasGone(t *testing.T) {
	a := &trainer{id: meta.TrainerID{Job: "a", Rank: 1}, announces: true, gone: make(chan struct{})}
	a.send.stream, a.send.mutex = goneStream{}, semaphore.NewWeighted(1)
	p := &pausedTrainer{id: 1, a: a, in: make(chan *rowraftv1.AttendRequest), done: make(chan struct{})}
	b := &barrier{all: make(chan struct{}), left: 1}
	if err := p.stop(t.Context(), b); rowraft.CodeOf(err) != rowraft.CodeNoLeader {
		t.Errorf("%v, want NoLeader", err)
	}
	select {
	case <-b.all:
	default:
		t.Error("the others wait for its word")
	}
}

// heldStream is the call of a trainer that takes what it is told, and says nothing.
type heldStream struct {
	grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]
}

func (heldStream) Send(*rowraftv1.AttendReply) error { return nil }

// What ends a pause is told, and not what came of that for the others, who are not waited for any more.
func TestAPauseTellsWhatEndedIt(t *testing.T) {
	s := newCluster(t, "a:1")
	var who []*trainer
	for rank := range uint32(64) {
		a := &trainer{id: meta.TrainerID{Job: "a", Rank: rank}, gone: make(chan struct{})}
		a.send.stream, a.send.mutex = heldStream{}, semaphore.NewWeighted(1)
		who = append(who, a)
	}
	who[40].send.stream = goneStream{}
	for range 500 {
		m := s.trainers.newRound("a", make(map[string]error))
		if err := m.stop(t.Context(), who); rowraft.CodeOf(err) != rowraft.CodeNoLeader ||
			!strings.Contains(fmt.Sprint(err), "trainer 40 of job a has disconnected") {
			t.Fatalf("%v, want NoLeader, and that trainer 40 has gone", err)
		}
		m.End()
	}
}

// A trainer that begins while the others stand may push what is in the cut, and its state
// is not.
func TestATrainerThatComesDuringTheCut(t *testing.T) {
	s, c := served(t)
	attend(t, c, "a", 0, 1, nil)
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil {
		t.Fatal(err)
	}
	attend(t, c, "b", 0, 1, nil)
	if err := m.Release(t.Context()); rowraft.CodeOf(err) != rowraft.CodeNoLeader ||
		!strings.Contains(fmt.Sprint(err), "trainer 0 of job b began") {
		t.Errorf("released: %v, though a trainer has come", err)
	}
	m.Cancel()
}
