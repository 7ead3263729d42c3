package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// sharedLogs is a shared log with segments of 16 KiB and the logs of some groups, which crashOwner names.
type sharedLogs struct {
	t      testing.TB
	shared *Shared
	logs   []Log
}

func openSharedLogs(t testing.TB, disk vfs.FS, groups int) *sharedLogs {
	t.Helper()
	s := &sharedLogs{t: t}
	var err error
	s.shared, err = OpenShared(disk, "/log", testOwner.Cluster, testOwner.Node, MinSegmentBytes,
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.shared.size = 16 << 10
	for i := range groups {
		l, err := s.try(disk, i)
		if err != nil {
			t.Fatal(err)
		}
		s.logs = append(s.logs, l)
	}
	return s
}

func (s *sharedLogs) try(disk vfs.FS, i int) (Log, error) {
	if err := vfs.MkdirAll(disk, crashDir(i)); err != nil {
		s.t.Fatal(err)
	}
	return Open(disk, Row, crashDir(i), crashOwner(i), s.shared, slog.New(slog.DiscardHandler))
}

// next appends the next entry of group i.
func (s *sharedLogs) next(i, size int) {
	s.t.Helper()
	last, _ := s.logs[i].LastIndex()
	e := sealedEntry(s.t, last+1, uint64(i), bytes.Repeat([]byte{byte(last + 1)}, size))
	if err := s.logs[i].StoreLogs([]*raft.Log{e}); err != nil {
		s.t.Fatal(err)
	}
}

// check fails unless group i has whole entries first to last.
func (s *sharedLogs) check(i int, first, last uint64) {
	s.t.Helper()
	gotFirst, _ := s.logs[i].FirstIndex()
	gotLast, _ := s.logs[i].LastIndex()
	if gotFirst != first || gotLast != last {
		s.t.Errorf("group %d has entries %d to %d, want %d to %d", i, gotFirst, gotLast, first, last)
		return
	}
	for k := first; k <= last && k > 0; k++ {
		var e raft.Log
		if err := errors.Join(s.logs[i].GetLog(k, &e), entry.Check(&e)); err != nil || e.Term != uint64(i) ||
			len(e.Data) > 0 && e.Data[0] != byte(k) {
			s.t.Errorf("group %d, entry %d: term %d, %d bytes, %v", i, k, e.Term, len(e.Data), err)
		}
	}
}

func (s *sharedLogs) close() {
	s.t.Helper()
	for _, l := range s.logs {
		if err := l.Close(); err != nil {
			s.t.Error(err)
		}
	}
	if err := s.shared.Close(); err != nil {
		s.t.Error(err)
	}
}

// gatedDisk counts the syncs of segments. While gate is set, each waits for it.
type gatedDisk struct {
	vfs.FS
	gate   atomic.Pointer[chan struct{}]
	begun  chan struct{}
	synced atomic.Int64
	fail   atomic.Bool
}

type gatedFile struct {
	vfs.File
	d *gatedDisk
}

func (d *gatedDisk) OpenFile(name string, flag int) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag)
	if err != nil || filepath.Ext(name) != segmentExt {
		return f, err
	}
	return gatedFile{f, d}, nil
}

func (f gatedFile) Sync() error {
	f.d.synced.Add(1)
	if gate := f.d.gate.Load(); gate != nil {
		f.d.begun <- struct{}{}
		<-*gate
	}
	if f.d.fail.Load() {
		return syscall.EIO
	}
	return f.File.Sync()
}

// waitForQueue returns when n changes wait for the writer.
func (s *sharedLogs) waitForQueue(n int) {
	testutil.Eventually(s.t, "changes wait", func() bool {
		s.shared.queue.Lock()
		defer s.shared.queue.Unlock()
		return len(s.shared.queue.changes) == n
	})
}

