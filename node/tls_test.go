package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/rpc"
)

// authority signs certificates for loopback.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert, a.key = a.sign("ca", template, nil, nil)
	return a
}

// files makes a certificate for both sides of a connection.
func (a *authority) files() rpc.TLSFiles {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "member"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	a.sign("member", template, a.cert, a.key)
	path := func(name string) string { return filepath.Join(a.dir, name) }
	return rpc.TLSFiles{Cert: path("member.pem"), Key: path("member.key"), CA: path("ca.pem")}
}

// sign writes name.pem and name.key; without a parent the certificate signs itself.
func (a *authority) sign(name string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(filepath.Join(a.dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// TestTLSOnBothPorts runs a cluster with certificates; clients without one of
// the same CA get nothing.
func TestTLSOnBothPorts(t *testing.T) {
	files := newAuthority(t).files()
	c := startClusterWith(t, 3, 1, func(cfg *Config) { cfg.Insecure, cfg.TLS = false, files })
	ctx := testContext(t)
	var endpoints []string
	for _, n := range c.nodes {
		endpoints = append(endpoints, n.addr)
	}
	cl, err := client.Dial(ctx, client.Options{Endpoints: endpoints, TLS: files})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
		t.Fatal(err)
	}
	for name, tls := range map[string]rpc.TLSFiles{"plaintext": {}, "another CA": newAuthority(t).files()} {
		short, cancel := context.WithTimeout(ctx, time.Second)
		if stranger, err := client.Dial(short, client.Options{Endpoints: endpoints, TLS: tls}); err == nil {
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

// opsWith asks for the metrics with certificates.
func opsWith(t *testing.T, addr string, files rpc.TLSFiles) (int, error) {
	conf, err := files.Client()
	if err != nil {
		t.Fatal(err)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: conf}, Timeout: 30 * time.Second}
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
	files := newAuthority(t).files()
	for _, bad := range []rpc.TLSFiles{{Cert: files.Cert}, {Cert: files.Cert, Key: files.Key}, {Cert: files.CA, Key: files.Key, CA: files.CA}, {Cert: files.Cert, Key: files.Key, CA: files.Key}} {
		if _, err := bad.Server(); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%+v: %v, want CodeInvalidArgument", bad, err)
		}
	}
}
