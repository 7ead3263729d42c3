package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// A flipped bit anywhere in a segment is found before its entry is used: the log
// does not open, or the entry does not read. Only the last append may go without a
// word, which a torn one looks like.
func TestRowLogFindsEachFlippedBit(t *testing.T) {
	disk, want := smallRowLog(t)
	whole := openTestRowLog(t, disk)
	last, _ := whole.LastIndex()
	if first, _ := whole.FirstIndex(); first != 13 {
		t.Fatalf("first entry %d, want 13", first)
	}
	if err := whole.Close(); err != nil {
		t.Fatal(err)
	}
	files := segmentFiles(t, disk)
	if len(files) < 2 {
		t.Fatalf("%d segments, want several", len(files))
	}
	content := make([][]byte, len(files))
	for i, name := range files {
		var err error
		if content[i], err = vfs.ReadFile(disk, name); err != nil {
			t.Fatal(err)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i, name := range files {
		data := content[i]
		refused, unread := 0, 0
		for at := range data {
			if data[at] == 0 && at < segmentStart && at%512 != 0 { // between the headers
				continue
			}
			damaged := disk.Crash(1)
			overwrite(t, damaged, name, at, []byte{data[at] ^ 1<<r.IntN(8)})
			end, bad := readRowLog(t, damaged, want)
			switch {
			case end == 0:
				refused++
			case bad:
				unread++
			case end != last && (i < len(files)-1 || end < last-2):
				t.Fatalf("%s: byte %d: the log ends at %d without a word, want %d", name, at, end, last)
			}
		}
		t.Logf("%s: %d bytes, %d times refused, %d times an entry", name, len(data), refused, unread)
		if unread == 0 || refused == 0 && i < len(files)-1 {
			t.Errorf("%s: %d times refused, %d times an entry", name, refused, unread)
		}
	}
}

// readRowLog returns the last entry of the log, 0 if it is refused as damaged, and
// whether an entry is; it fails t for any that reads as another.
func readRowLog(t *testing.T, disk vfs.FS, want map[uint64]*raft.Log) (last uint64, bad bool) {
	t.Helper()
	l, err := tryTestRowLog(disk)
	if err != nil {
		if rowraft.CodeOf(err) != rowraft.CodeCorrupt && rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
			t.Errorf("%v, want CodeCorrupt", err)
		}
		return 0, true
	}
	defer l.Close()
	first, _ := l.FirstIndex()
	last, _ = l.LastIndex()
	for i := first; i <= last; i++ {
		var got raft.Log
		err := l.GetLog(i, &got)
		if err == nil {
			err = entry.Check(&got)
		}
		if err != nil {
			bad = true
		} else if e := want[i]; got.Index != i || got.Term != e.Term || got.Type != e.Type || !bytes.Equal(got.Data, e.Data) {
			t.Errorf("entry %d reads as entry %d of term %d with %d bytes", i, got.Index, got.Term, len(got.Data))
		}
	}
	return last, bad
}

// Entries are read while the head is cut and the segments under them are used again.
func TestRowLogReadsWhileSegmentsGo(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	defer l.Close()
	var wg sync.WaitGroup
	stop := make(chan struct{})
	defer wg.Wait()
	defer close(stop)
	var read [2]int
	for k := range read {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				first, _ := l.FirstIndex()
				var e raft.Log
				err := l.GetLog(first, &e)
				if err == nil {
					err = entry.Check(&e)
					read[k]++
				}
				if err != nil && !errors.Is(err, raft.ErrLogNotFound) {
					t.Errorf("entry %d: %v", first, err)
					return
				}
			}
		})
	}
	for i := uint64(1); i <= 2000; i++ {
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, i, i, bytes.Repeat([]byte{byte(i)}, 1+int(i%5)*1000))}); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 {
			if err := errors.Join(l.DeleteRange(1, i-5), l.Reclaim()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(segmentFiles(t, disk)); n > 4 {
		t.Errorf("%d segments for the last five entries", n)
	}
}

// slowRename is a disk on which a segment is not put aside before release is closed.
type slowRename struct {
	vfs.FS
	waits   chan struct{} // receives at the begin of each such rename
	release chan struct{}
}

func (d slowRename) Rename(from, to string) error {
	if strings.HasSuffix(to, freeExt) {
		d.waits <- struct{}{}
		<-d.release
	}
	return d.FS.Rename(from, to)
}

// Appends, which begin segments, reads and another cut do not wait while the disk is slow to release cut segments.
func TestRowLogAppendsWhileSegmentsGo(t *testing.T) {
	disk := slowRename{vfs.NewMem(), make(chan struct{}, 100), make(chan struct{})}
	l := openTestRowLog(t, disk)
	defer l.Close()
	store := func(from, to uint64) {
		t.Helper()
		for i := from; i <= to; i++ {
			if err := l.StoreLogs([]*raft.Log{sealedEntry(t, i, 1, make([]byte, 5000))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	store(1, 20)
	if err := l.DeleteRange(1, 15); err != nil {
		t.Fatal(err)
	}
	reclaimed := make(chan error)
	go func() { reclaimed <- l.Reclaim() }()
	<-disk.waits
	store(21, 30)
	var e raft.Log
	if err := errors.Join(l.DeleteRange(16, 18), l.GetLog(19, &e), entry.Check(&e)); err != nil {
		t.Error(err)
	}
	close(disk.release)
	if err := <-reclaimed; err != nil {
		t.Error(err)
	}
	if n, want := len(segmentFiles(t, disk)), len(l.shared.mu.segments); n != want {
		t.Errorf("%d segment files, and the log has %d segments", n, want)
	}
}

// A failed append stops the log: what the disk holds is unknown until it is opened again.
func TestRowLogStopsAfterAFailedAppend(t *testing.T) {
	disk, _ := smallRowLog(t)
	l := openTestRowLog(t, disk)
	defer l.Close()
	disk.Limit(disk.Used())
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, 25, 1, make([]byte, 40<<10))}); err == nil {
		t.Fatal("an append to a full disk succeeded")
	}
	disk.Limit(1 << 30)
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, 25, 1, nil)}); err == nil {
		t.Error("the next append succeeded")
	}
	if err := l.DeleteRange(13, 14); err == nil {
		t.Error("a cut succeeded")
	}
	var e raft.Log
	if err := l.GetLog(20, &e); err != nil {
		t.Errorf("an entry from before: %v", err)
	}
}

