package reference

import (
	"bytes"
	"maps"

	"github.com/rowraft/rowraft"
)

// Kinds of entries that mark an index and restore tables, from docs/formats/entry.md.
const (
	kindMark         = 4
	kindRestoreBegin = 5
	kindRestoreRows  = 6
	kindRestoreClose = 7
	kindRestoreDrop  = 8
)

// Stage is the state of a running restore.
type Stage struct {
	ID     [16]byte
	Epoch  rowraft.TableEpoch
	Next   uint64
	Broken rowraft.Code // the reason why it cannot be closed; CodeUnknown: none
	m      *Machine     // its tables
	base   uint32       // tick from which ages are subtracted
}

// restore is the body of an entry of kinds 4 to 8.
type restore struct {
	id     [16]byte
	epoch  rowraft.TableEpoch
	tables []rowraft.Schema
	seq    uint64 // or the number of chunks
	rows   uint64
	digest [16]byte
	blocks []block
	base   uint32
}

type block struct {
	table   rowraft.TableID
	slot    rowraft.Slot
	counter uint64
	size    int
	records [][]byte

	candidates bool
	tick       uint32 // of the source
}

func decodeRestore(kind byte, b []byte) (r *restore, err error) {
	if len(b) < 16 {
		return nil, corrupt("restore: no id")
	}
	r = &restore{id: [16]byte(b)}
	b = b[16:]
	switch kind {
	case kindMark, kindRestoreDrop:
		if len(b) != 0 {
			return nil, corrupt("bytes follow an id")
		}
	case kindRestoreBegin:
		if len(b) < 16 {
			return nil, corrupt("restore begin ends early")
		}
		r.epoch = rowraft.TableEpoch(le.Uint64(b))
		n, last := uint64(le.Uint32(b[8:])), rowraft.TableID(0)
		r.base = le.Uint32(b[12:])
		for b = b[16:]; len(b) > 0; {
			var s rowraft.Schema
			if s, b, err = decodeSchema(b); err != nil {
				return nil, err
			}
			if s.ID <= last {
				return nil, corrupt("restore begin: tables out of order")
			}
			last = s.ID
			r.tables = append(r.tables, s)
		}
		if n != uint64(len(r.tables)) {
			return nil, corrupt("restore begin: another number of tables")
		}
	case kindRestoreRows:
		if len(b) < 8 {
			return nil, corrupt("restore rows end early")
		}
		r.seq = le.Uint64(b)
		for b = b[8:]; len(b) > 0; {
			if b, err = r.decodeBlock(b); err != nil {
				return nil, err
			}
		}
	case kindRestoreClose:
		if len(b) != 40 {
			return nil, corrupt("restore close of another length")
		}
		r.epoch, r.seq, r.rows, r.digest = rowraft.TableEpoch(le.Uint64(b)), le.Uint64(b[8:]), le.Uint64(b[16:]),
			[16]byte(b[24:])
	}
	return r, nil
}

func (r *restore) decodeBlock(b []byte) (rest []byte, err error) {
	if len(b) < 32 {
		return nil, corrupt("a block ends early")
	}
	k := block{table: rowraft.TableID(le.Uint64(b)), slot: rowraft.Slot(le.Uint16(b[8:])), counter: le.Uint64(b[16:]),
		size: int(le.Uint32(b[24:])), candidates: b[10] == 1, tick: le.Uint32(b[28:])}
	n := int(le.Uint32(b[12:]))
	if k.candidates && k.size != 16 || !k.candidates && k.size < 24 {
		return nil, corrupt("an impossible block")
	}
	if b[10] > 1 || b[11] != 0 || n > len(b)/16 || n*k.size > len(b)-32 {
		return nil, corrupt("an impossible block")
	}
	b = b[32:]
	length := n * k.size
	padded := (length + 7) / 8 * 8
	if padded > len(b) || !zero(b[length:padded]) {
		return nil, corrupt("a block that does not end at a multiple of 8")
	}
	for i := range n {
		k.records = append(k.records, b[i*k.size:(i+1)*k.size])
	}
	r.blocks = append(r.blocks, k)
	return b[padded:], nil
}

// applyRestore applies the body of an entry of kinds 4 to 8.
func (m *Machine) applyRestore(kind byte, r *restore) Answer {
	g := m.Stage
	switch kind {
	case kindMark:
		m.takeNote()
	case kindRestoreBegin:
		return Answer{Code: m.beginStage(r)}
	case kindRestoreRows:
		switch {
		case g == nil || g.ID != r.id:
			return Answer{Code: rowraft.CodeNotFound}
		case g.Broken != rowraft.CodeUnknown:
			return Answer{Code: g.Broken}
		case r.seq == 0 || r.seq > g.Next:
			return Answer{Code: rowraft.CodeInvalidArgument}
		case r.seq < g.Next:
			return Answer{Duplicate: true}
		}
		for _, k := range r.blocks {
			if g.Broken = g.m.stageBlock(k, g.base); g.Broken != rowraft.CodeUnknown {
				return Answer{Code: g.Broken}
			}
		}
		g.Next++
	case kindRestoreClose:
		return Answer{Code: m.closeStage(r)}
	case kindRestoreDrop:
		if g != nil && g.ID == r.id {
			m.Stage = nil
		}
	}
	return Answer{}
}

