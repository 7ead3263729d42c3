package transport

import (
	"errors"
	"slices"
	"sync"
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
				self := emptyReplica(false)
				self.Quiet = func() time.Duration { return quiet }
				self.Leads = func(uint64) bool { return true }
				tr := &Transport{Transport: f, replica: self, shared: &Shared{peers: map[raft.ServerAddress]*sharedPeer{}},
					maxRPCBytes: 1 << 20, followers: map[raft.ServerID]*Progress{},
					marksSent: map[raft.ServerID]sentMarks{}}
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
		self := emptyReplica(false)
		self.Quiet = func() time.Duration { return quiet }
		self.Leads = func(uint64) bool { return true }
		tr := &Transport{Transport: &follower{}, replica: self,
			shared:      &Shared{peers: map[raft.ServerAddress]*sharedPeer{}},
			maxRPCBytes: 1 << 20, followers: map[raft.ServerID]*Progress{}, marksSent: map[raft.ServerID]sentMarks{}}
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
