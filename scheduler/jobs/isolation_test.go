package jobs

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// rawTrainer makes the calls of a trainer by hand. It answers a pause with what replies returns, and sends no state.
func rawTrainer(t *testing.T, s *cluster, job string, rank, trainers uint32,
	replies func(*rowraftv1.AttendReply) *rowraftv1.AttendRequest) {
	t.Helper()
	conn, err := rpc.Dial(s.addr, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := rowraftv1.NewCheckpointsClient(conn).Attend(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Enter(t.Context(), &rowraftv1.EnterRequest{
		Job: job, Worker: fmt.Sprint("rank-", rank), WantRank: rank + 1, Workers: trainers, LeaseNs: uint64(time.Minute),
		Settings: []*rowraftv1.JobSetting{{Name: "mode", Value: "async"}}, // those of enter
		Instance: []byte(fmt.Sprintf("%-16.16s", fmt.Sprint(rank, time.Now().UnixNano()))),
	})
	if err != nil {
		t.Fatal(err)
	}
	hello := &rowraftv1.AttendHello{Member: m.GetIdentity()}
	if err := stream.Send(&rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			if answer := replies(r); answer != nil {
				_ = stream.Send(answer)
			}
		}
	}()
}

// standing answers a pause, and says of the release whether it stood still until then.
func standing(held bool) func(*rowraftv1.AttendReply) *rowraftv1.AttendRequest {
	return func(r *rowraftv1.AttendReply) *rowraftv1.AttendRequest {
		switch step := r.GetStep().(type) {
		case *rowraftv1.AttendReply_Pause:
			return &rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Paused{
				Paused: &rowraftv1.AttendPaused{Id: step.Pause.GetId(), Bytes: 1 << 30}}}
		case *rowraftv1.AttendReply_Release:
			return &rowraftv1.AttendRequest{Step: &rowraftv1.AttendRequest_Released{
				Released: &rowraftv1.AttendReleased{Id: step.Release.GetId(), Held: held}}}
		}
		return nil
	}
}

func silent(*rowraftv1.AttendReply) *rowraftv1.AttendRequest { return nil }

// A job of which nothing is known but what its trainers say cannot keep a checkpoint of the cluster, or of another
// job, from being made, and stops no other job for longer than that job itself needs.
func TestAnInventedJobKeepsNobodyFromACheckpoint(t *testing.T) {
	for name, invent := range map[string]func(t *testing.T, s *cluster, honest *fakeTrainer){
		"its trainers never answer": func(t *testing.T, s *cluster, honest *fakeTrainer) {
			rawTrainer(t, s, "a", 0, 1, func(r *rowraftv1.AttendReply) *rowraftv1.AttendRequest {
				if r.GetPause() != nil && honest.isStill() {
					t.Error("the honest job stands still while this one is asked")
				}
				return nil
			})
		},
		"most of them never come": func(t *testing.T, s *cluster, honest *fakeTrainer) {
			rawTrainer(t, s, "a", 7, meta.MaxWorkers, silent)
		},
		"it did not stand still": func(t *testing.T, s *cluster, honest *fakeTrainer) {
			rawTrainer(t, s, "a", 0, 1, standing(false))
		},
		"it never sends its state": func(t *testing.T, s *cluster, honest *fakeTrainer) {
			rawTrainer(t, s, "a", 0, 1, standing(true))
		},
		"one of two went, one stands": func(t *testing.T, s *cluster, honest *fakeTrainer) {
			c := another(t, s)
			attend(t, c, "a", 0, 2, nil).Close()
			testutil.Eventually(t, "its call is over", func() bool { return len(s.trainers.list()) == 1 })
			rawTrainer(t, s, "a", 1, 2, standing(true))
		},
	} {
		for _, need := range []string{"", "honest"} {
			t.Run(name+", for "+need, func(t *testing.T) {
				t.Parallel()
				s, c := served(t)
				s.trainers.patience.absent, s.trainers.patience.ignored, s.trainers.patience.state = 50*time.Millisecond,
					time.Second, 5*time.Second
				honest := attend(t, c, "honest", 0, 1, nil)
				once, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error)) // it has proved that it answers
				if err != nil {
					t.Fatal(err)
				}
				once.Cancel()
				<-honest.asked
				s.trainers.patience.pause = 5 * time.Second
				invent(t, s, honest)
				d, err := depot.Open(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				for round := range 2 {
					testutil.Eventually(t, "the honest job goes on", func() bool { return !honest.isStill() })
					left := make(map[string]error)
					var m *pauseRound
					for attempt := 1; ; attempt++ { // as creation.run
						m, err = s.pauseTrainers(t.Context(), need, false, attempt == 1, left)
						if err == nil {
							if err = m.Release(t.Context()); err == nil {
								break
							}
							m.Cancel()
						}
						if !rowraft.CodeOf(err).Retryable() || attempt == 2 {
							t.Fatalf("round %d, attempt %d: %v", round, attempt, err)
						}
					}
					if err := m.Store(t.Context(), d, fmt.Sprint("x", round), []byte{1, 2, 3, 4}); err != nil {
						t.Fatal(err)
					}
					m.End()
					if left["a"] == nil || len(m.members) != 1 || m.members[0].a.id.Job != "honest" {
						t.Errorf("round %d: states of %v, left out: %v; want the honest job's alone", round, m.Attended(), left)
					}
				}
				if claimed := s.trainers.allClaimed(); len(claimed) > 0 {
					t.Errorf("still claimed: %v", claimed)
				}
			})
		}
	}
}

