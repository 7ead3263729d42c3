package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
	"github.com/rowraft/rowraft/raftstore/entry"
)

// logModel is a log and a vote.
type logModel struct {
	first, last uint64            // 0: empty
	terms       map[uint64]uint64 // of the entries
	vote        map[string]string
}

func (m logModel) clone() logModel {
	m.terms, m.vote = maps.Clone(m.terms), maps.Clone(m.vote)
	return m
}

// logLife is what was acknowledged of a log, and what the operation that was under
// way would have made of it.
type logLife struct{ done, pending logModel }

// logWriter applies each operation to a log and to its model.
type logWriter struct {
	Log
	life *logLife
}

// do runs op, which edits the model and changes the log alike.
func (w logWriter) do(edit func(*logModel), op func() error) error {
	w.life.pending = w.life.done.clone()
	edit(&w.life.pending)
	if err := op(); err != nil {
		return err
	}
	w.life.done = w.life.pending
	return nil
}

const crashEntryBytes = 9 << 10 // seven to a segment of 64 KiB

func crashEntry(index, term uint64) *raft.Log {
	data := bytes.Repeat(binary.LittleEndian.AppendUint64(nil, index<<8|term), crashEntryBytes/8)
	l := &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data, Extensions: entry.Seal(data)}
	if err := entry.Complete(l); err != nil {
		panic(err)
	}
	return l
}

func (w logWriter) append(term, n uint64) error {
	from := w.life.done.last + 1
	var logs []*raft.Log
	for i := from; i < from+n; i++ {
		logs = append(logs, crashEntry(i, term))
	}
	return w.do(func(m *logModel) {
		if m.last == 0 {
			m.first = from
		}
		m.last = from + n - 1
		for i := from; i < from+n; i++ {
			m.terms[i] = term
		}
	}, func() error { return w.StoreLogs(logs) })
}

func (w logWriter) cutHead(upTo uint64) error {
	return w.do(func(m *logModel) { m.first = upTo + 1 }, func() error { return w.cut(w.life.done.first, upTo) })
}

func (w logWriter) cutTail(from uint64) error {
	return w.do(func(m *logModel) { m.last = from - 1 }, func() error { return w.cut(from, w.life.done.last) })
}

func (w logWriter) cut(from, to uint64) error {
	if err := w.DeleteRange(from, to); err != nil {
		return err
	}
	return w.Reclaim()
}

// cutHeadOnly leaves the files of the cut entries.
func (w logWriter) cutHeadOnly(upTo uint64) error {
	return w.do(func(m *logModel) { m.first = upTo + 1 }, func() error { return w.DeleteRange(w.life.done.first, upTo) })
}

func (w logWriter) set(key, value string) error {
	return w.do(func(m *logModel) { m.vote[key] = value }, func() error { return w.Set([]byte(key), []byte(value)) })
}

func openCrashLog(disk vfs.FS) (Log, error) {
	if err := vfs.MkdirAll(disk, "/log"); err != nil {
		return nil, err
	}
	return Open(disk, Row, "/log", testOwner, 64<<10, slog.New(slog.DiscardHandler))
}

func logScript() vfstest.Script[logLife] {
	empty := func() logModel { return logModel{terms: map[uint64]uint64{}, vote: map[string]string{}} }
	return vfstest.Script[logLife]{
		Seeds: 5,
		Run: func(disk vfs.FS, acked *logLife) error {
			acked.done, acked.pending = empty(), empty()
			b, err := openCrashLog(disk)
			if err != nil {
				return err
			}
			w := logWriter{b, acked}
			err = lifeOfALog(w)
			return errors.Join(err, b.Close())
		},
		Check: func(disk vfs.FS, acked logLife) (logLife, error) {
			if acked.done.terms == nil {
				acked.done, acked.pending = empty(), empty()
			}
			b, err := openCrashLog(disk)
			if err != nil {
				return acked, err
			}
			found, err := readLog(b, acked)
			if err != nil {
				return acked, errors.Join(err, b.Close())
			}
			next := logLife{found, found}
			w := logWriter{b, &next}
			if err = w.set("CurrentTerm", found.vote["CurrentTerm"]); err == nil {
				err = w.append(9, 2)
			}
			return next, errors.Join(err, b.Close())
		},
	}
}

