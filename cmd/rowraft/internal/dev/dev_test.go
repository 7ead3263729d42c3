package dev

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/vfs"
)

// TestCertificatesAfterAnInterruptedStart: whatever it left, the next start has a complete set, deletes no certificate
// that was in use, and leaves a complete set alone.
func TestCertificatesAfterAnInterruptedStart(t *testing.T) {
	for _, tc := range []struct {
		name string
		left []string // files that the interrupted start left
		kept bool     // they are kept under another name
	}{
		{name: "nothing"},
		{name: "an unfinished directory", left: []string{"certs.new/ca.key", "certs.new/ca.pem"}},
		{name: "an incomplete directory", left: []string{"certs/ca.key", "certs/ca.pem", "certs/server.key"}, kept: true},
		{name: "an empty directory", left: []string{"certs/"}, kept: true},
	} {
		d := dev{dir: t.TempDir()}
		for _, name := range tc.left {
			if err := os.MkdirAll(d.path(name[:strings.LastIndex(name, "/")]), 0o700); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(name, "/") {
				if err := os.WriteFile(d.path(name), []byte("cut o"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		var out bytes.Buffer
		if err := d.makeCerts(&out); err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		kept, err := filepath.Glob(d.path("certs.*"))
		if err != nil || len(kept) != map[bool]int{true: 1}[tc.kept] || (out.Len() > 0) != tc.kept {
			t.Errorf("%s: kept %v, %v; it says %q", tc.name, kept, err, &out)
		}
		made, err := os.ReadFile(d.path("certs/client.pem"))
		if err != nil {
			t.Error(err)
		}
		if err := d.makeCerts(&out); err != nil {
			t.Error(err)
		}
		if again, err := os.ReadFile(d.path("certs/client.pem")); err != nil || !bytes.Equal(again, made) {
			t.Errorf("%s: a second start makes other certificates, or none: %v", tc.name, err)
		}
	}
}

// TestTwoInOneDirectory: the second one is refused, with the process of the first and what to do; --stop without a
// process says so.
func TestTwoInOneDirectory(t *testing.T) {
	d := dev{dir: t.TempDir(), servers: 1, port: 1}
	lock, err := vfs.OS.Lock(d.path(lockName))
	if err != nil {
		t.Fatal(err)
	}
	for name, start := range map[string]func(context.Context) error{
		"run":      func(ctx context.Context) error { return d.run(ctx, new(bytes.Buffer)) },
		"--detach": func(ctx context.Context) error { return d.startOther(ctx, new(bytes.Buffer)) },
	} {
		if err := start(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
			t.Errorf("%s next to another one: %v", name, err)
		}
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.stopOther(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), "no servers run") {
		t.Errorf("--stop: %v", err)
	}
}

// TestAKilledProcess: its servers, which inherit the lock, end shortly after it. The next process waits for them, and
// so does --stop.
func TestAKilledProcess(t *testing.T) {
	killed := exec.Command("true")
	if err := killed.Run(); err != nil {
		t.Fatal(err)
	}
	for name, next := range map[string]func(*dev) error{
		"a start": func(d *dev) error {
			lock, err := d.lock(t.Context())
			if err == nil {
				err = lock.Close()
			}
			return err
		},
		"--stop": func(d *dev) error { return d.stopOther(t.Context(), new(bytes.Buffer)) },
	} {
		d := &dev{dir: t.TempDir()}
		lock, err := vfs.OS.Lock(d.path(lockName))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d.path(lockName), fmt.Appendln(nil, killed.Process.Pid), 0o600); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(4*poll, func() { lock.Close() }) // the last server has ended
		if err := next(d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAPortInUse is an error that names the port, before any server starts.
func TestAPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d := dev{dir: t.TempDir(), servers: 1, port: l.Addr().(*net.TCPAddr).Port}
	if err := d.run(t.Context(), new(bytes.Buffer)); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("port %d is in use: %v", d.port, err)
	}
	if _, err := os.Stat(d.path("n1")); err == nil {
		t.Error("a server has started")
	}
}

// TestPathsForAShell: a directory may have any name.
func TestPathsForAShell(t *testing.T) {
	for _, path := range []string{"/a b/$HOME", "/it's", `/"\n`} {
		out, err := exec.Command("sh", "-c", "printf %s "+quote(path)).Output()
		if err != nil || string(out) != path {
			t.Errorf("%s is %q in a shell, %v", path, out, err)
		}
	}
}
