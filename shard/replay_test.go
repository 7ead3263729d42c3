package shard

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

var writeReplay = flag.Bool("write-replay", false, "write testdata/replay_v1.txt from the model; only for a new apply version")

const (
	replayFile   = "testdata/replay_v1.txt"
	snapshotFile = "testdata/snapshot_v1.hex"
)

// TestOldLogReplays replays a log of apply version 1 that was written once, with
// the answers and digests that the model gave, and restores a snapshot that was
// written at its end. It must pass for ever.
func TestOldLogReplays(t *testing.T) {
	if *writeReplay {
		writeReplayFile(t)
	}
	text, err := os.ReadFile(replayFile)
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, Config{Slots: replaySlots()})
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var entry, answers, digest string
		var rows, now uint64
		if _, err := fmt.Sscanf(line, "%s %s %s %d %d", &entry, &answers, &digest, &rows, &now); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		b, err := hex.DecodeString(entry)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range r.apply(b).Parts {
			got = append(got, answerText(answerOf{rowraft.CodeOf(p.Err), p.Duplicate}))
		}
		d := r.digest()
		if joined := strings.Join(got, ","); joined != answers || hex.EncodeToString(d.Sum[:]) != digest || d.Rows != rows || r.LogTime() != now {
			t.Fatalf("entry %d: answers %s, digest %x, %d rows, log time %d; want %s, %s, %d, %d", r.index, joined, d.Sum, d.Rows, r.LogTime(), answers, digest, rows, now)
		}
		n++
	}
	if n < 80 {
		t.Errorf("%d entries only", n)
	}
	if *writeReplay {
		if err := os.WriteFile(snapshotFile, []byte(hex.Dump(r.snapshot())), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old := newReplica(t, Config{Slots: replaySlots()})
	if err := old.Restore(bytes.NewReader(undump(t, snapshotFile))); err != nil {
		t.Fatal(err)
	}
	if !sameState(old, r) {
		t.Errorf("the old snapshot restores to %+v, the log to %+v", old.digest(), r.digest())
	}
}

// undump reads what hex.Dump wrote.
func undump(t *testing.T, file string) (out []byte) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		digits, _, _ := strings.Cut(line[10:], "|")
		b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b...)
	}
	return out
}

func answerText(a answerOf) string {
	if a.duplicate {
		return "duplicate"
	}
	if a.code == rowraft.CodeUnknown {
		return "ok"
	}
	return a.code.String()
}

// replaySlots is three slots of four.
func replaySlots() (slots []rowraft.Slot) {
	for s := range rowraft.Slot(rowraft.NumSlots) {
		if s%4 != 1 {
			slots = append(slots, s)
		}
	}
	return slots
}

// writeReplayFile asks the model, not the Machine, what each entry does.
func writeReplayFile(t *testing.T) {
	m := newModel(replaySlots())
	rng := rand.New(rand.NewPCG(1, 1))
	var out strings.Builder
	out.WriteString("# entry (hexadecimal), its answers, digest, rows and log time after it; written by -write-replay\n")
	add := func(entry []byte, answers ...answerOf) {
		var texts []string
		for _, a := range answers {
			texts = append(texts, answerText(a))
		}
		sum, rows := m.digest()
		fmt.Fprintf(&out, "%x %s %x %d %d\n", entry, strings.Join(texts, ","), sum, rows, m.now)
	}
	header := func() wire.EntryHeader {
		m.now += uint64(SessionTTL) / 40
		return wire.EntryHeader{Version: 1, Epoch: 1, LogTime: m.now}
	}
	for _, s := range modelSchemas {
		add(wire.CreateTableEntry(header(), &s), answerOf{code: m.create(s)})
	}
	for _, inc := range []rowraft.Incarnation{2, 2, 1, 0} {
		for c := range byte(2) {
			add(wire.OpenSessionEntry(header(), client(c+1), inc), answerOf{code: m.open(client(c+1), inc)})
		}
	}
	for range 70 {
		h := header()
		var parts []wire.Part
		var answers []answerOf
		for range 1 + rng.IntN(3) {
			p := wire.Part{Client: client(byte(1 + rng.IntN(2))), Incarnation: 2, Op: wire.Op(1 + rng.IntN(5)/4)}
			s := m.sessions[p.Client]
			p.Seq = s.floor + rowraft.Seq(rng.IntN(14))
			if rng.IntN(20) == 0 {
				p.Seq += Window
			}
			p.Floor = s.floor + rowraft.Seq(rng.IntN(4))
			segs := replayRows(m, rng, p.Op)
			p.Payload = payloadOf(segs...)
			parts, answers = append(parts, p), append(answers, m.part(&p, segs))
		}
		add(entryOf(h, parts...), answers...)
	}
	m.now += 2 * uint64(SessionTTL)
	p := push(1, 1000, nil)
	p.Incarnation = 2
	add(entryOf(header(), p), m.part(&p, nil))
	if err := os.WriteFile(replayFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replayRows draws segments, one in ten for a table that does not exist or with
// a foreign key.
func replayRows(m *model, rng *rand.Rand, op wire.Op) (segs []rows) {
	for _, s := range modelSchemas[:4] {
		if rng.IntN(2) == 0 {
			continue
		}
		seg := rows{schema: s, dtype: rowraft.DType(1 + rng.IntN(2))}
		if op == wire.OpPush && rng.IntN(3) == 0 {
			seg.flags, seg.lr = wire.FlagLR, rng.Float32()
		}
		fault := rng.IntN(40)
		if fault == 0 {
			seg.schema.ID = 1234
		}
		for k := range uint64(12) {
			key := rowraft.Key(k)
			if s.Kind == rowraft.Dense {
				key = rowraft.DenseKey(uint32(k/4), k%4)
			}
			if rng.IntN(3) == 0 && (m.owned[clustermap.SlotOf(s.ID, s.Kind, key)] || fault == 1) {
				seg.keys = append(seg.keys, key)
				for range s.Dim {
					seg.values = append(seg.values, float32(rng.NormFloat64()))
				}
			}
		}
		if seg.values == nil {
			seg.values = []float32{}
		}
		segs = append(segs, seg)
	}
	return segs
}
