package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/internal/cli"
)

// TestRefusedServersWriteNothing: a server or a scheduler with a wrong configuration ends with one short error that
// names the flag or the variable, and its data directory does not exist afterwards.
func TestRefusedServersWriteNothing(t *testing.T) {
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
	data := filepath.Join(dir, "data")
	const (
		own    = " --data-dir DIR --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0"
		ms     = "MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=1 MS_SERVER_NUM=1 MS_WORKER_NUM=1 "
		paddle = "PADDLE_PSERVERS_IP_PORT_LIST=127.0.0.1:1,127.0.0.1:2 "
	)
	for _, tc := range []struct {
		name, env, args string
		says            []string
	}{
		{"no certificates", "", "server" + own, []string{"no certificates", "--cert", "--insecure"}},
		{"half of the certificates", "", "server --cert " + file("c.pem", "") + own, []string{"--key"}},
		{"files that hold no certificate", "", "server --cert " + file("c.pem", "x") + " --key " + file("k.pem", "x") +
			" --cacert " + file("ca.pem", "x") + own,
			[]string{".pem"}},
		{"plaintext beyond this machine", "",
			"server --insecure --listen 0.0.0.0:0 --advertise 10.0.0.1:7070 --peer-listen 127.0.0.1:0 --data-dir DIR",
			[]string{"loopback"}},
		{"a value of the wrong type", "", "server --shards many" + own, []string{"--shards", `"many"`}},
		{"an unknown log backend", "", "server --insecure --log-backend rocks" + own,
			[]string{`log backend "rocks": want rowlog, bolt`}},
		{"a demo that cannot survive its kill", "", "demo --servers 2", []string{"--no-kill"}},
		{"two schedulers", "", "scheduler --insecure --servers 1 --join a:1,b:1" + own, []string{"want 1 or 3"}},
		{"a scheduler of any number of servers", "", "scheduler --insecure" + own, []string{"--servers"}},
		{"a server with and without a scheduler", "", "server --insecure --scheduler a:1 --with-scheduler" + own,
			[]string{"--scheduler"}},
		{"two lists of schedulers", "", "server --insecure --scheduler a:1 --join a:1" + own, []string{"--join"}},
		{"a scheduler with a flag of servers", "", "scheduler --insecure --servers 1 --with-scheduler" + own,
			[]string{"--with-scheduler"}},
		{"a scheduler with a scheduler", "", "scheduler --insecure --servers 1 --scheduler a:1" + own,
			[]string{"--scheduler"}},
		{"no role", "", "start", []string{"MS_ROLE"}},
		{"an unknown role", ms + "MS_ROLE=MS_LEADER", "start", []string{"MS_ROLE"}},
		{"a bad port", ms + "MS_ROLE=MS_SCHED MS_SCHED_PORT=80000", "start", []string{"MS_SCHED_PORT"}},
		{"a worker", ms + "MS_ROLE=MS_WORKER", "start", []string{"rowraft-trainer start"}},
		{"an address that is not in the list", paddle + "TRAINING_ROLE=PSERVER POD_IP=127.0.0.1 PADDLE_PORT=3", "start",
			[]string{"POD_IP:PADDLE_PORT"}},
		{"plaintext beyond this machine by variables",
			"TRAINING_ROLE=PSERVER POD_IP=0.0.0.0 PADDLE_PORT=1 PADDLE_PSERVERS_IP_PORT_LIST=0.0.0.0:1", "start",
			[]string{"insecure"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, v := range strings.Fields(tc.env) {
				name, value, _ := strings.Cut(v, "=")
				t.Setenv(name, value)
			}
			if strings.HasPrefix(tc.args, "start") {
				t.Setenv("ROWRAFT_INSECURE", "true")
				t.Setenv("ROWRAFT_DATA_ROOT", data)
			}
			got := rowraftCmd(t, strings.Fields(strings.ReplaceAll(tc.args, "DIR", data))...)
			if got.code != cli.ExitUsage || len(got.errout) > 1500 {
				t.Errorf("exit code %d, want %d and less than 1,500 bytes:\n%s", got.code, cli.ExitUsage, got.errout)
			}
			for _, want := range tc.says {
				if !strings.Contains(got.errout, want) {
					t.Errorf("the error does not say %q:\n%s", want, got.errout)
				}
			}
			if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the data directory was made: %v", err)
			}
		})
	}
	for _, tc := range []struct {
		name, args string
		code       int
		says       []string
	}{
		{"the port is taken", "server --insecure --with-scheduler --data-dir DIR --peer-listen 127.0.0.1:0 --listen " + busy,
			cli.ExitFailed, []string{"--listen " + busy, "address already in use",
				"another process has this port; choose another with --listen"}},
		{"the peer port is taken", "server --insecure --with-scheduler --data-dir DIR --listen 127.0.0.1:0 --peer-listen " +
			busy,
			cli.ExitFailed, []string{"address already in use", "choose another with --peer-listen"}},
		{"a directory of something else",
			"server --insecure --with-scheduler --listen 127.0.0.1:0 --peer-listen 127.0.0.1:0 --data-dir " + dir,
			cli.ExitSpoiled, []string{"holds", "choose an empty directory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := rowraftCmd(t, strings.Fields(strings.ReplaceAll(tc.args, "DIR", t.TempDir()))...)
			if got.code != tc.code {
				t.Errorf("exit code %d, want %d", got.code, tc.code)
			}
			for _, want := range tc.says {
				if !strings.Contains(got.errout, want) {
					t.Errorf("the error does not say %q:\n%s", want, got.errout)
				}
			}
		})
	}
}

// TestWrongWordsAreAnswered with what to type, in the words of the command line.
func TestWrongWordsAreAnswered(t *testing.T) {
	for args, want := range map[string]string{
		"checkpoint describe /mnt/x/a":              "use `rowraft checkpoint list DESTINATION -o wide`",
		"table create t --dim abc":                  `invalid argument "abc" for "--dim" flag: invalid syntax`,
		"shard move":                                "rowraft: shard move: want one argument",
		"table list --timeout soon":                 "--timeout",
		"table create t --dim 99999999999999999999": "value out of range",
	} {
		got := rowraftCmd(t, strings.Fields(args)...)
		if got.code != cli.ExitUsage || !strings.Contains(got.errout, want) || strings.Contains(got.errout, "strconv") {
			t.Errorf("%s: exit code %d, %s", args, got.code, got.errout)
		}
	}
}
