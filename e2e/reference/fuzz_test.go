package reference

import (
	"bytes"
	"errors"
	"hash/crc32"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// small is a snapshot with four tables, some rows, a candidate, two sessions and a number
// that was refused.
func small(tb testing.TB) []byte {
	m, err := shard.New(shard.Config{Shard: 6})
	if err != nil {
		tb.Fatal(err)
	}
	defer m.Close()
	index := rowraft.Index(0)
	apply := func(entry []byte) {
		index++
		if _, ok := m.Apply(index, entry).(*shard.Applied); !ok {
			tb.Fatalf("entry %d is refused", index)
		}
	}
	h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: 3}
	for _, s := range smallTables {
		apply(wire.CreateTableEntry(h, &s))
	}
	for c := range byte(2) {
		apply(wire.OpenSessionEntry(h, wire.Opening{Client: clientID(c + 1), Incarnation: rowraft.Incarnation(1 + 8*c)}))
	}
	apply(wire.MembershipEntry(h,
		&wire.Membership{Job: jobID(1), Generation: 1, First: 1,
			Members: []wire.Member{{Rank: 0, Incarnation: 1}, {Rank: 1, Incarnation: 1}}}))
	for s := range rowraft.Step(2) { // one that is closed, one that is open after key 5 of the first table
		step := wire.Step{Job: jobID(1), Generation: 1, Step: s + 1, Last: s == 0,
			Positions: []rowraft.Position{{ID: 1, Offset: 1}}}
		step.Contributors.Add(0)
		step.Payload = payloadOf(rows{schema: smallTables[0], keys: []rowraft.Key{5}, values: []float32{0}})
		apply(wire.AppendStepEntry(nil, h, &step))
	}
	keys := []rowraft.Key{1, 5, 1 << 60}
	for i, s := range append(smallTables, testTable(4, "d", 1, sgd)) {
		seg := rows{schema: s, keys: keys[min(i, 2):]}
		seg.values = []float32{1, -2, 0.5, 3, 1, 1, 1, 1, 1}[:len(seg.keys)*s.Dim]
		apply(entryOf(h, wire.Part{Client: clientID(1), Incarnation: 1, Seq: rowraft.Seq(i + 2), Op: wire.OpPush,
			Payload: payloadOf(seg)}))
	}
	s, err := m.Snapshot()
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

var smallTables = func() []rowraft.Schema {
	counted := streamTables[0]
	counted.SumPushes = true
	return []rowraft.Schema{testTable(1, "a", 1, sgd), testTable(2, "b", 2, adagrad), testTable(3, "c", 3, adam), counted}
}()

// FuzzApply: any bytes do to a Machine what they do to the reference, and those
// that stop one stop the other. The rows stay those of one snapshot, so an input
// is one entry. A Machine is restored only after an entry that it has applied.
func FuzzApply(f *testing.F) {
	h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: 5}
	part := wire.Part{Client: clientID(1), Incarnation: 1, Seq: 1, Op: wire.OpPush, Payload: payloadOf(
		rows{schema: smallTables[0], keys: []rowraft.Key{1, 2}, values: []float32{1, 1}},
		rows{schema: smallTables[1], keys: []rowraft.Key{7}, values: []float32{1, 1}, flags: wire.FlagLR, lr: 0.5})}
	f.Add(entryOf(h, part, part))
	part.Op, part.Seq, part.Floor = wire.OpAssign, 9, 3
	part.Payload = payloadOf(rows{schema: smallTables[2], dtype: rowraft.BFloat16, keys: []rowraft.Key{1, 5},
		values: []float32{1, 2, 3, 4, 5, 6}})
	f.Add(entryOf(h, part))
	rowsOfSum := payloadOf(rows{schema: smallTables[0], keys: []rowraft.Key{1, 2}, values: []float32{2, 1}},
		rows{schema: smallTables[3], flags: wire.FlagCounts, keys: []rowraft.Key{1, 7}, values: make([]float32, 4),
			counts: []byte{2, 1}})
	sum, room := wire.SumPart(nil, []*wire.Part{{Client: clientID(1), Incarnation: 1, Seq: 9},
		{Client: clientID(2), Incarnation: 9, Seq: 1}}, len(rowsOfSum))
	copy(room, rowsOfSum)
	f.Add(entryOf(h, sum))
	f.Add(wire.OpenSessionEntry(h, wire.Opening{Client: clientID(1), Incarnation: 2}))
	f.Add(wire.CreateTableEntry(h, &smallTables[0]))
	f.Add([]byte{})
	f.Add(wire.MarkEntry(h, wire.MarkID{1}))
	for step := wire.ProofMark; step <= wire.ProofDivided; step++ {
		f.Add(wire.ProofEntry(h, &wire.Proof{Step: step, Mark: 1, Rows: 2}))
	}
	f.Add(wire.RestoreBeginEntry(h, &wire.RestoreBegin{ID: wire.RestoreID{1}, Epoch: 2, Tables: smallTables}))
	f.Add(wire.RestoreRowsEntry(h, wire.RestoreID{1}, 1,
		wire.AppendRestoreBlock(nil, &wire.RestoreBlock{Table: 1, Counter: 1, RecordBytes: 28})))
	f.Add(wire.RestoreCloseEntry(h, &wire.RestoreClose{ID: wire.RestoreID{1}, Epoch: 2}))
	f.Add(wire.RestoreDropEntry(h, wire.RestoreID{1}))
	f.Add(wire.SweepEntry(h, &wire.Sweep{Table: streamTables[0].ID, Slots: rowraft.DefaultSlots,
		Conditions: wire.SweepCount | wire.SweepUnseen, Count: 2, Unseen: 1}))
	block := wire.RestoreBlock{Table: streamTables[0].ID, Slot: slotOf(&streamTables[0], 4096, 1), Counter: 2, Rows: 1,
		RecordBytes: 16, Tick: 7, Candidates: true, Records: make([]byte, 16)}
	block.Records[0], block.Records[8] = 1, 1
	f.Add(wire.RestoreRowsEntry(h, wire.RestoreID{1}, 1, wire.AppendRestoreBlock(nil, &block)))

	f.Add(wire.MembershipEntry(h,
		&wire.Membership{Job: jobID(1), Generation: 2, First: 3,
			Members: []wire.Member{{Rank: 0, Incarnation: 1}, {Rank: 1, Incarnation: 2}}}))
	f.Add(wire.MembershipEntry(h, &wire.Membership{Job: jobID(1)}))
	step := wire.Step{Job: jobID(1), Generation: 1, Step: 2, Piece: 1, Last: true, AfterTable: 1, AfterKey: 5,
		Positions: []rowraft.Position{{ID: 1, Offset: 2}}}
	step.Contributors.Add(0)
	step.Payload = payloadOf(rows{schema: smallTables[1], keys: []rowraft.Key{7}, values: []float32{1, 1}})
	f.Add(wire.AppendStepEntry(nil, h, &step))
	part.Op, part.Payload = wire.OpClocked,
		append(wire.AppendClock(nil, &wire.Clock{Job: jobID(1), Incarnation: 1, Clock: 4, Positions: step.Positions}),
			step.Payload...)
	f.Add(entryOf(h, part))

	stream := small(f)
	m, err := shard.New(shard.Config{Shard: 6})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { m.Close() })
	f.Fuzz(func(t *testing.T, entry []byte) {
		ref, err := Load(0, nil, stream)
		if err != nil {
			t.Fatal(err)
		}
		index := ref.Applied + 1
		want, stopped := ref.Apply(index, entry)
		if stopped != nil {
			checkStopped(t, index, entry, stopped)
			return
		}
		if err := m.Restore(bytes.NewReader(stream)); err != nil {
			t.Fatal(err)
		}
		got, ok := m.Apply(index, entry).(*shard.Applied)
		if !ok || len(got.Parts) != len(want) {
			t.Fatalf("Apply = %+v, want answers %v", got, want)
		}
		for i, p := range got.Parts {
			if have := (Answer{rowraft.CodeOf(p.Err), p.Duplicate}); have != want[i] {
				t.Fatalf("part %d: %v (%v), want %v", i, have, p.Err, want[i])
			}
		}
		if ref.Stage == nil { // else there is no snapshot
			if diff := loaded(t, m).Diff(ref); diff != "" {
				t.Fatalf("another state than the reference: %s", diff)
			}
		}
		d, err := m.Digest()
		if sum, rows := ref.Digest(); err != nil || d.Sum != sum || d.Rows != rows || m.LogTime() != ref.LogTime {
			t.Fatalf("digest %+v, log time %d, error %v; want %x of %d rows, %d", d, m.LogTime(), err, sum, rows, ref.LogTime)
		}
	})
}

