package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/cert"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/server"
	"github.com/rowraft/rowraft/internal/cli"
)

// serve runs `rowraft server` with args until the test ends, and returns what it wrote once
// it served.
func serve(t *testing.T, args ...string) server.Ready {
	t.Helper()
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	args = append([]string{
		"server", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0",
		"--ready-file", ready,
		"--profile", "fast", "--disk-stall-limit", "30s", "--log-format", "json",
	}, args...)
	ctx, cancel := context.WithCancel(t.Context())
	var log, out bytes.Buffer // of the server, until it has ended
	done := make(chan int, 1)
	go func() {
		defer close(done)
		done <- run(ctx, args, &out, &log)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return waitReady(t, ready, done, &log)
}

// TestCertificatesOfAConfigurationFile: a server takes certs from its file, as docs/ops/install.md
// has it, in addition to the command line.
func TestCertificatesOfAConfigurationFile(t *testing.T) {
	dir := t.TempDir()
	if got := rowraftCmd(t, "cert", "lab", "--dir", dir); got.code != cli.ExitDone {
		t.Fatal(got)
	}
	config := filepath.Join(dir, "server.yaml")
	if err := os.WriteFile(config, []byte("name: n1\nshards: 1\nwith-scheduler: true\ncerts: "+dir+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--config", config}, {"--config", config, "--certs", dir}} {
		s := serve(t, args...)
		if got := rowraftCmd(t, "server", "list", "--certs", dir, "--endpoints", s.Addr, "--timeout",
			"60s"); got.code != cli.ExitDone || !strings.Contains(got.out, "n1") {
			t.Errorf("server list: %+v", got)
		}
	}
}

// TestAServerJoinsByAToken: from `rowraft cert lab` on one machine to a server on another that
// was given nothing but an address and a token.
func TestAServerJoinsByAToken(t *testing.T) {
	here, there := t.TempDir(), filepath.Join(t.TempDir(), "certs")
	if got := rowraftCmd(t, "cert", "lab", "--dir", here); got.code != cli.ExitDone {
		t.Fatal(got)
	}
	first := serve(t, "--certs", here, "--ca-key", filepath.Join(here, "ca.key"), "--with-scheduler", "--shards", "1")
	admin := []string{"--certs", here, "--endpoints", first.Addr, "--timeout", "60s"}
	call := func(args ...string) outcome {
		t.Helper()
		got := rowraftCmd(t, append(args, admin...)...)
		if got.code != cli.ExitDone {
			t.Fatalf("%v: %+v", args, got)
		}
		return got
	}
	token := filepath.Join(here, "token")
	if err := os.WriteFile(token, []byte(call("token", "create").out), 0o600); err != nil {
		t.Fatal(err)
	}
	second := serve(t, "--join", first.Addr, "--certs", there, "--token-file", token, "--name", "n2")
	// A server serves as soon as it has the cluster's map, which may be before it is in it.
	limit := time.Now().Add(2 * time.Minute)
	for nodes := call("server", "list"); !strings.Contains(nodes.out, second.Addr); nodes = call("server", "list") {
		if time.Now().After(limit) {
			t.Fatalf("the cluster does not know who joined: %s", nodes.out)
		}
	}
	got := rowraftCmd(t, "cert", "inspect", filepath.Join(there, "server.pem"), "-o", "wide")
	if got.code != cli.ExitDone ||
		!strings.Contains(got.out, "127.0.0.1") || !strings.Contains(got.out, "n2") {
		t.Errorf("its certificate: %+v", got)
	}

	// A token for a trainer's machine, and how each is told of.
	var made struct {
		Token  cert.Token `json:"token"`
		Secret string     `json:"secret"`
	}
	if err := json.Unmarshal([]byte(call("token", "create", "--role", "trainer", "--name", "ctr", "--tables",
		"user,item_*", "-o", "json").out), &made); err != nil {
		t.Fatal(err)
	}
	client := filepath.Join(here, "trainer")
	join := []string{"cert", "join", "--token", made.Secret, "--endpoints", first.Addr, "--certs", client, "--timeout",
		"60s"}
	if got := rowraftCmd(t, join...); got.code != cli.ExitDone || !strings.Contains(got.out, "user,item_*") {
		t.Errorf("cert join: %+v", got)
	}
	if got := rowraftCmd(t, join...); got.code != cli.ExitUsage || !strings.Contains(got.errout, "is there already") {
		t.Errorf("cert join again: %+v", got)
	}
	serial := func() string {
		got := rowraftCmd(t, "cert", "inspect", filepath.Join(client, "client.pem"), "-o", "json")
		var v []cert.Certificate
		if err := json.Unmarshal([]byte(got.out), &v); err != nil || len(v) != 1 {
			t.Fatalf("%+v: %v", got, err)
		}
		return v[0].Serial
	}
	before := serial()
	renew := []string{"cert", "renew", "--endpoints", first.Addr, "--certs", client, "--timeout", "60s"}
	if got := rowraftCmd(t, renew...); got.code != cli.ExitDone || serial() != before {
		t.Errorf("cert renew of a new one: %+v", got)
	}
	if got := rowraftCmd(t, append(renew, "--now")...); got.code != cli.ExitDone || serial() == before {
		t.Errorf("cert renew --now: %+v", got)
	}
	list := call("token", "list", "-o", "wide").out
	for _, want := range []string{made.Token.ID, "1/1", "used", "ctr", "n2", "admin admin", "user,item_*"} {
		if !strings.Contains(list, want) {
			t.Errorf("token list lacks %q: %s", want, list)
		}
	}
	if strings.Contains(list+call("token", "list", "-o", "json").out, strings.Split(made.Secret, ".")[2]) {
		t.Error("the list shows a secret")
	}
	call("token", "delete", made.Token.ID)
	if got := rowraftCmd(t, append([]string{"token", "delete", made.Token.ID}, admin...)...); got.code != cli.ExitFailed {
		t.Errorf("delete of a token that is gone: %+v", got)
	}
	for what, bad := range map[string][]string{
		"no token":      {"cert", "join", "--certs", filepath.Join(here, "x")},
		"a damaged one": {"cert", "join", "--certs", filepath.Join(here, "x"), "--token", "rowraft-join-1.x"},
		"two": {"cert", "join", "--certs", filepath.Join(here, "x"), "--token", made.Secret, "--token-file",
			token},
		"plaintext": {"server", "--insecure", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--peer-listen",
			"127.0.0.1:0", "--token", made.Secret},
		"no place": {"server", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0",
			"--token", made.Secret},
		"no server to ask": {"server", "--certs", filepath.Join(here, "x"), "--data-dir", t.TempDir(), "--listen",
			"127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--token", made.Secret},
		"an admin's": append([]string{"token", "create", "--role", "admin", "--name", "eve"}, admin...),
	} {
		if got := rowraftCmd(t, bad...); got.code != cli.ExitUsage {
			t.Errorf("%s: %+v, want a usage error", what, got)
		}
	}
}
