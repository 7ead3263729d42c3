package shard

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// FuzzApply feeds two replicas the same bytes: neither panics, both answer
// alike, and a refused entry leaves no trace.
func FuzzApply(f *testing.F) {
	table := testTable(1, "a", 1, sgd)
	h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: 5}
	part := push(1, 1, payloadOf(rows{schema: table, keys: []rowraft.Key{1, 2}}, rows{schema: testTable(2, "b", 2, adagrad), keys: []rowraft.Key{7}, flags: wire.FlagLR, lr: 0.5}))
	f.Add(entryOf(h, part, part))
	f.Add(wire.OpenSessionEntry(h, client(1), 2))
	f.Add(wire.CreateTableEntry(h, &table))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, entry []byte) {
		a, stream := smallSnapshot(t)
		b := newReplica(t, Config{Shard: 6})
		if err := b.Restore(bytes.NewReader(stream)); err != nil {
			t.Fatal(err)
		}
		index := a.AppliedIndex() + 1
		before := a.digest()
		switch got := a.Apply(index, entry).(type) {
		case error:
			if _, ok := b.Apply(index, entry).(*FatalError); !ok {
				t.Fatal("one replica stopped, the other did not")
			}
			if a.AppliedIndex() != before.Index {
				t.Fatal("a fatal entry counts as applied")
			}
		case *Applied:
			other, ok := b.Apply(index, entry).(*Applied)
			if !ok || len(other.Parts) != len(got.Parts) {
				t.Fatalf("%+v and %+v", got, other)
			}
			for i, p := range got.Parts {
				if q := other.Parts[i]; rowraft.CodeOf(p.Err) != rowraft.CodeOf(q.Err) || p.Duplicate != q.Duplicate {
					t.Fatalf("part %d: %+v and %+v", i, p, q)
				}
			}
			if !sameState(a, b) {
				t.Fatal("the replicas differ")
			}
		}
	})
}

// withSums sets the checksums of whatever stands where the header and chunks of
// a snapshot would, so that the content behind them is tested.
func withSums(b []byte) []byte {
	if len(b) < 64 {
		return b
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	le.PutUint32(b[60:], crc32.Checksum(b[:60], table))
	for c := b[64:]; len(c) >= 16; {
		n := le.Uint64(c[8:])
		if n > uint64(len(c)-16) {
			break
		}
		le.PutUint32(c[4:], crc32.Update(crc32.Checksum(c[:4], table), table, c[8:16+n]))
		c = c[16+n:]
	}
	return b
}

// FuzzRestore: whatever comes in, the state is the old one or what a whole
// stream holds, and nothing panics.
func FuzzRestore(f *testing.F) {
	_, stream := smallSnapshot(f)
	f.Add(stream)
	f.Add(stream[:100])
	f.Add([]byte("ROWRSNAP"))
	f.Fuzz(func(t *testing.T, in []byte) {
		in = withSums(bytes.Clone(in))
		r := newReplica(t, Config{Shard: 6})
		before := r.snapshot()
		if err := r.Restore(bytes.NewReader(in)); err != nil {
			if !bytes.Equal(r.snapshot(), before) {
				t.Fatalf("a refused stream changed the state: %v", err)
			}
			return
		}
		if got := r.snapshot(); len(got) != len(in) {
			t.Fatalf("a stream of %d bytes is written as %d", len(in), len(got))
		}
	})
}

// FuzzPull: bytes of a client never panic, and never create a row.
func FuzzPull(f *testing.F) {
	f.Add(payloadOf(rows{schema: testTable(1, "a", 1, sgd), flags: wire.FlagNoValues, keys: []rowraft.Key{3, 1}}), true)
	f.Add(payloadOf(rows{schema: testTable(3, "c", 3, adam), flags: wire.FlagNoValues, dtype: rowraft.BFloat16, keys: []rowraft.Key{5}}), false)
	r, _ := smallSnapshot(f)
	before := r.digest()
	f.Fuzz(func(t *testing.T, payload []byte, presence bool) {
		_, _, _ = r.Pull(payload, presence, alloc)
		_ = r.Validate(wire.OpPush, payload)
		if after, err := r.Digest(); err != nil || after != before {
			t.Fatalf("a read changed the state: %+v, %v", after, err)
		}
	})
}
