package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// recovery is the state of the opening of a log.
type recovery struct {
	s      *Shared
	groups map[uint64]*readGroup
	next   uint64 // number of the next batch; 0 before the first segment
	end    int64
	last   struct { // batch of the newest segment
		start, end int64 // 0: the segment has none
	}
	header rowSegmentHeader // the newest segment has it
}

// readGroup is a group while the log is read.
type readGroup struct {
	owner       Owner
	seq         uint64
	first, last uint64
	base        uint64 // index of places[0]; entries before it are in older segments, or in old
	places      []place
	old         map[uint64]place // copies of entries before base
	unsure      string           // the damage after which nothing was read that proves that the group lost nothing
	bad         error
}

// recover reads the segments in the directory. META records that all segments up to newest were begun.
func (s *Shared) recover() error {
	numbers, err := s.listSegments()
	if err != nil {
		return err
	}
	newest, err := s.loadNewest(len(numbers) > 0)
	if err != nil {
		return err
	}
	n := len(numbers)
	if newest > 0 && (n == 0 || numbers[n-1] < newest) {
		return rowraft.Errorf(rowraft.CodeCorrupt, "segment %s is missing", segmentName(newest, segmentExt))
	}
	if n > 0 {
		begun, err := s.dropUnbegun(numbers)
		if err != nil {
			return err
		}
		if !begun {
			numbers = numbers[:n-1]
		}
	}
	leftOver, numbers := splitAtGap(numbers)
	r := &recovery{s: s, groups: map[uint64]*readGroup{}}
	for i, n := range numbers {
		if err := r.segment(n, i == len(numbers)-1); err != nil {
			return fmt.Errorf("%s: %w", segmentName(n, segmentExt), err)
		}
	}
	if len(s.mu.segments) == 0 {
		return nil
	}
	if err := r.settle(); err != nil {
		return err
	}
	whole := r.finish()
	s.writer.batch = r.next
	if s.readOnly {
		return nil
	}
	for _, n := range leftOver {
		if !whole {
			break // a gap that is a lost segment, not one that was being removed
		}
		if err := s.disk.Remove(filepath.Join(s.dir, segmentName(n, segmentExt))); err != nil {
			return err
		}
	}
	s.detachLocked()
	return s.Reclaim()
}

// loadNewest opens META and returns the number of the newest segment.
func (s *Shared) loadNewest(segments bool) (uint64, error) {
	name := filepath.Join(s.dir, metaName)
	raw, err := vfs.ReadFile(s.disk, name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && segments:
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "%s is missing", name)
	case errors.Is(err, fs.ErrNotExist) && s.readOnly:
		return 0, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return 0, err
	case !s.readOnly:
		last, err := s.meta.Load(s.dir)
		return last.newest, err
	}
	slot, states, err := newestMeta(raw, len(raw)/metaCopies)
	if err == nil {
		err = s.owner.check("it", states[slot].owner)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return states[slot].newest, nil
}

