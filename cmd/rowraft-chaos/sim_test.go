package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

// asMain makes the test binary run the program itself: virtual time outside `go test` needs a separate process.
const asMain = "ROWRAFT_CHAOS_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	os.Exit(m.Run())
}

func TestTierA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	cmd := exec.Command(os.Args[0], "run", "--tier", "A", "--seed", "3", "--for", "20s", "--faults",
		"kill-leader,partition-leader,delay", "--dir", dir)
	cmd.Env = append(os.Environ(), asMain+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, want := range []string{"kill-leader", "times as fast", "0 violations", "kept: " + dir} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	code, stdout, _ := command(t, "check", dir)
	if code != cli.ExitDone || !strings.Contains(stdout, "exact      ok") {
		t.Errorf("check again: exit code %d\n%s", code, stdout)
	}
}