// Changes that come during a write are one batch with one sync. If that fails, none of them is acknowledged.
func TestChangesThatWaitShareASync(t *testing.T) {
	const groups = 9
	for _, fails := range []bool{false, true} {
		disk := &gatedDisk{FS: vfs.NewMem(), begun: make(chan struct{}, groups)}
		s := openSharedLogs(t, disk, groups)
		for i := range groups {
			s.next(i, 10)
		}
		gate := make(chan struct{})
		disk.gate.Store(&gate)
		before := disk.synced.Load()
		errs := make([]error, groups)
		var wg sync.WaitGroup
		for i := range groups {
			e := sealedEntry(t, 2, uint64(i), []byte{2})
			wg.Go(func() { errs[i] = s.logs[i].StoreLogs([]*raft.Log{e}) })
			if i == 0 {
				<-disk.begun
			}
		}
		s.waitForQueue(groups - 1)
		gate <- struct{}{}
		<-disk.begun
		disk.fail.Store(fails)
		close(gate)
		wg.Wait()
		if n := disk.synced.Load() - before; n != 2 {
			t.Errorf("%d appends took %d syncs, want 2", groups, n)
		}
		disk.gate.Store(nil)
		disk.fail.Store(false)
		for i, err := range errs {
			switch {
			case (err != nil) != (fails && i > 0) || fails && i > 0 && !errors.Is(err, syscall.EIO):
				t.Errorf("append %d: %v", i, err)
			case fails:
				if last, _ := s.logs[i].LastIndex(); i > 0 && last != 1 {
					t.Errorf("group %d has entry %d, whose sync failed", i, last)
				}
				if err := s.logs[i].DeleteRange(1, 1); !errors.Is(err, syscall.EIO) {
					t.Errorf("a change of group %d after it: %v", i, err)
				}
			}
		}
		s.close()
		if !fails {
			s = openSharedLogs(t, disk, groups)
			for i := range groups {
				s.check(i, 1, 2)
			}
			s.close()
		}
	}
}

func flipByte(t testing.TB, disk vfs.FS, name string, at int) {
	t.Helper()
	b, err := vfs.ReadFile(disk, name)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, disk, name, at, []byte{b[at] ^ 1})
}

// A damaged batch stops the groups that may have been in it. A group that wrote later, or that the next segment lists
// as it is, has lost nothing and starts.
func TestDamageStopsAsFewGroupsAsPossible(t *testing.T) {
	for _, nextSegment := range []bool{false, true} {
		t.Run(fmt.Sprint("next segment ", nextSegment), func(t *testing.T) {
			disk := vfs.NewMem()
			s := openSharedLogs(t, disk, 3)
			for i := range 3 {
				s.next(i, 100)
			}
			damaged := s.shared.newest().end
			file := s.shared.newest().file.Name()
			s.next(0, 100)
			s.next(1, 100)
			s.next(0, 100)
			for n := len(s.shared.mu.segments); nextSegment && len(s.shared.mu.segments) == n; {
				s.next(1, 3000)
			}
			lastOf1, _ := s.logs[1].LastIndex()
			s.close()
			flipByte(t, disk, file, int(damaged)+8)

			s = openSharedLogs(t, disk, 0)
			wantIdle := func(err error, says string) {
				t.Helper()
				if nextSegment && err != nil {
					t.Errorf("the idle group, which the next segment lists: %v", err)
				} else if !nextSegment {
					testutil.WantCode(t, err, rowraft.CodeCorrupt, says, crashOwner(2).String())
				}
			}
			_, err := s.try(disk, 0)
			testutil.WantCode(t, err, rowraft.CodeCorrupt, crashOwner(0).String())
			l, err := s.try(disk, 1)
			if err != nil {
				t.Fatal(err)
			}
			idle, err := s.try(disk, 2)
			wantIdle(err, "may have had")
			s.logs = []Log{l, l}
			s.check(1, 1, lastOf1)

			// It stays so, also when the damaged batch is no longer there.
			for range 30 {
				s.next(1, 3000)
			}
			lastOf1, _ = l.LastIndex()
			if err := l.DeleteRange(1, lastOf1-1); err != nil {
				t.Fatal(err)
			}
			s.shared.slack = 1
			if err := errors.Join(s.shared.Reclaim(), s.shared.Compact(nil)); err != nil {
				t.Fatal(err)
			}
			if _, err := disk.Stat(file); err == nil {
				t.Errorf("%s is still there", file)
			}
			s.logs = []Log{l}
			if idle != nil {
				s.logs = append(s.logs, idle)
			}
			s.close()
			s = openSharedLogs(t, disk, 0)
			_, err = s.try(disk, 0)
			testutil.WantCode(t, err, rowraft.CodeCorrupt, crashOwner(0).String())
			idle, err = s.try(disk, 2)
			wantIdle(err, "an earlier start")
			if idle != nil {
				s.logs = []Log{nil, nil, idle}
				s.check(2, 1, 1)
				s.logs = []Log{idle}
			}

			// A removed replica leaves no trace.
			if err := errors.Join(s.shared.Remove(crashOwner(0)), vfs.RemoveAll(disk, crashDir(0))); err != nil {
				t.Fatal(err)
			}
			l, err = s.try(disk, 0)
			if err != nil {
				t.Fatal(err)
			}
			s.logs = append([]Log{l}, s.logs...)
			s.next(0, 1)
			s.check(0, 1, 1)
			s.close()
		})
	}
}

