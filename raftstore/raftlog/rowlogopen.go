package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// recovery is the state of the opening of a log.
type recovery struct {
	l     *rowLog
	found bool // the oldest segment was read
	end   int64
	last  struct { // batch
		start int64 // 0: the segment has none
		head  batchHead
		undo  func() // removes the batch from the log in memory
	}
}

// recover reads the segments in the directory. META records that all segments up to newest were begun.
func (l *rowLog) recover(newest uint64) error {
	numbers, err := l.listSegments()
	if err != nil {
		return err
	}
	n := len(numbers)
	if newest > 0 && (n == 0 || numbers[n-1] < newest) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "segment %s is missing", segmentName(newest, segmentExt))
	}
	if n > 0 {
		begun, err := l.dropUnbegun(numbers[n-1])
		if err != nil {
			return err
		}
		if !begun {
			numbers = numbers[:n-1]
		}
	}
	leftOver, numbers := splitAtGap(numbers)
	r := &recovery{l: l}
	for i, n := range numbers {
		if err := r.segment(n, i == len(numbers)-1); err != nil {
			return fmt.Errorf("%s: %w", segmentName(n, segmentExt), err)
		}
	}
	if len(l.mu.segments) == 0 {
		return nil
	}
	if err := r.settle(); err != nil {
		return err
	}
	if l.mu.first > 0 && l.mu.first < l.mu.base {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"the log begins at entry %d, and its segments at %d: the older ones are missing", l.mu.first, l.mu.base)
	}
	l.retain(l.mu.first, l.mu.last)
	l.write.end = r.end
	for _, n := range leftOver {
		if err := l.disk.Remove(filepath.Join(l.dir, segmentName(n, segmentExt))); err != nil {
			return err
		}
	}
	l.detach()
	return l.Reclaim()
}

// listSegments returns the numbers of the segments, ascending. It records up to freeSegments free files and removes the
// others.
func (l *rowLog) listSegments() (numbers []uint64, err error) {
	entries, err := l.disk.ReadDir(l.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if n, ok := parseSegmentName(e.Name(), segmentExt); ok {
			numbers = append(numbers, n)
		}
		if _, ok := parseSegmentName(e.Name(), freeExt); !ok {
			continue
		}
		name := filepath.Join(l.dir, e.Name())
		if len(l.write.free) < freeSegments {
			l.write.free = append(l.write.free, name)
		} else if err := l.disk.Remove(name); err != nil {
			return nil, err
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// splitAtGap returns the segments before the last gap and those after it. A gap means that a crash interrupted the
// removal of several old segments and some names stayed; the segments before it are to be removed.
func splitAtGap(numbers []uint64) (leftOver, rest []uint64) {
	for i := len(numbers) - 1; i > 0; i-- {
		if numbers[i] != numbers[i-1]+1 {
			return numbers[:i], numbers[i:]
		}
	}
	return nil, numbers
}

// dropUnbegun removes the newest segment if it has no header. The header is written with the first append, so no append
// to such a segment was acknowledged.
func (l *rowLog) dropUnbegun(number uint64) (begun bool, err error) {
	name := filepath.Join(l.dir, segmentName(number, segmentExt))
	f, err := l.disk.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	_, err = readSegmentHeader(f, l.owner, number)
	if err := errors.Join(err, f.Close()); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		return err == nil, err
	}
	if err := l.setNewest(number - 1); err != nil {
		return false, err
	}
	return false, l.disk.Remove(name)
}

// segment reads one segment and adds it to the log.
func (r *recovery) segment(number uint64, newest bool) error {
	l := r.l
	name := filepath.Join(l.dir, segmentName(number, segmentExt))
	f, err := l.disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		return err
	}
	h, err := readSegmentHeader(f, l.owner, number)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.mu.segments = append(l.mu.segments, &rowSegment{number: number, salt: h.salt, file: f})
	switch {
	case !r.found:
		r.found, l.write.batch = true, h.batch
		l.mu.first, l.mu.last, l.mu.base = h.first, h.last, h.last+1
	case h.batch != l.write.batch:
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"it begins with batch %d, and the segment before it ends before batch %d: damaged", h.batch, l.write.batch)
	case h.first != l.mu.first || h.last != l.mu.last:
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"it was begun after entries %d to %d, and the segment before it ends with %d to %d", h.first, h.last, l.mu.first,
			l.mu.last)
	}
	r.last.start = 0
	if err := r.batches(newest); err != nil {
		return err
	}
	l.write.header = h.encode() // settle writes it again, because a copy may be damaged
	return nil
}

