package reference

import (
	"encoding/hex"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

var writeReplay = flag.Bool("write-replay", false,
	"write shard/testdata/replay.txt from the reference; from the first release on only for a new version")

const replayFile = "../../shard/testdata/replay.txt"

// replayTables have every update rule, both storages, and a dense table.
var replayTables = slices.Concat(schemas[:4], ruleTables)

// TestOldLogReplays replays a log that was written once, with its answers and digests. It has
// pushes, assigns and deletes of all replayTables, sessions, and drops of a table.
// Package shard replays the same file. Both must pass forever.
func TestOldLogReplays(t *testing.T) {
	if *writeReplay {
		writeReplayFile(t)
	}
	replays(t, replayFile)
}

// replays applies the log in a file and compares the recorded results after each entry.
func replays(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := New(0, 0, someSlots())
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		digits, _, _ := strings.Cut(line, " ")
		entry, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		if got := replayLine(t, m, entry); got != line {
			t.Fatalf("entry %d: %s, want %s", m.Applied, got[len(digits):], line[len(digits):])
		}
	}
	if m.Applied < 80 {
		t.Errorf("%d entries only", m.Applied)
	}
}

// replayLine applies entry and returns its line: entry, answers, digest, rows and
// log time.
func replayLine(t *testing.T, m *Machine, entry []byte) string {
	answers, err := m.Apply(m.Applied+1, entry)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, a := range answers {
		texts = append(texts, a.String())
	}
	sum, rows := m.Digest()
	return fmt.Sprintf("%x %s %x %d %d\n", entry, strings.Join(texts, ","), sum, rows, m.LogTime)
}

// writeReplayFile asks the reference, not shard, what each entry does.
func writeReplayFile(t *testing.T) {
	m := New(0, 0, someSlots())
	rng := rand.New(rand.NewPCG(1, 1))
	var out strings.Builder
	out.WriteString("# entry (hexadecimal), its answers, digest, rows and log time after it; written by -write-replay " +
		"of e2e/reference\n")
	add := func(entry []byte) { out.WriteString(replayLine(t, m, entry)) }
	header := func() wire.EntryHeader {
		return wire.EntryHeader{Version: 1, Epoch: 1, LogTime: m.LogTime + sessionTTL/40}
	}
	for _, s := range replayTables {
		add(wire.CreateTableEntry(header(), &s))
	}
	for _, inc := range []rowraft.Incarnation{2, 2, 1, 0} {
		for c := range byte(2) {
			add(wire.OpenSessionEntry(header(), wire.Opening{Client: clientID(c + 1), Incarnation: inc}))
		}
	}
	for n := range 70 {
		var parts []wire.Part
		for range 1 + rng.IntN(3) {
			p := wire.Part{Client: clientID(byte(1 + rng.IntN(2))), Incarnation: 2, Op: wire.Op(1 + rng.IntN(6)/2)}
			floor := m.Sessions[p.Client].Floor
			p.Seq = floor + rowraft.Seq(rng.IntN(14))
			if rng.IntN(20) == 0 {
				p.Seq += window
			}
			p.Floor = floor + rowraft.Seq(rng.IntN(4))
			p.Payload = payloadOf(replayRows(m, rng, p.Op)...)
			parts = append(parts, p)
		}
		add(entryOf(header(), parts...))
		if n == 55 || n == 56 { // the second time it is not there
			add(wire.DropTableEntry(header(), replayTables[1].ID))
		}
	}
	late := header()
	late.LogTime += 2 * sessionTTL
	add(entryOf(late, wire.Part{Client: clientID(1), Incarnation: 2, Seq: 1000, Op: wire.OpPush}))
	if err := os.WriteFile(replayFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replayRows draws segments, one in ten for a table that does not exist or with
// a foreign key.
func replayRows(m *Machine, rng *rand.Rand, op wire.Op) (segs []rows) {
	for _, s := range replayTables {
		if rng.IntN(2) == 0 {
			continue
		}
		seg := rows{schema: s, dtype: rowraft.DType(1 + rng.IntN(2))}
		if op == wire.OpPush && rng.IntN(3) == 0 {
			seg.flags, seg.lr = wire.FlagLR, rng.Float32()
		}
		if op == wire.OpDelete {
			seg.flags = wire.FlagNoValues
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
			if rng.IntN(3) == 0 && (m.owns(clustermap.SlotOf(s.ID, s.Kind, key, rowraft.SlotCount(m.Slots))) || fault == 1) {
				seg.keys = append(seg.keys, key)
				for range s.Dim {
					seg.values = append(seg.values, float32(rng.NormFloat64()))
				}
			}
		}
		segs = append(segs, seg)
	}
	return segs
}
