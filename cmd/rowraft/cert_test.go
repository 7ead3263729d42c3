package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
)

func TestCertLab(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	got := rowraftCmd(t, "cert", "lab", "--dir", dir, "--cluster", "here", "-o", "json")
	var made []certView
	if err := json.Unmarshal([]byte(got.out), &made); got.code != exitDone || err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	want := []struct{ role, name string }{{"ca", "rowraft CA of here"}, {"node", "node"}, {"admin", "admin"}}
	if len(made) != len(want) {
		t.Fatalf("made %+v", made)
	}
	for i, v := range made {
		if v.Role != want[i].role || v.Name != want[i].name || v.Cluster != "here" || time.Until(v.Expires) < 80*day {
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
	var g globals
	root := newRoot(&g)
	g.certs = dir
	for command, want := range map[string]string{"server": "node.pem", "cluster": "client.pem", "cert": "", "demo": ""} {
		cmd, _, err := root.Find([]string{command})
		if err != nil {
			t.Fatal(err)
		}
		g.tls = rpc.TLSFiles{}
		if err := g.useCerts(cmd); err != nil || want != "" && g.tls.Cert != filepath.Join(dir, want) || want == "" && !g.tls.IsZero() {
			t.Errorf("%s takes %+v, %v; want %s", command, g.tls, err, want)
		}
	}

	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, again := range [][]string{{"lab", "--dir", dir}, {"ca", "--dir", dir}, {"node", "--dir", dir}, {"client", "--dir", dir, "--role", "admin"}} {
		if got := rowraftCmd(t, append([]string{"cert"}, again...)...); got.code != exitFailed || !strings.Contains(got.errout, "is not overwritten") {
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
		if got := rowraftCmd(t, append([]string{"cert"}, args...)...); got.code != exitDone {
			t.Fatalf("cert %v: %+v", args, got)
		}
	}
	for _, bad := range [][]string{
		{"client", "--dir", dir, "--role", "trainer", "--name", "bob"},                  // of no table
		{"client", "--dir", dir, "--role", "king", "--name", "bob"},                     // no role
		{"client", "--dir", dir, "--role", "node", "--name", "bob"},                     // a server
		{"client", "--dir", dir, "--role", "admin", "--name", "bob", "--tables", "x"},   // admins have all
		{"client", "--dir", dir, "--role", "admin", "--name", "bob", "--days", "36000"}, // longer than the CA
		{"client", "--dir", filepath.Join(dir, "no"), "--role", "admin"},                // no CA
		{"ca", "--dir", filepath.Join(dir, "b"), "--cluster", "a/b"},                    // what no URI can hold
	} {
		if got := rowraftCmd(t, append([]string{"cert"}, bad...)...); got.code != exitUsage {
			t.Errorf("cert %v: %+v, want a usage error", bad, got)
		}
	}
	got := rowraftCmd(t, "cert", "inspect", filepath.Join(dir, "alice.pem"))
	for _, want := range []string{"here", "trainer", "alice", "user,item_*", "in 36"} {
		if !strings.Contains(got.out, want) {
			t.Errorf("inspect lacks %q: %+v", want, got)
		}
	}

	ca, err := certs.OpenCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	old := certs.Request{Identity: certs.Identity{Role: certs.Admin, Name: "old"}, Valid: time.Hour, NotBefore: time.Now().Add(-2 * time.Hour)}
	files, err := ca.Issue(filepath.Join(dir, "old"), old)
	if err != nil {
		t.Fatal(err)
	}
	if got := rowraftCmd(t, "cert", "inspect", files.Cert); got.code != exitVerdict || !strings.Contains(got.out, "EXPIRED") {
		t.Errorf("inspect of an expired one: %+v", got)
	}
}
