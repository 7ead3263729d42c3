package transport

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// follower answers AppendEntries and records their commit indices.
type follower struct {
	raft.Transport
	err error

	mu  sync.Mutex
	got []uint64
}

func (f *follower) indices() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.got)
}

func (f *follower) AppendEntries(_ raft.ServerID, _ raft.ServerAddress, a *raft.AppendEntriesRequest,
	r *raft.AppendEntriesResponse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, a.LeaderCommitIndex)
	*r = raft.AppendEntriesResponse{Term: a.Term, Success: f.err == nil}
	return f.err
}

// quietTransport returns the transport of a leader that sends to f. Its heartbeats wait for up to quiet.
func quietTransport(f *follower, quiet time.Duration) *Transport {
	self := emptyReplica(false)
	self.Quiet = func() time.Duration { return quiet }
	self.Leads = func(uint64) bool { return true }
	return &Transport{Transport: f, replica: self, shared: &Shared{peers: map[raft.ServerAddress]*sharedPeer{}},
		maxRPCBytes: 1 << 20, followers: map[raft.ServerID]*Progress{}, marksSent: map[raft.ServerID]sentMarks{}}
}

// A message without news waits for an entry, for the end of the transport, or for Quiet. All others are sent at once.
func TestMessagesWithoutNewsWait(t *testing.T) {
	const quiet, wait = time.Hour, appendFactor * time.Hour
	entries := func(to uint64) (out []*raft.Log) {
		for i := uint64(1); i <= to; i++ {
			out = append(out, &raft.Log{Index: i})
		}
		return out
	}
	for _, tc := range []struct {
		name   string
		before func(*Transport, *follower) // after entries 1 to 5 and their commit were answered in term 1
		term   uint64
		prev   uint64
		commit uint64
		waits  bool
		wake   func(*Transport)
	}{
		{name: "nothing new", term: 1, prev: 5, commit: 5, waits: true},
		{name: "an entry wakes it", term: 1, prev: 5, commit: 5, waits: true, wake: func(t *Transport) { t.Stored(6) }},
		{name: "the end wakes it", term: 1, prev: 5, commit: 5, waits: true, wake: func(t *Transport) { t.quiet.end() }},
		{name: "after the end", term: 1, prev: 5, commit: 5, before: func(t *Transport, _ *follower) { t.quiet.end() }},
		{name: "an entry came before it began to wait", term: 1, prev: 5, commit: 5,
			before: func(t *Transport, _ *follower) { t.Stored(6) }},
		{name: "entries that are not committed", term: 1, prev: 5, commit: 4},
		{name: "another term", term: 2, prev: 5, commit: 5},
		{name: "a follower that failed", term: 1, prev: 5, commit: 5, before: func(t *Transport, f *follower) {
			f.err = errors.New("no answer")
			_ = t.AppendEntries("r", "", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, Entries: entries(1)},
				&raft.AppendEntriesResponse{})
			f.err = nil
		}},
		{name: "a commit index that it does not know", term: 1, prev: 6, commit: 6, before: func(t *Transport, _ *follower) {
			t.Stored(6)
			_ = t.AppendEntries("r", "", &raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, LeaderCommitIndex: 5,
				Entries: []*raft.Log{{Index: 6}}}, &raft.AppendEntriesResponse{})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &follower{}
				tr := quietTransport(f, quiet)
				call := func(term, prev, commit uint64, entries []*raft.Log) {
					req := raft.AppendEntriesRequest{Term: term, PrevLogEntry: prev, LeaderCommitIndex: commit, Entries: entries}
					if err := tr.AppendEntries("r", "", &req, &raft.AppendEntriesResponse{}); err != nil {
						t.Error(err)
					}
				}
				tr.Stored(5)
				call(1, 0, 0, entries(5))
				call(1, 5, 5, nil)
				if tc.before != nil {
					tc.before(tr, f)
				}
				before, begun := len(f.indices()), time.Now()
				go call(tc.term, tc.prev, tc.commit, nil)
				synctest.Wait()
				if waits := len(f.indices()) == before; waits != tc.waits {
					t.Errorf("the message waits: %v, want %v", waits, tc.waits)
				}
				if tc.wake != nil {
					tc.wake(tr)
				} else if tc.waits {
					time.Sleep(wait) //tidy:allow sleep virtual time
				}
				synctest.Wait()
				if got := f.indices()[before:]; !slices.Equal(got, []uint64{tc.commit}) {
					t.Errorf("the follower got the commit indices %v, want %d", got, tc.commit)
				}
				if took := time.Since(begun); tc.waits && tc.wake == nil && took != wait || tc.wake != nil && took != 0 {
					t.Errorf("it was sent after %v", took)
				}
			})
		})
	}
}

