package raftstore

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// TestGroupsStartConcurrently: while one group restores its snapshot, other groups start and the store answers calls
// about them. Close waits for it, and no call starts or removes a group that is being started.
func TestGroupsStartConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := vfs.NewMem()
		if err := vfs.MkdirAll(disk, "/node"); err != nil {
			t.Fatal(err)
		}
		s, err := Open(crashOptions(disk))
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"shard-0", "shard-1"} {
			g, err := s.StartGroup(crashGroup(id, &listMachine{}))
			if err != nil {
				t.Fatal(err)
			}
			l := groupLife{}
			if err := errors.Join(l.propose(g, "x"), g.Snapshot()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		if s, err = Open(crashOptions(disk)); err != nil {
			t.Fatal(err)
		}
		goOn := make(chan struct{})
		var restoring sync.WaitGroup
		errs := make(chan error, 2)
		for _, id := range []string{"shard-0", "shard-1"} {
			restoring.Add(1)
			m := &listMachine{beforeRestore: func() error {
				restoring.Done()
				<-goOn
				return nil
			}}
			go func() {
				_, err := s.StartGroup(crashGroup(id, m))
				errs <- err
			}()
		}
		both := make(chan struct{})
		go func() { restoring.Wait(); close(both) }()
		select {
		case <-both:
		case <-time.After(time.Minute):
			t.Fatal("the second group waits for the restore of the first one")
		}
		if g := s.Group("shard-0"); g != nil {
			t.Error("a group that is being started is there")
		}
		if _, err := s.StartGroup(crashGroup("shard-0", &listMachine{})); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
			t.Errorf("starting it twice: %v", err)
		}
		if err := s.RemoveReplica("shard-0", "r-shard-0"); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
			t.Errorf("removing it meanwhile: %v", err)
		}
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("the store closed under groups that start: %v", err)
		default:
		}
		close(goOn)
		if err := errors.Join(<-errs, <-errs, <-closed); err != nil {
			t.Error(err)
		}
		if _, err := s.StartGroup(crashGroup("shard-0", &listMachine{})); rowraft.CodeOf(err) != rowraft.CodeClosing {
			t.Errorf("start after the end: %v", err)
		}
	})
}
