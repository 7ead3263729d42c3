package main

import (
	"archive/zip"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft/internal/cli"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestDebugZip: what the servers tell is in one file, what is down is named in it, and
// nothing secret is.
func TestDebugZip(t *testing.T) {
	status := well()
	ops := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/pprof/heap" {
			http.Error(w, "only for operators", http.StatusForbidden)
			return
		}
		io.WriteString(w, "this is "+r.URL.Path)
	}))
	defer ops.Close()
	_, port, err := net.SplitHostPort(ops.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	h := &headless{fakeCluster: fakeCluster{status: status}, ops: "[::]:" + port} // at the address of the server
	addr := start(t, &h.fakeCluster, func(g *grpc.Server) { rowraftv1.RegisterReplicasServer(g, h) })
	gone := unusedAddr(t)
	for i, n := range status.Map.Nodes {
		if n.Addr = gone; i == 0 {
			n.Addr = addr
		}
	}
	file := filepath.Join(t.TempDir(), "out.zip")
	args := []string{"debug", "zip", file, "--insecure", "--endpoints", addr}
	got := rowraftCmd(t, args...)
	if got.code != cli.ExitDone || !strings.Contains(got.out, "3 missing") ||
		!strings.Contains(got.out, "servers/n3/status.json") {
		t.Fatalf("%+v", got)
	}
	all := unzipped(t, file)
	const dir = "servers/n1"
	for name, says := range map[string]string{
		"cluster/status.json": `"verdict": "healthy"`, "cluster/map.json": "user_emb", "cluster/shards.json": "repl-a",
		"cluster/servers.json": "n2", "cluster/operations.json": "[]",
		"servers/n1/status.json": "v0.6.0", dir + "/metrics.txt": "this is /metrics", dir + "/goroutines.txt": "goroutine",
		dir + "/readyz.txt": "readyz", dir + "/config.yaml": "this is /debug/config", dir +
			"/log.jsonl": "this is /debug/log",
		"manifest.json": "only for operators", "servers/n3/missing.txt": "server n3 at " + gone + " did not answer",
	} {
		if !strings.Contains(all[name], says) {
			t.Errorf("%s does not say %q: %q", name, says, all[name])
		}
	}
	for name, text := range all {
		for _, secret := range []string{"PRIVATE KEY", "BEGIN CERTIFICATE", "weights\":"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s holds %q", name, secret)
			}
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want a file of its owner", info, err)
	}
	if got := rowraftCmd(t, args...); got.code != cli.ExitFailed || !strings.Contains(got.errout, "exists") {
		t.Errorf("a file that is there: %+v", got)
	}
}

func unzipped(t *testing.T, file string) map[string]string {
	t.Helper()
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	out := make(map[string]string)
	for _, f := range z.File {
		if age := time.Since(f.Modified); age < -time.Hour || age > time.Hour {
			t.Errorf("%s has the date %v", f.Name, f.Modified)
		}
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name] = string(b)
	}
	return out
}
