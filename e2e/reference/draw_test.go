package reference

import (
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// testTable is a schema with uniform initial weights.
func testTable(id rowraft.TableID, name string, dim int, opt rowraft.Optimizer) rowraft.Schema {
	return rowraft.Schema{
		ID: id, Name: name, Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 7, NameHash: 0x9d3ab1f0c2e45768, A: -0.1, B: 0.1},
		Optimizer:   opt,
	}
}

var (
	sgd     = rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}
	adagrad = rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1, Epsilon: 1e-8}
	adam    = rowraft.Optimizer{Kind: rowraft.Adam, LR: 0.01, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8}
)

// schemas are four tables, then one that takes the name of the first and one that
// takes its id.
var schemas = func() []rowraft.Schema {
	dense := testTable(40, "dense", 5, sgd)
	dense.Kind = rowraft.Dense
	normal := testTable(30, "adam", 7, adam)
	normal.Initializer = rowraft.Initializer{Kind: rowraft.InitNormal, Seed: 3, NameHash: 5, A: 1, B: 0.5}
	normal.Storage = rowraft.BFloat16
	impostor := testTable(99, "sgd", 4, sgd)
	wider := testTable(10, "sgd", 9, sgd)
	return []rowraft.Schema{testTable(10, "sgd", 1, sgd), testTable(20, "adagrad", 16, adagrad), normal, dense, impostor,
		wider}
}()

// drawConfig draws the number of slots of the cluster. With 4,096 slots the shard holds three of four, else all.
func drawConfig(t *rapid.T) shard.Config {
	c := shard.Config{Shard: 1, SlotCount: rapid.SampledFrom([]rowraft.SlotCount{4096, 4096, 4096, 4096, 4096, 8192}).Draw(
		t, "slots of the cluster")}
	if c.SlotCount == rowraft.DefaultSlots {
		c.Slots = someSlots()
	}
	return c
}

// someSlots is three slots of four.
func someSlots() (slots []rowraft.Slot) {
	for s := range rowraft.Slot(rowraft.DefaultSlots) {
		if s%4 != 1 {
			slots = append(slots, s)
		}
	}
	return slots
}

// rows is one segment of a payload under construction.
type rows struct {
	schema rowraft.Schema
	dtype  rowraft.DType // 0: float32
	flags  uint8
	lr     float32
	keys   []rowraft.Key
	values []float32
	counts []byte
}

func payloadOf(segments ...rows) []byte {
	var out []byte
	for _, r := range segments {
		if r.dtype == 0 {
			r.dtype = rowraft.Float32
		}
		s := wire.Segment{Table: r.schema.ID, N: len(r.keys), Dim: r.schema.Dim, DType: r.dtype, Flags: r.flags, LR: r.lr}
		b := make([]byte, s.Size())
		body := s.Put(b)
		if r.flags&wire.FlagNoKeys == 0 {
			for i, k := range r.keys {
				le.PutUint64(body.Keys[8*i:], uint64(k))
			}
		}
		if r.flags&wire.FlagNoValues == 0 {
			wire.PutFloats(body.Values, r.dtype, r.values)
		}
		copy(body.Counts, r.counts)
		out = append(out, b...)
	}
	return out
}

func clientID(n byte) (c rowraft.ClientID) { c[0], c[15] = n, n; return c }

func entryOf(h wire.EntryHeader, parts ...wire.Part) []byte {
	h.Kind, h.Parts = wire.EntryParts, len(parts)
	b := make([]byte, wire.EntryHeaderSize)
	wire.PutEntryHeader(b, h)
	for i := range parts {
		b = wire.AppendPart(b, &parts[i])
	}
	return b
}

