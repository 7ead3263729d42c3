package reference

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/rowraft/rowraft"
)

// Constants from docs/formats/entry.md and payload.md.
const (
	window      = 1024
	maxSessions = 4096
	second      = 1_000_000_000 // of log time, which is in nanoseconds
	sessionTTL  = 24 * 60 * 60 * second

	maxOwnerSessions = 2048
	maxOver          = 4096

	maxTables  = 1024
	maxDim     = 4096
	maxRows    = 262144
	maxPayload = 4 << 20
)

var le = binary.LittleEndian

// Machine is the state of one shard at one index. Its fields may be read between
// calls.
type Machine struct {
	Shard   rowraft.ShardID
	Slots   uint64                // of the cluster
	Owned   map[rowraft.Slot]bool // slots held here; nil: all
	Applied rowraft.Index
	LogTime uint64 // nanoseconds
	Epoch   rowraft.TableEpoch

	Tables   map[rowraft.TableID]*Table
	Sessions map[rowraft.ClientID]*Session
	Over     []Over // the last sessions that have ended
	// OverFloor is the index at which the newest session that is no longer in Over ended.
	OverFloor rowraft.Index
	Jobs      map[rowraft.JobID]*Job
	Stage     *Stage // of a restore; nil: none

	sum     Sum
	notes   []note // at the last marks; in no snapshot
	stopped error
}

// Table is one table and its rows.
type Table struct {
	Schema   rowraft.Schema
	Rows     map[rowraft.Key]*Row
	Counters map[rowraft.Slot]uint64 // the last version each slot gave out
	Removed  map[rowraft.Slot]uint64 // the counter when a row last left the slot

	Candidates map[rowraft.Key]Candidate

	slots uint64 // of the cluster
}

func (m *Machine) newTable(s rowraft.Schema) *Table {
	return &Table{
		Schema: s, slots: m.Slots, Rows: map[rowraft.Key]*Row{}, Counters: map[rowraft.Slot]uint64{},
		Removed:    map[rowraft.Slot]uint64{},
		Candidates: map[rowraft.Key]Candidate{},
	}
}

// Session is the state of one client.
type Session struct {
	Incarnation rowraft.Incarnation
	Floor       rowraft.Seq
	LastUsed    uint64                       // log time
	Answered    map[rowraft.Seq]rowraft.Code // above the floor; CodeUnknown: applied
}

// Answer is the result of one part, or of an entry of another kind.
type Answer struct {
	Code      rowraft.Code // CodeUnknown: applied, now or before
	Duplicate bool
}

func (a Answer) String() string {
	switch {
	case a.Duplicate:
		return "duplicate"
	case a.Code == rowraft.CodeUnknown:
		return "ok"
	}
	return a.Code.String()
}

// New returns a shard without tables at index 0, in the first epoch, of a cluster of count slots; 0: 4096. slots nil
// means all.
func New(shard rowraft.ShardID, count rowraft.SlotCount, slots []rowraft.Slot) *Machine {
	m := &Machine{Shard: shard, Slots: uint64(cmp.Or(count, 4096)), Epoch: 1, Tables: map[rowraft.TableID]*Table{},
		Sessions: map[rowraft.ClientID]*Session{}, Jobs: map[rowraft.JobID]*Job{}}
	if slots != nil {
		m.Owned = make(map[rowraft.Slot]bool)
		for _, s := range slots {
			m.Owned[s] = true
		}
	}
	return m
}

// owns reports whether the shard holds slot s.
func (m *Machine) owns(s rowraft.Slot) bool { return m.Owned == nil || m.Owned[s] }

