package shard

import (
	"bytes"
	"io"
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/wire"
)

// model is the state machine in maps and plain arithmetic, written from
// docs/formats: it shares the initializer with the Machine, and nothing else.
type model struct {
	owned    map[rowraft.Slot]bool
	now      uint64
	tables   map[rowraft.TableID]*modelTable
	sessions map[rowraft.ClientID]*modelSession
}

type modelTable struct {
	schema   rowraft.Schema
	rows     map[rowraft.Key]*modelRow
	counters map[rowraft.Slot]uint64
}

type modelRow struct {
	version    uint64
	w, a, m, v []float32 // weights, Adagrad's sums, Adam's moments
	b1t, b2t   float32
}

type modelSession struct {
	inc      rowraft.Incarnation
	floor    rowraft.Seq
	last     uint64
	answered map[rowraft.Seq]rowraft.Code // CodeUnknown: applied
}

func newModel(slots []rowraft.Slot) *model {
	m := &model{owned: map[rowraft.Slot]bool{}, tables: map[rowraft.TableID]*modelTable{}, sessions: map[rowraft.ClientID]*modelSession{}}
	for _, s := range slots {
		m.owned[s] = true
	}
	return m
}

func (m *model) clone() *model {
	c := &model{owned: m.owned, now: m.now, tables: map[rowraft.TableID]*modelTable{}, sessions: map[rowraft.ClientID]*modelSession{}}
	for id, t := range m.tables {
		ct := &modelTable{schema: t.schema, rows: map[rowraft.Key]*modelRow{}, counters: maps.Clone(t.counters)}
		for k, r := range t.rows {
			cr := *r
			cr.w, cr.a, cr.m, cr.v = slices.Clone(r.w), slices.Clone(r.a), slices.Clone(r.m), slices.Clone(r.v)
			ct.rows[k] = &cr
		}
		c.tables[id] = ct
	}
	for id, s := range m.sessions {
		cs := *s
		cs.answered = maps.Clone(s.answered)
		c.sessions[id] = &cs
	}
	return c
}

func (t *modelTable) row(key rowraft.Key) *modelRow {
	r := t.rows[key]
	if r == nil {
		n := t.schema.Dim
		r = &modelRow{w: make([]float32, n), a: make([]float32, n), m: make([]float32, n), v: make([]float32, n), b1t: 1, b2t: 1}
		optim.Init(t.schema.Initializer, t.schema.ID, key, r.w)
		for i := range r.a {
			r.a[i] = t.schema.Optimizer.InitialAccumulator
		}
		t.rows[key] = r
	}
	slot := clustermap.SlotOf(t.schema.ID, t.schema.Kind, key)
	t.counters[slot]++
	r.version = t.counters[slot]
	return r
}

func root(x float32) float32 { return float32(math.Sqrt(float64(x))) }

func (t *modelTable) push(key rowraft.Key, g []float32, lr float32) {
	r, o := t.row(key), t.schema.Optimizer
	r.b1t *= o.Beta1
	r.b2t *= o.Beta2
	for i, g := range g {
		switch o.Kind {
		case rowraft.SGD:
			r.w[i] = r.w[i] - float32(lr*g)
		case rowraft.Adagrad:
			r.a[i] = r.a[i] + float32(g*g)
			r.w[i] = r.w[i] - float32(lr*g)/(root(r.a[i])+o.Epsilon)
		case rowraft.Adam:
			r.m[i] = float32(o.Beta1*r.m[i]) + float32((1-o.Beta1)*g)
			r.v[i] = float32(o.Beta2*r.v[i]) + float32((1-o.Beta2)*float32(g*g))
			r.w[i] = r.w[i] - float32(lr*(r.m[i]/(1-r.b1t)))/(root(r.v[i]/(1-r.b2t))+o.Epsilon)
		}
	}
}

