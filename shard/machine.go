package shard

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard/rowstore"
)

// MaxTables is the largest number of tables in a shard; a constant of the format version.
const MaxTables = 1024

// Config is the arguments of New.
type Config struct {
	Shard rowraft.ShardID
	// SlotCount is the number of slots of the cluster; 0: rowraft.DefaultSlots. Like Epoch, it is not in the log.
	SlotCount rowraft.SlotCount
	Slots     []rowraft.Slot // slots of this shard; nil means all
	// Epoch is the table epoch before the first entry; 0 means 1. The log does not contain it,
	// so all replicas must be given the same value, at every start.
	Epoch rowraft.TableEpoch
}

// Machine is the state machine of one shard replica.
//
// Goroutines: the apply goroutine (owned by raftstore) calls Apply, Snapshot
// and Restore, one at a time and in log order. Any goroutine may call the other methods
// until Close returns. Machine starts a goroutine only to free the memory of
// a dropped table; Close waits for it.
//
// Lock order: applyMu, then mu, then readers. None is held across I/O, a channel
// operation or a call out of this package and the packages below it.
type Machine struct {
	shard rowraft.ShardID
	owned *ownedSlots // immutable

	// applied, logTime and epoch belong to state, for readers without a lock.
	// Apply stores applied after the rows have changed, so a goroutine that first loads it and then
	// reads rows sees at least that entry.
	applied atomic.Uint64
	logTime atomic.Uint64
	epoch   atomic.Uint64

	// Results of digest rounds (digestround.go). They are not part of a snapshot.
	agreedAt   atomic.Uint64 // newest mark at which this replica agreed with the majority
	noMajority atomic.Uint64 // mark at which no majority agreed; 0: none

	evicted atomic.Uint64 // sessions evicted since the start; not part of a snapshot

	scrub scrubber

	// applyMu is held while one entry is applied, so that its holder sees the state
	// at one index.
	applyMu sync.Mutex

	// view is what pulls read. They do not take mu, because Apply holds mu while rows change. A
	// goroutine that changes the set of tables or the error replaces view under mu.
	view atomic.Pointer[view]

	// readers is held for reading while a goroutine reads rows of a view or of a snapshot, one chunk
	// at a time. It is held for writing to wait for such goroutines before rows or images are
	// freed. A change of rows does not take it.
	readers sync.RWMutex

	freeing sync.WaitGroup // goroutines that free dropped tables

	mu struct {
		sync.RWMutex
		*state
		closed bool
		// failed is the fatal error that stopped this replica. The rows may match
		// no index, so nothing is served. Only Restore clears it.
		failed error
		// snapshots are the snapshots that are not yet released.
		snapshots []*Snapshot
		// expected are the marks at which Apply takes a snapshot.
		expected []*ExpectedMark
		// stage is the state of a running restore, or nil.
		stage *stage
		// digests are the digests of this replica at the last marks.
		digests digestHistory
		// fenced is the reason why this replica is fenced, or nil. Nothing clears it.
		fenced *FencedError
	}
}

// state is everything that a snapshot holds. Restore replaces the whole struct, so
// a changed address means that the state was replaced.
type state struct {
	tables   []*table // ascending by ID
	dropped  []*table // dropped tables that a running snapshot reads; not part of a new snapshot
	sessions sessions
	ended    ended
	// private are the sessions that no snapshot shares; nil means all of them.
	private map[*checkpoint.Session]bool

	jobs jobs
	// privateJobs are the jobs that no snapshot shares; nil means all of them.
	privateJobs map[*checkpoint.Job]bool
}

// view is the tables that readers may use. It is immutable; the rows in it change.
type view struct {
	state  *state // only for comparison; mu guards its fields
	tables []*table
	err    error // the reason why nothing can be read, or nil
}

// publishLocked replaces the view by the present state.
// REQUIRES: m.mu is held for writing.
func (m *Machine) publishLocked() {
	m.view.Store(&view{state: m.mu.state, tables: slices.Clone(m.mu.tables), err: m.usableLocked()})
}