// Trainers that come during each cut fail the first attempt alone.
func TestNewTrainersAtEachCutDoNotEndACheckpoint(t *testing.T) {
	s, c := served(t)
	attend(t, c, "honest", 0, 1, nil)
	left := make(map[string]error)
	for attempt, job := range []string{"a", "b"} {
		m, err := s.pauseTrainers(t.Context(), "honest", false, attempt == 0, left)
		if err != nil {
			t.Fatal(err)
		}
		rawTrainer(t, s, job, 0, 1, standing(true))
		if err := m.Release(t.Context()); (attempt == 0) != (err != nil) {
			t.Errorf("attempt %d: %v", attempt, err)
		}
		m.Cancel()
	}
	if left["b"] == nil {
		t.Errorf("left out: %v, want b", left)
	}
}

// A job whose workers are not all there has nothing in the tables: a checkpoint neither waits for its trainers nor
// pauses them, its policy does not run, and once they train a cut without them is tried again.
func TestAJobThatWaitsForAPeerIsNotInACheckpoint(t *testing.T) {
	s, c := served(t)
	runLoop(t, s)
	attend(t, c, "honest", 0, 1, nil)
	gathered := func(e *jobs.Entry) { e.Gather = true }
	c0 := another(t, s)
	m0, err := enter(t, c0, "w0", 2, gathered)
	if err != nil {
		t.Fatal(err)
	}
	waits := attend(t, c0, "ctr", 0, 2, func(f *fakeTrainer) { f.member, f.hold = m0, make(chan struct{}) })
	left := make(map[string]error)
	m, err := s.pauseTrainers(t.Context(), "", false, true, left)
	if err != nil || len(left) > 0 || len(m.members) != 1 || len(waits.asked) > 0 {
		t.Fatalf("%v; states of %v, left out: %v, asked %d times", err, m.Attended(), left, len(waits.asked))
	}
	if s.trainers.Trains("ctr") {
		t.Error("the policy of the job runs while it waits")
	}
	if _, err := enter(t, another(t, s), "w1", 2, gathered); err != nil {
		t.Fatal(err)
	}
	if err := m.Release(t.Context()); rowraft.CodeOf(err) != rowraft.CodeNoLeader ||
		!strings.Contains(fmt.Sprint(err), "trainer 0 of job ctr began") {
		t.Errorf("released: %v, though the job trains", err)
	}
	m.Cancel()
	if !s.trainers.Trains("ctr") {
		t.Error("the policy of the job does not run while it trains")
	}
}

