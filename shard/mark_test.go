package shard

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

func markTable() rowraft.Schema {
	return testTable(1, "t", 2, rowraft.Optimizer{Kind: rowraft.SGD, LR: 1})
}

func pushOnes(r *replica, seq rowraft.Seq, keys ...rowraft.Key) {
	values := make([]float32, 2*len(keys))
	for i := range values {
		values[i] = -1
	}
	r.tb.Helper()
	if res := r.parts(push(1, seq, payloadOf(rows{schema: markTable(), keys: keys, values: values}))); res[0].Err != nil {
		r.tb.Fatal(res[0].Err)
	}
}

// TestAMarkFixesItsIndex: rows pushed after the mark are not in the snapshot, even before it is taken or
// written. No part has sessions.
func TestAMarkFixesItsIndex(t *testing.T) {
	r, other := newReplica(t, Config{}), newReplica(t, Config{})
	for _, m := range []*replica{r, other} {
		m.create(markTable())
		m.mustOpen(1, 1)
		pushOnes(m, 1, 1, 2, 3)
	}
	before := r.digest()
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	testutil.WantCode(t, second(e.Snapshot()), rowraft.CodeLeadershipLost)
	for _, m := range []*replica{r, other} {
		m.apply(wire.MarkEntry(m.header(), wire.MarkID{6})) // of another checkpoint
		m.apply(wire.MarkEntry(m.header(), wire.MarkID{7}))
		pushOnes(m, 2, 3, 4)
	}
	s, err := e.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if _, err := s.WriteRows(&stream); err != nil {
		t.Fatal(err)
	}
	sums, err1 := s.Sums()
	tables, err2 := s.Tables()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	s.Release()
	testutil.WantCode(t, second(s.Sums()), rowraft.CodeStarting)
	rd := readThrough(t, &stream)
	if got := rd.Trailer(); len(rd.Sessions()) != 0 || got.Rows != 3 || got.Digest != before.Sum ||
		rd.Header().Applied != before.Index+2 {
		t.Errorf("%+v; want 3 rows of digest %x at index %d without sessions", got, before.Sum, before.Index+2)
	}
	var sum checkpoint.Digest
	rows := 0
	for _, s := range sums {
		sum = sum.Add(s.Digest)
		rows += int(s.Rows)
	}
	if sum != before.Sum || rows != 3 || len(tables) != 1 || tables[0].Rows != 3 || tables[0].Digest != before.Sum {
		t.Errorf("sums of %d rows, digest %x; tables %+v", rows, sum, tables)
	}
	if !sameState(r, other) {
		t.Error("a replica that took the snapshot differs from one that did not")
	}
	if _, err := r.Snapshot(); err != nil {
		t.Errorf("no snapshot after that of the checkpoint: %v", err)
	}
}

// TestPartsDoNotWaitForEachOther: the destination of one checkpoint hangs while others are cut and written.
// Each part has the rows at its own mark.
func TestPartsDoNotWaitForEachOther(t *testing.T) {
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	var marks []*ExpectedMark
	for i := range MaxParts {
		e, err := r.ExpectMark(wire.MarkID{byte(i)})
		if err != nil {
			t.Fatal(err)
		}
		marks = append(marks, e)
	}
	testutil.WantCode(t, second(r.ExpectMark(wire.MarkID{99})), rowraft.CodeOverloaded)
	var want []Digest
	for i := range marks {
		pushOnes(r, rowraft.Seq(i+1), 1, rowraft.Key(i+2))
		want = append(want, r.digest())
		r.apply(wire.MarkEntry(r.header(), wire.MarkID{byte(i)}))
	}
	pushOnes(r, rowraft.Seq(len(marks)+1), 1, 2, 3)
	var parts []*Snapshot
	for _, e := range marks {
		s, err := e.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, s)
	}
	testutil.WantCode(t, second(r.ExpectMark(wire.MarkID{99})), rowraft.CodeOverloaded)
	for i := len(parts) - 1; i >= 0; i-- {
		var stream bytes.Buffer
		if _, err := parts[i].WriteRows(&stream); err != nil {
			t.Fatal(err)
		}
		parts[i].Release()
		if got := readThrough(t, &stream).Trailer(); got.Rows != uint64(i+2) || got.Digest != want[i].Sum {
			t.Errorf("part %d: %+v; want %d rows of digest %x", i, got, i+2, want[i].Sum)
		}
	}
	e, err := r.ExpectMark(wire.MarkID{99})
	if err != nil {
		t.Fatal(err)
	}
	e.Cancel()
}