// readSegmentHeader returns the header of segment number of owner.
//
// Errors: CodeCorrupt if no copy is complete and of this segment; CodeIdentity if it has another owner;
// CodeVersionTooNew.
func readSegmentHeader(f vfs.File, owner Owner, number uint64) (h rowSegmentHeader, err error) {
	for _, at := range []int64{0, segmentHeadCopy} {
		b := make([]byte, segmentHead+maxOwnerBytes)
		n, rerr := f.ReadAt(b, at)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return h, rerr
		}
		if h, err = parseSegmentHeader(b[:n]); err == nil {
			err = owner.check(filepath.Base(f.Name()), h.owner)
		}
		if err == nil && h.number != number {
			err = rowraft.Errorf(rowraft.CodeCorrupt, "it holds segment %d", h.number)
		}
		if err == nil || rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			return h, err
		}
	}
	return h, err
}

// batches reads the batches of the last segment in l.mu.segments. newest means that no segment follows. Then a good
// batch after an unreadable one is damage, because a torn append can only be the last.
func (r *recovery) batches(newest bool) error {
	l := r.l
	s := l.mu.segments[len(l.mu.segments)-1]
	in := &window{file: s.file}
	for r.end = segmentStart; ; {
		head, ok, err := in.batch(r.end, s.salt)
		if err != nil {
			return err
		}
		if !ok || head.number != l.write.batch {
			break
		}
		if head.tag != l.tag {
			return rowraft.Errorf(rowraft.CodeIdentity, "batch %d has the tag %016x of another log; the tag of %s is %016x",
				head.number, head.tag, l.owner, l.tag)
		}
		if err := r.take(in, s, head); err != nil {
			return fmt.Errorf("batch %d: %w", head.number, err)
		}
		r.end += batchHeadBytes + int64(head.length)
		l.write.batch++
	}
	if !newest {
		return nil
	}
	later, err := in.laterBatch(r.end, s.salt, l.write.batch)
	if err == nil && later > 0 {
		err = rowraft.Errorf(rowraft.CodeCorrupt, "batch %d at %d is damaged: it cannot be read, but batch %d after it can",
			l.write.batch, r.end, later)
	}
	return err
}

// take adds a batch to the log in memory.
func (r *recovery) take(in *window, s *rowSegment, head batchHead) error {
	l := r.l
	first, last, base, places := l.mu.first, l.mu.last, l.mu.base, l.mu.places
	r.last.start, r.last.head = r.end, head
	r.last.undo = func() { l.mu.first, l.mu.last, l.mu.base, l.mu.places = first, last, base, places }
	body := r.end + batchHeadBytes
	if head.kind == batchCut {
		b, err := in.bytes(body, cutBytes)
		if err != nil {
			return err
		}
		return l.takeCut(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]))
	}
	for range head.count {
		b, err := in.bytes(body, entry.HeadBytes)
		if err != nil {
			return err
		}
		h := entry.ParseHead(b)
		switch {
		case h.Index == 0 || l.mu.last > 0 && h.Index != l.mu.last+1:
			return rowraft.Errorf(rowraft.CodeCorrupt, "entry %d follows entry %d", h.Index, l.mu.last)
		case l.mu.last == 0:
			l.mu.first, l.mu.base, l.mu.places = h.Index, h.Index, nil
		}
		l.mu.last = h.Index
		l.mu.places = append(l.mu.places, place{segment: uint32(s.number), at: uint32(body), length: h.Length})
		body += int64(batchBytes(h))
	}
	return nil
}

func (l *rowLog) takeCut(first, last uint64) error {
	if (first == 0) != (last == 0) || first > last || first < l.mu.first && first != 0 || last > l.mu.last {
		return rowraft.Errorf(rowraft.CodeCorrupt, "entries %d to %d are cut out of %d to %d", first, last, l.mu.first,
			l.mu.last)
	}
	l.mu.first, l.mu.last = first, last
	if last < l.mu.base {
		l.mu.base, l.mu.places = last+1, nil
		return nil
	}
	l.mu.places = slices.Clip(l.mu.places[:last+1-l.mu.base])
	return nil
}

// settle drops a torn append and writes the last batch again. The process that wrote that batch may have ended before
// its sync, or after a sync that failed, and in both cases a sync alone may write nothing. Earlier batches need no
// second write: the batch after each was written only after its sync had succeeded.
func (r *recovery) settle() error {
	l := r.l
	s := l.mu.segments[len(l.mu.segments)-1]
	if r.last.start > 0 {
		in := &window{file: s.file}
		end, err := in.wholeBatch(r.last.start, r.last.head)
		if err != nil {
			return err
		}
		if end == 0 {
			l.log.Warn("the last append to the log was torn, and is dropped", "dir", l.dir, "batch", r.last.head.number)
			r.last.undo()
			l.write.batch--
			r.end = r.last.start
		} else if err := in.rewrite(s.file, r.last.start, end); err != nil {
			return err
		}
	}
	if err := forgetBatch(s, r.end); err != nil {
		return err
	}
	if err := writeSegmentHeader(s, l.write.header); err != nil {
		return err
	}
	l.write.header = nil
	return errors.Join(l.syncFile(s), l.syncDir())
}