func TestRowLogRefusesWhatLeavesAGap(t *testing.T) {
	disk, _ := smallRowLog(t)
	l := openTestRowLog(t, disk)
	defer l.Close()
	last, _ := l.LastIndex()
	for _, logs := range [][]*raft.Log{
		{sealedEntry(t, last+2, 1, nil)},
		{sealedEntry(t, last, 1, nil)},
		{sealedEntry(t, last+1, 1, nil), sealedEntry(t, last+3, 1, nil)},
		{{Index: last + 1, Data: []byte("without a seal")}},
	} {
		if err := l.StoreLogs(logs); err == nil {
			t.Errorf("entry %d was accepted after %d", logs[len(logs)-1].Index, last)
		}
	}
	if err := l.DeleteRange(15, 16); err == nil {
		t.Error("a cut out of the middle was taken")
	}
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, last+1, 1, nil)}); err != nil {
		t.Errorf("the right entry: %v", err)
	}
}

// testdata/rowlog was written by rowlog.py from docs/formats/log.md.
func TestRowLogGoldenBytes(t *testing.T) {
	disk := vfs.NewMem()
	putMetas(t, disk)
	golden, err := os.ReadDir("testdata/rowlog")
	if err != nil || len(golden) != 2 {
		t.Fatalf("%d golden files, %v", len(golden), err)
	}
	for _, g := range golden {
		data, err := os.ReadFile(filepath.Join("testdata/rowlog", g.Name()))
		if err != nil {
			t.Fatal(err)
		}
		putFile(t, disk, "/log/"+g.Name(), data)
	}
	l := openTestRowLog(t, disk)
	defer l.Close()
	at := time.Unix(0, 1700000000000000001)
	run := make([]byte, 33)
	for i := range run {
		run[i] = byte(i)
	}
	for i, want := range map[uint64]raft.Log{
		13: {Term: 2, Data: []byte("thirteen"), AppendedAt: at},
		14: {Term: 3, Data: []byte("fourteen, again"), AppendedAt: at},
		15: {Term: 3, Data: run, AppendedAt: at},
	} {
		var got raft.Log
		if err := errors.Join(l.GetLog(i, &got), entry.Check(&got)); err != nil {
			t.Fatal(err)
		}
		if got.Index != i || got.Term != want.Term || !bytes.Equal(got.Data, want.Data) ||
			!got.AppendedAt.Equal(want.AppendedAt) {
			t.Errorf("entry %d is %+v", i, got)
		}
	}
	if first, _ := l.FirstIndex(); first != 13 {
		t.Errorf("first entry %d, want 13", first)
	}
	if owners := l.shared.Owners(); len(owners) != 1 {
		t.Errorf("groups %v, want that of %v", owners, testOwner)
	}
	if p := l.group.places[0]; p.segment != 4 {
		t.Errorf("entry 13 is at %+v, and its copy in segment 4", p)
	}

	// The same is written.
	want, err := os.ReadFile("testdata/rowlog/0000000000000003.seg")
	if err != nil {
		t.Fatal(err)
	}
	noop := func(index, term uint64) *raft.Log {
		l := &raft.Log{Index: index, Term: term, Type: raft.LogNoop, Extensions: entry.Seal(nil)}
		if err := entry.Complete(l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	thirteen, fourteen := sealedEntry(t, 13, 2, []byte("thirteen")), sealedEntry(t, 14, 3, []byte("fourteen, again"))
	thirteen.AppendedAt, fourteen.AppendedAt = at, at
	const salt = 0x0123456789ABCDEF
	got := make([]byte, segmentStart)
	h := rowSegmentHeader{number: 3, batch: 7, salt: salt, owner: serverOwner}.encode()
	copy(got, h)
	copy(got[segmentHeadCopy:], h)
	one := &rowGroup{tag: testOwner.tag(), owner: testOwner, seq: 5, first: 10, last: 12}
	other := testOwner
	other.Group, other.Replica = "shard-1", "r-shard-1"
	two := &rowGroup{tag: other.tag(), owner: other}
	s := &Shared{}
	s.mu.groups = map[uint64]*rowGroup{one.tag: one}
	s.writer.batch, s.writer.state = 7, true
	for _, lay := range [][2]func(*change){
		{func(c *change) { c.entries(one, sectionEntries, []*raft.Log{thirteen, noop(14, 2)}) },
			func(c *change) { c.body(two, sectionBegin, pad8(other.encode())) }},
		{func(c *change) { c.cut(one, 13, 13) }, func(c *change) { c.entries(two, sectionEntries, []*raft.Log{noop(1, 1)}) }},
		{func(c *change) { c.entries(one, sectionEntries, []*raft.Log{fourteen}) }},
	} {
		var batch []*change
		for _, f := range lay {
			if f != nil {
				c := &change{}
				f(c)
				batch = append(batch, c)
			}
		}
		for _, b := range s.lay(&rowSegment{salt: salt}, batch) {
			got = append(got, b...)
		}
		for _, c := range batch {
			c.group.seq++
		}
		s.writer.batch, s.writer.state = s.writer.batch+1, false
	}
	if !bytes.Equal(got, want) {
		t.Errorf("wrote\n%x\nwant\n%x", got[segmentStart:], want[segmentStart:])
	}
}

// FuzzRowLog: with any bytes after the header of a segment, the log opens with whole entries or returns that it is
// damaged. A log that opens can be written and opened again.
func FuzzRowLog(f *testing.F) {
	golden, err := os.ReadFile("testdata/rowlog/0000000000000003.seg")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden[segmentStart:], uint16(0))
	f.Add(golden[segmentStart:len(golden)-9], uint16(3))
	f.Add([]byte{}, uint16(0))
	f.Fuzz(func(t *testing.T, batches []byte, flip uint16) {
		disk := vfs.NewMem()
		putMetas(t, disk)
		data := bytes.Clone(append(golden[:segmentStart:segmentStart], fixBatches(batches, 0x0123456789ABCDEF)...))
		if flip > 0 {
			data[int(flip)%len(data)] ^= 1 << (flip % 8)
		}
		putFile(t, disk, "/log/"+segmentName(3, segmentExt), data)
		l, err := tryTestRowLog(disk)
		if err != nil {
			if c := rowraft.CodeOf(err); c != rowraft.CodeCorrupt && c != rowraft.CodeIdentity &&
				c != rowraft.CodeVersionTooNew {
				t.Errorf("%v, want CodeCorrupt", err)
			}
			return
		}
		last, _ := l.LastIndex()
		if first, _ := l.FirstIndex(); last-first < 1000 {
			for i := first; i <= last && i > 0; i++ {
				var e raft.Log
				if err := l.GetLog(i, &e); err == nil && e.Index != i {
					t.Errorf("entry %d reads as %d", i, e.Index)
				}
			}
		}
		next := last + 1
		if next == 0 { // the last index there is
			l.Close()
			return
		}
		if err := errors.Join(l.StoreLogs([]*raft.Log{sealedEntry(t, next, 9, []byte("on"))}), l.Close()); err != nil {
			t.Fatal(err)
		}
		l = openTestRowLog(t, disk)
		var e raft.Log
		if err := errors.Join(l.GetLog(next, &e), entry.Check(&e), l.Close()); err != nil {
			t.Error(err)
		}
	})
}

// fixBatches gives what looks like batches the CRCs that fit, so that what lies
// after them is reached.
func fixBatches(b []byte, salt uint64) []byte {
	b = bytes.Clone(b)
	for at := 0; at+batchHeadBytes <= len(b); {
		h, ok := parseBatchHead(b[at:])
		if !ok {
			break
		}
		binary.LittleEndian.PutUint32(b[at:], sumOfHeads(b[at:], h, salt))
		at += batchHeadBytes + int(h.length)
	}
	return b
}

// sumOfHeads is the CRC of the batch that b begins with, as far as it is there.
func sumOfHeads(b []byte, h batchHead, salt uint64) (sum uint32) {
	add := func(from, to int) {
		if from < to && to <= len(b) {
			sum = crc32.Update(sum, castagnoli, b[from:to])
		}
	}
	sum = batchCRC(salt, b)
	in := &window{file: bytes.NewReader(b)}
	_, _ = in.sections(0, h, func(s section, body int64) (bool, error) {
		add(int(body)-sectionHeadBytes, int(body))
		if !s.hasEntries() {
			add(int(body), int(body)+int(s.length))
			return true, nil
		}
		return in.entries(s, body, func(at int64, _ entry.Head) (bool, error) {
			add(int(at), int(at)+entry.HeadBytes)
			return true, nil
		})
	})
	return sum
}

// A torn append leaves no bytes, even when the next one goes to a segment of
// its own.
func TestRowLogForgetsATornAppend(t *testing.T) {
	disk := vfs.NewMem()
	l := openTestRowLog(t, disk)
	store := func(index, term uint64, size int) {
		t.Helper()
		if err := l.StoreLogs([]*raft.Log{sealedEntry(t, index, term,
			bytes.Repeat([]byte{byte(index + 1)}, size))}); err != nil {
			t.Fatal(err)
		}
	}
	reopen := func(want uint64) {
		t.Helper()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = openTestRowLog(t, disk)
		if last, _ := l.LastIndex(); last != want {
			t.Fatalf("the log ends at entry %d, want %d", last, want)
		}
	}
	store(1, 1, 1000)
	torn := l.shared.newest().end
	store(2, 1, 1000)
	overwrite(t, disk, segmentFiles(t, disk)[0], int(torn)+batchHeadBytes+entry.HeadBytes, make([]byte, 1000))

	// The first process that finds it fails: it has made the batch none, and its sync
	// of that failed, so that the disk still holds it.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	faulty := vfs.NewFaulty(disk)
	if err := faulty.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Path: "*.seg", Err: "EIO"}); err != nil {
		t.Fatal(err)
	}
	if _, err := tryTestRowLog(faulty); !errors.Is(err,
		syscall.EIO) {
		t.Fatalf("a log whose sync fails opens: %v", err)
	}
	l = openTestRowLog(t, disk)
	reopen(1)
	store(2, 2, 9000)
	if n := len(segmentFiles(t, disk)); n != 2 {
		t.Fatalf("%d segments, want 2", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	disk = disk.Crash(vfs.LoseUnsynced)
	l = openTestRowLog(t, disk)
	reopen(2)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// An append whose sync failed is there for the next process, which confirms it: it
// is written again, and a power loss does not take it.
func TestRowLogWritesAgainAfterAFailedSync(t *testing.T) {
	disk, _ := smallRowLog(t)
	faulty := vfs.NewFaulty(disk)
	l := openTestRowLog(t, faulty)
	if err := faulty.Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Err: "EIO", Times: 1}); err != nil {
		t.Fatal(err)
	}
	if err := l.StoreLogs([]*raft.Log{sealedEntry(t, 25, 1, []byte("confirmed later"))}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("an append whose sync fails: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	disk = disk.Kill()
	next := openTestRowLog(t, disk)
	if last, _ := next.LastIndex(); last != 25 {
		t.Fatalf("the next process finds entry %d last, want 25", last)
	}
	disk = disk.Crash(vfs.LoseUnsynced)
	after := openTestRowLog(t, disk)
	var e raft.Log
	if err := errors.Join(after.GetLog(25, &e), entry.Check(&e), after.Close()); err != nil {
		t.Errorf("after a power loss: entry 25: %v", err)
	}
}

// A log whose newest segments are gone is not a shorter log.
func TestRowLogMissesSegments(t *testing.T) {
	whole, _ := smallRowLog(t)
	files := segmentFiles(t, whole)
	for n := range len(files) {
		disk := whole.Crash(vfs.LoseUnsynced)
		for _, name := range files[n:] {
			if err := disk.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		l, err := tryTestRowLog(disk)
		if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("with the first %d of %d segments: %v, want CodeCorrupt", n, len(files), err)
		}
		if err == nil {
			l.Close()
		}
	}
}