// TestTheLogsSnapshotDoesNotWaitForAPart: a checkpoint is as slow as its destination; the log can be cut
// during that time.
func TestTheLogsSnapshotDoesNotWaitForAPart(t *testing.T) {
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	pushOnes(r, 1, 1, 2, 3)
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	while := func(what string) {
		t.Helper()
		before := r.digest()
		s, err := r.Snapshot()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		testutil.WantCode(t, second(r.Snapshot()), rowraft.CodeOverloaded) // the log has at most one
		pushOnes(r, rowraft.Seq(before.Index), 1, 2, 3, 4)
		var stream bytes.Buffer
		if _, err := s.WriteTo(&stream); err != nil {
			t.Fatal(err)
		}
		s.Release()
		other := newReplica(t, Config{})
		if err := other.Restore(&stream); err != nil || other.digest() != before {
			t.Errorf("%s: restored %+v, %v; want %+v", what, other.digest(), err, before)
		}
	}
	while("a mark is expected")
	before := r.digest()
	r.apply(wire.MarkEntry(r.header(), wire.MarkID{7}))
	part, err := e.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	while("a part is written")
	while("a part is written, again")
	if sum, err := part.Digest(); err != nil || sum != before.Sum {
		t.Errorf("the part has digest %x, %v; want %x", sum, err, before.Sum)
	}
	var stream bytes.Buffer
	if _, err := part.WriteRows(&stream); err != nil {
		t.Fatal(err)
	}
	part.Release()
	if got := readThrough(t, &stream).Trailer(); got.Digest != before.Sum || got.Rows != before.Rows {
		t.Errorf("the part is %+v; want %d rows of digest %x", got, before.Rows, before.Sum)
	}
}

// readThrough reads a stream to its end.
func readThrough(t *testing.T, stream io.Reader) *checkpoint.Reader {
	t.Helper()
	rd, err := checkpoint.NewReader(stream)
	for err == nil {
		_, err = rd.Next()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return rd
}

// TestReleaseEndsAWriterThatHangs: Release ends a snapshot whose destination hangs, and the writer gets an
// error when it continues.
func TestReleaseEndsAWriterThatHangs(t *testing.T) {
	r := newReplica(t, Config{})
	r.create(markTable())
	r.mustOpen(1, 1)
	pushOnes(r, 1, 1, 2, 3)
	s, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe() // without a reader, writes hang
	ended := make(chan error, 1)
	go func() {
		_, err := s.WriteTo(pw)
		ended <- err
	}()
	if _, err := pr.Read(make([]byte, 1)); err != nil { // the writer has started
		t.Fatal(err)
	}
	s.Release()
	if next, err := r.Snapshot(); err != nil {
		t.Errorf("a snapshot after the release: %v", err)
	} else {
		next.Release()
	}
	pushOnes(r, 2, 1, 2)
	go io.Copy(io.Discard, pr)
	testutil.WantCode(t, <-ended, rowraft.CodeStarting)
}

func TestAMarkThatWasCancelled(t *testing.T) {
	r := newReplica(t, Config{})
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	e.Cancel()
	r.apply(wire.MarkEntry(r.header(), wire.MarkID{7}))
	testutil.WantCode(t, second(e.Snapshot()), rowraft.CodeLeadershipLost)
	if e, err = r.ExpectMark(wire.MarkID{9}); err != nil {
		t.Fatal(err)
	}
	r.apply(wire.MarkEntry(r.header(), wire.MarkID{9}))
	e.Cancel() // the snapshot was taken, but Snapshot was not called
	if _, err := r.Snapshot(); err != nil {
		t.Errorf("a cancelled mark still blocks snapshots: %v", err)
	}
}

func TestAMarkOfAnotherEpochTakesNoSnapshot(t *testing.T) {
	r := newReplica(t, Config{})
	e, err := r.ExpectMark(wire.MarkID{7})
	if err != nil {
		t.Fatal(err)
	}
	h := r.header()
	h.Epoch++
	a := r.Apply(100, wire.MarkEntry(h, wire.MarkID{7})).(*Applied)
	testutil.WantCode(t, a.Parts[0].Err, rowraft.CodeSessionExpired)
	testutil.WantCode(t, second(e.Snapshot()), rowraft.CodeLeadershipLost)
}
