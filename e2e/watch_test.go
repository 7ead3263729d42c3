package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// watching is `rowraft job watch -o json`.
type watching struct {
	p    *running
	file string // what it has written
}

// watch begins to watch a job, and returns when there is something to see.
func watch(t testing.TB, c *cluster, job string) *watching {
	t.Helper()
	w := &watching{file: filepath.Join(t.TempDir(), "watch")}
	out, err := os.Create(w.file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(filepath.Join(bin, "rowraft"), "job", "watch", job, "--every", "200ms", "-o", "json", "--insecure",
		"--endpoints", strings.Join(c.Endpoints(), ","))
	cmd.Stdout = out
	w.p = launch(t, cmd, nil)
	says(t, w.file, "}\n")
	return w
}

// ends waits for the watch to end by itself, when no worker trains any more.
func (w *watching) ends(t testing.TB, state string) {
	t.Helper()
	if code := w.p.code(t, patience); code != 0 {
		t.Errorf("the watch ends with code %d: %s", code, &w.p.stderr)
	}
	if v := w.last(t); v.State != state || v.Training != 0 {
		t.Errorf("the watch ends with job %+v, want it %s", v, state)
	}
}

// interrupt is Ctrl-C: the watch ends, and the job does not.
func (w *watching) interrupt(t testing.TB, job string) {
	t.Helper()
	signal(t, w.p, syscall.SIGINT)
	if code := w.p.code(t, patience); code != 0 || !strings.Contains(w.p.stderr.String(), "job "+job+" continues") {
		t.Errorf("the watch ends with code %d: %s", code, &w.p.stderr)
	}
	if v := w.last(t); v.State != "running" {
		t.Errorf("what the watch saw last is %+v", v)
	}
}

// last is the last event.
func (w *watching) last(t testing.TB) jobView {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(string(mustRead(t, w.file))), "\n")
	var v struct{ Job jobView }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &v); err != nil {
		t.Fatal(err)
	}
	return v.Job
}