// hungDepot takes nothing.
type hungDepot struct {
	depot.Depot
	writing chan struct{} // gets one for each file that is begun
}

func (d hungDepot) Write(ctx context.Context, _ string, fill func(io.Writer) error) error {
	return fill(hungWriter{ctx, d.writing})
}

type hungWriter struct {
	ctx     context.Context
	writing chan struct{}
}

func (w hungWriter) Write([]byte) (int, error) {
	w.writing <- struct{}{}
	<-w.ctx.Done()
	return 0, w.ctx.Err()
}

// A destination that takes nothing fails its checkpoint. The trainers whose state it should take keep their leases,
// train on, and take part in the next checkpoint.
func TestAHungDestinationKeepsNoTrainerFromItsLease(t *testing.T) {
	s, c := served(t)
	member, err := enter(t, c, "w0", 1, func(e *jobs.Entry) { e.Lease = time.Second }) // so it beats five times a second
	if err != nil {
		t.Fatal(err)
	}
	f := attend(t, c, "ctr", 0, 1, func(f *fakeTrainer) { f.member, f.content = member, strings.Repeat("state", 4<<20) })
	pause := func() *pauseRound {
		t.Helper()
		m, err := s.pauseTrainers(t.Context(), "ctr", false, true, make(map[string]error))
		if err == nil {
			err = m.Release(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := pause()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d := hungDepot{writing: make(chan struct{}, 1)}
	stored := make(chan error, 1)
	go func() { stored <- m.Store(ctx, d, "x", []byte{1, 2, 3, 4}) }()
	<-d.writing
	spoke := func() time.Time {
		one, _ := s.leases.get(uint64(member.Incarnation()))
		return one.spoke
	}
	for range 8 { // more than fit in any buffer that the state has not filled
		last := spoke()
		testutil.Eventually(t, "a beat is heard", func() bool { return spoke().After(last) })
	}
	if f.isStill() {
		t.Error("the trainer stands still while its state waits")
	}
	cancel()
	if err := <-stored; err == nil {
		t.Error("the checkpoint has succeeded")
	}
	m.End()
	m = pause()
	good, err := depot.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Store(t.Context(), good, "x", []byte{1, 2, 3, 4}); err != nil || len(m.members) != 1 ||
		m.members[0].blob.File.Bytes != 20<<20 {
		t.Errorf("the next checkpoint: %v, states of %v", err, m.Attended())
	}
	m.End()
}

// blockedStream is the call of a trainer that reads nothing.
type blockedStream struct {
	grpc.BidiStreamingServer[rowraftv1.AttendRequest, rowraftv1.AttendReply]
	over chan struct{}
}

func (s blockedStream) Send(*rowraftv1.AttendReply) error {
	<-s.over
	return io.EOF
}

// A trainer that reads nothing keeps who tells it something for a bounded time.
func TestATrainerThatReadsNothingIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		a := &trainer{id: meta.TrainerID{Job: "a", Rank: 0}}
		a.send.stream, a.send.mutex = blockedStream{over: over}, semaphore.NewWeighted(1)
		for range 2 {
			begun := time.Now()
			if err := a.tell(&rowraftv1.AttendReply{}); rowraft.CodeOf(err) != rowraft.CodeDeadline ||
				time.Since(begun) != tellPatience {
				t.Errorf("%v after %v, want Deadline after %v", err, time.Since(begun), tellPatience)
			}
		}
		close(over)
		synctest.Wait()
	})
}

