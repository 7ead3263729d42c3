package raftstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/raftstore/peer"
)

func TestClusterOverTLS(t *testing.T) {
	cert, pool := selfSigned(t)
	c := startedCluster(t, 3, func(o *Options) {
		o.Listener = tls.NewListener(o.Listener, &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool,
			ClientAuth: tls.RequireAndVerifyClientCert})
		o.DialTLS = func() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool} }
	})
	c.converged(c.propose("secret"))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	plain := peer.Listen(peer.Options{
		Cluster: testCluID, Node: "x", Listener: ln, Resolve: c.resolve, DialTimeout: 2 * time.Minute,
		Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		},
	}, nil)
	defer plain.Close()
	layer := plain.Layer("shard-0", nil)
	defer layer.Close()
	if err := layer.Exchange(t.Context(), raft.ServerAddress(c.nodes[0].id), time.Minute); err == nil {
		t.Error("a plaintext connection was accepted")
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
