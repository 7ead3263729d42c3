package rowstore

import (
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/shard/rowstore/order"
	"github.com/rowraft/rowraft/wire"
)

// records is the memory of the rows and the layout of a record in it. The layout never changes.
//
// Invariant: a record never moves, and its place holds one key until reclaimer frees the place.
type records struct {
	schema   *rowraft.Schema
	dim      int
	storage  rowraft.DType // of the weights
	lead     int           // bytes before the key: 8 in a tracked table, else 0
	stateAt  int           // offset of the optimizer state from the key
	stateLen int

	imageLines bool // an image of a row is whole cache lines

	slab *slab.Slab
}

func newRecords(s *rowraft.Schema, stateLen int) (rs records, err error) {
	rs = records{
		schema: s, dim: s.Dim, storage: s.StorageType(), stateAt: weightsAt + s.WeightBytes(), stateLen: stateLen,
	}
	if s.Tracked() {
		rs.lead = keyOffset
	}
	rs.imageLines = rs.imageBytes()%order.LineBytes == 0
	rs.slab, err = slab.New(rs.slabRecordBytes())
	return rs, err
}

// checkArgs returns an error for arguments of the wrong length.
func (rs *records) checkArgs(keys []rowraft.Key, numBytes int, dt rowraft.DType) error {
	if dt.Size() == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: %s: want float32 or bfloat16", rs.schema.Name, dt)
	}
	if want := len(keys) * rs.dim * dt.Size(); numBytes != want {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: %d bytes of numbers for %d keys: want %d × dim %d × %d bytes = %d",
			rs.schema.Name, numBytes, len(keys), len(keys), rs.dim, dt.Size(), want)
	}
	return nil
}

// recordBytes is the size of a stored record: what Snapshot appends per row and RestoreRow takes.
func (rs *records) recordBytes() int { return keyOffset + rs.rowBytes() }

// rowBytes is the size of a record from its key on.
func (rs *records) rowBytes() int { return rs.stateAt + 4*rs.stateLen }

// slabRecordBytes is the memory of a record, rounded up so that keys and versions stay aligned.
func (rs *records) slabRecordBytes() int { return alignedBytes(rs.lead + rs.rowBytes()) }

func alignedBytes(n int) int { return (n + 7) &^ 7 }

// noRecency is the recency and the count in a stored record of a table that is not tracked.
var noRecency [keyOffset]byte

// Offsets in a stored record; the package comment has the table.
const (
	keyOffset     = 8
	versionOffset = 16
	headerBytes   = 24
)

// Offsets from the key of a record in memory.
const (
	recencyAt = -8 // only in a tracked table
	countAt   = -4
	versionAt = versionOffset - keyOffset
	weightsAt = headerBytes - keyOffset
)

// record is a row in memory: p is the address of its key. It must not outlive the call that found it.
type record struct{ p unsafe.Pointer }

func (rs *records) at(p slab.Place) record { return rs.recordAt(rs.slab.At(p)) }

// recordAt returns the record whose memory begins at p.
func (rs *records) recordAt(p unsafe.Pointer) record { return record{unsafe.Add(p, rs.lead)} }

// start returns the address of the first byte of r.
func (rs *records) start(r record) unsafe.Pointer { return unsafe.Add(r.p, -rs.lead) }

func (r record) key() uint64          { return *(*uint64)(r.p) }
func (r record) setKey(k rowraft.Key) { *(*uint64)(r.p) = uint64(k) }
func (r record) version() *uint64     { return (*uint64)(unsafe.Add(r.p, versionAt)) }

// bytes returns r as it is in memory, without the padding at its end.
func (rs *records) bytes(r record) []byte {
	return unsafe.Slice((*byte)(rs.start(r)), rs.lead+rs.rowBytes())
}

// appendRecord appends the stored record of r.
func (rs *records) appendRecord(dst []byte, r record) []byte {
	if rs.lead == 0 {
		dst = append(dst, noRecency[:]...)
	}
	return append(dst, rs.bytes(r)...)
}

// weights returns the weights as they are stored, padding included.
func (rs *records) weights(r record) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(r.p, weightsAt)), rs.stateAt-weightsAt)
}

// floats returns the weights of r in its memory. REQUIRES: they are stored as float32, and the machine is
// little-endian.
func (rs *records) floats(r record) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(r.p, weightsAt)), rs.dim)
}

// state returns the optimizer state.
func (rs *records) state(r record) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(r.p, rs.stateAt)), rs.stateLen)
}

// hashed returns what the digest covers: key, version, weights and state.
func (rs *records) hashed(r record) []byte { return unsafe.Slice((*byte)(r.p), rs.rowBytes()) }

// rowHash returns the hash of one row's key, version, weights and state.
func (rs *records) rowHash(r record) Digest {
	return Digest(xxh3.Hash128(rs.hashed(r)))
}

// store writes back the weights w of r, after a push or an assign has changed them.
// REQUIRES: they are stored as bfloat16.
func (rs *records) store(r record, rule *optim.Rule, w []float32, assign bool) {
	if !assign {
		rule.RoundPush(rowraft.Key(r.key()), w)
	}
	wire.PutFloats(rs.weights(r), rs.storage, w)
}

// putInitial writes the weights of a key without a row.
func (rs *records) putInitial(dst []byte, dt rowraft.DType, key rowraft.Key) {
	var part [64]float32
	for first := 0; first < rs.dim; first += len(part) {
		w := part[:min(len(part), rs.dim-first)]
		optim.InitFrom(rs.schema.Initializer, key, first, w)
		wire.RoundTo(rs.storage, w)
		wire.PutFloats(dst[first*dt.Size():], dt, w)
	}
}