// replaceLocked makes st the state of the Machine, calls done, and frees the old
// state when no reader uses it any more. Readers that start after done has returned see st.
// REQUIRES: m.applyMu is held, and m.mu for writing.
func (m *Machine) replaceLocked(st *state, done func()) error {
	old := m.mu.state
	m.mu.state = st
	m.readers.Lock()
	m.publishLocked()
	done()
	m.readers.Unlock()
	return old.close()
}

// table is a table of the shard. All fields are immutable and need no lock. Readers of rows
// must hold readers.
type table struct {
	schema rowraft.Schema
	seed   uint64 // clustermap.TableSeed
	rows   *rowstore.Table
}

// ownedSlots is the set of the slots of a shard.
type ownedSlots struct {
	count       rowraft.SlotCount // of the cluster
	first, past rowraft.Slot      // the set is within first … past − 1
	words       []uint64          // a bit for each slot from first on
}

// newOwned returns the set of slots, or of all slots if slots is nil.
func newOwned(count rowraft.SlotCount, slots []rowraft.Slot) *ownedSlots {
	o := &ownedSlots{count: count, past: rowraft.Slot(count)}
	if slots != nil && len(slots) == 0 {
		o.past = 0
	} else if slots != nil {
		o.first, o.past = slices.Min(slots), slices.Max(slots)+1
	}
	o.words = make([]uint64, (o.past-o.first+63)/64)
	for s := o.first; slots == nil && s < o.past; s++ {
		o.add(s)
	}
	for _, s := range slots {
		o.add(s)
	}
	return o
}

func (o *ownedSlots) add(s rowraft.Slot) { o.words[(s-o.first)/64] |= 1 << ((s - o.first) % 64) }

func (o *ownedSlots) has(s rowraft.Slot) bool {
	i := s - o.first
	return s >= o.first && s < o.past && o.words[i/64]>>(i%64)&1 != 0
}

// Slots returns the slots of this shard, ascending.
func (m *Machine) Slots() (slots []rowraft.Slot) {
	for s := m.owned.first; s < m.owned.past; s++ {
		if m.owned.has(s) {
			slots = append(slots, s)
		}
	}
	return slots
}

// SlotCount returns the number of slots of the cluster.
func (m *Machine) SlotCount() rowraft.SlotCount { return m.owned.count }

// New returns a Machine without tables at index 0.
//
// Errors: CodeInvalidArgument if a slot does not exist, or the cluster cannot have this number of slots.
func New(c Config) (*Machine, error) {
	count := cmp.Or(c.SlotCount, rowraft.DefaultSlots)
	if err := count.Check(); err != nil {
		return nil, fmt.Errorf("shard %d: %w", c.Shard, err)
	}
	for _, s := range c.Slots {
		if s >= rowraft.Slot(count) {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d: slot %d does not exist: want less than %d",
				c.Shard, s, count)
		}
	}
	m := &Machine{shard: c.Shard, owned: newOwned(count, c.Slots)}
	m.mu.state = &state{}
	m.publishLocked()
	m.epoch.Store(uint64(max(c.Epoch, 1)))
	return m, nil
}

// Close waits until no pull uses the rows any more, and frees them.
func (m *Machine) Close() error {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mu.closed {
		return nil
	}
	m.mu.closed = true
	m.readers.Lock()
	m.publishLocked()
	m.readers.Unlock()
	m.freeing.Wait()
	return errors.Join(m.dropStageLocked(), m.mu.state.close())
}

func (st *state) close() error {
	return errors.Join(closeTables(st.tables), closeTables(st.dropped))
}

// AppliedIndex returns the index of the last entry whose effects Pull can see.
// It never decreases, except by Restore.
func (m *Machine) AppliedIndex() rowraft.Index { return rowraft.Index(m.applied.Load()) }

// EvictedSessions returns how many sessions this replica evicted for new ones since its start.
func (m *Machine) EvictedSessions() uint64 { return m.evicted.Load() }

// LogTime returns the logged time of the last entry in nanoseconds.
func (m *Machine) LogTime() uint64 { return m.logTime.Load() }

// Epoch returns the table epoch, which the leader writes into entries.
func (m *Machine) Epoch() rowraft.TableEpoch { return rowraft.TableEpoch(m.epoch.Load()) }