// Apply applies entry, whose index must be above Applied, and returns its answers. An error stops the
// replica: the entry and all later ones are refused, and nothing has changed.
func (m *Machine) Apply(index rowraft.Index, entry []byte) ([]Answer, error) {
	if m.stopped != nil {
		return nil, m.stopped
	}
	if index <= m.Applied {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "entry %d comes after %d", index, m.Applied)
	}
	e, err := decodeEntry(entry)
	if err != nil {
		m.stopped = err
		return nil, err
	}
	m.Applied = index
	m.LogTime = max(m.LogTime, e.logTime)
	answers := make([]Answer, 0, 1)
	switch e.kind {
	case kindParts:
		for _, p := range e.parts {
			answers = append(answers, m.inEpoch(e, func() Answer { return m.applyPart(p) }))
		}
	case kindOpenSession:
		answers = append(answers, m.inEpoch(e,
			func() Answer { return Answer{Code: m.open(e.client, e.incarnation, e.ticket)} }))
	case kindCloseSession:
		answers = append(answers, m.inEpoch(e, func() Answer { m.close(e.client, e.incarnation); return Answer{} }))
	case kindCreateTable:
		answers = append(answers, m.inEpoch(e, func() Answer { return Answer{Code: m.create(e.schema)} }))
	case kindDropTable:
		answers = append(answers, m.inEpoch(e, func() Answer { m.drop(e.dropped); return Answer{} }))
	case kindProof:
		answers = append(answers, m.inEpoch(e, func() Answer { return m.applyProof(e.proof) }))
	case kindSweep:
		answers = append(answers, m.inEpoch(e, func() Answer { return Answer{Code: m.applySweep(e.sweep)} }))
	case kindMembership:
		answers = append(answers, m.inEpoch(e, func() Answer { return Answer{Code: m.applyMembership(e.membership)} }))
	case kindStep:
		answers = append(answers, m.inEpoch(e, func() Answer { return m.applyStep(e.step) }))
	default:
		answers = append(answers, m.inEpoch(e, func() Answer { return m.applyRestore(e.kind, e.restore) }))
	}
	return answers, nil
}

// inEpoch applies e unless it is for another table epoch.
func (m *Machine) inEpoch(e *entry, do func() Answer) Answer {
	if e.epoch != m.Epoch {
		return Answer{Code: rowraft.CodeSessionExpired}
	}
	return do()
}

// drop removes a table, if it exists.
func (m *Machine) drop(id rowraft.TableID) {
	t := m.Tables[id]
	if t == nil {
		return
	}
	for key, r := range t.Rows {
		m.sum = m.sum.minus(r.hash(key))
	}
	for key, c := range t.Candidates {
		m.sum = m.sum.minus(c.hash(key))
	}
	delete(m.Tables, id)
}

func (m *Machine) create(s rowraft.Schema) rowraft.Code {
	if s.ID == 0 {
		return rowraft.CodeInvalidArgument
	}
	for _, t := range m.Tables {
		if t.Schema == s {
			return rowraft.CodeUnknown
		}
	}
	for _, t := range m.Tables {
		if t.Schema.ID == s.ID || t.Schema.Name == s.Name {
			return rowraft.CodeTableExists
		}
	}
	if len(m.Tables) == maxTables {
		return rowraft.CodeInvalidArgument
	}
	m.Tables[s.ID] = m.newTable(s)
	return rowraft.CodeUnknown
}

// Sum is a digest: a number mod 2^128.
type Sum struct{ Hi, Lo uint64 }

func (s Sum) plus(o Sum) Sum {
	lo, carry := bits.Add64(s.Lo, o.Lo, 0)
	hi, _ := bits.Add64(s.Hi, o.Hi, carry)
	return Sum{hi, lo}
}

func (s Sum) minus(o Sum) Sum {
	lo, borrow := bits.Sub64(s.Lo, o.Lo, 0)
	hi, _ := bits.Sub64(s.Hi, o.Hi, borrow)
	return Sum{hi, lo}
}

// Bytes returns the sum little-endian, as in a snapshot.
func (s Sum) Bytes() [16]byte {
	var b [16]byte
	le.PutUint64(b[:], s.Lo)
	le.PutUint64(b[8:], s.Hi)
	return b
}