// forgetBatch overwrites the bytes after the last batch, so that they are not read as a batch. This matters if the next
// append goes to another segment: then the seals of a torn batch here are not checked again. An earlier process may
// have overwritten the head of a batch without effect, if its sync failed.
func forgetBatch(s *rowSegment, at int64) error {
	_, err := s.file.WriteAt(make([]byte, batchHeadBytes), at)
	return err
}

// window reads a file through a buffer.
type window struct {
	file io.ReaderAt
	buf  []byte
	from int64
}

const windowBytes = 64 << 10

// bytes returns n ≤ windowBytes bytes at offset. They are valid until the next call. The error is io.ErrUnexpectedEOF
// if the file ends before offset+n.
func (w *window) bytes(offset int64, n int) ([]byte, error) {
	if offset < w.from || offset+int64(n) > w.from+int64(len(w.buf)) {
		if w.buf == nil {
			w.buf = make([]byte, windowBytes)
		}
		got, err := w.file.ReadAt(w.buf[:windowBytes], offset)
		if err != nil && !errors.Is(err, io.EOF) {
			w.buf = w.buf[:0]
			return nil, err
		}
		w.from, w.buf = offset, w.buf[:got]
	}
	at := int(offset - w.from)
	if at+n > len(w.buf) {
		return nil, io.ErrUnexpectedEOF
	}
	return w.buf[at : at+n], nil
}

// batch returns the head of the batch at offset. ok is false if there is no complete batch; batch does not check the
// data of the entries.
func (w *window) batch(offset int64, salt uint64) (head batchHead, ok bool, err error) {
	b, err := w.bytes(offset, batchHeadBytes)
	if err == nil {
		if head, ok = parseBatchHead(b); ok {
			ok, err = w.crcFits(offset, head, batchCRC(salt, b))
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return head, false, nil
	}
	return head, ok, err
}

// crcFits adds the heads of the entries to sum and compares the result with the CRC in head.
func (w *window) crcFits(offset int64, head batchHead, sum uint32) (bool, error) {
	at, left := offset+batchHeadBytes, uint64(head.length)
	if head.kind == batchCut {
		b, err := w.bytes(at, cutBytes)
		return err == nil && crc32.Update(sum, castagnoli, b) == head.crc, err
	}
	for range head.count {
		b, err := w.bytes(at, entry.HeadBytes)
		if err != nil {
			return false, err
		}
		sum = crc32.Update(sum, castagnoli, b)
		size := batchBytes(entry.ParseHead(b))
		if size > left {
			return false, nil
		}
		left -= size
		at += int64(size)
	}
	return sum == head.crc && left == 0, nil
}

// laterBatch searches after offset for a complete batch with a number above after. It returns the number, or 0. Batches
// from an earlier use of the file do not match, because they have another salt.
func (w *window) laterBatch(offset int64, salt, after uint64) (number uint64, err error) {
	for ; ; offset += 8 {
		b, err := w.bytes(offset, batchHeadBytes)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		h, ok := parseBatchHead(b)
		if !ok || h.number <= after {
			continue
		}
		if _, whole, err := w.batch(offset, salt); err != nil || whole {
			return h.number, err
		}
	}
}

// wholeBatch returns the end of a batch's last entry, 0 if the data of an entry do not match its seal.
func (w *window) wholeBatch(start int64, head batchHead) (end int64, err error) {
	at := start + batchHeadBytes
	if head.kind == batchCut {
		return at + cutBytes, nil
	}
	for range head.count {
		b, err := w.bytes(at, entry.HeadBytes)
		if err != nil {
			return 0, err
		}
		h := entry.ParseHead(b)
		end = at + entry.HeadBytes + int64(h.Length)
		sum := uint32(0)
		err = w.each(at+entry.HeadBytes, end, func(_ int64, b []byte) error {
			sum = crc32.Update(sum, castagnoli, b)
			return nil
		})
		if errors.Is(err, io.ErrUnexpectedEOF) || err == nil && sum != binary.LittleEndian.Uint32(h.Seal[:]) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		at += int64(batchBytes(h))
	}
	return end, nil
}

// rewrite writes the bytes from … end again.
func (w *window) rewrite(to io.WriterAt, from, end int64) error {
	return w.each(from, end, func(at int64, b []byte) error {
		_, err := to.WriteAt(b, at)
		return err
	})
}

// each calls do for the bytes from … end, in chunks of at most windowBytes.
func (w *window) each(from, end int64, do func(at int64, b []byte) error) error {
	for from < end {
		b, err := w.bytes(from, int(min(end-from, windowBytes)))
		if err != nil {
			return err
		}
		if err := do(from, b); err != nil {
			return err
		}
		from += int64(len(b))
	}
	return nil
}

func readFull(f io.ReaderAt, b []byte, offset int64) error {
	n, err := f.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	return err
}
