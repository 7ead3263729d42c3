package rowstore

import (
	"encoding/binary"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// PullVersions is Pull with the version of each row in front of its weights, as a little-endian uint32: 0 if the key
// has no row, wire.NoVersion if the version does not fit.
//
// known is empty, or has a version for each key, likewise. PullVersions sets bit i%8 of byte i/8 of unchanged if the
// row of keys[i] has that version, and clears it if not. Such a row is left out: the next one takes its place in dst.
// PullVersions returns the number of rows that are left out.
func PullVersions(t *Table, keys []rowraft.Key, dst []byte, dt rowraft.DType, present, known,
	unchanged []byte) (leftOut int, err error) {
	if err := t.index.checkArgs(keys, len(dst)-wire.VersionBytes*len(keys), dt); err != nil {
		return 0, err
	}
	bitmap := (len(keys) + 7) / 8
	if len(unchanged) != bitmap || present != nil && len(present) != bitmap ||
		len(known) != 0 && len(known) != wire.VersionBytes*len(keys) {
		return 0, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: %d bytes of known versions and bitmaps of %d and %d bytes for %d keys", t.schema.Name, len(known),
			len(present), len(unchanged), len(keys))
	}
	clear(present)
	clear(unchanged)
	t.lock.RLock()
	defer t.lock.RUnlock()
	defer t.index.grace.Leave(t.index.grace.Enter())
	rowBytes := wire.VersionBytes + t.index.dim*dt.Size()
	if t.index.tier != nil {
		if err := t.index.tier.pull(keys, dst, dt, present, wire.VersionBytes); err != nil || len(known) == 0 {
			return 0, err
		}
		return leaveOut(dst, rowBytes, known, unchanged), nil
	}
	var ahead lookahead
	ahead.start(t, keys, t.index.stateAt, false)
	for base := 0; ; {
		at, n := ahead.next(t, keys)
		if n == 0 {
			return leftOut, ahead.err
		}
		for i, key := range keys[base : base+n] {
			row, has := dst[:rowBytes:rowBytes], uint64(noVersion)
			if len(known) > 0 {
				has = knownVersion(known[wire.VersionBytes*(base+i):])
			}
			v := t.index.read(&ahead.lookups, at+i, key, row[wire.VersionBytes:], dt, has)
			if v != 0 && present != nil {
				present[(base+i)/8] |= 1 << ((base + i) % 8)
			}
			if v == has {
				unchanged[(base+i)/8] |= 1 << ((base + i) % 8)
				leftOut++
				continue
			}
			if v == 0 {
				t.index.putInitial(row[wire.VersionBytes:], dt, key)
			}
			putVersion(row, v)
			dst = dst[rowBytes:]
		}
		base += n
	}
}

// leaveOut removes the rows from dst that have a known version, as in PullVersions, and returns their number.
func leaveOut(dst []byte, rowBytes int, known, unchanged []byte) (n int) {
	for i := range len(known) / wire.VersionBytes {
		row, has := dst[i*rowBytes:(i+1)*rowBytes], known[wire.VersionBytes*i:]
		if uint64(binary.LittleEndian.Uint32(row)) == knownVersion(has) {
			unchanged[i/8] |= 1 << (i % 8)
			n++
		} else if n > 0 {
			copy(dst[(i-n)*rowBytes:], row)
		}
	}
	return n
}

// putVersion writes v to dst, as PullVersions does.
func putVersion(dst []byte, v uint64) {
	binary.LittleEndian.PutUint32(dst, uint32(min(v, uint64(wire.NoVersion))))
}

// noVersion is equal to no version that a reader finds.
const noVersion = gone

// knownVersion returns the version that b begins with.
func knownVersion(b []byte) uint64 {
	if v := binary.LittleEndian.Uint32(b); v != wire.NoVersion {
		return uint64(v)
	}
	return noVersion
}