// listSegments returns the numbers of the segments, ascending. It records up to freeSegments free files and removes the
// others, but for a prepared one that is not whole: Prepare continues it.
func (s *Shared) listSegments() (numbers []uint64, err error) {
	entries, err := s.disk.ReadDir(s.dir)
	if s.readOnly && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if n, ok := parseSegmentName(e.Name(), segmentExt); ok {
			numbers = append(numbers, n)
		}
		if _, ok := parseSegmentName(e.Name(), freeExt); !ok || s.readOnly {
			continue
		}
		name := filepath.Join(s.dir, e.Name())
		if e.Name() == preparedName {
			if info, err := e.Info(); err != nil {
				return nil, err
			} else if info.Size() < s.size {
				continue
			}
		}
		if len(s.writer.free) < freeSegments {
			s.writer.free = append(s.writer.free, name)
		} else if err := s.disk.Remove(name); err != nil {
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
func (s *Shared) dropUnbegun(numbers []uint64) (begun bool, err error) {
	n := len(numbers)
	number := numbers[n-1]
	name := filepath.Join(s.dir, segmentName(number, segmentExt))
	f, err := s.disk.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	_, err = readSegmentHeader(f, s.owner, number)
	err = errors.Join(err, f.Close())
	if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		return err == nil, err
	}
	// The segment before it is removed only after a batch in this one.
	if number > 1 && (n == 1 || numbers[n-2] != number-1) {
		return false, rowraft.Errorf(rowraft.CodeCorrupt, "segment %s is missing", segmentName(number-1, segmentExt))
	}
	if s.readOnly {
		return false, nil
	}
	if err := s.meta.setNewest(number - 1); err != nil {
		return false, err
	}
	return false, s.disk.Remove(name)
}

// segment reads one segment and adds it to the log.
func (r *recovery) segment(number uint64, newest bool) error {
	s := r.s
	name := filepath.Join(s.dir, segmentName(number, segmentExt))
	flag := os.O_RDWR
	if s.readOnly {
		flag = os.O_RDONLY
	}
	f, err := s.disk.OpenFile(name, flag)
	if err != nil {
		return err
	}
	h, err := readSegmentHeader(f, s.owner, number)
	if err != nil && (newest || rowraft.CodeOf(err) != rowraft.CodeCorrupt) {
		return errors.Join(err, f.Close())
	}
	seg := &rowSegment{number: number, salt: h.salt, file: f, end: segmentStart}
	s.mu.segments = append(s.mu.segments, seg)
	if err != nil {
		r.damaged("segment %d has no whole header", number)
		return nil
	}
	switch {
	case r.next > h.batch:
		return rowraft.Errorf(rowraft.CodeCorrupt, "it begins with batch %d, and the segment before it ends after batch %d",
			h.batch, r.next-1)
	case r.next > 0 && r.next < h.batch:
		r.damaged("batch %d to %d of segment %d", r.next, h.batch-1, number-1)
	}
	r.next = h.batch
	if err := r.batches(seg, newest); err != nil {
		return err
	}
	seg.end = r.end
	r.header = h
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

// damaged records that sections of unknown groups are lost. Each group is damaged, unless something later proves that
// none of its own was.
func (r *recovery) damaged(format string, args ...any) {
	what := fmt.Sprintf(format, args...) + " is damaged"
	r.s.log.Error("the log is damaged: groups that may have lost entries do not start", "dir", r.s.dir, "what", what)
	for _, g := range r.groups {
		g.unsure = what
	}
}

// batches reads the batches of a segment. newest means that no segment follows. Then the last batch may be torn. A good
// batch after an unreadable one is damage, because a torn batch can only be the last.
func (r *recovery) batches(seg *rowSegment, newest bool) error {
	in := &window{file: seg.file}
	r.last.start, r.last.end = 0, 0
	for r.end = segmentStart; ; r.next++ {
		head, ok, err := in.batch(r.end, seg.salt)
		if err != nil {
			return err
		}
		if !ok || head.number != r.next {
			at, later, err := in.laterBatch(r.end, seg.salt, r.next)
			if err != nil || later == 0 {
				return err
			}
			r.damaged("batch %d at %d of segment %d", r.next, r.end, seg.number)
			if head, _, err = in.batch(at, seg.salt); err != nil {
				return err
			}
			r.end, r.next = at, later
		}
		end := r.end + batchHeadBytes + int64(head.length)
		if newest {
			torn, err := in.torn(r.end, end, head, seg.salt)
			if err != nil {
				return err
			}
			if torn {
				r.s.log.Warn("the last append to the log was torn, and is dropped", "dir", r.s.dir, "batch", head.number)
				return nil
			}
		}
		if err := r.take(in, seg, head); err != nil {
			return fmt.Errorf("batch %d: %w", head.number, err)
		}
		r.last.start, r.last.end = r.end, end
		r.end = end
	}
}

// torn reports whether a batch is the last one and the data of its entries are incomplete.
func (w *window) torn(at, end int64, head batchHead, salt uint64) (bool, error) {
	next, ok, err := w.batch(end, salt)
	if err != nil || ok && next.number == head.number+1 {
		return false, err
	}
	whole, err := w.wholeBatch(at, head)
	if err != nil || whole {
		return false, err
	}
	_, later, err := w.laterBatch(end, salt, head.number+1)
	return later == 0, err
}

// take adds a batch to the groups.
func (r *recovery) take(in *window, seg *rowSegment, head batchHead) error {
	_, err := in.sections(r.end, head, func(c section, body int64) (bool, error) {
		var b []byte
		if !c.hasEntries() {
			err := in.each(body, body+int64(c.length), func(_ int64, chunk []byte) error {
				b = append(b, chunk...)
				return nil
			})
			if err != nil {
				return false, err
			}
		}
		switch c.kind {
		case sectionState:
			return true, r.takeState(b, c.count)
		case sectionBegin:
			owner, rest, ok := parseOwner(b)
			if !ok || len(rest) > 7 || owner.tag() != c.tag {
				return false, rowraft.Errorf(rowraft.CodeCorrupt, "a group begins without its owner")
			}
			r.groups[c.tag] = &readGroup{owner: owner, seq: c.seq}
			return true, nil
		}
		g := r.groups[c.tag]
		if g == nil { // its begin was in a damaged batch
			return true, nil
		}
		if c.kind == sectionEnd {
			delete(r.groups, c.tag)
			return true, nil
		}
		if c.seq == g.seq+1 {
			g.unsure = ""
		} else if g.bad == nil {
			g.bad = rowraft.Errorf(rowraft.CodeCorrupt, "its changes %d to %d are missing before batch %d", g.seq+1, c.seq-1,
				head.number)
		}
		g.seq = c.seq
		if g.bad != nil {
			return true, nil
		}
		if c.kind == sectionCut {
			g.takeCut(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]))
			return true, nil
		}
		return in.entries(c, body, func(at int64, h entry.Head) (bool, error) {
			g.takeEntry(c.kind == sectionCopies, h.Index, place{segment: uint32(seg.number), at: uint32(at), length: h.Length})
			return true, nil
		})
	})
	return err
}

