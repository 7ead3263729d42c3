package reference

import (
	"bytes"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// TestMachineAgainstReference and FuzzAgainstReference feed one random log to the
// reference, to a shard.Machine that is snapshotted and restored at random
// points, and to one that only applies. A snapshot is written while later entries
// are applied, one at each Write.
func TestMachineAgainstReference(t *testing.T) {
	rapid.Check(t, againstReference)
}

func FuzzAgainstReference(f *testing.F) {
	// Rapid skips an input that ends before the log does.
	for seed := range byte(8) {
		long := make([]byte, 128<<10)
		rand.NewChaCha8([32]byte{seed}).Read(long)
		f.Add(long)
	}
	f.Fuzz(rapid.MakeFuzz(againstReference))
}

func againstReference(rt *rapid.T) {
	c := drawConfig(rt)
	d := &duel{t: rt, config: c, ref: New(1, c.SlotCount, c.Slots), restarted: newMachine(rt, c), plain: newMachine(rt, c)}
	defer func() { d.restarted.Close(); d.plain.Close() }()
	h := wire.EntryHeader{Version: 1, Epoch: 1}
	for _, s := range pushed {
		if rapid.IntRange(0, 9).Draw(rt, "missing") > 0 {
			d.take(wire.CreateTableEntry(h, &s))
		}
	}
	for c := range byte(2) {
		d.take(wire.OpenSessionEntry(h, wire.Opening{Client: clientID(c + 1), Incarnation: 1}))
	}
	step := func() { d.take(drawEntry(rt, d.ref)) }
	for range rapid.IntRange(1, 25).Draw(rt, "rounds") {
		step()
		switch rapid.IntRange(0, 5).Draw(rt, "then") {
		case 0:
			d.snapshotWhile(step)
		case 1:
			d.restart()
		}
	}
	d.compareAll()
}

// duel is a reference and two Machines under one log.
type duel struct {
	t      *rapid.T
	config shard.Config
	log    []logged // what has been applied

	ref              *Machine
	restarted, plain *shard.Machine
}

type logged struct {
	index rowraft.Index
	entry []byte
}

func newMachine(tb rapid.TB, c shard.Config) *shard.Machine {
	m, err := shard.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// take applies entry on all sides and compares answers, digests and log time.
func (d *duel) take(entry []byte) {
	index := d.ref.Applied + rowraft.Index(rapid.IntRange(1, 3).Draw(d.t, "gap")) // other entries of the log
	if _, err := decodeEntry(entry); err != nil {
		d.stop(index, entry)
		return
	}
	want, err := d.ref.Apply(index, entry)
	if err != nil {
		d.t.Fatalf("the reference stops at an entry that it can decode: %v", err)
	}
	d.log = append(d.log, logged{index, entry})
	for _, m := range []*shard.Machine{d.restarted, d.plain} {
		d.same(index, want, m.Apply(index, entry))
		d.compare(m)
	}
}

func (d *duel) same(index rowraft.Index, want []Answer, result any) {
	got, ok := result.(*shard.Applied)
	if !ok || got.Index != index || len(got.Parts) != len(want) {
		d.t.Fatalf("Apply(%d) = %+v, want %d answers", index, result, len(want))
	}
	for i, p := range got.Parts {
		if have := (Answer{rowraft.CodeOf(p.Err), p.Duplicate}); have != want[i] {
			d.t.Fatalf("entry %d part %d: %v (%v), want %v", index, i, have, p.Err, want[i])
		}
	}
}

// stop applies an entry that must stop a replica and leave no trace, and brings
// the replica back by a snapshot from before.
func (d *duel) stop(index rowraft.Index, entry []byte) {
	before := d.stream(d.restarted)
	_, want := New(1, 0, nil).Apply(index, entry)
	got, ok := d.restarted.Apply(index, entry).(error)
	var fatal *shard.FatalError
	if !ok || !errors.As(got, &fatal) || rowraft.CodeOf(fatal.Err) != rowraft.CodeOf(want) {
		d.t.Fatalf("entry %d: %v, want a FatalError for %v", index, got, want)
	}
	if d.restarted.AppliedIndex() != d.ref.Applied {
		d.t.Fatal("an entry that stops a replica counts as applied")
	}
	if err := d.restarted.Restore(bytes.NewReader(before)); err != nil {
		d.t.Fatal(err)
	}
	d.compare(d.restarted)
}

func (d *duel) compare(m *shard.Machine) {
	got, err := m.Digest()
	if err != nil {
		d.t.Fatal(err)
	}
	if sum, rows := d.ref.Digest(); got.Sum != sum || got.Rows != rows || got.Index != d.ref.Applied {
		d.t.Fatalf("index %d: %d rows, digest %x; want index %d, %d, %x",
			got.Index, got.Rows, got.Sum, d.ref.Applied, rows, sum)
	}
	if m.LogTime() != d.ref.LogTime || m.Epoch() != d.ref.Epoch {
		d.t.Fatalf("log time %d, epoch %d, want %d, %d", m.LogTime(), m.Epoch(), d.ref.LogTime, d.ref.Epoch)
	}
}

// compareAll compares everything there is: what a snapshot holds, and what is read.
func (d *duel) compareAll() {
	for _, m := range []*shard.Machine{d.restarted, d.plain} {
		d.compareStream(d.stream(m), d.ref)
		for _, s := range m.Tables() {
			d.comparePull(m, d.ref.Tables[s.ID])
		}
	}
}

func (d *duel) compareStream(stream []byte, want *Machine) {
	got, err := Load(d.config.SlotCount, d.config.Slots, stream)
	if err != nil {
		d.t.Fatal(err)
	}
	if diff := got.Diff(want); diff != "" {
		d.t.Fatalf("a snapshot holds another state than the reference: %s", diff)
	}
}

// comparePull reads keys that were pushed and some that were not.
func (d *duel) comparePull(m *shard.Machine, t *Table) {
	ask := rows{schema: t.Schema, flags: wire.FlagNoValues}
	for k := range rowraft.Key(70) {
		if d.ref.owns(t.slotOf(k)) {
			ask.keys = append(ask.keys, k)
		}
	}
	reply, _, err := m.Pull(payloadOf(ask), true, 0, func(n int) []byte { return bytes.Repeat([]byte{0xAA}, n) })
	if err != nil {
		d.t.Fatal(err)
	}
	_, body, _, err := wire.ParseSegment(reply)
	if err != nil {
		d.t.Fatal(err)
	}
	got := make([]float32, t.Schema.Dim)
	for i, k := range ask.keys {
		want, r := InitialWeights(&t.Schema, k), t.Rows[k]
		if r != nil {
			want = r.Weights
		}
		wire.GetFloats(got, rowraft.Float32, body.Values[4*t.Schema.Dim*i:])
		if !sameBits(got, want) || body.Presence[i/8]>>(i%8)&1 == 1 != (r != nil) {
			d.t.Fatalf("table %s key %d: %v, want %v, present %v", t.Schema.Name, k, got, want, r != nil)
		}
	}
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// stream returns a snapshot of m.
func (d *duel) stream(m *shard.Machine) []byte {
	s, err := m.Snapshot()
	if err != nil {
		d.t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		d.t.Fatal(err)
	}
	return b.Bytes()
}

// restart replaces a Machine by one restored from its snapshot.
func (d *duel) restart() {
	next := newMachine(d.t, d.config)
	if err := next.Restore(bytes.NewReader(d.stream(d.restarted))); err != nil {
		d.t.Fatal(err)
	}
	d.restarted.Close()
	d.restarted = next
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

// snapshotWhile writes a snapshot of the Machine that only applies while step
// applies entries, and checks that it holds the state from before them.
func (d *duel) snapshotWhile(step func()) {
	entries := len(d.log)
	s, err := d.plain.Snapshot()
	if err != nil {
		d.t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	budget := 12
	w := writeFunc{&b, func() {
		if budget > 0 && rapid.Bool().Draw(d.t, "meanwhile") {
			budget--
			step()
		}
	}}
	if _, err := s.WriteTo(w); err != nil {
		d.t.Fatal(err)
	}
	then := New(d.config.Shard, d.config.SlotCount, d.config.Slots)
	for _, l := range d.log[:entries] {
		if _, err := then.Apply(l.index, l.entry); err != nil {
			d.t.Fatal(err)
		}
	}
	d.compareStream(b.Bytes(), then)
	m := newMachine(d.t, d.config)
	defer m.Close()
	if err := m.Restore(&b); err != nil {
		d.t.Fatal(err)
	}
	d.compareStream(d.stream(m), then)
}