// A group that needs old entries does not keep the segments of the others: its entries are copied.
func TestCompactCopiesWhatASlowGroupNeeds(t *testing.T) {
	disk := vfs.NewMem()
	s := openSharedLogs(t, disk, 3)
	for range 3 {
		s.next(1, 3000)
	}
	s.next(2, 100)
	s.next(2, 100)
	damaged := s.shared.mu.groups[crashOwner(2).tag()].places[1]
	damagedFile := s.shared.segmentLocked(damaged.segment).file.Name()
	for i := range uint64(200) {
		s.next(0, 3000)
		if i%20 == 19 {
			if err := errors.Join(s.logs[0].DeleteRange(1, i), s.logs[0].Reclaim()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(segmentFiles(t, disk)); n < 40 {
		t.Fatalf("%d segments, want those that the slow group keeps", n)
	}
	flipByte(t, disk, damagedFile, int(damaged.at)+entry.HeadBytes+50)
	written := s.shared.writer.batch
	if err := s.shared.Compact(nil); err != nil {
		t.Fatal(err)
	}
	if n := s.shared.writer.batch - written; n != 3 { // one for each group in each of two segments
		t.Errorf("%d batches of copies", n)
	}
	if n := len(segmentFiles(t, disk)); n > compactSlack+2 {
		t.Errorf("%d segments remain", n)
	}
	s.check(1, 1, 3)
	s.check(0, 200, 200)

	// The damaged entry stays damaged, and nothing else.
	var e raft.Log
	if err := s.logs[2].GetLog(2, &e); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("the damaged entry reads as %v, %v", e, err)
	}
	if err := errors.Join(s.logs[2].GetLog(1, &e), entry.Check(&e)); err != nil {
		t.Error(err)
	}
	s.close()
	s = openSharedLogs(t, disk, 2)
	s.check(1, 1, 3)
	_, err := s.try(disk, 2)
	testutil.WantCode(t, err, rowraft.CodeCorrupt, "entry 2", "missing")
	s.next(1, 10)
	s.check(1, 1, 4)
	if err := s.shared.Compact(nil); err != nil {
		t.Fatal(err)
	}
	s.close()
}

// Groups append, cut, read and come and go at the same time, while the log is compacted.
func TestGroupsShareTheLogConcurrently(t *testing.T) {
	const groups = 6
	disk := vfs.NewMem()
	s := openSharedLogs(t, disk, groups)
	s.shared.slack = 1
	ends := [groups][2]uint64{}
	var wg, compacts sync.WaitGroup
	done := make(chan struct{})
	compacts.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if err := s.shared.Compact(done); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for i := range groups {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			l := s.logs[i]
			for range 300 {
				s.next(i, 1+r.IntN(3000))
				first, _ := l.FirstIndex()
				last, _ := l.LastIndex()
				k := first + r.Uint64N(last-first+1)
				var e raft.Log
				if err := errors.Join(l.GetLog(k, &e), entry.Check(&e)); err != nil || e.Term != uint64(i) {
					t.Errorf("group %d, entry %d: term %d, %v", i, k, e.Term, err)
					return
				}
				var err error
				switch c := r.IntN(20 + 20*i); {
				case c == 0 && k < last:
					err = errors.Join(l.DeleteRange(first, k), l.Reclaim())
				case c == 1 && k > first:
					err = l.DeleteRange(k, last)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
			ends[i][0], _ = l.FirstIndex()
			ends[i][1], _ = l.LastIndex()
		})
	}
	wg.Wait()
	close(done)
	compacts.Wait()
	for range 2 {
		for i := range groups {
			s.check(i, ends[i][0], ends[i][1])
		}
		s.close()
		s = openSharedLogs(t, disk, groups)
	}
	s.close()
}

// ReadShared reads what a server left, also after a kill, and changes nothing.
func TestReadSharedChangesNothing(t *testing.T) {
	disk := vfs.NewMem()
	s := openSharedLogs(t, disk, 2)
	for i := range 20 {
		s.next(i%2, 3000)
	}
	left := disk.Kill() // s is of a process that is gone
	torn := int(s.shared.newest().end)
	overwrite(t, left, segmentFiles(t, left)[len(segmentFiles(t, left))-1], torn, []byte("torn"))
	content := func() (out []string) {
		entries, err := left.ReadDir("/log")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			b, err := vfs.ReadFile(left, "/log/"+e.Name())
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, e.Name()+string(b))
		}
		return out
	}
	before := fmt.Sprint(content())
	shared, err := ReadShared(left, "/log", testOwner.Cluster, testOwner.Node, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	r := &sharedLogs{t: t, shared: shared}
	for i := range 2 {
		l, err := r.try(left, i)
		if err != nil {
			t.Fatal(err)
		}
		r.logs = append(r.logs, l)
		r.check(i, 1, 10)
	}
	if err := r.logs[0].StoreLogs([]*raft.Log{sealedEntry(t, 11, 1, nil)}); err == nil {
		t.Error("a log that is only read takes an entry")
	}
	r.close()
	if fmt.Sprint(content()) != before {
		t.Error("it changed the files")
	}
	if _, err := ReadShared(left, "/none", "c", "n", slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("a store that never had a shared log: %v", err)
	}
	if _, err := left.Stat("/none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it makes a directory: %v", err)
	}
}