// digest hashes the records of docs/formats/snapshot.md.
func (m *model) digest() (sum [16]byte, rows uint64) {
	var d rowstore.Digest
	for _, t := range m.tables {
		for key, r := range t.rows {
			b := le.AppendUint64(nil, uint64(key))
			b = le.AppendUint64(b, r.version)
			numbers := [][]float32{r.w}
			switch t.schema.Optimizer.Kind {
			case rowraft.Adagrad:
				numbers = append(numbers, r.a)
			case rowraft.Adam:
				numbers = append(numbers, r.m, r.v, []float32{r.b1t, r.b2t})
			}
			for _, f := range slices.Concat(numbers...) {
				b = le.AppendUint32(b, math.Float32bits(f))
			}
			h := xxh3.Hash128(b)
			d = d.Add(rowstore.Digest{Hi: h.Hi, Lo: h.Lo})
			rows++
		}
	}
	return d.Bytes(), rows
}

// answer is the code of a result, CodeUnknown for success.
type answerOf struct {
	code      rowraft.Code
	duplicate bool
}

func (m *model) session(p *wire.Part) *modelSession {
	s := m.sessions[p.Client]
	if s == nil || s.inc != p.Incarnation || m.now > s.last+uint64(SessionTTL) {
		return nil
	}
	return s
}

// part applies p, whose rows are segs.
func (m *model) part(p *wire.Part, segs []rows) answerOf {
	s := m.session(p)
	if s == nil {
		return answerOf{code: rowraft.CodeSessionExpired}
	}
	s.last = m.now
	code, seen := s.answered[p.Seq]
	switch {
	case p.Seq == 0 || p.Floor >= p.Seq:
		return answerOf{code: rowraft.CodeInvalidArgument}
	case p.Seq <= s.floor:
		return answerOf{duplicate: true}
	case p.Seq > max(s.floor, p.Floor)+Window:
		return answerOf{code: rowraft.CodeOverloaded}
	case seen && code == rowraft.CodeUnknown:
		return answerOf{duplicate: true}
	case seen:
		return answerOf{code: code}
	}
	s.floor = max(s.floor, p.Floor)
	maps.DeleteFunc(s.answered, func(n rowraft.Seq, _ rowraft.Code) bool { return n <= s.floor })
	code = m.check(segs)
	s.answered[p.Seq] = code
	if code != rowraft.CodeUnknown {
		return answerOf{code: code}
	}
	for _, seg := range segs {
		t := m.tables[seg.schema.ID]
		lr := t.schema.Optimizer.LR
		if seg.flags&wire.FlagLR != 0 {
			lr = seg.lr
		}
		for i, key := range seg.keys {
			g := rounded(seg)[i*t.schema.Dim:][:t.schema.Dim]
			if p.Op == wire.OpAssign {
				copy(t.row(key).w, g)
			} else {
				t.push(key, g, lr)
			}
		}
	}
	return answerOf{}
}

// rounded returns the values of seg as they arrive.
func rounded(seg rows) []float32 {
	out := slices.Clone(seg.values)
	if seg.dtype == rowraft.BFloat16 {
		for i, v := range out {
			out[i] = math.Float32frombits(uint32(wire.BFloat16(v)) << 16)
		}
	}
	return out
}

// check finds the first fault of the kinds that the generator makes.
func (m *model) check(segs []rows) rowraft.Code {
	seen := map[rowraft.TableID]bool{}
	for _, seg := range segs {
		t := m.tables[seg.schema.ID]
		switch {
		case t == nil:
			return rowraft.CodeTableNotFound
		case seg.schema.Dim != t.schema.Dim || seen[seg.schema.ID]:
			return rowraft.CodeInvalidArgument
		}
		seen[seg.schema.ID] = true
		for i := 1; i < len(seg.keys); i++ {
			if seg.keys[i] <= seg.keys[i-1] {
				return rowraft.CodeInvalidArgument
			}
		}
		for _, key := range seg.keys {
			if !m.owned[clustermap.SlotOf(seg.schema.ID, seg.schema.Kind, key)] {
				return rowraft.CodeWrongShard
			}
		}
		for _, v := range seg.values {
			if v-v != 0 {
				return rowraft.CodeInvalidArgument
			}
		}
	}
	return rowraft.CodeUnknown
}

func (m *model) open(c rowraft.ClientID, inc rowraft.Incarnation) rowraft.Code {
	s := m.sessions[c]
	switch {
	case inc == 0:
		return rowraft.CodeInvalidArgument
	case s == nil || s.inc < inc:
		m.sessions[c] = &modelSession{inc: inc, last: m.now, answered: map[rowraft.Seq]rowraft.Code{}}
	case s.inc > inc || m.now > s.last+uint64(SessionTTL):
		return rowraft.CodeSessionExpired
	default:
		s.last = m.now
	}
	return rowraft.CodeUnknown
}

