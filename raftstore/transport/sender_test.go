package transport

import (
	"bytes"
	"testing"
	"time"

	"github.com/rowraft/rowraft/raftstore/timers"
)

// Bytes made by hand from docs/formats/peer.md.
func TestTimersGoldenBytes(t *testing.T) {
	said := timers.Report{Want: 2 * time.Second, Now: time.Second, Started: 250 * time.Millisecond, Restart: true}
	want := []byte("n1\x00r2\x00" + "\x80\x84\x1e\x00" + "\x40\x42\x0f\x00" + "\x90\xd0\x03\x00" + "\x01")
	got := joinSender([]byte("n1"), "r2", said)
	if !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	node, to, raw := splitSender(want)
	back, ok := timers.ParseReport(raw)
	if string(node) != "n1" || to != "r2" || !ok || back != said {
		t.Errorf("read %q, %q, %+v, %v", node, to, back, ok)
	}
	for _, bad := range []string{"", "n1", "n1\x00r2", "n1\x00r2\x00", "n1\x00r2\x00" +
		string(make([]byte, timers.ReportBytes))} {
		node, _, raw := splitSender([]byte(bad))
		if _, ok := timers.ParseReport(raw); ok || len(bad) > 0 && string(node) != "n1" {
			t.Errorf("%q: node %q, timers %v", bad, node, ok)
		}
	}
}