// A job that has yet to answer for the first time is waited for while no other job stands, and then has little time.
func TestJobsProveThatTheyAnswerAlone(t *testing.T) {
	s, c := served(t)
	honest := attend(t, c, "honest", 0, 1, nil)
	rawTrainer(t, s, "a", 0, 1, silent)
	ctx, cancel := context.WithCancel(t.Context())
	s.trainers.patience.pause, s.trainers.patience.ignored = time.Hour, 50*time.Millisecond
	ended := make(chan struct{})
	go func() {
		s.trainers.Prove(ctx, "")
		close(ended)
	}()
	<-honest.asked
	testutil.Eventually(t, "the honest job goes on", func() bool { return !honest.isStill() })
	select {
	case <-ended:
		t.Error("the job that does not answer was not waited for")
	default:
	}
	cancel()
	<-ended
	if claimed := s.trainers.allClaimed(); len(claimed) > 0 {
		t.Errorf("still claimed: %v", claimed)
	}
	left := make(map[string]error)
	m, err := s.pauseTrainers(t.Context(), "", false, true, left)
	if err != nil || left["a"] == nil || len(m.members) != 1 {
		t.Errorf("the cut: %v, left out: %v", err, left)
	}
	m.Cancel()
}

// isQuick makes jobs count as quick in the next attempt. On a busy machine their last pause may have been slow.
func isQuick(s *cluster, jobs ...string) {
	s.trainers.mu.Lock()
	defer s.trainers.mu.Unlock()
	for id, a := range s.trainers.trainers {
		if slices.Contains(jobs, id.Job) {
			a.answered, a.ignored, a.took = true, false, 0
		}
	}
}

// A job that answered before and hangs now stops no other job for longer than quickPatience, also if the checkpoint is
// for it. Other attempts ask it while no quick job stands.
func TestAJobThatHangsLaterStopsNoOther(t *testing.T) {
	for _, need := range []string{"", "a"} {
		t.Run("for "+need, func(t *testing.T) {
			t.Parallel()
			s, c := served(t)
			honest := attend(t, c, "honest", 0, 1, nil)
			hangs := attend(t, another(t, s), "a", 0, 1, func(f *fakeTrainer) {
				f.hold = make(chan struct{}, 1)
				f.hold <- struct{}{} // so it answers once
			})
			once, err := s.pauseTrainers(t.Context(), "", false, true, make(map[string]error))
			if err != nil {
				t.Fatal(err)
			}
			once.Cancel()
			isQuick(s, "honest", "a")
			<-hangs.asked
			testutil.Eventually(t, "both train", func() bool { return !honest.isStill() && !hangs.isStill() })
			s.trainers.patience.quick = quickPause + 200*time.Millisecond
			if _, err := s.pauseTrainers(t.Context(), need, false, true,
				make(map[string]error)); rowraft.CodeOf(err) != rowraft.CodeDeadline {
				t.Fatalf("the first attempt: %v, want that the job does not answer", err)
			}
			<-hangs.asked
			testutil.Eventually(t, "the other job trains", func() bool { return !honest.isStill() })
			isQuick(s, "honest")
			// The next attempt has time to ask it, for no other job waits.
			const alone = time.Second
			s.trainers.patience.quick, s.trainers.patience.pause = 2*time.Minute, alone
			left := make(map[string]error)
			ended, begun := make(chan error, 1), time.Now()
			go func() {
				m, err := s.pauseTrainers(t.Context(), need, false, false, left)
				m.Cancel()
				ended <- err
			}()
			<-hangs.asked
			for range 10 {
				if honest.isStill() && time.Since(begun) < alone { // later, this one is not asked any more
					t.Error("the other job stands while this one is asked")
				}
				time.Sleep(time.Millisecond)
			}
			if err := <-ended; need == "" && (err != nil || left["a"] == nil) || need != "" &&
				rowraft.CodeOf(err) != rowraft.CodeDeadline {
				t.Errorf("the second attempt: %v, left out: %v", err, left)
			}
		})
	}
}