func (m *model) create(s rowraft.Schema) rowraft.Code {
	for _, t := range m.tables {
		if t.schema == s {
			return rowraft.CodeUnknown
		}
		if t.schema.ID == s.ID || t.schema.Name == s.Name {
			return rowraft.CodeTableExists
		}
	}
	m.tables[s.ID] = &modelTable{schema: s, rows: map[rowraft.Key]*modelRow{}, counters: map[rowraft.Slot]uint64{}}
	return rowraft.CodeUnknown
}

var modelSchemas = func() []rowraft.Schema {
	dense := testTable(40, "dense", 5, sgd)
	dense.Kind = rowraft.Dense
	normal := testTable(30, "adam", 7, adam)
	normal.Initializer = rowraft.Initializer{Kind: rowraft.InitNormal, Seed: 3, A: 1, B: 0.5}
	impostor := testTable(99, "sgd", 4, sgd)
	wider := testTable(10, "sgd", 9, sgd)
	return []rowraft.Schema{testTable(10, "sgd", 1, sgd), testTable(20, "adagrad", 16, adagrad), normal, dense, impostor, wider}
}()

// logStep is one entry with what the model says to it, part by part.
type logStep struct {
	entry   []byte
	answers []answerOf
}

// next draws an entry and applies it to m.
func (m *model) next(t *rapid.T) logStep {
	h := wire.EntryHeader{Version: wire.EntryVersion, Epoch: 1, LogTime: m.now}
	switch rapid.IntRange(0, 40).Draw(t, "time") {
	case 0:
		h.LogTime += uint64(SessionTTL) + rapid.Uint64Range(0, 1).Draw(t, "ttl")
	case 1:
		h.LogTime /= 2 // a leader whose clock went back
	default:
		h.LogTime += uint64(SessionTTL) / 50
	}
	m.now = max(m.now, h.LogTime)
	drawClient := func() rowraft.ClientID { return client(rapid.ByteRange(1, 3).Draw(t, "client")) }
	drawInc := func() rowraft.Incarnation {
		return rowraft.Incarnation(rapid.Uint64Range(0, 3).Draw(t, "incarnation"))
	}
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		c, inc := drawClient(), drawInc()
		return logStep{wire.OpenSessionEntry(h, c, inc), []answerOf{{code: m.open(c, inc)}}}
	case 1:
		s := rapid.SampledFrom(modelSchemas).Draw(t, "schema")
		return logStep{wire.CreateTableEntry(h, &s), []answerOf{{code: m.create(s)}}}
	}
	var parts []wire.Part
	var answers []answerOf
	for range rapid.IntRange(0, 4).Draw(t, "parts") {
		p := wire.Part{Client: drawClient(), Incarnation: 1, Op: wire.OpPush}
		if s := m.sessions[p.Client]; s != nil {
			p.Incarnation = s.inc
			p.Seq = s.floor + rowraft.Seq(rapid.IntRange(0, 6).Draw(t, "seq"))
			if rapid.IntRange(0, 20).Draw(t, "jump") == 0 {
				p.Seq = s.floor + rapid.SampledFrom([]rowraft.Seq{Window, Window + 1, 3 * Window}).Draw(t, "far")
			}
			p.Floor = s.floor
			for s.answered[p.Floor+1] != 0 || p.Floor+1 < p.Seq && rapid.IntRange(0, 3).Draw(t, "floor") == 0 {
				p.Floor++
			}
		}
		if rapid.IntRange(0, 20).Draw(t, "stranger") == 0 {
			p.Incarnation = drawInc()
		}
		if rapid.IntRange(0, 4).Draw(t, "op") == 0 {
			p.Op = wire.OpAssign
		}
		segs := m.drawRows(t, p.Op)
		p.Payload = payloadOf(segs...)
		parts = append(parts, p)
		answers = append(answers, m.part(&p, segs))
	}
	return logStep{entryOf(h, parts...), answers}
}

