package reference

import (
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

var writeStreams = flag.Bool("write-streams", false,
	"write shard/testdata/replay_streaming.txt from the reference; from the first release on only for a new version")

const streamsFile = "../../shard/testdata/replay_streaming.txt"

// TestOldStreamsReplay replays a log on tables for streaming ids, with its answers and
// digests. Package shard replays the same file. Both must pass forever. The log tells evictions
// of a sixth from those of an eighth, but not a seventh, which is as many of 20 rows.
func TestOldStreamsReplay(t *testing.T) {
	if *writeStreams {
		writeStreamsFile(t)
	}
	replays(t, streamsFile)
}

// writeStreamsFile asks the reference, not shard, what each entry does.
func writeStreamsFile(t *testing.T) {
	m := New(0, 0, someSlots())
	rng := rand.New(rand.NewPCG(2, 2))
	var out strings.Builder
	out.WriteString("# entry (hexadecimal), its answers, digest, rows and log time after it; written by " +
		"-write-streams of e2e/reference\n")
	add := func(entry []byte) { out.WriteString(replayLine(t, m, entry)) }
	header := func() wire.EntryHeader {
		return wire.EntryHeader{Version: 1, Epoch: 1, LogTime: m.LogTime + uint64(rng.IntN(200))*1_000_000_007}
	}
	for _, s := range streamTables {
		add(wire.CreateTableEntry(header(), &s))
	}
	add(wire.OpenSessionEntry(header(), wire.Opening{Client: clientID(1), Incarnation: 1}))
	seq := rowraft.Seq(0)
	for range 110 {
		s := streamTables[rng.IntN(len(streamTables))]
		if rng.IntN(6) == 0 {
			w := wire.Sweep{Table: s.ID, Slots: rowraft.DefaultSlots, Conditions: 1 << rng.IntN(4)}
			switch w.Conditions {
			case wire.SweepUnseen:
				w.Unseen = uint32(rng.IntN(900))
			case wire.SweepCount:
				w.Count = 1 + uint32(rng.IntN(3))
			case wire.SweepNorm:
				w.Norm = 0.05 + rng.Float32()/4
			}
			add(wire.SweepEntry(header(), &w))
			continue
		}
		seq++
		p := wire.Part{Client: clientID(1), Incarnation: 1, Seq: seq, Floor: seq - 1, Op: wire.OpPush}
		if rng.IntN(12) == 0 {
			p.Op = wire.OpAssign
		}
		seg := rows{schema: s}
		for range 1 + rng.IntN(70) {
			seg.keys = append(seg.keys, crowd[s.ID][rng.IntN(1+rng.IntN(len(crowd[s.ID])))])
		}
		slices.Sort(seg.keys)
		seg.keys = slices.Compact(seg.keys)
		for range len(seg.keys) * s.Dim {
			seg.values = append(seg.values, float32(rng.NormFloat64()))
		}
		p.Payload = payloadOf(seg)
		add(entryOf(header(), p))
	}
	if err := os.WriteFile(streamsFile, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
