package jobs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// Trainers that are done wait for those of their job that are not; who takes another's
// place ends it.
func TestTrainersLeaveTogether(t *testing.T) {
	s, c := served(t)
	first, second := attend(t, c, "a", 0, 2, nil), attend(t, c, "a", 1, 2, nil)
	other := attend(t, c, "b", 0, 1, nil)
	left := make(chan error, 2)
	changed := s.trainers.watch()
	go func() {
		_, err := first.Park(t.Context(), jobs.Parking{Ended: true})
		left <- err
	}()
	<-changed // it is known to have parked
	m, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
	if err != nil || len(m.members) != 3 {
		t.Fatalf("%v: a parked trainer is part of the cut", err)
	}
	m.Cancel()
	select {
	case err := <-left:
		t.Fatalf("it left while the other trains: %v", err)
	default:
	}
	if _, err := second.Park(t.Context(), jobs.Parking{Ended: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-left; err != nil {
		t.Fatal(err)
	}
	if got := expectedTrainers(s); len(got) != 1 || got[0].Job != "b" {
		t.Errorf("%v attend, want the trainer of b", got)
	}
	if _, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error)); err != nil {
		t.Errorf("those who have left are not waited for: %v", err)
	}
	attend(t, c, "b", 0, 1, nil)
	<-other.Ended()
	if code := rowraft.CodeOf(other.Err()); code != rowraft.CodeAlreadyExists && code != rowraft.CodeSessionExpired {
		t.Errorf("replaced: %v", other.Err())
	}
}

// A trainer that is done waits for one of its job whose connection broke, or that has not found a new leader yet: the
// checkpoint of that one needs its state. It does not wait for long.
func TestWhoIsDoneWaitsForThoseThatReconnect(t *testing.T) {
	for name, comes := range map[string]bool{"the other one comes back": true, "the other one is dead": false} {
		t.Run(name, func(t *testing.T) {
			s, c := served(t)
			if !comes {
				s.trainers.patience.absent = 50 * time.Millisecond
			}
			first, second := attend(t, c, "a", 0, 2, nil), attend(t, c, "a", 1, 2, nil)
			second.Close()
			testutil.Eventually(t, "its call is over", func() bool { return len(s.trainers.list()) == 1 })
			left := make(chan error, 1)
			go func() {
				_, err := first.Park(t.Context(), jobs.Parking{Ended: true})
				left <- err
			}()
			if comes {
				select {
				case err := <-left:
					t.Fatalf("it left while the other one was away: %v", err)
				case <-time.After(3 * attendBeat):
				}
				second = attend(t, c, "a", 1, 2, func(f *fakeTrainer) { f.member = second.member })
				m, err := s.pauseTrainers(t.Context(), "a", false, true, make(map[string]error))
				if err != nil || len(m.members) != 2 {
					t.Fatalf("%v: the checkpoint lacks one of them", err)
				}
				m.Cancel()
				if _, err := second.Park(t.Context(), jobs.Parking{Ended: true}); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-left; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A trainer that was told to stop, and whose checkpoint is made, stays as long as another one of its job is about
// to end too, however long that takes: the checkpoint of that one needs its state.
func TestWhoHasParkedWaitsForThoseThatAreAboutToEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		stop   bool // the job
		signal bool // the other one
		waits  bool
	}{
		"the job is stopped":         {stop: true, waits: true},
		"the other one got a signal": {signal: true, waits: true},
		"the other one is not told":  {},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := served(t)
			clients := []*client.Client{c, another(t, s)}
			var here [2]*jobs.Stream
			for rank := range here {
				m, err := enter(t, clients[rank], fmt.Sprint("w", rank), 2, nil)
				if err != nil {
					t.Fatal(err)
				}
				here[rank], err = m.Register(t.Context(), jobs.Registration{
					Pause: (&fakeTrainer{asked: make(chan struct{}, 8)}).pause,
					Beat:  func() jobs.Beat { return jobs.Beat{Stopping: rank == 1 && tc.signal} },
				})
				if err != nil {
					t.Fatal(err)
				}
				defer here[rank].Close()
			}
			if tc.stop {
				if _, err := s.StopJob(t.Context(), &rowraftv1.StopJobRequest{Job: "ctr"}); err != nil {
					t.Fatal(err)
				}
			}
			// The checkpoint was over when the first had parked, and then nothing was heard for longer than any grace.
			over := time.Now().Add(-2 * stopGrace)
			made := &ending{begun: time.Now().Add(time.Hour), over: over, done: make(chan struct{}),
				leave: &rowraftv1.AttendLeave{Checkpoint: "made"}}
			close(made.done)
			s.trainers.mu.Lock()
			s.trainers.endings["ctr"] = made
			s.trainers.mu.Unlock()
			testutil.Eventually(t, "the other one has spoken", func() bool {
				w, known := s.leases.get(s.machine.RunOf("ctr").GetMembers()[1].GetIncarnation())
				return known && w.beat != nil
			})
			left := make(chan string, 2)
			park := func(rank int, p jobs.Parking) {
				path, err := here[rank].Park(t.Context(), p)
				left <- fmt.Sprint(rank, " ", path, " ", err)
			}
			go park(0, jobs.Parking{Destination: t.TempDir()})
			var first *trainer // on its present call
			testutil.Eventually(t, "the first has parked, or has left", func() bool {
				s.trainers.mu.Lock()
				defer s.trainers.mu.Unlock()
				first = s.trainers.trainers[meta.TrainerID{Job: "ctr", Rank: 0}]
				return first != nil && first.park != nil || len(left) > 0
			})
			if tc.waits && len(left) > 0 {
				t.Fatalf("while the other one trains it has left: %s", <-left)
			}
			if first != nil {
				if leave := s.trainers.mayLeave(t.Context(), first); tc.waits != (leave == nil) {
					t.Fatalf("while the other one trains it is told %v", leave)
				}
			}
			want := []string{"0 made <nil>"}
			if tc.waits {
				go park(1, jobs.Parking{})
				want = append(want, "1 made <nil>")
			}
			var got []string
			for range want {
				got = append(got, <-left)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("they leave with %q, want %q", got, want)
			}
		})
	}
}

// The checkpoint of a trainer that leaves is tried again when it fails for what passes, and
// not when it fails for good.
func TestTheCheckpointOfWhoLeavesIsTriedAgain(t *testing.T) {
	parts := &preparedParts{prepared: make(chan struct{}, 16), ended: make(chan struct{}, 16)}
	_, c := servedWith(t, func(srv *grpc.Server) { rowraftv1.RegisterReplicasServer(srv, parts) })
	f := attend(t, c, "a", 0, 1, func(f *fakeTrainer) { f.notNow, f.fail = 5, fmt.Errorf("it has none") })
	_, err := f.Park(t.Context(), jobs.Parking{Destination: t.TempDir()})
	if !strings.Contains(fmt.Sprint(err), "no state to give: it has none") {
		t.Errorf("it left with %v, want the failure of the second try", err)
	}
}
