package shard

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/shard/rowstore/coldfile"
	"github.com/rowraft/rowraft/wire"
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
	// Tier has the files for the cold rows of tables with a memory limit. nil: all rows are in memory. Where a row lies is
	// no part of the state.
	Tier *coldfile.Dir
}

// Machine is the state machine of one shard replica.
//
// Goroutines: the apply goroutine (owned by raftstore) calls Apply, Snapshot
// and Restore, one at a time and in log order. Any goroutine may call the other methods
// until Close returns. Machine starts a goroutine only to free the memory of
// a dropped table; Close waits for it.
//
// Lock order: applyMu, then mu, then readers, then walks. None is held across I/O (but see cold rows in DESIGN.md), a
// channel operation or a call out of this package and the packages below it.
type Machine struct {
	Reads    // what pulls read without mu
	position // of the log and the tables

	Sessions Sessions     // of clients, with the results of their pushes
	Jobs     Jobs         // the training jobs, with their steps and clocks
	Rounds   DigestRounds // results of digest rounds
	Cold     ColdFiles    // of tiered tables

	scrub scrubber
	maker tableMaker

	// applyMu is held while one entry is applied, so that its holder sees the state
	// at one index.
	applyMu sync.Mutex

	// walks is held for reading, inside readers, while a goroutine reads a snapshot, and for writing while images are
	// freed.
	walks sync.RWMutex

	freeing sync.WaitGroup // goroutines that free dropped tables

	mu struct {
		sync.RWMutex
		health
		tables *tableSet
		cuts   cuts
		stage  *stage // the state of a running restore, or nil
	}
}

// position is how far a replica has applied the log.
//
// Apply stores applied after the rows have changed, so a goroutine that first loads it and then reads rows sees at
// least that entry. Invariant: none of the three decreases, except in Restore.
type position struct{ applied, logTime, epoch atomic.Uint64 }

// AppliedIndex returns the index of the last entry whose effects Pull can see.
// It never decreases, except by Restore.
func (p *position) AppliedIndex() rowraft.Index { return rowraft.Index(p.applied.Load()) }

// LogTime returns the logged time of the last entry in nanoseconds.
func (p *position) LogTime() uint64 { return p.logTime.Load() }

// Epoch returns the table epoch, which the leader writes into entries.
func (p *position) Epoch() rowraft.TableEpoch { return rowraft.TableEpoch(p.epoch.Load()) }

// tick advances log time to that of h and returns it. Only the apply goroutine calls it.
func (p *position) tick(h wire.EntryHeader) uint64 {
	now := max(p.logTime.Load(), h.LogTime)
	p.logTime.Store(now)
	return now
}

// checkEpoch refuses an entry that was proposed for the tables of another epoch.
func (p *position) checkEpoch(shard rowraft.ShardID, h wire.EntryHeader) error {
	if have := p.Epoch(); h.Epoch != have {
		return rowraft.Errorf(rowraft.CodeSessionExpired,
			"shard %d: the entry is for table epoch %d, but the tables have epoch %d: open a new session",
			shard, h.Epoch, have)
	}
	return nil
}

// health is whether a replica may apply and serve. Machine.mu guards it.
type health struct {
	shard  rowraft.ShardID
	closed bool
	// failed is the fatal error that stopped this replica. The rows may match
	// no index, so nothing is served. Only Restore clears it.
	failed error
	// fenced is the reason why this replica is fenced, or nil. Nothing clears it.
	fenced *FencedError
}

// usable returns the reason why nothing can be read or applied, or nil.
func (h *health) usable() error {
	if h.closed {
		return rowraft.Errorf(rowraft.CodeClosing, "shard %d is closed", h.shard)
	}
	if h.fenced != nil {
		return h.fenced
	}
	return h.failed
}

// state is everything that a snapshot holds.
type state struct {
	tables   *tableSet
	sessions sessionTable
	jobs     jobTable
}

// publishLocked replaces the view by the present state.
// REQUIRES: m.mu is held for writing.
func (m *Machine) publishLocked() {
	m.view.Store(&view{of: m.mu.tables, list: slices.Clone(m.mu.tables.list), err: m.mu.usable()})
}

// replaceLocked makes st the state of the Machine, calls done, and frees the old
// tables when no reader uses them any more. Readers that start after done has returned see st.
// REQUIRES: m.applyMu is held, and m.mu for writing.
func (m *Machine) replaceLocked(st state, done func()) error {
	old := m.mu.tables
	m.mu.tables, m.Sessions.table, m.Jobs.table = st.tables, st.sessions, st.jobs
	m.mu.cuts.running = nil // their images are freed together with the old tables
	m.readers.Lock()
	m.publishLocked()
	done()
	m.readers.Unlock()
	return old.close()
}

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
	m := &Machine{Reads: Reads{shard: c.Shard, owned: newSlotSet(count, c.Slots)}}
	m.Reads.at, m.mu.shard, m.mu.tables = &m.position, c.Shard, &tableSet{}
	m.tend = func(t *table, err error) error { return tend(m, t, err) }
	m.maker = tableMaker{owned: m.owned, tier: c.Tier}
	m.Cold = ColdFiles{reads: &m.Reads, dir: c.Tier}
	m.Sessions.mu, m.Sessions.at = &m.mu.RWMutex, &m.position
	m.Jobs.mu, m.Jobs.shard = &m.mu.RWMutex, c.Shard
	m.Rounds.mu = &m.mu.RWMutex
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
	// These goroutines take only readers, which is released above, so this one may hold the other two locks while it
	// waits.
	m.freeing.Wait()
	stage := m.mu.stage
	m.mu.stage = nil
	return errors.Join(stage.close(), m.mu.tables.close())
}

// Tables returns the schemas of all tables, ascending by ID.
func (m *Machine) Tables() []rowraft.Schema {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.mu.tables.schemas()
}

// Table returns the schema of a table, if it exists in this shard.
func (m *Machine) Table(id rowraft.TableID) (schema rowraft.Schema, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	t := m.mu.tables.get(id)
	if t == nil {
		return schema, false
	}
	return t.schema, true
}

// TableStats is the size of one table in this shard.
type TableStats struct {
	ID    rowraft.TableID
	Name  string
	Rows  uint64
	Bytes uint64 // memory of rows, candidates, index and running snapshots

	// Counters are of a table with admission, expiry or a capacity; zero for others.
	Counters rowstore.Counters

	Tier      coldfile.Stats // of a table with a memory limit
	TierError error          // why rows cannot be written to its file, or be read from it; nil: they can
}

// Stats returns the size of each table, ascending by ID.
func (m *Machine) Stats() []TableStats {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.mu.closed {
		return nil
	}
	out := make([]TableStats, len(m.mu.tables.list))
	for i, t := range m.mu.tables.list {
		out[i] = TableStats{
			ID: t.schema.ID, Name: t.schema.Name,
			Rows: uint64(t.rows.Rows()), Bytes: uint64(t.rows.Bytes()), Counters: t.rows.Counters(),
			Tier: t.rows.Tier().Stats(), TierError: cmp.Or(t.rows.Tier().Broken(), t.rows.Tier().Full()),
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
	if err := m.mu.usable(); err != nil {
		return Digest{}, err
	}
	sum, rows := m.mu.tables.digest()
	return Digest{Index: m.AppliedIndex(), Sum: sum.Bytes(), Rows: rows}, nil
}
