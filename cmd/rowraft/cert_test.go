package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/cert"
	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func TestCertLab(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	got := rowraftCmd(t, "cert", "lab", "--dir", dir, "--cluster", "here", "-o", "json")
	var made []cert.Certificate
	if err := json.Unmarshal([]byte(got.out), &made); got.code != cli.ExitDone || err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	want := []struct{ role, name string }{{"ca", "rowraft CA of here"}, {"server", "server"}, {"admin", "admin"}}
	if len(made) != len(want) {
		t.Fatalf("made %+v", made)
	}
	for i, v := range made {
		if v.Role != want[i].role || v.Name != want[i].name || v.Cluster != "here" || time.Until(v.Expires) < 80*cert.Day {
			t.Errorf("certificate %d is %+v, want %v", i, v, want[i])
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 6 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v; want 0600", f, info.Mode(), err)
		}
	}

	// A client finds its own, a server the servers'; the commands that make them need none.
	var g remote.Flags
	root := newRoot(&g)
	g.Certs = dir
	for command, want := range map[string]string{"server": "server.pem", "cluster": "client.pem", "cert": "", "demo": ""} {
		cmd, _, err := root.Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		g.TLS = rpc.TLSFiles{}
		if err := g.UseCerts(cmd); err != nil || want != "" && g.TLS.Cert != filepath.Join(dir, want) || want == "" &&
			!g.TLS.IsZero() {
			t.Errorf("%s takes %+v, %v; want %s", command, g.TLS, err, want)
		}
	}

	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, again := range [][]string{{"lab", "--dir", dir}, {"ca", "--dir", dir}, {"server", "--dir", dir},
		{"client", "--dir", dir, "--role", "admin"}} {
		if got := rowraftCmd(t, append([]string{"cert"}, again...)...); got.code != cli.ExitFailed ||
			!strings.Contains(got.errout, "is not overwritten") {
			t.Errorf("cert %v over files that are there: %+v", again, got)
		}
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "ca.key")); string(after) != string(before) {
		t.Error("the key of the CA was overwritten")
	}
}

func TestCertClientAndInspect(t *testing.T) {
	dir := t.TempDir()
	for _, args := range [][]string{
		{"ca", "--dir", dir, "--cluster", "here"},
		{"client", "--dir", dir, "--role", "trainer", "--name", "alice", "--tables", "user,item_*"},
	} {
		if got := rowraftCmd(t, append([]string{"cert"}, args...)...); got.code != cli.ExitDone {
			t.Fatalf("cert %v: %+v", args, got)
		}
	}
	for _, bad := range [][]string{
		{"client", "--dir", dir, "--role", "trainer", "--name", "bob"},                  // of no table
		{"client", "--dir", dir, "--role", "king", "--name", "bob"},                     // no role
		{"client", "--dir", dir, "--role", "server", "--name", "bob"},                   // a server
		{"client", "--dir", dir, "--role", "admin", "--name", "bob", "--tables", "x"},   // admins have all
		{"client", "--dir", dir, "--role", "admin", "--name", "bob", "--days", "36000"}, // longer than the CA
		{"client", "--dir", filepath.Join(dir, "no"), "--role", "admin"},                // no CA
		{"ca", "--dir", filepath.Join(dir, "b"), "--cluster", "a/b"},                    // what no URI can hold
	} {
		if got := rowraftCmd(t, append([]string{"cert"}, bad...)...); got.code != cli.ExitUsage {
			t.Errorf("cert %v: %+v, want a usage error", bad, got)
		}
	}
	out := filepath.Join(dir, "new", "n1")
	if got := rowraftCmd(t, "cert", "server", "--dir", dir, "--name", "n1", "--out",
		filepath.Join(out, "server")); got.code != cli.ExitDone {
		t.Errorf("--out in a directory that is missing: %+v", got)
	}
	for path, want := range map[string]os.FileMode{"": 0o700, "server.key": 0o600, "server.pem": 0o600} {
		if info, err := os.Stat(filepath.Join(out, path)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", filepath.Join(out, path), info, err, want)
		}
	}
	got := rowraftCmd(t, "cert", "inspect", filepath.Join(dir, "alice.pem"), "-o", "wide")
	for _, want := range []string{"here", "trainer", "alice", "user,item_*", "in 36"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("inspect lacks %q: %+v", want, got)
		}
	}

	ca, err := certs.OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := certs.Request{Identity: certs.Identity{Role: certs.Admin, Name: "old"}, Valid: time.Hour,
		NotBefore: time.Now().Add(-2 * time.Hour)}
	files, err := ca.Issue(filepath.Join(dir, "old"), old)
	if err != nil {
		t.Fatal(err)
	}
	if got := rowraftCmd(t, "cert", "inspect", files.Cert); got.code != cli.ExitVerdict ||
		!strings.Contains(got.out, "EXPIRED") {
		t.Errorf("inspect of an expired one: %+v", got)
	}
	// The caller is told at once, before any server is asked.
	tls := []string{"--cert", files.Cert, "--key", files.Key, "--cacert", files.CA, "--endpoints", unusedAddr(t)}
	for _, call := range []string{"cluster status", "row get users 1", "cert renew --now"} {
		got := rowraftCmd(t, append(strings.Fields(call), tls...)...)
		for _, says := range []string{files.Cert, "admin old", "expired at", "rowraft cert join"} {
			if got.code != cli.ExitUsage || !strings.Contains(got.errout, says) {
				t.Errorf("%s with an expired certificate: %+v, want a usage error that says %q", call, got, says)
			}
		}
	}
}

// TestWrongCertificatesAreNamed: what a person sees who calls a server whose certificate is wrong.
func TestWrongCertificatesAreNamed(t *testing.T) {
	made := func(dir, name string, id certs.Identity, from time.Duration) rpc.TLSFiles {
		ca, err := certs.OpenCA(dir)
		if err != nil {
			t.Fatal(err)
		}
		f, err := ca.Issue(filepath.Join(dir, name), certs.Request{Identity: id, Hosts: []string{"127.0.0.1"},
			Valid: 30 * time.Minute, NotBefore: time.Now().Add(from)})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	newCA := func() string {
		dir := t.TempDir()
		if _, err := certs.NewCA(dir, "here", time.Hour); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	node, admin := certs.Identity{Role: certs.Server, Name: "n1"}, certs.Identity{Role: certs.Admin, Name: "ann"}
	ours, others := newCA(), newCA()
	client := made(ours, "ann", admin, 0)
	for _, tc := range []struct {
		name   string
		server rpc.TLSFiles
		says   string
	}{
		{"the server's has expired", made(ours, "old", node, -time.Hour),
			"the server's certificate, of server n1 in cluster here, expired at"},
		{"the server's is of another CA", made(others, "n1", node, 0), "is not signed by a CA in"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			source, err := tc.server.Open(nil)
			if err != nil {
				t.Fatal(err)
			}
			l := rpctest.Listen(t)
			g := grpc.NewServer(rpc.ServerOptions(source)...)
			rowraftv1.RegisterClusterServer(g, &fakeCluster{status: well()})
			done := make(chan error, 1)
			go func() { done <- g.Serve(l) }()
			defer func() { g.Stop(); <-done }()
			got := rowraftCmd(t, "cluster", "status", "--endpoints", l.Addr().String(), "--cert", client.Cert, "--key",
				client.Key, "--cacert", client.CA, "--timeout", "60s")
			if got.code != cli.ExitUnavailable || !strings.Contains(got.errout, tc.says) {
				t.Errorf("%+v, want %q", got, tc.says)
			}
		})
	}
}
