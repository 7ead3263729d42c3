package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// change is one section of a batch: what one group changes. Small data are in buf; a large entry is a piece of its own.
// Its group's write lock guards it.
type change struct {
	group  *rowGroup
	kind   uint16
	buf    []byte
	pieces []piece
	heads  []headPlace // what the CRC covers after the section's head
	size   int64
	first  uint64 // a cut: the entries that stay
	last   uint64
	start  int64     // offset in the batch
	wake   chan bool // of 1: true makes the waiting goroutine the writer, false means that err is set
	err    error
}

// piece is buf[from:to], or data.
type piece struct {
	from, to int
	data     []byte
}

// headPlace is the position of an entry's head, or of a whole body, in buf. For an entry also its offset from the start
// of the section, and its index and length.
type headPlace struct {
	at, bytes int
	start     uint32
	length    uint32
	index     uint64
}

// smallEntry is the size up to which data are copied into buf. Larger data are a piece of their own.
const smallEntry = 2 << 10

// keptBuf is the size up to which buf is kept for the next change.
const keptBuf = 32 << 10

func (c *change) reset(g *rowGroup, kind uint16, count int) {
	clear(c.pieces) // release the entries for the garbage collector
	if cap(c.buf) > keptBuf {
		c.buf = nil
	}
	if c.wake == nil {
		c.wake = make(chan bool, 1)
	}
	*c = change{group: g, kind: kind, wake: c.wake, pieces: c.pieces[:0], heads: c.heads[:0], size: sectionHeadBytes,
		buf: appendSection(c.buf[:0], section{kind: kind, count: uint32(count), tag: g.tag})}
}

// entries makes c a section of entries.
func (c *change) entries(g *rowGroup, kind uint16, logs []*raft.Log) {
	c.reset(g, kind, len(logs))
	from := 0
	for _, l := range logs {
		c.heads = append(c.heads, headPlace{at: len(c.buf), bytes: entry.HeadBytes, start: uint32(c.size),
			length: uint32(len(l.Data)), index: l.Index})
		c.buf = entry.AppendHead(c.buf, l)
		if len(l.Data) <= smallEntry {
			c.buf = append(c.buf, l.Data...)
		} else {
			c.pieces = append(c.pieces, piece{from: from, to: len(c.buf)}, piece{data: l.Data})
			from = len(c.buf)
		}
		c.size += entry.HeadBytes + int64(len(l.Data))
		if pad := int(-c.size & 7); pad > 0 {
			c.buf = append(c.buf, make([]byte, pad)...)
			c.size += int64(pad)
		}
	}
	c.close(from)
}

// cut makes c a section that reduces the group to the entries first … last.
func (c *change) cut(g *rowGroup, first, last uint64) {
	var body [cutBytes]byte
	binary.LittleEndian.PutUint64(body[:], first)
	binary.LittleEndian.PutUint64(body[8:], last)
	c.body(g, sectionCut, body[:])
	c.first, c.last = first, last
}

// body makes c a section without entries.
func (c *change) body(g *rowGroup, kind uint16, body []byte) {
	c.reset(g, kind, 0)
	c.heads = append(c.heads, headPlace{at: len(c.buf), bytes: len(body)})
	c.buf = append(c.buf, body...)
	c.size += int64(len(body))
	c.close(0)
}

func (c *change) close(from int) {
	if from < len(c.buf) {
		c.pieces = append(c.pieces, piece{from: from, to: len(c.buf)})
	}
	binary.LittleEndian.PutUint32(c.buf[24:], uint32(c.size-sectionHeadBytes))
}

// stamp sets the number of the section, and adds what the CRC covers to sum.
func (c *change) stamp(seq uint64, sum uint32) uint32 {
	binary.LittleEndian.PutUint64(c.buf[16:], seq)
	sum = crc32.Update(sum, castagnoli, c.buf[:sectionHeadBytes])
	for _, h := range c.heads {
		sum = crc32.Update(sum, castagnoli, c.buf[h.at:h.at+h.bytes])
	}
	return sum
}

// commitBytes bounds the changes that one batch has, so that none waits long for the others. A single change may be
// larger.
const commitBytes = 16 << 20