// loaded is what a snapshot of m holds.
func loaded(t *testing.T, m *shard.Machine) *Machine {
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Load(0, nil, b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// checkStopped wants entry to stop a Machine as well. Bytes alone decide that, so
// the Machine needs no rows.
func checkStopped(t *testing.T, index rowraft.Index, entry []byte, want error) {
	m, err := shard.New(shard.Config{Shard: 6})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	got, ok := m.Apply(index, entry).(error)
	var fatal *shard.FatalError
	if !ok || !errors.As(got, &fatal) || rowraft.CodeOf(fatal.Err) != rowraft.CodeOf(want) || m.AppliedIndex() != 0 {
		t.Fatalf("Apply = %v, want a FatalError for %v", got, want)
	}
}

// FuzzLoad: a Machine restores from exactly the streams that the reference can
// load, and to the same state.
func FuzzLoad(f *testing.F) {
	stream := small(f)
	f.Add(stream)
	f.Add(stream[:100])
	f.Add([]byte("ROWRSNAP"))
	m, err := shard.New(shard.Config{Shard: 6})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { m.Close() })
	f.Fuzz(func(t *testing.T, in []byte) {
		in = withSums(bytes.Clone(in))
		want, refused := Load(0, nil, in)
		if refused == nil && want.Shard != 6 {
			return // of another shard: only the Machine knows which it is
		}
		err := m.Restore(bytes.NewReader(in))
		if (err == nil) != (refused == nil) {
			t.Fatalf("the Machine says %v, the reference %v", err, refused)
		}
		if err != nil {
			return
		}
		if diff := loaded(t, m).Diff(want); diff != "" {
			t.Fatalf("restored, it is another state: %s", diff)
		}
	})
}

// withSums sets the checksums of whatever stands where the header and chunks of
// a snapshot would, so that the content behind them is tested.
func withSums(b []byte) []byte {
	if len(b) < 64 {
		return b
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	le.PutUint32(b[60:], crc32.Checksum(b[:60], table))
	for c := b[64:]; len(c) >= 16; {
		n := le.Uint64(c[8:])
		if n > uint64(len(c)-16) {
			break
		}
		le.PutUint32(c[4:], crc32.Update(crc32.Checksum(c[:4], table), table, c[8:16+n]))
		c = c[16+n:]
	}
	return b
}
