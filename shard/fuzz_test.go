package shard

import (
	"bytes"
	"hash/crc32"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// withSums sets the checksums at the positions of the header and the chunks of a snapshot, so that the
// fuzzer tests the content.
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

// FuzzRestore: for any input, the state afterwards is the old one or that of a complete stream, and nothing panics.
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

// FuzzPull: bytes from a client never cause a panic and never create a row.
func FuzzPull(f *testing.F) {
	f.Add(payloadOf(rows{schema: testTable(1, "a", 1, sgd), flags: wire.FlagNoValues, keys: []rowraft.Key{3, 1}}), true)
	f.Add(payloadOf(rows{schema: testTable(3, "c", 3, adam), flags: wire.FlagNoValues, dtype: rowraft.BFloat16,
		keys: []rowraft.Key{5}}), false)
	r, _ := smallSnapshot(f)
	before := r.digest()
	f.Fuzz(func(t *testing.T, payload []byte, presence bool) {
		_, _, _ = r.Pull(payload, presence, 0, alloc)
		_ = r.Validate(wire.OpPush, payload)
		if after, err := r.Digest(); err != nil || after != before {
			t.Fatalf("a read changed the state: %+v, %v", after, err)
		}
	})
}