// Tables returns the schemas of all tables, ascending by ID.
func (m *Machine) Tables() []rowraft.Schema {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.schemas()
}

func (st *state) schemas() []rowraft.Schema {
	out := make([]rowraft.Schema, len(st.tables))
	for i, t := range st.tables {
		out[i] = t.schema
	}
	return out
}

// Table returns the schema of a table, if it exists in this shard.
func (m *Machine) Table(id rowraft.TableID) (schema rowraft.Schema, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t := m.mu.table(id)
	if t == nil {
		return schema, false
	}
	return t.schema, true
}

// HasTable reports whether the table exists in this shard.
func (m *Machine) HasTable(id rowraft.TableID) bool {
	_, ok := m.Table(id)
	return ok
}

// TableStats is the size of one table in this shard.
type TableStats struct {
	ID    rowraft.TableID
	Name  string
	Rows  uint64
	Bytes uint64 // memory of rows, candidates, index and running snapshots

	// Counters are of a table with admission, expiry or a capacity; zero for others.
	Counters rowstore.Counters
}

// Stats returns the size of each table, ascending by ID.
func (m *Machine) Stats() []TableStats {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.closed {
		return nil
	}
	out := make([]TableStats, len(m.mu.tables))
	for i, t := range m.mu.tables {
		out[i] = TableStats{
			ID: t.schema.ID, Name: t.schema.Name,
			Rows: uint64(t.rows.Rows()), Bytes: uint64(t.rows.Bytes()), Counters: t.rows.Counters(),
		}
	}
	return out
}

// Digest identifies the content of a shard at one index.
type Digest struct {
	Index rowraft.Index
	Sum   [16]byte // Σ mod 2^128 over the hashes of all rows, little-endian
	Rows  uint64
}

// Digest returns the digest at the applied index. It waits for the end of an entry that is
// being applied.
func (m *Machine) Digest() (Digest, error) {
	m.applyMu.Lock()
	defer m.applyMu.Unlock()
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.usableLocked(); err != nil {
		return Digest{}, err
	}
	sum, rows := m.mu.digest()
	return Digest{Index: m.AppliedIndex(), Sum: sum.Bytes(), Rows: rows}, nil
}

func (st *state) digest() (sum rowstore.Digest, rows uint64) {
	for _, t := range st.tables {
		sum = sum.Add(t.rows.Digest())
		rows += uint64(t.rows.Rows())
	}
	return sum, rows
}

// usableLocked returns the reason why nothing can be read or applied, or nil.
// REQUIRES: m.mu is held for reading or writing.
func (m *Machine) usableLocked() error {
	if m.mu.closed {
		return rowraft.Errorf(rowraft.CodeClosing, "shard %d is closed", m.shard)
	}
	if m.mu.fenced != nil {
		return m.mu.fenced
	}
	return m.mu.failed
}

// table returns the table, or nil if it does not exist.
func (st *state) table(id rowraft.TableID) *table { return findTable(st.tables, id) }

func (v *view) table(id rowraft.TableID) *table { return findTable(v.tables, id) }

// findTable searches tables, which ascend by ID.
func findTable(tables []*table, id rowraft.TableID) *table {
	i, ok := slices.BinarySearchFunc(tables, id, func(t *table, id rowraft.TableID) int {
		switch {
		case t.schema.ID < id:
			return -1
		case t.schema.ID > id:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return tables[i]
}

// addTable adds an empty table. REQUIRES: neither its ID nor its name is taken.
func (st *state) addTable(s rowraft.Schema, owned *ownedSlots) (*table, error) {
	rows, err := rowstore.New(rowstore.Options{Schema: s, Slots: owned.count, Owned: owned.has})
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", s.Name, err)
	}
	t := &table{schema: s, seed: clustermap.TableSeed(s.ID), rows: rows}
	at := 0
	for at < len(st.tables) && st.tables[at].schema.ID < s.ID {
		at++
	}
	st.tables = slices.Insert(st.tables, at, t)
	return t, nil
}

// header returns the header of a snapshot of the present state.
func (m *Machine) header() checkpoint.Header {
	return checkpoint.Header{Shard: m.shard, Applied: m.AppliedIndex(), LogTime: m.LogTime(), Epoch: m.Epoch()}
}
