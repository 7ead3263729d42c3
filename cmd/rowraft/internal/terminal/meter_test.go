package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestMeterOffATerminal: people get a line now and then, programs an event.
func TestMeterOffATerminal(t *testing.T) {
	synctest.Test(t, meterOffATerminal) // or it would tell of the time that the test takes
}

func meterOffATerminal(t *testing.T) {
	for _, events := range []bool{false, true} {
		var out strings.Builder
		m := NewMeter(&out, "read", events)
		m.Set(1<<20, 4<<20)
		if out.Len() > 0 {
			t.Errorf("it says at once: %s", out.String())
		}
		m.started = m.started.Add(-10 * time.Second)
		m.nextLine.Store(0)
		m.Set(1<<20, 4<<20)
		m.Set(2<<20, 4<<20) // too early for the next one
		m.Phase("close")
		m.Done()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if !events {
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "read: 1.0 MiB of 4.0 MiB  10") ||
				!strings.HasSuffix(lines[0], "KiB/s  30s left") {
				t.Errorf("lines %q", lines)
			}
			continue
		}
		var first, second ProgressEvent
		if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &first) != nil ||
			json.Unmarshal([]byte(lines[1]), &second) != nil {
			t.Fatalf("lines %q", lines)
		}
		p := first.Progress
		if p.Phase != "read" || p.Bytes != 1<<20 || p.BytesTotal != 4<<20 || p.Left == nil || *p.Left < 29 || *p.Left > 31 ||
			p.Rate < 1e5 || second.Progress.Phase != "close" {
			t.Errorf("events %q", lines)
		}
	}
}

// TestABarAppearsWithTheFirstBytes: a command that fails before leaves none. The units are those of all other sizes.
func TestABarAppearsWithTheFirstBytes(t *testing.T) {
	var out bytes.Buffer
	m := NewMeter(&out, "read", false)
	m.terminal = true
	m.Set(0, 0)
	m.Done()
	if out.Len() > 0 {
		t.Errorf("a bar of nothing: %q", &out)
	}
	m = NewMeter(&out, "read", false)
	m.terminal = true
	m.Set(512, 2048)
	m.Done()
	m.Done()
	if got := out.String(); !strings.Contains(got, "512 B / 2.0 KiB ") || !strings.Contains(got, "B/s") {
		t.Errorf("the bar is %q", got)
	}
}
