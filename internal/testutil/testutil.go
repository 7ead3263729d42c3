// Package testutil has what the tests of many packages need: waiting for a condition, limiting a test in time,
// checking the Code of an error, reading golden bytes, and running Python.
package testutil

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// patience is the limit of a wait. A busy machine needs a lot of time.
const patience = 4 * time.Minute

// Context returns a context for all waits of a test. It ends when the test ends, or after patience.
func Context(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// Eventually polls ok until it returns true. It is for conditions that have no event.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ; !ok(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// WantCode fails the test unless err has the code and contains all words.
func WantCode(tb testing.TB, err error, code rowraft.Code, words ...string) {
	tb.Helper()
	WantCodeOf(tb, "", err, code, words...)
}

// WantCodeOf is WantCode for a test of several cases: what names the case.
func WantCodeOf(tb testing.TB, what string, err error, code rowraft.Code, words ...string) {
	tb.Helper()
	if what != "" {
		what += ": "
	}
	if err == nil || rowraft.CodeOf(err) != code {
		tb.Errorf("%serror %v (code %v), want code %v", what, err, rowraft.CodeOf(err), code)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			tb.Errorf("%serror %q does not say %q", what, err, w)
		}
	}
}

// GoldenHex returns the bytes of a file of hexadecimal digits, in which # begins a comment and spaces mean nothing.
func GoldenHex(tb testing.TB, path string) []byte {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		code, _, _ := strings.Cut(line, "#")
		digits.WriteString(strings.Join(strings.Fields(code), ""))
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return b
}

// Python returns an interpreter that can do the given imports, from a virtual environment with packages that is kept
// between runs. Without Python, or if pip cannot install the packages, it skips the test.
func Python(t *testing.T, imports string, packages ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no Python packages are installed")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skipf("no place to keep Python packages: %v", err)
	}
	venv := filepath.Join(cache, "rowraft-test", strings.ReplaceAll(strings.Join(packages, "_"), "==", "-"))
	bin := filepath.Join(venv, "bin", "python")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if exec.CommandContext(ctx, bin, "-c", "import "+imports).Run() == nil {
		return bin
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", venv},
		append([]string{bin, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
			"setuptools==80.9.0"}, packages...), // TensorBoard imports setuptools and does not ask for it
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("SKIPPED: nothing is read by %s: %v: %v: %s", strings.Join(packages, ", "), args, err, out)
		}
	}
	return bin
}

// WriteCounter counts the writes of a connection.
type WriteCounter struct {
	net.Conn
	Writes atomic.Int64
}

func (c *WriteCounter) Write(b []byte) (int, error) {
	c.Writes.Add(1)
	return c.Conn.Write(b)
}

// WantBatches fails the test unless 300 KiB that are written to from arrive at to, with at most 10 writes of below.
func WantBatches(tb testing.TB, what string, from, to net.Conn, below *WriteCounter) {
	tb.Helper()
	const size, most = 300 << 10, 10
	before := below.Writes.Load()
	for _, c := range []net.Conn{from, to} {
		c.SetDeadline(time.Now().Add(time.Minute))
	}
	go func() {
		if _, err := from.Write(make([]byte, size)); err != nil {
			tb.Errorf("%s: %v", what, err)
		}
	}()
	if n, err := io.ReadFull(to, make([]byte, size)); err != nil {
		tb.Errorf("%s: %d of %d bytes arrive: %v", what, n, size, err)
	}
	if n := below.Writes.Load() - before; n > most {
		tb.Errorf("%s: a Write of %d bytes takes %d system calls, want ≤ %d", what, size, n, most)
	}
}
