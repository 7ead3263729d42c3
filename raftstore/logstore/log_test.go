package logstore

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// holedLog lost an entry in its middle.
type holedLog struct{ raftlog.Log }

func (holedLog) FirstIndex() (uint64, error)          { return 5, nil }
func (holedLog) LastIndex() (uint64, error)           { return 9, nil }
func (holedLog) GetLog(i uint64, out *raft.Log) error { return raft.ErrLogNotFound }

// A hole in the log does not count as a compacted entry: raft would send a snapshot, or panic.
func TestHoleInTheLogIsCorrupt(t *testing.T) {
	g := New(Options{Inner: holedLog{}, Ledger: NewLedger(nil), Shared: NewShared(0), FS: vfs.OS})
	for i, hole := range map[uint64]bool{4: false, 5: true, 7: true, 9: true, 10: false} {
		err := g.GetLog(i, &raft.Log{})
		if hole && rowraft.CodeOf(err) != rowraft.CodeCorrupt || !hole && !errors.Is(err, raft.ErrLogNotFound) {
			t.Errorf("entry %d of a log from 5 to 9: %v", i, err)
		}
	}
}

// slowLog takes some time for each write.
type slowLog struct {
	raftlog.Log
	takes time.Duration
}

func (l *slowLog) StoreLogs([]*raft.Log) error {
	//tidy:allow sleep in virtual time, the disk
	time.Sleep(l.takes)
	return nil
}

// A write that hangs costs a leader its lead, and then it does not make the timers longer: they would only keep the
// next leader waiting. A follower's writes make them longer, so that a disk that is always so slow gets leaders.
func TestAStallCostsTheLeadOrMakesTimersLonger(t *testing.T) {
	for _, tc := range []struct {
		name    string
		leads   bool
		takes   time.Duration
		stalled int32
		longer  bool
	}{
		{"a leader's", true, 600 * time.Millisecond, 4, false},
		{"a leader's, just in time", true, 480 * time.Millisecond, 0, true},
		{"a follower's", false, 600 * time.Millisecond, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := timers.NewServer(timers.ServerOptions{Profile: timers.Fast, FS: vfs.NewMem(), Dir: "/",
					Logger: slog.New(slog.DiscardHandler)})
				stop := make(chan struct{})
				var running sync.WaitGroup
				running.Go(func() { server.Run(stop) })
				var stalled atomic.Int32
				g := New(Options{
					Inner: &slowLog{takes: tc.takes}, Ledger: NewLedger(func() {}), Shared: NewShared(0), Timers: server,
					FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler), Stored: func([]*raft.Log) {},
					IsLeader: func() bool { return tc.leads },
					Fatal:    func(err error) { t.Error(err) },
					Stalled:  func(string) { stalled.Add(1) },
				})
				for range 4 {
					g.Prepare() // as a restart of raft does
					g.Start()
					var write sync.WaitGroup
					write.Go(func() { _ = g.StoreLogs([]*raft.Log{{Index: 1, Type: raft.LogNoop}}) })
					write.Wait()
					//tidy:allow sleep in virtual time, until the second has been counted
					time.Sleep(time.Second)
				}
				if got := stalled.Load(); got != tc.stalled {
					t.Errorf("the lead was given up %d times, want %d", got, tc.stalled)
				}
				if longer := server.Heartbeat() > timers.Fast.Heartbeat; longer != tc.longer {
					t.Errorf("the heartbeat timeout is %v, that of the profile %v", server.Heartbeat(), timers.Fast.Heartbeat)
				}
				close(stop)
				running.Wait()
			})
		})
	}
}
