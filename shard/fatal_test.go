package shard

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/wire"
)

// TestEntriesThatStopTheReplica: the replica refuses each of these entries before it changes anything, and
// serves nothing until a snapshot is restored.
func TestEntriesThatStopTheReplica(t *testing.T) {
	table := testTable(9, "t", 1, sgd)
	part := push(1, 1, payloadOf(rows{schema: table, keys: []rowraft.Key{1}}))
	h := wire.EntryHeader{Version: wire.FirstVersion, Epoch: 1}
	good := entryOf(h, part, part)
	later := bytes.Clone(good)
	later[4] = byte(wire.NewestVersion() + 1)
	kind := bytes.Clone(good)
	kind[2] = 200
	parts := bytes.Clone(good)
	parts[24] = 1
	badSchema := table
	badSchema.Dim = 0
	for _, tc := range []struct {
		name  string
		entry []byte
		code  rowraft.Code
	}{
		{"nothing", nil, rowraft.CodeCorrupt},
		{"no entry", []byte("something else that is long enough to be one"), rowraft.CodeCorrupt},
		{"a later version", later, rowraft.CodeVersionTooNew},
		{"an unknown kind", kind, rowraft.CodeVersionTooNew},
		{"a part more than it names", parts, rowraft.CodeCorrupt},
		{"a cut second part", good[:len(good)-8], rowraft.CodeCorrupt},
		{"half a session", wire.OpenSessionEntry(h, wire.Opening{Client: client(1), Incarnation: 1})[:40],
			rowraft.CodeCorrupt},
		{"an impossible schema", wire.CreateTableEntry(h, &badSchema), rowraft.CodeCorrupt},
		{"bytes behind a schema", append(wire.CreateTableEntry(h, &table), make([]byte, 8)...), rowraft.CodeCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newReplica(t, Config{})
			r.create(table)
			r.mustOpen(1, 1)
			stream, before := r.snapshot(), r.digest()

			got := r.Apply(7, tc.entry)
			var fatal *FatalError
			if err, ok := got.(error); !ok || !errors.As(err, &fatal) || fatal.Index != 7 {
				t.Fatalf("Apply = %v, want a FatalError of entry 7", got)
			}
			testutil.WantCode(t, fatal.Err, tc.code)
			if !rowraft.CodeOf(fatal).MaybeApplied() {
				t.Errorf("code %v means that no replica applied the entry", rowraft.CodeOf(fatal))
			}
			if r.AppliedIndex() != before.Index {
				t.Errorf("applied index %d, want %d", r.AppliedIndex(), before.Index)
			}
			if again, ok := r.Apply(8, good).(*FatalError); !ok || again.Index != 7 {
				t.Error("the replica went on after entry 7")
			}
			_, _, err := r.Pull(payloadOf(rows{schema: table, keys: []rowraft.Key{1}, flags: wire.FlagNoValues}), false, 0,
				alloc)
			for _, err := range []error{err, second(r.Snapshot()), second(r.Digest())} {
				if !errors.As(err, &fatal) {
					t.Errorf("a stopped replica returned: %v", err)
				}
			}
			if err := r.Restore(bytes.NewReader(stream)); err != nil {
				t.Fatal(err)
			}
			if after := r.digest(); after != before {
				t.Errorf("after a restore %+v, want %+v", after, before)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func alloc(n int) []byte { return make([]byte, n) }

func TestOldEntriesAreIgnored(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	p.one(1, 1, 1, 0)
	before := p.digest()
	for index := range p.index + 1 {
		if got := p.Apply(index, []byte("whatever")); got != nil {
			t.Errorf("Apply(%d) = %v", index, got)
		}
	}
	if after := p.digest(); after != before {
		t.Errorf("%+v, want %+v", after, before)
	}
}

func TestClosedMachine(t *testing.T) {
	r := newReplica(t, Config{})
	table := testTable(9, "t", 1, sgd)
	r.create(table)
	stream := r.snapshot()
	s, err := r.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err = r.Pull(payloadOf(rows{schema: table, keys: []rowraft.Key{1}, flags: wire.FlagNoValues}), false, 0, alloc)
	testutil.WantCode(t, err, rowraft.CodeClosing)
	testutil.WantCode(t, second(r.Digest()), rowraft.CodeClosing)
	testutil.WantCode(t, second(r.Snapshot()), rowraft.CodeClosing)
	testutil.WantCode(t, r.Restore(bytes.NewReader(stream)), rowraft.CodeClosing)
	if _, ok := r.Apply(99, nil).(error); !ok {
		t.Error("Apply answered after Close")
	}
	if r.Stats() != nil {
		t.Error("Stats answered after Close")
	}
	s.Release()
}

func TestOneSnapshotAtATime(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	p.one(1, 1, 1, 0)
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if s.Index() != p.AppliedIndex() {
		t.Errorf("snapshot at index %d, applied %d", s.Index(), p.AppliedIndex())
	}
	testutil.WantCode(t, second(p.Snapshot()), rowraft.CodeOverloaded)
	if _, err := s.WriteTo(io.Discard); err != nil {
		t.Fatal(err)
	}
	testutil.WantCode(t, second(s.WriteTo(io.Discard)), rowraft.CodeInternal)
	s.Release()
	s.Release()
	if s, err = p.Snapshot(); err != nil {
		t.Fatal(err)
	}
	s.Release() // no WriteTo before
	p.snapshot()
}

// TestRestoreEndsARunningSnapshot: a restore frees the rows that the snapshot reads.
func TestRestoreEndsARunningSnapshot(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	p.one(1, 1, 1, 0)
	stream := p.snapshot()
	s, err := p.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Restore(bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	_, err = s.WriteTo(io.Discard)
	testutil.WantCode(t, err, rowraft.CodeStarting)
	next, err := p.Snapshot()
	if err != nil {
		t.Fatalf("the new state's snapshot: %v", err)
	}
	s.Release() // must not end the other snapshot
	var b bytes.Buffer
	if _, err := next.WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), stream) {
		t.Errorf("the snapshot after a restore differs: %v", err)
	}
	next.Release()
}

type failAfter int

func (f *failAfter) Write(b []byte) (int, error) {
	if *f -= failAfter(len(b)); *f < 0 {
		return 0, io.ErrShortWrite
	}
	return len(b), nil
}

func TestAFailedWriteEndsTheSnapshot(t *testing.T) {
	p := newPusher(t)
	p.mustOpen(1, 1)
	p.one(1, 1, 1, 0)
	size := len(p.snapshot())
	for limit := failAfter(0); int(limit) < size; limit += 40 {
		s, err := p.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		w := limit
		if _, err := s.WriteTo(&w); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("a writer that fails after %d bytes: %v", limit, err)
		}
		s.Release()
	}
	p.one(1, 1, 2, 0)
	p.snapshot()
}

// smallSnapshot returns a replica with rows of every optimizer, sessions and a refusal, and its snapshot.
func smallSnapshot(tb testing.TB) (*replica, []byte) {
	r := newReplica(tb, Config{Shard: 6})
	tables := []rowraft.Schema{testTable(1, "a", 1, sgd), testTable(2, "b", 2, adagrad), testTable(3, "c", 3, adam)}
	r.create(tables...)
	r.mustOpen(1, 1)
	r.mustOpen(2, 9)
	keys := []rowraft.Key{1, 5, 1 << 60}
	for i, s := range tables {
		r.parts(push(1, rowraft.Seq(i+2), payloadOf(rows{schema: s, keys: keys[i:]})))
	}
	r.parts(push(1, 9, payloadOf(rows{schema: testTable(4, "d", 1, sgd)})))
	return r, r.snapshot()
}

// TestADamagedSnapshotChangesNothing flips one bit of each byte, and truncates the snapshot there. (Package
// checkpoint tests all bits; TestLiesWithGoodSums changes the content.)
func TestADamagedSnapshotChangesNothing(t *testing.T) {
	r, stream := smallSnapshot(t)
	before := r.digest()
	try := func(what string, at int, damaged []byte) {
		err := r.Restore(bytes.NewReader(damaged))
		if code := rowraft.CodeOf(err); err == nil || code != rowraft.CodeCorrupt && code != rowraft.CodeVersionTooNew {
			t.Fatalf("%s at byte %d: error %v", what, at, err)
		}
	}
	for at := range stream {
		damaged := bytes.Clone(stream)
		damaged[at] ^= 1 << (at % 8)
		try("a flipped bit", at, damaged)
		try("a cut", at, stream[:at])
	}
	try("a byte too many", len(stream), append(bytes.Clone(stream), 0))
	if after := r.digest(); after != before {
		t.Errorf("%+v, want %+v", after, before)
	}
	if again := r.snapshot(); !bytes.Equal(again, stream) {
		t.Error("the snapshot differs after refused restores")
	}
}

// TestLiesWithGoodSums changes one byte of each record, of its slot and of the trailer, and corrects the
// checksums. The digest, the hash or the counts reveal the change.
func TestLiesWithGoodSums(t *testing.T) {
	r, stream := smallSnapshot(t)
	before := r.digest()
	tried := 0
	for at := 64; at < len(stream); {
		kind, end := stream[at], at+16+int(le.Uint64(stream[at+8:]))
		for i := at + 16; i < end; i++ {
			// No digest covers the count and the recency of a row; only the CRC does.
			counter, recency := i >= at+32 && i < at+40, i >= at+48 && i < at+56
			if kind < 3 || kind == 3 && (counter || recency) {
				continue
			}
			damaged := bytes.Clone(stream)
			damaged[i] ^= 1
			tried++
			if err := r.Restore(bytes.NewReader(withSums(damaged))); err == nil || r.digest() != before {
				t.Errorf("byte %d of a chunk of kind %d: error %v", i-at, kind, err)
			}
		}
		at = end
	}
	if tried < 200 {
		t.Errorf("tried %d bytes only", tried)
	}
}

func TestRestoreWantsItsShardAndItsSlots(t *testing.T) {
	_, stream := smallSnapshot(t)
	testutil.WantCode(t, newReplica(t, Config{Shard: 5}).Restore(bytes.NewReader(stream)), rowraft.CodeIdentity)
	testutil.WantCode(t, newReplica(t, Config{Shard: 6, Slots: []rowraft.Slot{1}}).Restore(bytes.NewReader(stream)),
		rowraft.CodeWrongShard)
}

// TestARestoredReplicaWritesTheSameSnapshot: the bytes are equal as long as no slot has two rows, whose
// order is undefined.
func TestARestoredReplicaWritesTheSameSnapshot(t *testing.T) {
	a, first := smallSnapshot(t)
	b := newReplica(t, Config{Shard: 6})
	if err := b.Restore(bytes.NewReader(first)); err != nil {
		t.Fatal(err)
	}
	if second := b.snapshot(); !bytes.Equal(first, second) {
		t.Error("a restored replica writes another snapshot")
	}
	if !sameState(a, b) {
		t.Error("a restored replica differs")
	}
}
