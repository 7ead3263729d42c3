package reference

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

// streamTables are tables of which every rule of docs/formats/streaming.md holds
// for one at least. Their keys lie in few slots, which so become full.
var streamTables = func() []rowraft.Schema {
	counted := testTable(60, "counted", 2, adagrad)
	counted.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 2}
	drawn := testTable(61, "drawn", 1, sgd)
	drawn.Admission = rowraft.Admission{Kind: rowraft.AdmitProbability, Probability: 0.4}
	recent := testTable(62, "recent", 1, sgd)
	recent.Capacity = rowraft.Capacity{Rows: 20 * rowraft.DefaultSlots, Evict: rowraft.EvictLRU}
	frequent := testTable(63, "frequent", 3, adagrad)
	frequent.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	frequent.Capacity = rowraft.Capacity{Rows: 3*rowraft.DefaultSlots - 1, Evict: rowraft.EvictLFU}
	frequent.Expire, frequent.Storage, frequent.SumPushes = 1500, rowraft.BFloat16, true
	one := testTable(64, "one", 1, sgd)
	one.Capacity = rowraft.Capacity{Rows: rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
	passing := testTable(65, "passing", 2, adam)
	passing.Expire, passing.SumPushes = 400, true
	return []rowraft.Schema{counted, drawn, recent, frequent, one, passing}
}()

// crowd is keys of each stream table that are in two slots held here, and some of
// other slots.
var crowd = func() map[rowraft.TableID][]rowraft.Key {
	all := make(map[rowraft.TableID][]rowraft.Key)
	held := someSlots()
	for _, s := range streamTables {
		keys := []rowraft.Key{}
		for k := rowraft.Key(0); len(keys) < 190; k++ {
			slot := slotOf(&s, 4096, k)
			if slot == held[5] || slot == held[9] || k < 60 && slices.Contains(held, slot) {
				keys = append(keys, k)
			}
		}
		all[s.ID] = keys
	}
	return all
}()

// drawCrowd draws keys of a stream table, strictly ascending: a run of them, so
// that slots fill up, or a few.
func drawCrowd(t *rapid.T, id rowraft.TableID) []rowraft.Key {
	all := crowd[id]
	if rapid.IntRange(0, 3).Draw(t, "run") == 0 {
		from := 30 * rapid.IntRange(0, len(all)/30).Draw(t, "from")
		return all[from:min(len(all), from+rapid.IntRange(1, 90).Draw(t, "length"))]
	}
	var keys []rowraft.Key
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 0, 8, rapid.ID).Draw(t, "few") {
		keys = append(keys, all[len(all)-1-i])
	}
	slices.Sort(keys)
	return keys
}

// TestStreamsAgainstReference is TestMachineAgainstReference with tables for
// streaming ids alone, and parts that count, so that slots fill up, keys are
// admitted and rows leave.
func TestStreamsAgainstReference(t *testing.T) {
	rapid.Check(t, streamsAgainstReference)
}

func streamsAgainstReference(rt *rapid.T) {
	c := drawConfig(rt)
	d := &duel{t: rt, config: c, ref: New(1, c.SlotCount, c.Slots), restarted: newMachine(rt, c), plain: newMachine(rt, c)}
	defer func() { d.restarted.Close(); d.plain.Close() }()
	for _, s := range streamTables {
		d.take(wire.CreateTableEntry(wire.EntryHeader{Version: 1, Epoch: 1}, &s))
	}
	for c := range byte(2) {
		d.take(wire.OpenSessionEntry(wire.EntryHeader{Version: 1, Epoch: 1},
			wire.Opening{Client: clientID(c + 1), Incarnation: 1}))
	}
	step := func() { d.take(drawStream(rt, d.ref)) }
	for range rapid.IntRange(1, 40).Draw(rt, "rounds") {
		step()
		switch rapid.IntRange(0, 9).Draw(rt, "then") {
		case 0:
			d.snapshotWhile(step)
		case 1:
			d.restart()
		case 2: // the digest loses the rows and the candidates of a table that is dropped
			h, s := wire.EntryHeader{Version: 1, Epoch: d.ref.Epoch, LogTime: d.ref.LogTime},
				rapid.SampledFrom(streamTables).Draw(rt, "dropped")
			d.take(wire.DropTableEntry(h, s.ID))
			d.take(wire.CreateTableEntry(h, &s))
		}
	}
	d.compareAll()
}

// drawStream draws an entry that changes stream tables.
func drawStream(t *rapid.T, m *Machine) []byte {
	h := wire.EntryHeader{Version: 1, Epoch: m.Epoch,
		LogTime: m.LogTime + 1_000_000_000*uint64(rapid.IntRange(0, 900).Draw(t, "seconds"))}
	if rapid.IntRange(0, 5).Draw(t, "sweep") == 0 {
		return drawSweep(t, h)
	}
	client := clientID(1)
	s := m.Sessions[client]
	p := wire.Part{Client: client, Incarnation: 1, Seq: s.Floor + rowraft.Seq(len(s.Answered)) + 1,
		Floor: s.Floor + rowraft.Seq(len(s.Answered)), Op: wire.OpPush}
	switch rapid.IntRange(0, 12).Draw(t, "op") {
	case 0:
		p.Op = wire.OpAssign
	case 1:
		p.Op = wire.OpDelete
	case 2, 3, 4:
		p.Op = wire.OpSum
	}
	var segs []rows
	for _, s := range streamTables {
		if rapid.Bool().Draw(t, "left out") || p.Op == wire.OpSum && !sums(&s) {
			continue
		}
		seg := rows{schema: s, keys: drawCrowd(t, s.ID)}
		switch p.Op {
		case wire.OpDelete:
			seg.flags = wire.FlagNoValues
		case wire.OpSum:
			seg.flags = wire.FlagCounts
		}
		for i := range len(seg.keys) * s.Dim {
			seg.values = append(seg.values, float32(i%7-3)/4)
		}
		segs = append(segs, seg)
	}
	if p.Op == wire.OpSum {
		return entryOf(h, drawSum(t, m, 2, segs))
	}
	p.Payload = payloadOf(segs...)
	return entryOf(h, p)
}

// drawSweep draws a sweep of one of all tables, which may be one that cannot be
// swept so, or does not exist.
func drawSweep(t *rapid.T, h wire.EntryHeader) []byte {
	w := wire.Sweep{Conditions: rapid.Uint32Range(1, 15).Draw(t, "conditions")}
	w.Table = rapid.SampledFrom(append(slices.Clone(streamTables), schemas[0], schemas[3])).Draw(t, "of").ID
	w.First = rowraft.Slot(rapid.IntRange(0, 12).Draw(t, "first slot"))
	w.Slots = rapid.IntRange(1, rowraft.DefaultSlots-int(w.First)).Draw(t, "slots")
	if rapid.Bool().Draw(t, "all slots") {
		w.First, w.Slots = 0, rowraft.DefaultSlots
	}
	if w.Conditions&wire.SweepUnseen != 0 {
		w.Unseen = rapid.Uint32Range(0, 3000).Draw(t, "unseen")
	}
	if w.Conditions&wire.SweepCount != 0 {
		w.Count = rapid.Uint32Range(1, 4).Draw(t, "count below")
	}
	if w.Conditions&wire.SweepNorm != 0 {
		w.Norm = rapid.Float32Range(0.01, 2).Draw(t, "norm below")
	}
	return wire.SweepEntry(h, &w)
}