// drawRows draws segments, one in twenty of them faulty.
func (m *model) drawRows(t *rapid.T, op wire.Op) []rows {
	var segs []rows
	for range rapid.IntRange(0, 3).Draw(t, "segments") {
		seg := rows{schema: rapid.SampledFrom(modelSchemas[:4]).Draw(t, "table"), dtype: rowraft.Float32}
		if slices.ContainsFunc(segs, func(s rows) bool { return s.schema.ID == seg.schema.ID }) && rapid.IntRange(0, 9).Draw(t, "twice") > 0 {
			continue
		}
		if rapid.Bool().Draw(t, "bf16") {
			seg.dtype = rowraft.BFloat16
		}
		if op == wire.OpPush && rapid.Bool().Draw(t, "lr") {
			seg.flags, seg.lr = wire.FlagLR, rapid.Float32Range(0, 2).Draw(t, "rate")
		}
		fault := rapid.IntRange(0, 60).Draw(t, "fault")
		for _, k := range rapid.SliceOfN(rapid.Uint64Range(0, 60), 0, 12).Draw(t, "keys") {
			key := rowraft.Key(k)
			if seg.schema.Kind == rowraft.Dense {
				key = rowraft.DenseKey(uint32(k/8), k%8)
			}
			if m.owned[clustermap.SlotOf(seg.schema.ID, seg.schema.Kind, key)] || fault == 1 {
				seg.keys = append(seg.keys, key)
			}
		}
		if fault != 2 {
			slices.Sort(seg.keys)
			seg.keys = slices.Compact(seg.keys)
		}
		if fault == 3 {
			seg.schema.Dim++
		}
		seg.values = rapid.SliceOfN(rapid.Float32Range(-3, 3), len(seg.keys)*seg.schema.Dim, -1).Draw(t, "values")[:len(seg.keys)*seg.schema.Dim]
		if fault == 4 && len(seg.values) > 0 {
			seg.values[len(seg.values)-1] = nan
		}
		segs = append(segs, seg)
	}
	return segs
}

// TestMachineAgainstModel feeds one random log to the model, to a Machine that
// is snapshotted and restored at random points, and to one that only applies.
// A snapshot is written while later entries are applied, one at each Write.
func TestMachineAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Config{Shard: 1, Slots: replaySlots()}
		m := newModel(c.Slots)
		a := &follower{t: rt, Machine: mustNew(rt, c)}
		b := &follower{t: rt, Machine: mustNew(rt, c)}
		defer func() { a.Close(); b.Close() }()
		index := rowraft.Index(0)
		step := func() {
			index += rowraft.Index(rapid.IntRange(1, 3).Draw(rt, "gap")) // other entries of the log
			s := m.next(rt)
			a.take(index, s)
			b.take(index, s)
		}
		for _, s := range modelSchemas[:4] {
			if rapid.IntRange(0, 9).Draw(rt, "missing") > 0 {
				index++
				h := wire.EntryHeader{Version: 1, Epoch: 1}
				s := logStep{wire.CreateTableEntry(h, &s), []answerOf{{code: m.create(s)}}}
				a.take(index, s)
				b.take(index, s)
			}
		}
		for cl := range byte(2) {
			index++
			s := logStep{wire.OpenSessionEntry(wire.EntryHeader{Version: 1, Epoch: 1}, client(cl+1), 1), []answerOf{{code: m.open(client(cl+1), 1)}}}
			a.take(index, s)
			b.take(index, s)
		}
		for range rapid.IntRange(1, 25).Draw(rt, "rounds") {
			step()
			switch rapid.IntRange(0, 5).Draw(rt, "then") {
			case 0:
				a.snapshotWhile(step, m.clone(), c)
			case 1:
				a.restart(c)
			}
			a.compare(m)
			b.compare(m)
		}
	})
}

