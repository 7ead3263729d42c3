package rowstore

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/slab"
	"github.com/rowraft/rowraft/shard/rowstore/clock"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
)

// Tier keeps the cold rows of a table in a file, so that the rows in memory and the index take about as much memory as
// the schema allows. The index keeps an entry for each row; coldBit of the entry states that its place is one in the
// file. Which rows are cold is no part of the state: no version, digest, result or snapshot depends on it.
//
// A record in the file never changes at its place. A row that is needed for a change moves into memory first (load),
// and gets a new place when it moves out again. An extent of the file is filled with rows that nothing has read or
// changed lately, and with the rows that are left in a sparse extent. An extent without rows is written again when no
// reader can hold a place in it (see grace), and no pinned cut of the file has its rows.
//
// Methods of a nil Tier do nothing: a table that is all in memory has none.
type Tier struct {
	table *Table
	file  *coldfile.File
	share int64 // bytes of memory for the rows and the index

	// The writer owns these.
	clock  *clock.Clock // of the rows in memory; readers call its Touch
	moves  []move       // of the extent that is being written
	refs   []coldEntry  // scratch
	places []int        // scratch

	// waiting are rows that were read from the file and should move into memory at the next change.
	waiting struct {
		sync.Mutex
		rows []waitingRow
		n    atomic.Int32
	}

	failed struct{ read, write atomic.Pointer[error] } // read is final; write is cleared by the next good write

	inMemory atomic.Int64 // rows in memory
	pulled   atomic.Int64 // rows that pulls read from the file
}

// coldBit is set in the index entry of a row whose record is in the file of the tier, at the place in the lower bits.
const coldBit = 1 << 31

func isCold(e uint64) bool { return e&coldBit != 0 && e != tombstone }

// coldPlace returns the place of a cold entry.
func coldPlace(e uint64) int { return int(uint32(e) &^ coldBit) }

// move is a row that moves to the extent that is being written.
type move struct {
	slot rowraft.Slot
	e    uint64 // its entry until then
}

// waitingRow is a row as it is at a cold place.
type waitingRow struct {
	e      uint64
	record []uint64
}

const (
	// readShare: one of this many rows that pulls read from the file moves into memory. A row that is pulled often soon
	// does; a row that is pulled once seldom displaces another one.
	readShare  = 4
	maxWaiting = 1024
)

// newTier returns the tier of t, or nil if all rows are to be in memory. o.Tier stays with the caller if there is an
// error.
func newTier(t *Table, o *Options) (*Tier, error) {
	if o.Schema.Memory == 0 || o.Tier == nil {
		return nil, nil
	}
	owned := 0
	for _, w := range t.index.bits {
		owned += bits.OnesCount64(w)
	}
	r := &Tier{table: t}
	hi, lo := bits.Mul64(o.Schema.Memory, uint64(owned))
	share, _ := bits.Div64(hi, lo, uint64(t.index.slotCount))
	r.share = int64(share)
	rows := int(r.share) / t.index.slabRecordBytes()
	r.clock = clock.New(2 * rows)
	if o.TierRef == nil {
		r.file = coldfile.New(o.Tier, o.TierID, t.index.slabRecordBytes(), rows/8)
		return r, nil
	}
	if have, want := o.TierRef.File.RecordBytes, t.index.slabRecordBytes(); have != want {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "table %s: cold rows of %d bytes, want %d", o.Schema.Name, have, want)
	}
	t.index.secret = o.TierRef.Secret
	var err error
	r.file, err = coldfile.Open(o.Tier, o.TierRef.File)
	return r, err
}

// Tier returns the tier of the table, or nil if all its rows are in memory.
func (t *Table) Tier() *Tier { return t.index.tier }

// Stats returns sizes, and counts since the tier was made. It may be called at any time.
func (r *Tier) Stats() coldfile.Stats {
	if r == nil {
		return coldfile.Stats{}
	}
	return r.file.Stats()
}

// Broken returns why rows in the file cannot be read, or nil. It is final.
func (r *Tier) Broken() error {
	if r == nil {
		return nil
	}
	return loadError(&r.failed.read)
}

// Full returns why the last rows could not be written to the file, or nil. They are still in memory.
func (r *Tier) Full() error {
	if r == nil {
		return nil
	}
	return loadError(&r.failed.write)
}

func loadError(p *atomic.Pointer[error]) error {
	if err := p.Load(); err != nil {
		return *err
	}
	return nil
}

// limit is how many rows may stay in memory. Each row has an entry in the index, which is always in memory.
func (r *Tier) limit() int64 {
	x := &r.table.index
	return max(int64(r.file.PerExtent()), (r.share-x.blocks.Stats().UsedBytes)/int64(x.slabRecordBytes()))
}

// usable returns why no row may change: rows in the file cannot be read, so none can leave the memory any more, or far
// more rows are in memory than may stay there, because the file cannot be written.
func (r *Tier) usable() error {
	if err := r.Broken(); err != nil || r.failed.write.Load() == nil {
		return err
	}
	if most := r.limit() + r.limit()/4 + 4*int64(r.file.PerExtent()); r.inMemory.Load() > most {
		return rowraft.Errorf(rowraft.CodeOverloaded, "table %s has more than %d rows in memory, the limit: %w",
			r.table.schema.Name, most, r.Full())
	}
	return nil
}

// added notes that place p of the slab has a row.
func (r *Tier) added(p slab.Place) {
	r.clock.Add(p)
	r.inMemory.Add(1)
}

// removed notes that place p of the slab has no row any more.
func (r *Tier) removed(p slab.Place) {
	r.clock.Remove(p)
	r.inMemory.Add(-1)
}
