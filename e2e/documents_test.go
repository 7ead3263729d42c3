package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/cli"
)

// snippet is a fenced block of a document.
type snippet struct {
	at   string // file:line
	info string // what follows the fence: "" for commands, go for a program, text for what the commands before print
	file string // where to save it, as the paragraph before says
	text string
}

var saveAs = regexp.MustCompile("(?i)save this program as `([^`]+)`")

// snippetsOf returns the fenced blocks of a document of the repository.
func snippetsOf(name, text string) (out []snippet) {
	var open *snippet
	file := ""
	for i, line := range strings.Split(text, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &snippet{at: fmt.Sprintf("%s:%d", name, i+1), info: info, file: file}
		case fence:
			out = append(out, *open)
			open, file = nil, ""
		case open != nil:
			open.text += line + "\n"
		default:
			if m := saveAs.FindStringSubmatch(line); m != nil {
				file = m[1]
			}
		}
	}
	return out
}

// TestDocuments runs every command of the README and of docs/getting-started.md in the repository, and of
// docs/tutorial.md and docs/serving.md in an empty folder, as written, each document in one shell, with other ports and
// fewer steps of the demo. Programs are saved where the document says, and what a document says that commands print is
// compared.
func TestDocuments(t *testing.T) {
	needBinaries(t)
	beforeRelease(t)
	if exists(filepath.Join(root, "rowraft-dev")) {
		t.Skipf("%s is in use", filepath.Join(root, "rowraft-dev"))
	}
	for _, name := range []string{"README.md", "docs/getting-started.md", "docs/tutorial.md", "docs/serving.md"} {
		t.Run(filepath.Base(name), func(t *testing.T) {
			dir := root
			if name == "docs/tutorial.md" || name == "docs/serving.md" {
				dir = t.TempDir()
			}
			snippets := snippetsOf(name, string(mustRead(t, filepath.Join(root, name))))
			if len(snippets) < 2 {
				t.Fatalf("%d snippets", len(snippets))
			}
			if code, out := runDocument(t, dir, snippets); code != 0 {
				t.Errorf("exit code %d:\n%s", code, out)
			} else if err := checkPrinted(snippets, out); err != nil {
				t.Errorf("%v:\n%s", err, out)
			}
		})
	}
}

// TestABrokenDocumentFails: a command that fails, a line that no shell understands, and another output than the
// document's are noticed.
func TestABrokenDocumentFails(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes: skipped by -short")
	}
	dir := t.TempDir()
	const good = "Text\n```text\nnot a command\n```\n```\nA=1\n```\n```\necho \"A is $A\"\n```\n```text\nA is 1\n```\n"
	for text, want := range map[string]int{good: 0, good + "```\nfalse\necho late\n```\n": 1,
		good + "```\nrowraft-no-such-command\n```\n": 127, good + "```\nfalse | cat\n```\n": 1} {
		if code, out := runDocument(t, dir, snippetsOf("x.md", text)); code != want {
			t.Errorf("%q: exit code %d, want %d:\n%s", text, code, want, out)
		}
	}
	other := snippetsOf("x.md", "```\necho A is 2\n```\n```text\nA is 1\n```\n")
	if code, out := runDocument(t, dir, other); code != 0 || checkPrinted(other, out) == nil {
		t.Errorf("another output passes: exit code %d:\n%s", code, out)
	}
	program := snippetsOf("x.md", "Save this program as `tmp/x.go`:\n\n```go\npackage main\n```\n")
	if len(program) != 1 || program[0].file != "tmp/x.go" || program[0].text != "package main\n" {
		t.Errorf("%+v", program)
	}
}

// runDocument runs the snippets in one shell in dir. At the end it stops the cluster of dir/rowraft-dev, and removes
// that folder.
func runDocument(t *testing.T, dir string, snippets []snippet) (code int, out string) {
	t.Helper()
	ports := documentPorts(t)
	script := "set -e -o pipefail\n"
	for _, s := range snippets {
		switch {
		case s.info == "":
			script += fmt.Sprintf("echo '=== %s'\nset -x\n%s{ set +x; } 2>/dev/null\n", s.at, s.text)
		case s.file != "":
			path := filepath.Join(dir, s.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(ports.Replace(s.text)), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(filepath.Dir(path)) })
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", ports.Replace(script))
	cmd.Dir = dir
	cmd.Env = append(cli.WithoutFlags(os.Environ()), "STEPS=500", // of `make demo`
		"PATH="+bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	raw, err := cmd.CombinedOutput()
	if dev := filepath.Join(dir, "rowraft-dev"); exists(dev) {
		stop := exec.Command(filepath.Join(bin, "rowraft"), "dev", "--stop", "--dir", dev)
		_ = stop.Run() // fails if the document has stopped it
		if err := os.RemoveAll(dev); err != nil {
			t.Error(err)
		}
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what runs in the background still
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, string(raw)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkPrinted wants what follows a snippet as ```text in the output.
func checkPrinted(snippets []snippet, out string) error {
	for i, s := range snippets {
		if i > 0 && s.info == "text" && snippets[i-1].info == "" && !strings.Contains(out, "\n"+s.text) {
			return fmt.Errorf("%s: the commands before do not print this:\n%s", s.at, s.text)
		}
	}
	return nil
}

// documentPorts returns what replaces the ports of a document by free ones.
func documentPorts(t *testing.T) *strings.Replacer {
	t.Helper()
	base := devPort(t)
	pairs := []string{"rowraft dev --detach", fmt.Sprintf("rowraft dev --detach --port %d", base),
		// A busy machine is a reason for a warning, which has an exit code.
		"rowraft cluster status", "{ rowraft cluster status || [ $? = 3 ]; }"}
	for i := range 4 {
		pairs = append(pairs, fmt.Sprintf(":707%d", i), fmt.Sprintf(":%d", base+i), fmt.Sprintf(":717%d", i),
			fmt.Sprintf(":%d", base+100+i))
	}
	pairs = append(pairs, ":7500", fmt.Sprintf(":%d", base+15), ":7501", fmt.Sprintf(":%d", base+16),
		"rowraft-trainer serve", fmt.Sprintf("rowraft-trainer serve --listen 127.0.0.1:%d --grpc-listen 127.0.0.1:%d",
			base+15, base+16))
	return strings.NewReplacer(pairs...)
}

// devPort returns a --port for `rowraft dev` and a fourth server. It is below the ports that the kernel chooses.
func devPort(t *testing.T) int {
	t.Helper()
	for base := 21000 + os.Getpid()%500*20; base < 32000; base += 20 {
		free := true
		for _, offset := range []int{0, 1, 2, 3, 15, 16, 100, 101, 102, 103, 200, 201, 202} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+offset))
			if err == nil {
				err = l.Close()
			}
			free = free && err == nil
		}
		if free {
			return base
		}
	}
	t.Fatal("no free ports")
	return 0
}
