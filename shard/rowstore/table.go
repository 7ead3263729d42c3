package rowstore

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/optim"
)

// Options are the arguments of New.
type Options struct {
	Schema rowraft.Schema
	Slots  rowraft.SlotCount // slots of the cluster; 0: rowraft.DefaultSlots
	// Owned reports which slots this shard holds; nil means all. Only New calls it.
	Owned func(rowraft.Slot) bool
}

// Table holds the rows of one table on one shard. The package comment has the
// concurrency rules. Table starts no goroutine. Close unmaps its memory.
type Table struct {
	schema   rowraft.Schema
	rule     optim.Rule
	dim      int
	storage  rowraft.DType // of the weights
	stateAt  int           // offset of the optimizer state in a record
	stateLen int
	hashSeed uint64 // the part of clustermap.Hash that depends only on the table
	secret   secret // of the tags
	dense    bool

	imageLines bool // an image of a row is whole cache lines

	rows   *slab.Slab
	blocks slab.Blocks // index segments
	// copies of the roots of slots without a directory; dense, because lookups load them first
	roots []root
	// slots and roots have the slots from first to the last one that the shard holds. A shard's slots are consecutive, or
	// nearly so, and a cluster has up to 65,536: arrays of all of them would take 6 MiB for each table of each shard.
	slots     []slotState
	owned     []uint64 // a bit for each of slots
	first     rowraft.Slot
	slotCount rowraft.SlotCount // of the cluster
	count     atomic.Int64

	longest int // maxSegment; smaller in tests

	grace   grace
	retired [2]retired // indexed by the last bit of the epoch
	lock    rowLock    // does nothing where readers need no lock: see "Readers" in the package comment

	track *track      // nil if the table is not tracked
	snaps []*Snapshot // the running snapshots

	// Claims of the writer; see claim.go.
	writing    atomic.Int64 // 1 + the slot that the writer is in, perhaps with looseClaim; 0: none or no snapshots
	claimed    int64        // the writer's copy of writing, without looseClaim
	loose      atomic.Bool  // loose claims are allowed; only the writer stores it
	wantStrict atomic.Bool  // a reader could not fence and needs strict claims
	strict     bool         // the claim of claimed is strict although loose claims are allowed

	outgrown  []segment // segments that snapshots still walk
	slotCheck slotCheck // the running check of one slot against its digest
	scratch   []float32 // one unpacked gradient or value; only Update and Assign use it
	wide      []float32 // unpacked weights that are not stored as float32; only Update and Assign use it
}

// slotState is one slot of the table.
type slotState struct {
	directory atomic.Pointer[directory]
	whole     bucket // all rows while there is no directory; later for readers that loaded it before

	rows    uint32
	version uint64 // of the last change
	removed uint64 // version at the last removal of a row; 0: none
	digest  Digest
}

// New returns an empty table.
//
// Errors: CodeInvalidArgument if the schema is not valid; CodeInternal on a
// big-endian machine, since records are stored in wire order.
func New(o Options) (*Table, error) {
	if err := o.Schema.Validate(); err != nil {
		return nil, err
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "row store: big-endian machines are not supported")
	}
	rule, err := optim.New(o.Schema.Optimizer)
	if err != nil {
		return nil, err
	}
	t := &Table{
		schema:   o.Schema,
		rule:     rule,
		dim:      o.Schema.Dim,
		storage:  o.Schema.StorageType(),
		stateAt:  headerBytes + o.Schema.WeightBytes(),
		stateLen: rule.StateLen(o.Schema.Dim),
		hashSeed: clustermap.TableSeed(o.Schema.ID),
		secret:   newSecret(),
		dense:    o.Schema.Kind == rowraft.Dense,
		longest:  maxSegment,
		scratch:  make([]float32, o.Schema.Dim),
		wide:     make([]float32, o.Schema.Dim),
	}
	t.imageLines = t.imageBytes()%lineBytes == 0
	t.chooseClaims()
	t.rows, err = slab.New(t.slabRecordBytes())
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", o.Schema.Name, err)
	}
	t.own(o)
	t.track = newTrack(&o.Schema, t.slotCount, len(t.slots))
	return t, nil
}

// own makes the arrays of the slots that the shard holds.
func (t *Table) own(o Options) {
	t.slotCount = cmp.Or(o.Slots, rowraft.DefaultSlots)
	owned := func(s rowraft.Slot) bool { return o.Owned == nil || o.Owned(s) }
	first, past := rowraft.Slot(0), rowraft.Slot(t.slotCount)
	for first < past && !owned(first) {
		first++
	}
	for first < past && !owned(past-1) {
		past--
	}
	t.first = first &^ (cutsPerPage - 1) // the pages of slots are those of claim.go
	n := int(past - t.first)
	t.slots, t.roots, t.owned = make([]slotState, n), make([]root, n), make([]uint64, (n+63)/64)
	for s := first; s < past; s++ {
		if i := s - t.first; owned(s) {
			t.owned[i/64] |= 1 << (i % 64)
		}
	}
}