// Messages whose waits began at different moments leave together, none later than it must.
func TestMessagesForAllServersLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const quiet = 125 * time.Millisecond
		tr := quietTransport(&follower{}, quiet)
		tr.Stored(5)
		send := func(to string, args raft.AppendEntriesRequest) time.Duration {
			begun := time.Now()
			err := tr.AppendEntries(raft.ServerID(to), raft.ServerAddress(to), &args, &raft.AppendEntriesResponse{})
			if err != nil {
				t.Error(err)
			}
			return time.Since(begun)
		}
		heartbeat := raft.AppendEntriesRequest{Term: 1}
		commit := raft.AppendEntriesRequest{Term: 1, PrevLogEntry: 5, LeaderCommitIndex: 5}
		var wg sync.WaitGroup
		for i, to := range []string{"a", "b", "c"} {
			wg.Go(func() {
				time.Sleep(time.Duration(10+40*i) * time.Millisecond)
				if took := send(to, heartbeat) + send(to, commit); took != 0 {
					t.Errorf("the first messages to %s waited for %v", to, took)
				}
				for range 5 {
					for _, m := range []struct {
						args    raft.AppendEntriesRequest
						longest time.Duration
					}{{heartbeat, quiet}, {commit, appendFactor * quiet}} {
						time.Sleep(30 * time.Millisecond)
						if took := send(to, m.args); took > m.longest {
							t.Errorf("a message to %s waited for %v, at most %v", to, took, m.longest)
						}
						if now := time.Now(); now.UnixNano()%int64(quiet) != 0 && m.longest > quiet {
							t.Errorf("a message to %s left at %v", to, now)
						}
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(10 * time.Millisecond)
		send("a", heartbeat)
		time.Sleep(30 * time.Millisecond)
		if send("a", heartbeat); time.Now().UnixNano()%int64(quiet) != 0 {
			t.Errorf("a heartbeat left at %v", time.Now())
		}
	})
}

// A heartbeat waits only if its follower has answered the last one of the term and no read needs an answer.
func TestHeartbeatsWithNewsAreNotDelayed(t *testing.T) {
	const wait = time.Hour
	for _, tc := range []struct {
		name   string
		before func(*Transport, *follower) // after a heartbeat of term 1 was answered
		term   uint64
		after  time.Duration // since that heartbeat
		waits  time.Duration
		wake   func(*Transport)
	}{
		{name: "nothing new", term: 1, waits: wait},
		{name: "nothing new, later", term: 1, after: wait / 4, waits: wait - wait/4},
		{name: "late already", term: 1, after: 2 * wait},
		{name: "another term", term: 2},
		{name: "a follower that missed one", term: 1, before: func(tr *Transport, f *follower) {
			f.err = errors.New("no answer")
			tr.BeginRound()
			defer tr.EndRound()
			_ = tr.AppendEntries("r", "n", &raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
			f.err = nil
		}},
		{name: "a read waits for the answer", term: 1, before: func(tr *Transport, _ *follower) { tr.BeginRound() }},
		{name: "the second of two reads has ended", term: 1, before: func(tr *Transport, _ *follower) {
			tr.BeginRound()
			tr.BeginRound()
			tr.EndRound()
		}},
		{name: "the read has ended", term: 1, before: func(tr *Transport, _ *follower) {
			tr.BeginRound()
			tr.EndRound()
		}, waits: wait},
		{name: "a read begins", term: 1, waits: wait / 2, wake: (*Transport).BeginRound},
		{name: "the end wakes it", term: 1, waits: wait / 2, wake: func(tr *Transport) { tr.quiet.end() }},
		{name: "after the end", term: 1, before: func(tr *Transport, _ *follower) { tr.quiet.end() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &follower{}
				tr := quietTransport(f, wait)
				call := func(term uint64) {
					if err := tr.AppendEntries("r", "n", &raft.AppendEntriesRequest{Term: term},
						&raft.AppendEntriesResponse{}); err != nil {
						t.Error(err)
					}
				}
				call(1)
				if tc.before != nil {
					tc.before(tr, f)
				}
				time.Sleep(tc.after) //tidy:allow sleep virtual time
				begun, took := time.Now(), time.Duration(-1)
				go func() {
					call(tc.term)
					took = time.Since(begun)
				}()
				if tc.wake != nil {
					time.Sleep(tc.waits) //tidy:allow sleep virtual time
					tc.wake(tr)
				} else {
					time.Sleep(2 * wait) //tidy:allow sleep virtual time
				}
				synctest.Wait()
				if took != tc.waits {
					t.Errorf("the heartbeat was sent and answered after %v, want %v", took, tc.waits)
				}
			})
		})
	}
}

// A read counts an answer only if the message was sent after the round began, so the time of a heartbeat that waited is
// that of its departure.
func TestAHeartbeatThatWaitedWasSentWhenItLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := quietTransport(&follower{}, time.Hour)
		call := func() {
			_ = tr.AppendEntries("r", "n", &raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		}
		call()
		first := time.Now()
		go call()
		time.Sleep(time.Minute) //tidy:allow sleep virtual time
		synctest.Wait()
		if p, _ := tr.Progress("r", 1); !p.Confirmed.Equal(first) {
			t.Errorf("confirmed %v after the first heartbeat while the second waits", p.Confirmed.Sub(first))
		}
		begin := time.Now()
		tr.BeginRound()
		synctest.Wait()
		if p, _ := tr.Progress("r", 1); p.Confirmed.Before(begin) {
			t.Errorf("the answer confirms a message that was sent %v before the round", begin.Sub(p.Confirmed))
		}
	})
}