// Digest returns the sum of the hashes of all rows, and their number.
func (m *Machine) Digest() (sum [16]byte, rows uint64) {
	for _, t := range m.Tables {
		rows += uint64(len(t.Rows))
	}
	return m.sum.Bytes(), rows
}

// Diff describes the first difference between two states, empty if there is none. It ignores Owned.
func (m *Machine) Diff(o *Machine) string {
	switch {
	case m.Shard != o.Shard:
		return fmt.Sprintf("shard %d, %d", m.Shard, o.Shard)
	case m.Applied != o.Applied:
		return fmt.Sprintf("applied index %d, %d", m.Applied, o.Applied)
	case m.LogTime != o.LogTime:
		return fmt.Sprintf("log time %d, %d", m.LogTime, o.LogTime)
	case m.Epoch != o.Epoch:
		return fmt.Sprintf("epoch %d, %d", m.Epoch, o.Epoch)
	}
	for _, id := range keysOfBoth(m.Tables, o.Tables) {
		if d := diffTable(m.Tables[id], o.Tables[id]); d != "" {
			return fmt.Sprintf("table %#x: %s", uint64(id), d)
		}
	}
	clients := keysOfBothFunc(m.Sessions, o.Sessions, func(a, b rowraft.ClientID) int { return bytes.Compare(a[:], b[:]) })
	for _, c := range clients {
		a, b := m.Sessions[c], o.Sessions[c]
		if a == nil || b == nil {
			return fmt.Sprintf("client %x: one has a session, the other none", c)
		}
		if a.Incarnation != b.Incarnation || a.Floor != b.Floor || a.LastUsed != b.LastUsed ||
			!maps.Equal(a.Answered, b.Answered) {
			return fmt.Sprintf("client %x: session %+v, %+v", c, *a, *b)
		}
	}
	if !slices.Equal(m.Over, o.Over) || m.OverFloor != o.OverFloor {
		return fmt.Sprintf("sessions that are over: %v above %d, %v above %d", m.Over, m.OverFloor, o.Over, o.OverFloor)
	}
	if d := diffJobs(m.Jobs, o.Jobs); d != "" {
		return d
	}
	if m.sum != o.sum {
		return fmt.Sprintf("digest %x, %x", m.sum.Bytes(), o.sum.Bytes())
	}
	return ""
}

func diffTable(a, b *Table) string {
	switch {
	case a == nil || b == nil:
		return "one has it, the other does not"
	case a.Schema != b.Schema:
		return fmt.Sprintf("schema %+v, %+v", a.Schema, b.Schema)
	}
	for _, s := range keysOfBoth(a.Counters, b.Counters) {
		if a.Counters[s] != b.Counters[s] {
			return fmt.Sprintf("slot %d gave out %d versions, %d", s, a.Counters[s], b.Counters[s])
		}
	}
	if !maps.Equal(a.Removed, b.Removed) {
		return fmt.Sprintf("rows were last removed at %v, %v", a.Removed, b.Removed)
	}
	for _, k := range keysOfBoth(a.Candidates, b.Candidates) {
		if x, y := a.Candidates[k], b.Candidates[k]; x != y {
			return fmt.Sprintf("candidate %d: %+v, %+v", k, x, y)
		}
	}
	for _, k := range keysOfBoth(a.Rows, b.Rows) {
		x, y := a.Rows[k], b.Rows[k]
		if x == nil || y == nil {
			return fmt.Sprintf("key %d: one has a row, the other does not", k)
		}
		if x.Recency != y.Recency || x.Count != y.Count || !bytes.Equal(x.record(k), y.record(k)) {
			return fmt.Sprintf("key %d: row %+v, %+v", k, *x, *y)
		}
	}
	return ""
}

func keysOfBoth[K interface {
	comparable
	~uint64 | ~uint32
}, V any](a, b map[K]V) []K {
	return keysOfBothFunc(a, b, func(x, y K) int {
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
}

func keysOfBothFunc[K comparable, V any](a, b map[K]V, compare func(x, y K) int) []K {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.SortedFunc(maps.Keys(all), compare)
}
