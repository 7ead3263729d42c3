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

	"github.com/rowraft/rowraft"
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
type logLife struct {
	done, pending logModel
	removed       bool // its removal began
}

// crashLives are the lives of the groups of one shared log.
type crashLives [2]logLife

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

const (
	crashEntryBytes   = 1 << 10
	crashSegmentBytes = segmentStart + 7*crashEntryBytes // six entries
)

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

// crashLogs is a shared log with its groups.
type crashLogs struct {
	shared *Shared
	groups [len(crashLives{})]logWriter
	lives  *crashLives
	disk   vfs.FS
}

func crashOwner(i int) Owner {
	o := testOwner
	o.Group, o.Replica = fmt.Sprint("shard-", i), rowraft.ReplicaID(fmt.Sprint("r-", i))
	return o
}

func crashDir(i int) string { return fmt.Sprint("/group", i) }

func openCrashLogs(disk vfs.FS, lives *crashLives) (_ *crashLogs, err error) {
	for i := range lives {
		if l := &lives[i]; l.done.terms == nil {
			l.done = logModel{terms: map[uint64]uint64{}, vote: map[string]string{}}
			l.pending = l.done
		}
	}
	c := &crashLogs{lives: lives, disk: disk}
	if c.shared, err = OpenShared(disk, "/log", testOwner.Cluster, testOwner.Node, 64<<10,
		slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	c.shared.slack, c.shared.size = 1, crashSegmentBytes
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	for i := range lives {
		if err := c.open(i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// open opens a group. It completes a removal, as the registry of a store does.
func (c *crashLogs) open(i int) error {
	life := &c.lives[i]
	if life.removed {
		if err := c.remove(i); err != nil {
			return err
		}
	}
	if err := vfs.MkdirAll(c.disk, crashDir(i)); err != nil {
		return err
	}
	l, err := Open(c.disk, Row, crashDir(i), crashOwner(i), c.shared, slog.New(slog.DiscardHandler))
	c.groups[i] = logWriter{l, life}
	return err
}

// remove removes a group, which is not open.
func (c *crashLogs) remove(i int) error {
	c.lives[i].removed = true
	if err := c.shared.Remove(crashOwner(i)); err != nil {
		return err
	}
	if err := vfs.RemoveAll(c.disk, crashDir(i)); err != nil {
		return err
	}
	if err := c.disk.SyncDir("/"); err != nil {
		return err
	}
	c.lives[i] = logLife{}
	c.lives[i].done = logModel{terms: map[uint64]uint64{}, vote: map[string]string{}}
	c.lives[i].pending = c.lives[i].done
	return nil
}

func (c *crashLogs) Close() error {
	var errs []error
	for _, g := range c.groups {
		if g.Log != nil {
			errs = append(errs, g.Log.Close())
		}
	}
	return errors.Join(append(errs, c.shared.Close())...)
}

// read makes the lives what the logs hold, if that is what was acknowledged or under way.
func (c *crashLogs) read() error {
	for i, g := range c.groups {
		found, err := readLog(g.Log, *g.life)
		if err != nil {
			return fmt.Errorf("group %d: %w", i, err)
		}
		*g.life = logLife{done: found, pending: found}
	}
	return nil
}

// together appends n entries to the first groups in one batch.
func (c *crashLogs) together(term, n uint64, groups int) error {
	var batch []*change
	for i := range groups {
		g := c.groups[i]
		from := g.life.done.last + 1
		g.life.pending = g.life.done.clone()
		m := &g.life.pending
		var logs []*raft.Log
		for k := from; k < from+n; k++ {
			logs = append(logs, crashEntry(k, term))
			m.terms[k] = term
		}
		if m.last == 0 {
			m.first = from
		}
		m.last = from + n - 1
		group := g.Log.(*rowLog).group
		group.write.change.entries(group, sectionEntries, logs)
		batch = append(batch, &group.write.change)
	}
	if err := c.shared.write(batch); err != nil {
		return err
	}
	for i := range groups {
		c.groups[i].life.done = c.groups[i].life.pending
	}
	return nil
}

func logScript() vfstest.Script[crashLives] {
	return vfstest.Script[crashLives]{
		Seeds: 3,
		Run: func(disk vfs.FS, acked *crashLives) error {
			c, err := openCrashLogs(disk, acked)
			if err != nil {
				return err
			}
			return errors.Join(lifeOfLogs(c), c.Close())
		},
		Check: func(disk vfs.FS, acked crashLives) (crashLives, error) {
			c, err := openCrashLogs(disk, &acked)
			if err != nil {
				return acked, err
			}
			if err = c.read(); err == nil {
				err = c.groups[0].set("CurrentTerm", acked[0].done.vote["CurrentTerm"])
			}
			if err == nil {
				err = c.together(9, 1, 2)
			}
			return acked, errors.Join(err, c.Close())
		},
	}
}

// lifeOfLogs votes, appends over several segments, cuts both ends, clears a log as the installation of a snapshot does,
// continues after the gap, copies what a slow group needs out of old segments, and replaces a replica.
func lifeOfLogs(c *crashLogs) error {
	w, slow := c.groups[0], c.groups[1]
	for i, step := range []func() error{
		func() error { return w.set("CurrentTerm", "1") },
		func() error { return w.set("LastVoteCand", "b") },
		func() error { return slow.append(1, 2) },
		func() error { return w.append(1, 1) },
		func() error { return c.together(1, 1, 2) },
		func() error { return w.append(1, 3) }, // in the second segment
		func() error { return w.append(1, 5) },
		func() error { return slow.cutTail(3) },
		func() error { return slow.append(2, 1) },
		func() error { return w.cutTail(5) }, // over a whole segment
		func() error { return w.append(3, 3) },
		func() error { return w.cutHead(2) },
		func() error { return w.append(3, 6) },
		func() error { return w.cutHeadOnly(10) },
		func() error { return c.shared.Compact(nil) },
		func() error {
			if n := c.shared.mu.segments[0].number; n < 3 {
				return fmt.Errorf("the oldest segment is %d after it was copied", n)
			}
			return w.append(3, 1)
		},
		func() error { return slow.cutTail(2) }, // a copy
		func() error { return c.together(4, 1, 2) },
		func() error { return errors.Join(slow.Log.Close(), c.remove(1), c.open(1)) },
		func() error {
			return w.do(func(m *logModel) { m.first, m.last = 0, 0 },
				func() error { return w.cut(w.life.done.first, w.life.done.last) })
		},
		func() error { return w.appendBehindGap(4) },
		func() error { return c.together(4, 1, 2) },
		func() error { return w.set("CurrentTerm", "4") }, // and nothing else after it
	} {
		if err := step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
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
		"raftstore/raftlog.(*metaStore).replaceLocked: syncdir log": "the log syncs the directory after it, before it is " +
			"used",
		"raftstore/raftlog.OpenShared: syncdir /": "the test syncs it for the groups",
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