// commit makes c durable, in one batch with the changes of other groups that wait. The first goroutine that finds no
// writer writes its own change and those that came meanwhile; then the first of the waiting goroutines does.
// REQUIRES: the write lock of c.group is held.
func (s *Shared) commit(c *change) error {
	q := &s.queue
	q.Lock()
	q.changes = append(q.changes, c)
	writes := !q.busy
	q.busy = true
	if q.wanted > 0 && len(q.changes) >= q.wanted {
		q.wanted = 0
		close(q.enough)
	}
	q.Unlock()
	if !writes && !<-c.wake {
		return c.err
	}
	s.gather()
	batch := s.nextBatch()
	begun := time.Now()
	err := s.write(batch)

	q.Lock()
	took := min(time.Since(begun), 2*q.took+slowDisk) // a stall raises the mean by at most an eighth of this
	if took < q.took || batchBytes(batch) <= smallBatch {
		q.took += (took - q.took) / 8
	}
	q.active[0], q.active[1] = q.active[1], len(batch)+len(q.changes)
	if len(q.changes) > 0 {
		q.changes[0].wake <- true
	} else {
		q.busy = false
	}
	q.Unlock()
	for _, o := range batch[1:] {
		o.err = err
		o.wake <- false
	}
	return err
}

const (
	gatherTime = time.Millisecond // bounds how long gather lets other goroutines run
	// If a small batch takes as long as slowDisk, gather waits an eighth of that time, at most gatherMost. Not on faster
	// disks: where a process is idle, a timer of the Go runtime is a millisecond late.
	slowDisk   = 4 * time.Millisecond
	gatherMost = 2 * time.Millisecond
	smallBatch = 256 << 10 // bytes, up to which the time of a batch is that of the disk's answer
)

// gather waits for changes of other groups, so that they share a batch and its sync.
//
// It lets those goroutines run that are ready to add a change, as long as one does. Where a core is free it returns
// at once. On a busy machine the batches get larger: with 64 groups that saves a tenth of the servers' CPU time.
//
// On a slow disk it also waits for as many changes as there were in one of the last two batches, as leaders and
// followers write in turns: a change that comes just after a batch has begun waits for two syncs.
func (s *Shared) gather() {
	s.mu.RLock()
	groups := len(s.mu.groups)
	s.mu.RUnlock()
	q := &s.queue
	length := func() int {
		q.Lock()
		defer q.Unlock()
		return len(q.changes)
	}
	n := length()
	for begun := time.Now(); n < groups && time.Since(begun) < gatherTime; {
		runtime.Gosched()
		was := n
		if n = length(); n == was {
			break
		}
	}
	q.Lock()
	wanted, wait := min(max(q.active[0], q.active[1]), groups), min(q.took/8, gatherMost)
	if q.took < slowDisk || len(q.changes) >= wanted {
		q.Unlock()
		return
	}
	enough := make(chan struct{})
	q.wanted, q.enough = wanted, enough
	q.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-enough:
	case <-timer.C:
		q.Lock()
		q.wanted = 0
		q.Unlock()
	}
}

// batchBytes returns the size of the changes of a batch.
func batchBytes(batch []*change) (size int64) {
	for _, c := range batch {
		size += c.size
	}
	return size
}

// nextBatch takes the changes of the next batch out of the queue; the first one is that of the caller.
func (s *Shared) nextBatch() []*change {
	q := &s.queue
	q.Lock()
	defer q.Unlock()
	n, size := 0, int64(0)
	for n < len(q.changes) && (n == 0 || size+q.changes[n].size <= commitBytes) {
		size += q.changes[n].size
		n++
	}
	batch := q.changes[:n:n]
	q.changes = q.changes[n:]
	if len(q.changes) == 0 {
		q.changes = nil
	}
	return batch
}

// write writes the changes as one batch durably, and applies them to the groups in memory.
func (s *Shared) write(batch []*change) error {
	w := &s.writer
	w.Lock()
	defer w.Unlock()
	switch {
	case w.err != nil:
		return w.err
	case w.closed || s.readOnly:
		return rowraft.Errorf(rowraft.CodeClosing, "the log in %s is closed", s.dir)
	}
	size := batchHeadBytes + batchBytes(batch)
	seg := s.newest()
	if seg == nil || seg.end > segmentStart && (seg.end+size > s.size || seg.grows && len(w.free) > 0) {
		var err error
		if seg, err = s.begin(seg); err != nil {
			w.err = fmt.Errorf("begin a segment of the log in %s: %w", s.dir, err)
			return w.err
		}
	}
	bufs := s.lay(seg, batch)
	if w.tail.End() == 0 { // the first batch of the segment
		head := rowSegmentHeader{number: seg.number, batch: w.batch, salt: seg.salt, owner: s.owner}
		w.bufs = slices.Insert(bufs, 0, head.start())
		bufs = w.bufs
	}
	err := w.tail.Append(bufs)
	if err == nil {
		err = s.syncFile(seg)
	}
	clear(bufs)
	if err != nil {
		w.err = fmt.Errorf("write %s: %w", seg.file.Name(), err)
		return w.err
	}
	w.state = false
	w.batch++
	s.apply(seg, batch)
	return nil
}