func (m *Machine) beginStage(r *restore) rowraft.Code {
	alone := r.epoch == m.Epoch
	if r.epoch < m.Epoch || alone && len(r.tables) == 0 {
		return rowraft.CodeInvalidArgument
	}
	if m.Stage != nil && m.Stage.ID == r.id {
		return rowraft.CodeUnknown
	}
	if m.Stage != nil {
		return rowraft.CodeOverloaded
	}
	next := New(m.Shard, rowraft.SlotCount(m.Slots), nil)
	next.Owned = m.Owned
	names := map[string]bool{}
	for _, s := range r.tables {
		if alone && m.Tables[s.ID] != nil {
			return rowraft.CodeInvalidArgument
		}
		names[s.Name] = true
		next.Tables[s.ID] = m.newTable(s)
	}
	if len(names) != len(r.tables) || len(r.tables) > maxTables {
		return rowraft.CodeInvalidArgument
	}
	m.Stage = &Stage{ID: r.id, Epoch: r.epoch, Next: 1, m: next, base: max(r.base, m.tick())}
	if alone {
		m.Stage.base = m.tick()
	}
	return rowraft.CodeUnknown
}

// stageBlock adds the rows of one block; m is the machine of a stage.
func (m *Machine) stageBlock(k block, base uint32) rowraft.Code {
	t := m.Tables[k.table]
	if t != nil && k.candidates {
		return m.stageCandidates(t, k, base)
	}
	if t == nil || k.size != recordSize(&t.Schema) {
		return rowraft.CodeCorrupt
	}
	strangers := false
	for _, rec := range k.records {
		key, r := parseRecord(&t.Schema, rec)
		slot := t.slotOf(key)
		switch {
		case r == nil || r.Version == 0:
			return rowraft.CodeCorrupt
		case !m.owns(slot):
			return rowraft.CodeWrongShard
		case t.Rows[key] != nil, t.Candidates[key].Count > 0:
			return rowraft.CodeCorrupt
		}
		if tracked(&t.Schema) {
			r.Recency = k.aged(r.Recency, base)
		} else {
			r.Recency, r.Count = 0, 0
		}
		strangers = strangers || slot != k.slot
		t.Rows[key] = r
		t.Counters[slot] = max(t.Counters[slot], r.Version)
		m.sum = m.sum.plus(r.hash(key))
	}
	switch {
	case strangers:
		return rowraft.CodeCorrupt
	case !m.owns(k.slot):
		return rowraft.CodeWrongShard
	}
	return t.raise(k)
}

// stageCandidates adds the candidates of one block.
func (m *Machine) stageCandidates(t *Table, k block, base uint32) rowraft.Code {
	if !m.owns(k.slot) {
		return rowraft.CodeWrongShard
	}
	if code := m.addCandidates(t, k.slot, bytes.Join(k.records, nil)); code != rowraft.CodeUnknown {
		return code
	}
	for _, rec := range k.records {
		key := rowraft.Key(le.Uint64(rec))
		c := t.Candidates[key]
		t.Candidates[key] = Candidate{c.Count, k.aged(c.Tick, base)}
	}
	return t.raise(k)
}

// raise raises the counter of the slot of k.
func (t *Table) raise(k block) rowraft.Code {
	if k.counter>>63 != 0 {
		return rowraft.CodeCorrupt
	}
	t.Counters[k.slot] = max(t.Counters[k.slot], k.counter)
	return rowraft.CodeUnknown
}

// aged translates a tick of the source.
func (k block) aged(tick, base uint32) uint32 {
	if k.tick == 0 {
		return tick
	}
	age := uint32(0)
	if k.tick > tick {
		age = k.tick - tick
	}
	if age > base {
		return 0
	}
	return base - age
}

func (m *Machine) closeStage(r *restore) rowraft.Code {
	g := m.Stage
	mine := g != nil && g.ID == r.id && g.Epoch == r.epoch
	switch {
	case !mine && r.epoch == m.Epoch:
		return rowraft.CodeUnknown
	case !mine:
		return rowraft.CodeNotFound
	case g.Broken != rowraft.CodeUnknown:
		return g.Broken
	}
	if sum, rows := g.m.Digest(); g.Next-1 != r.seq || rows != r.rows || sum != r.digest {
		return rowraft.CodeCorrupt
	}
	for _, t := range g.m.Tables {
		maps.DeleteFunc(t.Counters, func(_ rowraft.Slot, n uint64) bool { return n == 0 })
	}
	if g.Epoch == m.Epoch { // these tables alone
		for id, t := range m.Tables {
			for _, n := range g.m.Tables {
				if n.Schema.Name == t.Schema.Name {
					m.drop(id)
				}
			}
		}
		maps.Copy(m.Tables, g.m.Tables)
		m.sum, m.Stage = m.sum.plus(g.m.sum), nil
		return rowraft.CodeUnknown
	}
	m.LogTime = max(m.LogTime, uint64(g.base)*1_000_000_000)
	m.Tables, m.sum, m.Epoch, m.Stage = g.m.Tables, g.m.sum, g.Epoch, nil
	m.Over, m.OverFloor = nil, 0
	m.Sessions, m.Jobs = map[rowraft.ClientID]*Session{}, map[rowraft.JobID]*Job{}
	return rowraft.CodeUnknown
}
