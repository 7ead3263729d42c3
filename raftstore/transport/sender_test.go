package transport

import (
	"bytes"
	"testing"
	"time"

	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/raftstore/turns"
)

// Bytes made by hand from docs/formats/peer.md.
func TestTimersGoldenBytes(t *testing.T) {
	said := timers.Report{Want: 2 * time.Second, Now: time.Second, Started: 250 * time.Millisecond, Restart: true}
	want := []byte("n1\x00r2\x00" + "\x80\x84\x1e\x00" + "\x40\x42\x0f\x00" + "\x90\xd0\x03\x00" + "\x01" + "\x05")
	got := joinSender([]byte("n1"), "r2", said, turns.Due|turns.Turn)
	if !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	node, to, raw, flags, rest := splitSender(append(want, "marks"...))
	back, ok := timers.ParseReport(raw)
	if string(node) != "n1" || to != "r2" || !ok || back != said || flags != turns.Due|turns.Turn ||
		string(rest) != "marks" {
		t.Errorf("read %q, %q, %+v, %v, %x, %q", node, to, back, ok, flags, rest)
	}
	for _, bad := range []string{"", "n1", "n1\x00r2", "n1\x00r2\x00", "n1\x00r2\x00" +
		string(make([]byte, timers.ReportBytes))} {
		node, _, raw, _, _ := splitSender([]byte(bad))
		if _, ok := timers.ParseReport(raw); ok || len(bad) > 0 && string(node) != "n1" {
			t.Errorf("%q: node %q, timers %v", bad, node, ok)
		}
	}
}
