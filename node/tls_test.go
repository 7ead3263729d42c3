package node

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
)

// lab makes certificates of one cluster in a directory of the test.
type lab struct {
	t  testing.TB
	ca *certs.CA
}

func newLab(t testing.TB) *lab {
	t.Helper()
	ca, err := certs.NewCA(filepath.Join(t.TempDir(), "ca"), "lab", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &lab{t, ca}
}

// startSecureCluster starts servers with a certificate of a new CA. change may be nil.
func startSecureCluster(t testing.TB, servers int, change func(*lab, *Config)) *testCluster {
	t.Helper()
	l := newLab(t)
	files := l.files(certs.Server, "n1")
	c := startClusterWith(t, servers, 1, func(cfg *Config) {
		cfg.Insecure, cfg.TLS = false, files
		if change != nil {
			change(l, cfg)
		}
	})
	c.lab = l
	return c
}

// withCAKey gives a server the key of the CA, so that machines can join through it.
func withCAKey(l *lab, cfg *Config) { cfg.CAKey = l.caKey() }

// files makes a certificate for loopback.
func (l *lab) files(role certs.Role, name string, tables ...string) rpc.TLSFiles {
	l.t.Helper()
	return l.request(certs.Request{Identity: certs.Identity{Role: role, Name: name, Tables: tables},
		Hosts: []string{"127.0.0.1"}, Valid: 50 * time.Minute})
}

func (l *lab) request(r certs.Request) rpc.TLSFiles {
	l.t.Helper()
	files, err := l.ca.Issue(filepath.Join(l.t.TempDir(), r.Name), r)
	if err != nil {
		l.t.Fatal(err)
	}
	return files
}

// TestTLSOnBothPorts runs a cluster with certificates. Clients without a certificate of the same CA are
// refused.
func TestTLSOnBothPorts(t *testing.T) {
	c := startSecureCluster(t, 3, nil)
	files, ctx := c.lab.files(certs.Admin, "ann"), testutil.Context(t)
	table, err := c.dialWith(client.Options{TLS: files}).CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
		t.Fatal(err)
	}
	for name, tls := range map[string]rpc.TLSFiles{"plaintext": {}, "another CA": newLab(t).files(certs.Admin, "ann")} {
		short, cancel := context.WithTimeout(ctx, time.Second)
		if stranger, err := client.Dial(short, client.Options{Endpoints: c.endpoints(), TLS: tls}); err == nil {
			stranger.Close()
			t.Errorf("a client with %s was let in", name)
		}
		cancel()
		if code, err := opsWith(t, c.nodes[0].opsAddr, tls); err == nil && code == http.StatusOK {
			t.Errorf("the ops port let in a client with %s", name)
		}
	}
	if code, err := opsWith(t, c.nodes[0].opsAddr, files); err != nil || code != http.StatusOK {
		t.Errorf("ops port with a certificate: %d, %v", code, err)
	}
}

// opsWith requests the metrics with certificates.
func opsWith(t *testing.T, addr string, files rpc.TLSFiles) (int, error) {
	source, err := files.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	var conf *tls.Config
	if source != nil {
		conf = source.Client(certs.Server)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: conf}, Timeout: 2 * time.Minute}
	scheme := "https"
	if files.IsZero() {
		scheme = "http"
	}
	resp, err := c.Get(scheme + "://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestTLSFilesGoTogether(t *testing.T) {
	files := newLab(t).files(certs.Server, "n1")
	for _, bad := range []rpc.TLSFiles{{Cert: files.Cert}, {Cert: files.Cert, Key: files.Key},
		{Cert: files.CA, Key: files.Key, CA: files.CA}, {Cert: files.Cert, Key: files.Key, CA: files.Key}} {
		if _, err := bad.Open(nil); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%+v: %v, want CodeInvalidArgument", bad, err)
		}
	}
}

// TestInsecureIsForLoopback: no port of a server serves plaintext to other machines, and the error says
// what to do.
func TestInsecureIsForLoopback(t *testing.T) {
	files := newLab(t).files(certs.Server, "n1")
	listener := func(addr string) net.Listener {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for name, change := range map[string]func(*Config){
		"a gRPC port of all addresses":  func(c *Config) { c.Listener.Close(); c.Listener = listener("0.0.0.0:0") },
		"a peer port of all addresses":  func(c *Config) { c.PeerListener.Close(); c.PeerListener = listener(":0") },
		"an ops port of all addresses":  func(c *Config) { c.OpsListener = listener("0.0.0.0:0") },
		"neither certificates nor this": func(c *Config) { c.Insecure = false },
		"both":                          func(c *Config) { c.TLS = files },
		"the certificate of an admin":   func(c *Config) { c.Insecure, c.TLS = false, newLab(t).files(certs.Admin, "ann") },
	} {
		cfg := Config{DataDir: t.TempDir(), Listener: listener("127.0.0.1:0"), PeerListener: listener("127.0.0.1:0"),
			Insecure: true, Logger: slog.New(slog.DiscardHandler)}
		change(&cfg)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := Run(ctx, cfg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want CodeInvalidArgument", name, err)
		}
		cancel()
	}
}