// Entries that were replaced in batches that are damaged do not come back, though the indices have no gap.
func TestReplacedEntriesDoNotComeBack(t *testing.T) {
	disk := vfs.NewMem()
	s := openSharedLogs(t, disk, 1)
	for range 3 {
		s.next(0, 100)
	}
	file := s.shared.newest().file.Name()
	cut := s.shared.newest().end
	if err := s.logs[0].DeleteRange(2, 3); err != nil {
		t.Fatal(err)
	}
	again := s.shared.newest().end
	if err := s.logs[0].StoreLogs([]*raft.Log{sealedEntry(t, 2, 9, nil), sealedEntry(t, 3, 9, nil)}); err != nil {
		t.Fatal(err)
	}
	s.next(0, 100)
	s.close()
	for _, batch := range []int64{cut, again} {
		flipByte(t, disk, file, int(batch)+8)
	}
	s = openSharedLogs(t, disk, 0)
	_, err := s.try(disk, 0)
	testutil.WantCode(t, err, rowraft.CodeCorrupt, "changes 5 to 6 are missing")
	s.close()
}

// TestAMissingSegmentBeforeAnUnbegunOneIsNoticed: without the newest segment that has batches the log does not open,
// also if a crash left a newer segment without a header.
func TestAMissingSegmentBeforeAnUnbegunOneIsNoticed(t *testing.T) {
	disk := vfs.NewMem()
	s := openSharedLogs(t, disk, 1)
	for len(s.shared.mu.segments) < 3 {
		s.next(0, 3000)
	}
	newest := s.shared.newest()
	s.shared.writer.Lock()
	_, err := s.shared.begin(newest)
	s.shared.writer.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	left := disk.Kill()
	if err := left.Remove("/log/" + segmentName(newest.number, segmentExt)); err != nil {
		t.Fatal(err)
	}
	_, err = OpenShared(left, "/log", testOwner.Cluster, testOwner.Node, MinSegmentBytes, slog.New(slog.DiscardHandler))
	testutil.WantCode(t, err, rowraft.CodeCorrupt, "is missing")
}

// TestCompactionGoesOnAfterAnEntryThatCannotBeRead: an old segment that lost its end does not keep the segments after
// it.
func TestCompactionGoesOnAfterAnEntryThatCannotBeRead(t *testing.T) {
	disk := vfs.NewMem()
	s := openSharedLogs(t, disk, 2)
	s.next(1, 3000)
	for range 12 {
		s.next(0, 3000)
	}
	last, err := s.logs[0].LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.logs[0].DeleteRange(1, last-1); err != nil {
		t.Fatal(err)
	}
	at := s.shared.mu.groups[crashOwner(1).tag()].places[0].at
	oldest := s.shared.mu.segments[0]
	s.close()
	b, err := vfs.ReadFile(disk, oldest.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFile(disk, oldest.file.Name(), b[:at+1000]); err != nil {
		t.Fatal(err)
	}
	s = openSharedLogs(t, disk, 2)
	s.shared.slack = 1
	s.next(0, 3000)
	if err := s.shared.Compact(nil); err != nil {
		t.Error(err)
	}
	if first := s.shared.mu.segments[0].number; first == oldest.number {
		t.Errorf("segment %d is still the oldest", first)
	}
}
