package shard

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

const (
	replayFile   = "testdata/replay.txt"
	streamsFile  = "testdata/replay_streaming.txt"
	snapshotFile = "testdata/snapshot.hex"
)

// TestOldLogReplays replays a log that was written once, by e2e/reference -write-replay,
// with its answers and digests, and restores a snapshot that was written at its end.
// It must pass forever.
func TestOldLogReplays(t *testing.T) {
	r := replayed(t, replayFile)
	old := newReplica(t, Config{Slots: replaySlots()})
	if err := old.Restore(bytes.NewReader(undump(t, snapshotFile))); err != nil {
		t.Fatal(err)
	}
	if !sameState(old, r) {
		t.Errorf("the old snapshot restores to %+v, the log to %+v", old.digest(), r.digest())
	}
}

// TestOldStreamsReplay replays a log of tables for streaming ids, by e2e/reference -write-streams.
func TestOldStreamsReplay(t *testing.T) {
	r := replayed(t, streamsFile)
	left := uint64(0)
	for _, s := range r.Stats() {
		left += s.Rows
	}
	if left != r.digest().Rows || left == 0 {
		t.Errorf("%d rows are left, the digest says %d", left, r.digest().Rows)
	}
}

// replayed applies the log in file and compares the recorded results after each entry.
func replayed(t *testing.T, file string) *replica {
	t.Helper()
	text, err := os.ReadFile(file)
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
			got = append(got, answerText(p))
		}
		d := r.digest()
		if joined := strings.Join(got, ","); joined != answers || hex.EncodeToString(d.Sum[:]) != digest ||
			d.Rows != rows || r.LogTime() != now {
			t.Fatalf("entry %d: results %s, digest %x, %d rows, log time %d; want %s, %s, %d, %d",
				r.index, joined, d.Sum, d.Rows, r.LogTime(), answers, digest, rows, now)
		}
		n++
	}
	if n < 80 {
		t.Errorf("only %d entries", n)
	}
	return r
}

// undump reads the output of hex.Dump.
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

func answerText(p PartResult) string {
	switch {
	case p.Duplicate:
		return "duplicate"
	case p.Err == nil:
		return "ok"
	}
	return rowraft.CodeOf(p.Err).String()
}

// replaySlots is three of every four slots.
func replaySlots() (slots []rowraft.Slot) {
	for s := range rowraft.Slot(rowraft.DefaultSlots) {
		if s%4 != 1 {
			slots = append(slots, s)
		}
	}
	return slots
}