// drawEntry draws the entry after the state of m. Most are well-formed, and some
// of their parts are refused; one in twelve has bytes changed.
func drawEntry(t *rapid.T, m *Machine) []byte {
	h := wire.EntryHeader{Version: wire.FirstVersion, Epoch: m.Epoch, LogTime: m.LogTime}
	switch rapid.IntRange(0, 40).Draw(t, "time") {
	case 0:
		h.LogTime += sessionTTL + rapid.Uint64Range(0, 1).Draw(t, "ttl")
	case 1:
		h.LogTime /= 2 // a leader whose clock went back
	case 2:
		h.Epoch += rowraft.TableEpoch(rapid.Uint64Range(0, 1).Draw(t, "epoch"))
	default:
		h.LogTime += sessionTTL / 50
	}
	var entry []byte
	switch rapid.IntRange(0, 15).Draw(t, "kind") {
	case 10:
		return wire.ProofEntry(h, drawProof(t, m)) // spoilt, it may fence a replica: TestMinorityIsFenced
	case 11:
		entry = drawMembership(t, m, h)
	case 12, 13, 14, 15:
		entry = drawStep(t, m, h)
	case 0:
		if rapid.IntRange(0, 2).Draw(t, "close") == 0 {
			entry = wire.CloseSessionEntry(h, drawClient(t), drawIncarnation(t))
			break
		}
		entry = wire.OpenSessionEntry(h,
			wire.Opening{Client: drawClient(t), Incarnation: drawIncarnation(t), Ticket: m.Applied})
	case 1:
		if rapid.Bool().Draw(t, "sweep") {
			return drawSweep(t, h)
		}
		s := rapid.SampledFrom(slices.Concat(schemas, streamTables, ruleTables)).Draw(t, "schema")
		entry = wire.CreateTableEntry(h, &s)
	case 9:
		if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
			entry = wire.DropTableEntry(h, rapid.SampledFrom(schemas).Draw(t, "schema").ID)
			break
		}
		fallthrough
	default:
		var parts []wire.Part
		for range rapid.IntRange(0, 4).Draw(t, "parts") {
			if rapid.IntRange(0, 3).Draw(t, "sum") == 0 {
				parts = append(parts, drawSum(t, m, 3, drawRows(t, m, wire.OpSum)))
				continue
			}
			parts = append(parts, drawPart(t, m))
		}
		entry = entryOf(h, parts...)
	}
	if rapid.IntRange(0, 11).Draw(t, "hostile") == 0 {
		entry = spoil(t, entry)
	}
	return entry
}

// drawProof draws a proof entry that fences no replica.
func drawProof(t *rapid.T, m *Machine) *wire.Proof {
	p := &wire.Proof{Step: wire.ProofStep(rapid.IntRange(1, 3).Draw(t, "step"))}
	if p.Step == wire.ProofAgreed {
		p.Mark, p.Rows = m.Applied+1000, 7 // not noted
		if len(m.notes) > 0 && rapid.Bool().Draw(t, "noted") {
			n := rapid.SampledFrom(m.notes).Draw(t, "note")
			p.Mark, p.Rows, p.Digest = n.index, n.rows, n.digest
		}
	}
	return p
}

func drawClient(t *rapid.T) rowraft.ClientID {
	return clientID(rapid.ByteRange(1, 3).Draw(t, "client"))
}

func drawIncarnation(t *rapid.T) rowraft.Incarnation {
	return rowraft.Incarnation(rapid.Uint64Range(0, 3).Draw(t, "incarnation"))
}

func drawPart(t *rapid.T, m *Machine) wire.Part {
	p := wire.Part{Client: drawClient(t), Incarnation: 1, Op: wire.OpPush}
	if s := m.Sessions[p.Client]; s != nil {
		p.Incarnation = s.Incarnation
		p.Seq = s.Floor + rowraft.Seq(rapid.IntRange(0, 6).Draw(t, "seq"))
		if rapid.IntRange(0, 20).Draw(t, "jump") == 0 {
			p.Seq = s.Floor + rapid.SampledFrom([]rowraft.Seq{window, window + 1, 3 * window}).Draw(t, "far")
		}
		p.Floor = s.Floor
		for s.Answered[p.Floor+1] != 0 || p.Floor+1 < p.Seq && rapid.IntRange(0, 3).Draw(t, "floor") == 0 {
			p.Floor++
		}
	}
	if rapid.IntRange(0, 20).Draw(t, "stranger") == 0 {
		p.Incarnation = drawIncarnation(t)
	}
	switch rapid.IntRange(0, 6).Draw(t, "op") {
	case 0:
		p.Op = wire.OpAssign
	case 1, 2:
		p.Op = wire.OpDelete
	}
	p.Payload = payloadOf(drawRows(t, m, p.Op)...)
	if p.Op == wire.OpPush && rapid.IntRange(0, 3).Draw(t, "clocked") == 0 {
		p.Op, p.Payload = wire.OpClocked, append(drawClock(t, m), p.Payload...)
	}
	return p
}

