package e2e

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/localcluster"
)

// What a person reads who does something wrong, and the exit code that a script sees.
func TestRefusals(t *testing.T) {
	needBinaries(t)
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().String()
	free := []string{"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"}
	with := func(args ...[]string) (all []string) {
		for _, a := range args {
			all = append(all, a...)
		}
		return all
	}
	data := func(name string) []string { return []string{"--data-dir", filepath.Join(dir, name)} }
	server := []string{"server"}
	for _, tc := range []struct {
		name, binary string
		args         []string
		code         int
		says         []string
	}{
		{"no data directory", "rowraft", []string{"server", "--insecure"}, 2, []string{"--data-dir"}},
		{"no certificates", "rowraft", with(server, data("a"), free), 2, []string{"no certificates", "--cert", "--insecure"}},
		{"half of the certificates", "rowraft", with(server, data("a"), free, []string{"--cert", file("c.pem", "")}), 2, []string{"--key"}},
		{"a certificate that is none", "rowraft",
			with(server, data("a"), free, []string{"--cert", file("c.pem", "x"), "--key", file("k.pem", "x"), "--cacert", file("ca.pem", "x")}), 2, []string{".pem"}},
		{"plaintext beyond this machine", "rowraft",
			with(server, data("a"), []string{"--insecure", "--listen", "0.0.0.0:0", "--advertise", "10.0.0.1:7070", "--peer-listen", "127.0.0.1:0"}), 2, []string{"loopback"}},
		{"the port is taken", "rowraft", with(server, data("a"), []string{"--insecure", "--with-scheduler", "--listen", busy, "--peer-listen", "127.0.0.1:0"}), 1,
			[]string{"--listen " + busy, "address already in use", "another process has this port; choose another with --listen"}},
		{"the peer port is taken", "rowraft", with(server, data("a"), []string{"--insecure", "--with-scheduler", "--listen", "127.0.0.1:0", "--peer-listen", busy}), 1,
			[]string{"address already in use", "choose another with --peer-listen"}},
		{"an unknown flag", "rowraft", with(server, []string{"--data-dri", "x"}), 2, []string{"unknown flag: --data-dri", `did you mean "--data-dir"?`}},
		{"an unknown command", "rowraft", []string{"sevrer"}, 2, []string{`unknown command "sevrer"`, `did you mean "server"?`}},
		{"an unknown command below another", "rowraft", []string{"table", "lsit"}, 2, []string{`did you mean "list"?`}},
		{"a mistyped key of the configuration", "rowraft", with(server, []string{"--config", file("server.yaml", "insecure: true\ndata-dri: x\n")}), 2,
			[]string{"server.yaml", "line 2", `unknown key "data-dri"`, `did you mean "data-dir"?`}},
		{"a value that does not fit", "rowraft", with(server, data("a"), []string{"--shards", "many"}), 2, []string{"--shards", `"many"`}},
		{"an unknown log backend", "rowraft", with(server, data("a"), free, []string{"--insecure", "--log-backend", "rocks"}), 2, []string{`log backend "rocks": want rowlog, bolt`}},
		{"a directory of something else", "rowraft", with(server, free, []string{"--insecure", "--with-scheduler", "--data-dir", filepath.Dir(file("full/../precious.txt", "x"))}), 1,
			[]string{"holds", "choose an empty directory"}},
		{"a demo that cannot survive its kill", "rowraft", []string{"demo", "--servers", "2"}, 2, []string{"--no-kill"}},
		{"no cluster there", "rowraft", []string{"table", "list", "--insecure", "--endpoints", busy, "--timeout", "1s"}, 4, []string{busy}},
		{"a trainer without a cluster", "rowraft-trainer", []string{"train", "--generate"}, 2, []string{"--endpoints", "--local"}},
		{"an unknown flag of the trainer", "rowraft-trainer", []string{"train", "--bacth", "3"}, 2, []string{"unknown flag: --bacth"}},
		{"a mistyped key of a job", "rowraft-trainer", []string{"train", "--local", "--config", file("job.yaml", "job: x\nbacth: 3\n")}, 2, []string{"job.yaml:2", `unknown key "bacth"`}},
		{"a data line with missing columns", "rowraft-trainer",
			[]string{"train", "--local", "--accelerator", "go", "--data", file("short.csv", "label,a,b\n1,2,x\n0,3\n1,1,y\n0,1,y\n1,2,y\n"),
				"--schema", file("short.yaml", "format: csv\nlabel: {column: label}\ndense:\n  - {column: a}\ncategorical:\n  - {column: b}\n")}, 2, []string{"short.csv", "3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := spawn(t, tc.binary, tc.args...)
			code := p.code(t, patience)
			text := p.stderr.String()
			if code != tc.code {
				t.Errorf("exit code %d, want %d; it says\n%s", code, tc.code, text)
			}
			for _, want := range tc.says {
				if !strings.Contains(text, want) {
					t.Errorf("it says\n%s\nbut not %q", text, want)
				}
			}
			if strings.Contains(text, "goroutine ") || strings.Contains(text, "panic") {
				t.Errorf("it panics:\n%s", text)
			}
			if len(text) > 1500 {
				t.Errorf("it says %d bytes:\n%s", len(text), text)
			}
		})
	}
}

// The data of one cluster is never mixed with another's, nor used twice.
func TestForeignDataIsRefused(t *testing.T) {
	one, other := start(t, localcluster.Options{}), start(t, localcluster.Options{})
	n1, n2 := one.Servers()[0], one.Servers()[1]
	// While a server runs its files come and go under a copy.
	one.killAll(one.Servers()[:2])
	copied, mixed := copyDir(t, n1.DataDir), copyDir(t, n1.DataDir)
	if err := os.RemoveAll(filepath.Join(mixed, "raft")); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(mixed, "raft"), os.DirFS(filepath.Join(n2.DataDir, "raft"))); err != nil {
		t.Fatal(err)
	}
	one.restartAll(one.Servers()[:2])

	t.Run("a directory in use", func(t *testing.T) {
		refused(t, n1.DataDir, one.Endpoints(), "is in use by the process with pid")
	})
	t.Run("a directory of another cluster", func(t *testing.T) {
		refused(t, copied, other.Endpoints(), "belongs to cluster")
	})
	t.Run("the log of another node under this identity", func(t *testing.T) {
		refused(t, mixed, one.Endpoints(), "belongs to node "+string(n2.ID()))
	})
	t.Run("a log that was lost", func(t *testing.T) {
		one.killAll(one.Servers()[2:])
		n3 := one.Servers()[2]
		lost := copyDir(t, n3.DataDir)
		if err := os.RemoveAll(filepath.Join(lost, "raft")); err != nil {
			t.Fatal(err)
		}
		refused(t, lost, one.Endpoints(), "logs in")
		one.restartAll(one.Servers()[2:])
	})
	one.sameDigests()
	other.sameDigests()
}

// refused starts a server on a directory and wants it to end with an error that
// says a text.
func refused(t *testing.T, dir string, join []string, says string) {
	t.Helper()
	p := spawn(t, "rowraft", "server", "--insecure", "--with-scheduler", "--log-format", "json", "--data-dir", dir,
		"--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--join", strings.Join(join, ","))
	if code := p.code(t, patience); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	var said string // the last line but the logs
	for line := range strings.Lines(p.stderr.String()) {
		if !json.Valid([]byte(line)) {
			said += line
		}
	}
	t.Logf("it says: %s", said)
	if !strings.HasPrefix(said, "rowraft: ") || !strings.Contains(said, says) {
		t.Errorf("it says %q, want %q in it", said, says)
	}
}

func copyDir(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}