func mustNew(tb rapid.TB, c Config) *Machine {
	m, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// follower is a Machine under a model test.
type follower struct {
	*Machine
	t *rapid.T
}

func (f *follower) take(index rowraft.Index, s logStep) {
	got, ok := f.Apply(index, s.entry).(*Applied)
	if !ok || got.Index != index || len(got.Parts) != len(s.answers) {
		f.t.Fatalf("Apply(%d) = %+v, want %d answers", index, got, len(s.answers))
	}
	for i, want := range s.answers {
		p := got.Parts[i]
		have := answerOf{rowraft.CodeOf(p.Err), p.Duplicate}
		if have != want {
			f.t.Fatalf("entry %d part %d: code %v duplicate %v (%v), want code %v duplicate %v", index, i, have.code, have.duplicate, p.Err, want.code, want.duplicate)
		}
	}
}

func (f *follower) compare(m *model) {
	d, err := f.Digest()
	if err != nil {
		f.t.Fatal(err)
	}
	if sum, rows := m.digest(); d.Sum != sum || d.Rows != rows {
		f.t.Fatalf("index %d: %d rows, digest %x; the model has %d, %x", d.Index, d.Rows, d.Sum, rows, sum)
	}
	if f.LogTime() != m.now {
		f.t.Fatalf("log time %d, want %d", f.LogTime(), m.now)
	}
	have := f.Tables()
	if len(have) != len(m.tables) {
		f.t.Fatalf("%d tables, want %d", len(have), len(m.tables))
	}
	for _, s := range have {
		f.comparePull(m.tables[s.ID], m.owned)
	}
}

// comparePull reads keys that were pushed and some that were not.
func (f *follower) comparePull(t *modelTable, owned map[rowraft.Slot]bool) {
	ask := rows{schema: t.schema, flags: wire.FlagNoValues}
	for k := range rowraft.Key(70) {
		if owned[clustermap.SlotOf(t.schema.ID, t.schema.Kind, k)] {
			ask.keys = append(ask.keys, k)
		}
	}
	reply, _, err := f.Pull(payloadOf(ask), true, func(n int) []byte { return bytes.Repeat([]byte{0xAA}, n) })
	if err != nil {
		f.t.Fatal(err)
	}
	_, body, _, err := wire.ParseSegment(reply)
	if err != nil {
		f.t.Fatal(err)
	}
	want := make([]float32, t.schema.Dim)
	got := make([]float32, t.schema.Dim)
	for i, k := range ask.keys {
		r := t.rows[k]
		optim.Init(t.schema.Initializer, t.schema.ID, k, want)
		if r != nil {
			copy(want, r.w)
		}
		wire.GetFloats(got, rowraft.Float32, body.Values[4*t.schema.Dim*i:])
		if !slices.Equal(got, want) || body.Presence[i/8]>>(i%8)&1 == 1 != (r != nil) {
			f.t.Fatalf("table %s key %d: %v, want %v, present %v", t.schema.Name, k, got, want, r != nil)
		}
	}
}

// writeFunc calls before ahead of each Write.
type writeFunc struct {
	io.Writer
	before func()
}

func (w writeFunc) Write(b []byte) (int, error) {
	w.before()
	return w.Writer.Write(b)
}

// snapshotWhile writes a snapshot while step applies entries, and checks that it
// restores to then, the model when it began.
func (f *follower) snapshotWhile(step func(), then *model, c Config) {
	index := f.AppliedIndex()
	s, err := f.Snapshot()
	if err != nil {
		f.t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	budget := 12
	w := writeFunc{&b, func() {
		if budget > 0 && rapid.Bool().Draw(f.t, "meanwhile") {
			budget--
			step()
		}
	}}
	if _, err := s.WriteTo(w); err != nil {
		f.t.Fatal(err)
	}
	restored := &follower{t: f.t, Machine: mustNew(f.t, c)}
	defer restored.Close()
	if err := restored.Restore(&b); err != nil {
		f.t.Fatal(err)
	}
	if restored.AppliedIndex() != index {
		f.t.Fatalf("restored at index %d, want %d", restored.AppliedIndex(), index)
	}
	restored.compare(then)
}

// restart replaces the Machine by one restored from its snapshot.
func (f *follower) restart(c Config) {
	s, err := f.Snapshot()
	if err != nil {
		f.t.Fatal(err)
	}
	var b bytes.Buffer
	_, err = s.WriteTo(&b)
	s.Release()
	if err != nil {
		f.t.Fatal(err)
	}
	next := mustNew(f.t, c)
	if err := next.Restore(&b); err != nil {
		f.t.Fatal(err)
	}
	f.Close()
	f.Machine = next
}