// takeState makes the groups those of the state at the begin of a segment. A group that differs has lost a change; what
// was read of it before does not count.
func (r *recovery) takeState(b []byte, count uint32) error {
	states, err := parseState(b, count)
	if err != nil {
		return err
	}
	groups := make(map[uint64]*readGroup, len(states))
	for _, st := range states {
		g := r.groups[st.tag]
		if g == nil || g.seq != st.seq || g.first != st.first || g.last != st.last || g.bad != nil {
			g = &readGroup{seq: st.seq, first: st.first, last: st.last, base: st.last + 1}
		}
		g.owner, g.unsure = st.owner, ""
		g.owner.Cluster, g.owner.Node = r.s.owner.Cluster, r.s.owner.Node
		if st.damaged {
			g.bad = rowraft.Errorf(rowraft.CodeCorrupt, "an earlier start found it damaged")
		}
		groups[st.tag] = g
	}
	r.groups = groups
	return nil
}

func (g *readGroup) takeEntry(isCopy bool, index uint64, p place) {
	switch {
	case g.bad != nil:
	case isCopy:
		switch {
		case g.first == 0 || index < g.first || index > g.last:
			g.bad = rowraft.Errorf(rowraft.CodeCorrupt, "entry %d is copied, and the log has %d to %d", index, g.first, g.last)
		case index >= g.base:
			g.places[index-g.base] = p
		default:
			if g.old == nil {
				g.old = map[uint64]place{}
			}
			g.old[index] = p
		}
	case index == 0 || g.last > 0 && index != g.last+1:
		g.bad = rowraft.Errorf(rowraft.CodeCorrupt, "entry %d follows entry %d", index, g.last)
	default:
		if g.last == 0 {
			g.first, g.base, g.places, g.old = index, index, nil, nil
		}
		g.last = index
		g.places = append(g.places, p)
	}
}

func (g *readGroup) takeCut(first, last uint64) {
	if (first == 0) != (last == 0) || first > last || first < g.first && first != 0 || last > g.last {
		g.bad = rowraft.Errorf(rowraft.CodeCorrupt, "entries %d to %d are cut out of %d to %d", first, last, g.first, g.last)
		return
	}
	g.first, g.last = first, last
	if last == 0 || last < g.base {
		g.base, g.places = last+1, nil
		return
	}
	g.places = g.places[:last+1-g.base]
}

// all returns the places of all entries. Errors: CodeCorrupt.
func (g *readGroup) all() ([]place, error) {
	switch {
	case g.bad != nil:
		return nil, g.bad
	case g.unsure != "":
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "%s, and may have had changes of this group", g.unsure)
	case g.first == 0:
		return nil, nil
	case g.first >= g.base:
		return slices.Clip(g.places[g.first-g.base:]), nil
	}
	var out []place
	for i := g.first; i < g.base; i++ {
		p, ok := g.old[i]
		if !ok {
			return nil, rowraft.Errorf(rowraft.CodeCorrupt, "entry %d of %d to %d is missing", i, g.first, g.last)
		}
		out = append(out, p)
	}
	return append(out, g.places...), nil
}

// finish makes the groups those of the log. It returns false if one is damaged.
func (r *recovery) finish() (whole bool) {
	s := r.s
	whole = true
	for tag, g := range r.groups {
		to := &rowGroup{tag: tag, owner: g.owner, seq: g.seq, first: g.first, last: g.last}
		if to.places, to.err = g.all(); to.err != nil {
			to.err = fmt.Errorf("log of %s in %s: %w", g.owner, s.dir, to.err)
			s.log.Error("the log of a group is damaged: it does not start", "group", g.owner.Group, "replica",
				string(g.owner.Replica), "err", to.err)
			to.first, to.last, whole = 0, 0, false
		}
		for _, p := range to.places {
			s.countLocked(p, 1)
		}
		s.mu.groups[tag] = to
	}
	return whole
}

// settle writes the last batch again, which overwrites nothing else. The process that wrote that batch may have ended
// before its sync, or after a sync that failed, and in both cases a sync alone may write nothing. Earlier batches need
// no second write: the batch after each was written only after its sync had succeeded.
func (r *recovery) settle() error {
	s := r.s
	s.writer.state = r.last.start == 0
	if s.readOnly {
		return nil
	}
	seg := s.mu.segments[len(s.mu.segments)-1]
	if r.last.start > 0 {
		if err := (&window{file: seg.file}).rewrite(seg.file, r.last.start, r.last.end); err != nil {
			return err
		}
	}
	if err := forgetBatch(seg, r.end); err != nil {
		return err
	}
	if _, err := seg.file.WriteAt(r.header.start(), 0); err != nil { // a copy may be damaged
		return err
	}
	return errors.Join(s.syncFile(seg), s.syncDir(), s.appendTo(seg, r.end))
}

// forgetBatch overwrites the bytes after the last batch, so that they are not read as a batch. This matters if the next
// append goes to another segment: then the seals of a torn batch here are not checked again. An earlier process may
// have overwritten the head of a batch without effect, if its sync failed.
func forgetBatch(s *rowSegment, at int64) error {
	_, err := s.file.WriteAt(make([]byte, batchHeadBytes), at)
	return err
}
