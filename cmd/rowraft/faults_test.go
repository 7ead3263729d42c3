package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/cli"
)

// goBuild builds the server with tags as the test itself was built.
func goBuild(t *testing.T, tags string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "rowraft")
	if out, err := exec.Command("go", "build", "-tags", tags, "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build -tags %q: %v\n%s", tags, err, out)
	}
	return bin
}

// faultSymbols counts what of the disk faults is linked into bin.
func faultSymbols(t *testing.T, bin string) int {
	t.Helper()
	out, err := exec.Command("go", "tool", "nm", bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "internal/vfs.(*Faulty)") || strings.Contains(line, "internal/vfs.(*Mem)") ||
			strings.Contains(line, "server.(*faultFile)") {
			n++
		}
	}
	return n
}

func TestDiskFaultsAreOnlyInTaggedBuilds(t *testing.T) {
	if n := faultSymbols(t, goBuild(t, "")); n != 0 {
		t.Errorf("the binary that is shipped holds %d symbols of disk faults", n)
	}
}

// TestServerUnderDiskFaults: a log that fails or hangs ends the process, and what
// it was asked to write meanwhile is not acknowledged.
func TestServerUnderDiskFaults(t *testing.T) {
	bin := goBuild(t, "rowraft_faults")
	if faultSymbols(t, bin) == 0 {
		t.Fatal("the tagged binary holds no symbol of disk faults: faultSymbols is blind")
	}
	const long = "1m" // the machine's own disk is slow now and then
	for _, tc := range []struct{ name, limit, fault, says string }{
		{"a failed write", long, `[{"name": "f1", "ops": ["write"], "path": "log/*.seg", "err": "EIO"}]`,
			"input/output error"},
		{"a failed sync", long, `[{"name": "f1", "ops": ["sync"], "path": "*.seg", "err": "EIO"}]`, "input/output error"},
		{"a full disk", long, `[{"name": "f1", "path": "log/*", "err": "ENOSPC"}]`, "the disk is full"},
		{"a write that hangs", "500ms", `[{"name": "f1", "ops": ["write", "sync"], "path": "log/*.seg", "hang": true}]`,
			"the limit is 5s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			faults, ready := filepath.Join(dir, "faults.json"), filepath.Join(dir, "ready.json")
			var log bytes.Buffer
			cmd := exec.Command(bin, "server", "--insecure", "--with-scheduler", "--data-dir", filepath.Join(dir, "data"),
				"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--ready-file", ready, "--shards", "1",
				"--disk-stall-limit", tc.limit, "--disk-reserve-bytes", "-1", "--log-format", "text")
			cmd.Env = append(os.Environ(), "ROWRAFT_DISK_FAULTS="+faults)
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			done := make(chan int, 1)
			go func() {
				_ = cmd.Wait()
				done <- cmd.ProcessState.ExitCode()
			}()
			ended := false
			defer func() {
				if !ended {
					_ = cmd.Process.Kill()
					<-done
				}
			}()
			info := waitReady(t, ready, done, &log)
			temp := faults + ".new"
			if err := errors.Join(os.WriteFile(temp, []byte(tc.fault), 0o600), os.Rename(temp, faults)); err != nil {
				t.Fatal(err)
			}
			// The fault may not be in force yet when the first tables are made, and an answer may
			// only be late.
			limit := time.Now().Add(2 * time.Minute)
			for i := 0; !ended; i++ {
				_ = rowraftCmd(t, "table", "create", fmt.Sprintf("t%d", i), "--dim", "4", "--insecure", "--endpoints", info.Addr,
					"--timeout", "3s")
				select {
				case code := <-done:
					ended = true
					if code != cli.ExitFailed || !strings.Contains(log.String(), tc.says) ||
						!strings.Contains(log.String(), "disk fault") {
						t.Errorf("the server ended with code %d; want %d, %q and a disk fault in its log:\n%s", code, cli.ExitFailed,
							tc.says, log.String())
					}
				default:
					if time.Now().After(limit) {
						t.Fatal("the server lives on")
					}
				}
			}
		})
	}
}
