package reference

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// TestRestoresAgainstReference brings tables by stages, begun, filled, broken,
// dropped and closed in any order, between pushes.
func TestRestoresAgainstReference(t *testing.T) { rapid.Check(t, restoresAgainstReference) }

func restoresAgainstReference(rt *rapid.T) {
	c := drawConfig(rt)
	d := &duel{t: rt, config: c, ref: New(1, c.SlotCount, c.Slots), restarted: newMachine(rt, c), plain: newMachine(rt, c)}
	defer func() { d.restarted.Close(); d.plain.Close() }()
	h := wire.EntryHeader{Version: 1, Epoch: 1}
	for _, s := range schemas[:3] {
		d.take(wire.CreateTableEntry(h, &s))
	}
	d.take(wire.OpenSessionEntry(h, wire.Opening{Client: clientID(1), Incarnation: 1}))
	for range rapid.IntRange(5, 60).Draw(rt, "entries") {
		h := wire.EntryHeader{Version: 1, Epoch: d.ref.Epoch, LogTime: d.ref.LogTime + 1}
		if rapid.IntRange(0, 30).Draw(rt, "epoch") == 0 {
			h.Epoch++
		}
		if rapid.IntRange(0, 4).Draw(rt, "push") == 0 {
			d.take(entryOf(h, drawPart(rt, d.ref)))
			continue
		}
		d.take(drawRestore(rt, h, d.ref))
		if d.ref.Stage == nil && rapid.IntRange(0, 3).Draw(rt, "restart") == 0 {
			d.restart()
		}
	}
	if d.ref.Stage != nil {
		d.take(wire.RestoreDropEntry(wire.EntryHeader{Version: 1, Epoch: d.ref.Epoch}, d.ref.Stage.ID))
	}
	d.compareAll()
}

// drawRestore draws an entry of a restore, mostly the one that comes next.
func drawRestore(t *rapid.T, h wire.EntryHeader, m *Machine) []byte {
	id := wire.RestoreID{rapid.ByteRange(1, 2).Draw(t, "id")}
	if m.Stage != nil && rapid.IntRange(0, 9).Draw(t, "same") > 0 {
		id = m.Stage.ID
	}
	switch k := rapid.IntRange(0, 19).Draw(t, "kind"); {
	case k == 0:
		return wire.RestoreDropEntry(h, id)
	case k == 1:
		return wire.MarkEntry(h, wire.MarkID(id))
	case k < 4 || m.Stage == nil:
		tables := []rowraft.Schema{}
		for i := range 3 {
			if rapid.IntRange(0, 4).Draw(t, "table") > 0 {
				tables = append(tables, restoredTable(i, string(rune('p'+rapid.IntRange(0, 5).Draw(t, "name")))))
			}
		}
		above := rapid.IntRange(0, 5).Draw(t, "above")
		for i := range tables {
			if n := rapid.Uint16Range(0, 4).Draw(t, "restore"); above == 0 && n > 0 {
				tables[i].ID = tables[i].ID.RestoredBy(n)
			}
		}
		slices.SortFunc(tables, func(a, b rowraft.Schema) int { return cmp.Compare(a.ID, b.ID) })
		base := rapid.SampledFrom([]uint32{0, 0, 1, 1000, 1 << 20}).Draw(t, "base")
		return wire.RestoreBeginEntry(h,
			&wire.RestoreBegin{ID: id, Base: base, Epoch: m.Epoch + rowraft.TableEpoch(above), Tables: tables})
	case k < 8:
		sum, rows := m.Stage.m.Digest()
		c := wire.RestoreClose{ID: id, Epoch: m.Stage.Epoch, Chunks: m.Stage.Next - 1, Rows: rows, Digest: sum}
		switch rapid.IntRange(0, 9).Draw(t, "wrong") {
		case 0:
			c.Chunks++
		case 1:
			c.Rows++
		case 2:
			c.Digest[0]++
		case 3:
			c.Epoch = rowraft.TableEpoch(rapid.IntRange(0, 9).Draw(t, "epoch of close"))
		}
		return wire.RestoreCloseEntry(h, &c)
	}
	seq := m.Stage.Next
	if rapid.IntRange(0, 9).Draw(t, "other seq") == 0 {
		seq += uint64(rapid.IntRange(0, 2).Draw(t, "off")) - 1
	}
	var blocks []byte
	for range rapid.IntRange(0, 3).Draw(t, "blocks") {
		b := drawBlock(t, m)
		blocks = wire.AppendRestoreBlock(blocks, &b)
	}
	return wire.RestoreRowsEntry(h, id, seq, blocks)
}

func drawBlock(t *rapid.T, m *Machine) wire.RestoreBlock {
	i := rapid.IntRange(0, 2).Draw(t, "table of block")
	s := restoredTable(i, "x")
	for id := range m.Stage.m.Tables {
		if id.Origin() == s.ID {
			s.ID = id
		}
	}
	b := wire.RestoreBlock{Table: s.ID, RecordBytes: 24 + 4*(s.Dim+stateLength(&s)),
		Counter: 100 - uint64(rapid.IntRange(0, 1).Draw(t, "lower"))}
	key := rowraft.Key(rapid.IntRange(0, 200).Draw(t, "key"))
	for m.Owned != nil && !m.Owned[slotOf(&s, m.Slots, key)] && rapid.IntRange(0, 300).Draw(t, "foreign") > 0 {
		key++
	}
	b.Slot = slotOf(&s, m.Slots, key)
	fault := rapid.IntRange(0, 40).Draw(t, "fault")
	if fault == 0 {
		b.Slot = (b.Slot + 1) % rowraft.Slot(m.Slots)
	}
	if fault == 1 {
		b.RecordBytes += 4
	}
	if i == 1 || fault == 4 {
		b.Tick = rapid.SampledFrom([]uint32{0, 1, 900, 1 << 21}).Draw(t, "tick of source")
	}
	if i == 1 && rapid.IntRange(0, 2).Draw(t, "candidates") == 0 || fault == 5 {
		b.Rows, b.RecordBytes, b.Candidates = 1, 16, true
		b.Records = make([]byte, 16)
		le.PutUint64(b.Records, uint64(key))
		le.PutUint32(b.Records[8:], rapid.Uint32Range(0, 5).Draw(t, "pushes"))
		le.PutUint32(b.Records[12:], rapid.Uint32Range(0, 1000).Draw(t, "tick"))
		return b
	}
	if b.Rows = rapid.IntRange(0, 1).Draw(t, "rows"); b.Rows == 0 {
		return b
	}
	rec := make([]byte, b.RecordBytes)
	le.PutUint32(rec, rapid.Uint32Range(0, 1000).Draw(t, "recency"))
	le.PutUint64(rec[8:], uint64(key))
	version := uint64(rapid.IntRange(1, 90).Draw(t, "version"))
	switch fault {
	case 2:
		version = 0
	case 3:
		version = b.Counter + 1
	}
	le.PutUint64(rec[16:], version)
	for at := 24; at < len(rec); at += 4 {
		le.PutUint32(rec[at:], rapid.Uint32Max(1<<30).Draw(t, "number"))
	}
	b.Records = rec
	return b
}

// restoredTable is one of three tables that restores bring, the second of them tracked.
func restoredTable(i int, name string) rowraft.Schema {
	s := testTable(rowraft.TableID(i+50), name, i+1, []rowraft.Optimizer{sgd, rowWise, adam}[i])
	if i == 1 {
		s.Admission, s.Expire = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 5}, 100
	}
	return s
}