// lay returns the bytes of the batch. REQUIRES: writer is held.
func (s *Shared) lay(seg *rowSegment, batch []*change) [][]byte {
	w := &s.writer
	head := append(w.head[:0], make([]byte, batchHeadBytes)...)
	sections := uint32(len(batch))
	if w.state {
		s.mu.RLock()
		head = appendState(head, s.mu.groups)
		s.mu.RUnlock()
		sections++
	}
	w.head = head
	w.bufs = append(w.bufs[:0], head)
	size := int64(len(head))
	for _, c := range batch {
		c.start = size
		size += c.size
		for _, p := range c.pieces {
			if p.data == nil {
				p.data = c.buf[p.from:p.to]
			}
			w.bufs = append(w.bufs, p.data)
		}
	}
	putBatchHead(head, batchHead{sections: sections, number: w.batch, length: uint32(size - batchHeadBytes)})
	sum := crc32.Update(batchCRC(seg.salt, head), castagnoli, head[batchHeadBytes:])
	for _, c := range batch {
		sum = c.stamp(c.group.seq+1, sum)
	}
	binary.LittleEndian.PutUint32(head, sum)
	return w.bufs
}

// apply applies a durable batch at the end of seg to the groups in memory. REQUIRES: writer is held.
func (s *Shared) apply(seg *rowSegment, batch []*change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := seg.end
	seg.end = s.writer.tail.End()
	cut := false
	for _, c := range batch {
		g := c.group
		g.seq++
		switch c.kind {
		case sectionBegin, sectionEnd:
			if old := s.mu.groups[g.tag]; old != nil {
				s.retainLocked(old, 0, 0)
			}
			delete(s.mu.groups, g.tag)
			if c.kind == sectionBegin {
				s.mu.groups[g.tag] = g
			}
			cut = true
		case sectionCut:
			s.retainLocked(g, c.first, c.last)
			cut = true
		default:
			for _, h := range c.heads {
				p := place{segment: uint32(seg.number), at: uint32(at+c.start) + h.start, length: h.length}
				s.placeLocked(g, h.index, p)
			}
			cut = cut || c.kind == sectionCopies
		}
	}
	if cut {
		s.detachLocked()
	}
}

// appendTo makes seg, which ends at end, the segment that receives the batches. REQUIRES: writer is held, or the log is
// being opened.
func (s *Shared) appendTo(seg *rowSegment, end int64) error {
	w := &s.writer
	f, err := s.disk.OpenFile(seg.file.Name(), os.O_RDWR)
	if err != nil {
		return err
	}
	tail, err := vfs.NewTail(f, end)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	info, err := s.disk.Stat(seg.file.Name())
	if err != nil {
		return errors.Join(err, f.Close())
	}
	seg.grows = info.Size() < s.size/2
	if w.tail != nil {
		err = w.tail.Close()
	}
	w.tail = tail
	return err
}

func (s *Shared) newest() *rowSegment {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.mu.segments) == 0 {
		return nil
	}
	return s.mu.segments[len(s.mu.segments)-1]
}

// begin adds an empty segment after the newest one; nil: there is none. The segment's header is written with its first
// batch, but its name is durable before that: otherwise, after a crash, a reused file could be found under its old name
// with the new content. REQUIRES: writer is held.
func (s *Shared) begin(newest *rowSegment) (*rowSegment, error) {
	number := uint64(1)
	if newest != nil {
		number = newest.number + 1
	}
	w := &s.writer
	name := filepath.Join(s.dir, segmentName(number, segmentExt))
	flag := os.O_CREATE | os.O_EXCL | os.O_RDWR
	if n := len(w.free); n > 0 {
		if err := s.disk.Rename(w.free[n-1], name); err != nil {
			return nil, err
		}
		w.free = w.free[:n-1]
		flag = os.O_RDWR
	}
	f, err := s.disk.OpenFile(name, flag)
	if err != nil {
		return nil, err
	}
	err = s.syncDir()
	if err == nil {
		err = s.meta.setNewest(number)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	seg := &rowSegment{number: number, salt: rand.Uint64(), file: f, end: segmentStart}
	if err := s.appendTo(seg, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.state = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.segments = append(s.mu.segments, seg)
	return seg, nil
}
