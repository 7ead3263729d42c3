package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// bin holds the binaries under test, built by TestMain; "" with -short.
var bin string

// root is the repository.
const root = ".."

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	if testing.Short() {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "rowraft-e2e-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	bin = dir
	code := m.Run()
	for _, p := range leftovers(dir) {
		fmt.Fprintf(os.Stderr, "e2e: a process is left: pid %d: %s\n", p.pid, p.command)
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
		code = 1
	}
	leak := goleak.Find()
	for tries := 0; leak != nil && tries < 20; tries++ { // Find itself waits for half a second
		leak = goleak.Find()
	}
	if leak != nil {
		fmt.Fprintln(os.Stderr, "e2e:", leak)
		code = 1
	}
	return code
}

// build builds the binaries as the test itself was built: with or without the SIMD kernels.
func build(dir string) error {
	return goBuild("-o", dir+string(filepath.Separator), "./cmd/rowraft", "./cmd/rowraft-trainer", "./cmd/rowraft-bench")
}

func goBuild(args ...string) error {
	cmd := exec.Command("go", append([]string{"build"}, args...)...)
	cmd.Dir = root
	experiment := ""
	if strings.Contains(runtime.Version(), "X:simd") {
		experiment = "simd"
	}
	cmd.Env = append(os.Environ(), "GOEXPERIMENT="+experiment)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

type process struct {
	pid     int
	command string
}

// leftovers lists the processes that run a binary from dir, of any parent.
func leftovers(dir string) []process {
	entries, _ := os.ReadDir("/proc")
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || !strings.HasPrefix(exe, dir+string(filepath.Separator)) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		out = append(out, process{pid, strings.ReplaceAll(string(line), "\x00", " ")})
	}
	return out
}

func TestALeftProcessIsNoticed(t *testing.T) {
	needBinaries(t)
	s := spawn(t, "rowraft", "server", "--insecure", "--with-scheduler", "--data-dir", t.TempDir(),
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0")
	// A process has no command line for a moment after its start.
	if err := poll(deadline(t, patience), func() error {
		for _, p := range leftovers(bin) {
			if p.pid == s.cmd.Process.Pid && strings.Contains(p.command, "--with-scheduler") {
				return nil
			}
		}
		return fmt.Errorf("leftovers does not show pid %d", s.cmd.Process.Pid)
	}); err != nil {
		t.Error(err)
	}
	s.kill()
	for _, p := range leftovers(bin) {
		t.Errorf("leftovers shows %v after it was killed", p)
	}
}

// needBinaries skips a test that starts processes where none was built.
func needBinaries(t testing.TB) {
	t.Helper()
	if bin == "" {
		t.Skip("starts processes: skipped by -short")
	}
}

// beforeRelease skips a test in `make test`, because cheaper tests check the same promise there: docs/testing.md
// lists them. It runs in `make verify-full` and when -run chooses tests.
func beforeRelease(t testing.TB) {
	t.Helper()
	if !everyTest() {
		t.Skip(
			"runs in make verify-full, with ROWRAFT_E2E=all, or with -run; docs/testing.md says what make test runs for it")
	}
}

// everyTest reports whether the tests that are kept for a release run, too.
func everyTest() bool {
	return os.Getenv("ROWRAFT_E2E") == "all" || flag.Lookup("test.run").Value.String() != ""
}

// running is a process of one of the binaries. The test ends it.
type running struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer // to be read once it has ended
	ended          chan struct{}
	err            error // why it ended, once it has
}

// spawn starts a binary in the root of the repository.
func spawn(t testing.TB, name string, args ...string) *running {
	t.Helper()
	return spawnEnv(t, nil, name, args...)
}

// spawnEnv is spawn with another environment; nil: that of the test.
func spawnEnv(t testing.TB, env []string, name string, args ...string) *running {
	t.Helper()
	return launch(t, exec.Command(filepath.Join(bin, name), args...), env)
}

// spawnScript starts a program of the repository.
func spawnScript(t testing.TB, env []string, path string) *running {
	t.Helper()
	return launch(t, exec.Command("./"+path), env)
}

func launch(t testing.TB, cmd *exec.Cmd, env []string) *running {
	t.Helper()
	p := &running{cmd: cmd, ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Env = root, env
	if p.cmd.Stderr = &p.stderr; p.cmd.Stdout == nil {
		p.cmd.Stdout = &p.stdout
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	// Pdeathsig is tied to the thread that forks: keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the process, if it has not, and returns when it is gone.
func (p *running) kill() {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err)
	}
	<-p.ended
}

// code waits for the process to end and returns its exit code.
func (p *running) code(t testing.TB, patience time.Duration) int {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-timer.C:
	}
	// What its goroutines wait for is the best that can be said of it.
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
	}
	p.kill()
	t.Fatalf("%v has not ended after %v; it wrote\n%s%s", p.cmd.Args, patience, &p.stdout, &p.stderr)
	return -1
}

// patience is how long one step of a test may take on a busy machine, where processes may
// stand still for seconds. A longer wait is a bug.
const patience = 4 * time.Minute

// deadline is a context for one phase of a test.
func deadline(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, fmt.Errorf("%s took longer than %v", t.Name(), d))
	t.Cleanup(cancel)
	return ctx
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