// drawSum draws a sum of pushes of the first clients. Most of them are new.
func drawSum(t *rapid.T, m *Machine, clients byte, segs []rows) wire.Part {
	var list []*wire.Part
	for c := range clients {
		p := &wire.Part{Client: clientID(c + 1), Incarnation: 1, Seq: 1}
		if s := m.Sessions[p.Client]; s != nil {
			p.Incarnation, p.Floor = s.Incarnation, s.Floor
			for _, known := s.Answered[p.Floor+1]; known; _, known = s.Answered[p.Floor+1] {
				p.Floor++
			}
			p.Seq = p.Floor + 1
			if rapid.IntRange(0, 15).Draw(t, "not new") == 0 {
				p.Seq = s.Floor + rowraft.Seq(rapid.IntRange(0, window+1).Draw(t, "seq"))
			}
		} else if rapid.IntRange(0, 9).Draw(t, "without a session") > 0 {
			continue
		}
		list = append(list, p)
	}
	if len(list) < 2 {
		return drawPart(t, m)
	}
	for i := range segs {
		if tracked(&segs[i].schema) {
			for range segs[i].keys {
				n := rapid.IntRange(1, len(list)).Draw(t, "count")
				if rapid.IntRange(0, 300).Draw(t, "impossible count") == 0 {
					n = rapid.SampledFrom([]int{0, len(list) + 1}).Draw(t, "impossible")
				}
				segs[i].counts = append(segs[i].counts, byte(n))
			}
		}
	}
	payload := payloadOf(segs...)
	p, room := wire.SumPart(nil, list, len(payload))
	copy(room, payload)
	return p
}

// drawRows draws segments, one in ten of them faulty.
func drawRows(t *rapid.T, m *Machine, op wire.Op) []rows {
	var segs []rows
	for range rapid.IntRange(0, 3).Draw(t, "segments") {
		tables := pushed
		if op == wire.OpSum && rapid.IntRange(0, 30).Draw(t, "any table") > 0 {
			tables = summed
		}
		seg := rows{schema: rapid.SampledFrom(tables).Draw(t, "table"), dtype: rowraft.Float32}
		if slices.ContainsFunc(segs, func(s rows) bool { return s.schema.ID == seg.schema.ID }) &&
			rapid.IntRange(0, 9).Draw(t, "twice") > 0 {
			continue
		}
		if rapid.Bool().Draw(t, "bf16") {
			seg.dtype = rowraft.BFloat16
		}
		if (op == wire.OpPush || op == wire.OpSum) && rapid.Bool().Draw(t, "lr") {
			seg.flags, seg.lr = wire.FlagLR, rapid.Float32Range(0, 2).Draw(t, "rate")
		}
		if op == wire.OpDelete {
			seg.flags = wire.FlagNoValues
		}
		if op == wire.OpSum && tracked(&seg.schema) {
			seg.flags |= wire.FlagCounts
		}
		fault := rapid.IntRange(0, 60).Draw(t, "fault")
		if crowd[seg.schema.ID] != nil {
			seg.keys = slices.Clone(drawCrowd(t, seg.schema.ID))
		} else {
			seg.keys = drawFew(t, m, seg.schema, fault == 1)
		}
		if fault != 2 {
			slices.Sort(seg.keys)
			seg.keys = slices.Compact(seg.keys)
		}
		if fault == 3 {
			seg.schema.Dim++
		}
		// Rapid likes the corners: huge, tiny and denormal gradients.
		number := rapid.Float32Range(-3, 3)
		if fault == 5 {
			number = rapid.Float32()
		}
		seg.values = rapid.SliceOfN(number, len(seg.keys)*seg.schema.Dim, -1).Draw(t, "values")[:len(seg.keys)*seg.schema.Dim]
		if fault == 4 && len(seg.values) > 0 {
			seg.values[len(seg.values)-1] = float32(math.NaN())
		}
		if fault == 6 {
			seg.flags ^= 1 << rapid.IntRange(0, 7).Draw(t, "flag")
		}
		segs = append(segs, seg)
	}
	return segs
}

// drawFew draws keys of a table, in any order, and foreign ones if told.
func drawFew(t *rapid.T, m *Machine, s rowraft.Schema, foreign bool) (keys []rowraft.Key) {
	for _, k := range rapid.SliceOfN(rapid.Uint64Range(0, 60), 0, 12).Draw(t, "keys") {
		key := rowraft.Key(k)
		if s.Kind == rowraft.Dense {
			key = rowraft.DenseKey(uint32(k/8), k%8)
		}
		if m.owns(clustermap.SlotOf(s.ID, s.Kind, key, rowraft.SlotCount(m.Slots))) || foreign {
			keys = append(keys, key)
		}
	}
	return keys
}

// spoil changes some bytes of an entry.
func spoil(t *rapid.T, entry []byte) []byte {
	entry = slices.Clone(entry)
	switch rapid.IntRange(0, 3).Draw(t, "how") {
	case 0:
		return entry[:rapid.IntRange(0, len(entry)).Draw(t, "cut")]
	case 1:
		return append(entry, rapid.SliceOfN(rapid.Byte(), 1, 60).Draw(t, "tail")...)
	}
	for range rapid.IntRange(1, 3).Draw(t, "bytes") {
		at := rapid.IntRange(0, len(entry)-1).Draw(t, "at")
		entry[at] = rapid.Byte().Draw(t, "byte")
	}
	return entry
}
