package cli

import (
	"bytes"
	"strings"
	"testing"
)

// TestRunView: without a terminal, progress has a line at intervals. mpb draws no bar on a buffer, so a view with a bar
// must end, no more.
func TestRunView(t *testing.T) {
	for _, bars := range []bool{false, true} {
		var out bytes.Buffer
		v := newRunView(&out, bars)
		for i := range int64(100) {
			v.Progress(i, 100, "step")
		}
		v.Event("server %s up", "n1")
		v.Done()
		v.Progress(100, 100, "late")
		v.Done()
		if text := out.String(); !bars && (strings.Count(text, "step") != 1 || !strings.Contains(text, "s  server n1 up\n")) {
			t.Errorf("want one line of progress, since all comes at once, and the event:\n%s", text)
		}
	}
}