// Heartbeats of several groups that wait leave at the first moment at which one of them must.
func TestHeartbeatsLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d departure
		begun := time.Now()
		var left [3]time.Duration
		for i, latest := range []time.Duration{50, 30, 40} {
			at := begun.Add(latest * time.Millisecond)
			go func() {
				<-d.next(at)
				left[i] = time.Since(begun)
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second) //tidy:allow sleep virtual time
		synctest.Wait()
		if want := 30 * time.Millisecond; left != [3]time.Duration{want, want, want} {
			t.Errorf("they left after %v, want %v", left, want)
		}
		again := time.Now()
		<-d.next(again.Add(time.Minute))
		if took := time.Since(again); took != time.Minute {
			t.Errorf("the next one left after %v", took)
		}
	})
}

// TestADelayedMessageOfAnEarlierLeaderIsNotSent: a leader that steps down while a message waits does not send it,
// because its follower would then wait longer before it elects another.
func TestADelayedMessageOfAnEarlierLeaderIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stepped atomic.Bool
		f := &follower{}
		tr := quietTransport(f, time.Minute)
		tr.replica.Leads = func(uint64) bool { return !stepped.Load() }
		call := func() error {
			return tr.AppendEntries("r", "n", &raft.AppendEntriesRequest{Term: 1}, &raft.AppendEntriesResponse{})
		}
		if err := call(); err != nil {
			t.Fatal(err)
		}
		sent := len(f.indices())
		done := make(chan error)
		go func() { done <- call() }()
		synctest.Wait()
		stepped.Store(true)
		if err := <-done; err == nil || len(f.indices()) != sent {
			t.Errorf("%d messages, %v; want none after the step-down", len(f.indices())-sent, err)
		}
	})
}