// Close unmaps the table's memory. The table must not be used afterwards.
func (t *Table) Close() error {
	err := t.rows.Close()
	if e := t.blocks.Close(); err == nil {
		err = e
	}
	if t.track != nil {
		if e := t.track.blocks.Close(); err == nil {
			err = e
		}
	}
	for _, s := range t.snaps {
		if e := s.kept.images.Close(); err == nil {
			err = e
		}
	}
	t.snaps, t.outgrown = nil, nil
	t.slots = nil
	t.retired = [2]retired{}
	t.count.Store(0)
	return err
}

// Schema returns the schema the table was made with.
func (t *Table) Schema() rowraft.Schema { return t.schema }

// Owns reports whether the table holds slot s.
func (t *Table) Owns(s rowraft.Slot) bool {
	i := s - t.first
	return uint(i) < uint(len(t.slots)) && t.owned[i/64]>>(i%64)&1 != 0
}

// slot returns the state of slot s. REQUIRES: s is in the range of t.slots.
func (t *Table) slot(s rowraft.Slot) *slotState { return &t.slots[s-t.first] }

// candidatesOf returns the candidates of slot s. REQUIRES: the table has admission by count.
func (t *Table) candidatesOf(s rowraft.Slot) *candidates { return &t.track.slots[s-t.first] }

// ownedSlots yields the slots that the shard holds, in ascending order.
func (t *Table) ownedSlots() iter.Seq[rowraft.Slot] {
	return func(yield func(rowraft.Slot) bool) {
		for i := range t.slots {
			if s := t.first + rowraft.Slot(i); t.Owns(s) && !yield(s) {
				return
			}
		}
	}
}

// Rows returns the number of rows.
func (t *Table) Rows() int { return int(t.count.Load()) }

// SlotRows returns the number of rows of slot s, 0 if it is not owned.
func (t *Table) SlotRows(s rowraft.Slot) int {
	if !t.Owns(s) {
		return 0
	}
	return int(t.slot(s).rows)
}

// SlotVersion returns the version of the last change in slot s, 0 if there was none. REQUIRES: the slot is owned.
func (t *Table) SlotVersion(s rowraft.Slot) uint64 { return t.slot(s).version }

// SlotRemoved returns the version counter that slot s had when a row was last
// removed from it, 0 if none was. REQUIRES: the slot is owned.
func (t *Table) SlotRemoved(s rowraft.Slot) uint64 { return t.slot(s).removed }

// Bytes returns the memory mapped for rows, candidates, index and running snapshots.
func (t *Table) Bytes() int64 {
	n := t.rows.Stats().MappedBytes + t.blocks.Stats().MappedBytes
	if t.track != nil {
		n += t.track.blocks.Stats().MappedBytes
	}
	for _, s := range t.snaps {
		s.kept.Lock()
		n += s.kept.images.Stats().MappedBytes + s.kept.candidates.bytes()
		s.kept.Unlock()
	}
	return n
}

// RecordBytes returns the size of a row's record: what Snapshot appends per row
// and RestoreRow takes.
func (t *Table) RecordBytes() int { return t.stateAt + 4*t.stateLen }

// slabRecordBytes is RecordBytes rounded up, so that keys and versions stay aligned.
func (t *Table) slabRecordBytes() int { return (t.RecordBytes() + 7) &^ 7 }

// Offsets within a record; the package comment has the table.
const (
	countOffset   = 4
	keyOffset     = 8
	versionOffset = 16
	headerBytes   = 24
)

// record is a row in a slab. It must not outlive the call that found it.
type record struct{ p unsafe.Pointer }

func (t *Table) at(p slab.Place) record { return record{t.rows.At(p)} }

func (r record) key() uint64          { return *(*uint64)(unsafe.Add(r.p, keyOffset)) }
func (r record) setKey(k rowraft.Key) { *(*uint64)(unsafe.Add(r.p, keyOffset)) = uint64(k) }
func (r record) version() *uint64     { return (*uint64)(unsafe.Add(r.p, versionOffset)) }

// bytes returns the whole record as a snapshot stores it.
func (t *Table) bytes(r record) []byte { return unsafe.Slice((*byte)(r.p), t.RecordBytes()) }

// weights returns the weights as they are stored, padding included.
func (t *Table) weights(r record) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(r.p, headerBytes)), t.stateAt-headerBytes)
}

// state returns the optimizer state.
func (t *Table) state(r record) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(r.p, t.stateAt)), t.stateLen)
}

// hashed returns what the digest covers: key, version, weights and state.
func (t *Table) hashed(r record) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(r.p, keyOffset)), t.RecordBytes()-keyOffset)
}