// lifeOfALog votes, appends over several segments, cuts both ends, clears the log
// as the installation of a snapshot does, and continues after the gap.
func lifeOfALog(w logWriter) error {
	for _, step := range []func() error{
		func() error { return w.set("CurrentTerm", "1") },
		func() error { return w.set("LastVoteTerm", "1") },
		func() error { return w.set("LastVoteCand", "b") },
		func() error { return w.append(1, 1) },
		func() error { return w.append(1, 4) },
		func() error { return w.append(1, 5) }, // seals the first segment
		func() error { return w.set("CurrentTerm", "2") },
		func() error { return w.append(1, 8) },
		func() error { return w.cutTail(17) },
		func() error { return w.append(2, 3) },
		func() error { return w.cutTail(5) }, // over a whole segment
		func() error { return w.append(3, 9) },
		func() error { return w.cutHead(2) },
		func() error { return w.cutHeadOnly(10) },
		func() error { return w.append(3, 1) },
		w.Reclaim,
		func() error {
			return w.do(func(m *logModel) { m.first, m.last = 0, 0 },
				func() error { return w.cut(w.life.done.first, w.life.done.last) })
		},
		func() error { return w.appendBehindGap(4) },
		func() error { return w.append(4, 2) },
		func() error { return w.set("CurrentTerm", "4") }, // and nothing else after it
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// appendBehindGap begins an empty log at entry 100.
func (w logWriter) appendBehindGap(term uint64) error {
	return w.do(func(m *logModel) { m.first, m.last = 100, 100; m.terms[100] = term },
		func() error { return w.StoreLogs([]*raft.Log{crashEntry(100, term)}) })
}

// readLog returns what b holds, if it is what was acknowledged or what was under
// way, or the whole of an append's first entries.
func readLog(b Log, acked logLife) (logModel, error) {
	var got logModel
	first, err1 := b.FirstIndex()
	last, err2 := b.LastIndex()
	if err := errors.Join(err1, err2); err != nil {
		return got, err
	}
	got = logModel{first: first, last: last, terms: map[uint64]uint64{}, vote: map[string]string{}}
	for _, key := range []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"} {
		v, err := b.Get([]byte(key))
		if err != nil {
			return got, err
		}
		if v != nil {
			got.vote[key] = string(v)
		}
	}
	for i := first; i <= last && i > 0; i++ {
		var l raft.Log
		if err := b.GetLog(i, &l); err != nil {
			return got, fmt.Errorf("entry %d of %d to %d: %w", i, first, last, err)
		}
		if !bytes.Equal(l.Data, crashEntry(i, l.Term).Data) || l.Index != i {
			return got, fmt.Errorf("entry %d is not whole", i)
		}
		got.terms[i] = l.Term
	}
	for _, want := range []logModel{acked.done, acked.pending} {
		if want.holds(got) {
			return got, nil
		}
	}
	return got, fmt.Errorf("found %s\nacknowledged %s\nunder way %s", got, acked.done, acked.pending)
}

// holds reports whether got is m.
func (m logModel) holds(got logModel) bool {
	if m.first != got.first || m.last != got.last || !maps.Equal(m.vote, got.vote) {
		return false
	}
	for i := m.first; i <= m.last && i > 0; i++ {
		if m.terms[i] != got.terms[i] {
			return false
		}
	}
	return true
}

func (m logModel) String() string {
	s := fmt.Sprintf("entries %d to %d, vote %v, terms", m.first, m.last, m.vote)
	for i := m.first; i <= m.last && i > 0; i++ {
		s += fmt.Sprint(" ", m.terms[i])
	}
	return s
}

func TestCrashAtEachStepOfTheLog(t *testing.T) {
	vfstest.Crashes(t, logScript(), map[string]string{
		"raftstore/raftlog.(*metaStore).replaceLocked: syncdir": "the log syncs the directory after it, before it is used; " +
			"that of one which grows is missed elsewhere",
	})
}

// metaScript makes the metadata of a log grow out of its file.
func metaScript() vfstest.Script[metaLife] {
	return vfstest.Script[metaLife]{
		Seeds: 8,
		Run:   func(disk vfs.FS, acked *metaLife) error { return acked.change(disk, 3) },
		Check: func(disk vfs.FS, acked metaLife) (metaLife, error) {
			err := acked.change(disk, 1)
			return acked, err
		},
	}
}

// metaLife is the last value that was acknowledged, and the next.
type metaLife struct{ done, pending int }

// change opens the metadata, checks it, and stores n more values, each larger than
// the file's copies.
func (l *metaLife) change(disk vfs.FS, n int) error {
	if err := vfs.MkdirAll(disk, "/log"); err != nil {
		return err
	}
	s := newMetaStore(disk, testOwner, slog.New(slog.DiscardHandler))
	if _, err := s.Load("/log"); err != nil {
		return err
	}
	defer s.Close()
	v, err := s.Get([]byte("k"))
	if err != nil {
		return err
	}
	found := len(v) / metaMinCopy
	if found != l.done && found != l.pending || !bytes.Equal(v, bytes.Repeat([]byte("v"), len(v))) {
		return fmt.Errorf("found value %d, acknowledged %d, under way %d", found, l.done, l.pending)
	}
	l.done = found
	for range n {
		l.pending = l.done + 1
		if err := s.Set([]byte("k"), bytes.Repeat([]byte("v"), l.pending*metaMinCopy)); err != nil {
			return err
		}
		l.done = l.pending
	}
	return nil
}

func TestCrashAtEachStepOfGrowingMetadata(t *testing.T) {
	vfstest.Crashes(t, metaScript(), nil)
}
