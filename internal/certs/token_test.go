package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// goldenToken is written by hand from docs/formats/join-token.md: id 01 … 08, secret
// 10 … 1f, fingerprint 20 … 3f.
const (
	goldenToken = "rowraft-join-1.0102030405060708.101112131415161718191a1b1c1d1e1f.202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
	// printf 'rowraft join token\0000102030405060708\000\020\021…\037' | sha256sum
	goldenTokenHash = "4b1c2006db293d221475fba944fb121f13513b83f74fa8e22fcf2e7d70a51095"
)

func TestGoldenToken(t *testing.T) {
	token, err := ParseToken(goldenToken)
	if err != nil {
		t.Fatal(err)
	}
	if token.ID != "0102030405060708" || token.Secret[0] != 0x10 || token.Secret[15] != 0x1f || token.CA[0] != 0x20 ||
		token.CA[31] != 0x3f || token.String() != goldenToken {
		t.Errorf("read as %+v", token)
	}
	if hash := TokenHash(token.ID, token.Secret[:]); hex.EncodeToString(hash[:]) != goldenTokenHash {
		t.Errorf("the hash is %x, want %s", hash, goldenTokenHash)
	}
	for name, s := range map[string]string{
		"empty": "", "of another kind": "secret",
		"without a fingerprint": goldenToken[:62], "with more": goldenToken + ".00",
		"in capitals":       strings.ToUpper(goldenToken),
		"with a capital id": strings.Replace(goldenToken, ".01020304", ".0A020304", 1),
		"a digit short":     goldenToken[:len(goldenToken)-1], "too long": goldenToken + strings.Repeat("0", 300),
	} {
		if _, err := ParseToken(s); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument ||
			strings.Contains(err.Error(), "1011121314") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseToken(strings.Replace(goldenToken, "join-1", "join-2",
		1)); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
		t.Errorf("a token of version 2: %v", err)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(goldenToken)
	f.Add("rowraft-join-2.x")
	f.Fuzz(func(t *testing.T, s string) {
		if token, err := ParseToken(s); err == nil && token.String() != s {
			t.Errorf("%q reads as %q", s, token)
		} else if c := rowraft.CodeOf(err); err != nil && c != rowraft.CodeInvalidArgument && c != rowraft.CodeVersionTooNew {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func FuzzParseRequest(f *testing.F) {
	files := Files{Key: filepath.Join(f.TempDir(), "k")}
	der, err := files.NewRequest("n1", []string{"10.0.0.1", "n1.example.net", "::1"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(der)
	f.Add(der[:40])
	f.Fuzz(func(t *testing.T, der []byte) {
		a, err := ParseRequest(der)
		if err != nil {
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("%v", err)
			}
			return
		}
		if a.Name != "" && !ownerName.MatchString(a.Name) || len(a.Hosts) > maxJoinHosts || a.Key == nil {
			t.Errorf("%x reads as %+v", der, a)
		}
	})
}

// TestRequests: the requests that a machine may send.
func TestRequests(t *testing.T) {
	files := Files{Key: filepath.Join(t.TempDir(), "new", "k")}
	der, err := files.NewRequest("n1", []string{"10.0.0.1", "n1.example.net"})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(files.Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	a, err := ParseRequest(der)
	if err != nil || a.Name != "n1" || len(a.Hosts) != 2 || a.Hosts[0] != "10.0.0.1" || a.Hosts[1] != "n1.example.net" {
		t.Errorf("asked for %+v, %v", a, err)
	}
	again, err := files.NewRequest("n1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := ParseRequest(again); err != nil || !a.Key.Equal(b.Key) {
		t.Errorf("a second try has another key (%v)", err)
	}
	forged := bytes.Clone(der)
	forged[len(forged)-1] ^= 1
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "n1"}}, rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"nothing": nil, "a forged signature": forged, "another kind of key": other,
		"too much": make([]byte, MaxJoinRequestBytes+1)} {
		if _, err := ParseRequest(bad); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, hosts := range map[string][]string{"a wildcard": {"*.example.net"}, "a space": {"a b"},
		"many": strings.Split(strings.Repeat("h,", 20)+"h", ",")} {
		if _, err := files.NewRequest("n1", hosts); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := files.NewRequest("a/b", nil); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a name with a slash: %v", err)
	}
}

// TestWhoIsToldASecret: a joining machine sends its secret only to a node of the token's CA.
func TestWhoIsToldASecret(t *testing.T) {
	ca, other := newCA(t, "here"), newCA(t, "here")
	token, err := NewToken(ca.Cert)
	if err != nil {
		t.Fatal(err)
	}
	old, err := ca.Issue(filepath.Join(t.TempDir(), "old"),
		Request{Identity: Identity{Role: Server, Name: "n1"}, Hosts: []string{"127.0.0.1"}, Valid: time.Hour,
			NotBefore: time.Now().Add(-2 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := ca.Issue(filepath.Join(t.TempDir(), "x"),
		Request{Identity: Identity{Role: Server, Name: "n1"}, Hosts: []string{"10.9.9.9"}, Valid: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	// A server that shows the right CA with a certificate that this CA did not sign.
	liar := other.files(t, Server, "n1")
	liar.CA = filepath.Join(ca.dir, "ca.pem")
	for _, tc := range []struct {
		name   string
		server Files
		told   bool
	}{
		{"a node", ca.files(t, Server, "n1"), true},
		{"an admin", ca.files(t, Admin, "ann"), false},
		{"another CA's node", other.files(t, Server, "n1"), false},
		{"another CA's node that shows this CA", liar, false},
		{"a node whose certificate has expired", old, false},
		{"a node at another address", elsewhere, false},
	} {
		_, err := meet(t, open(t, tc.server, nil).Entrance(), token.Client("127.0.0.1"))
		if told := err == nil; told != tc.told {
			t.Errorf("%s: told the secret: %v, want %v (%v)", tc.name, told, tc.told, err)
		}
	}
	// A joining client must name its protocol, and must use TLS 1.3.
	for name, change := range map[string]func(*tls.Config){
		"gRPC's protocol": func(c *tls.Config) { c.NextProtos = []string{"h2"} },
		"TLS 1.2":         func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 },
	} {
		conf := token.Client("127.0.0.1")
		change(conf)
		if serverErr, _ := meet(t, open(t, ca.files(t, Server, "n1"), nil).Entrance(), conf); serverErr == nil {
			t.Errorf("the entrance speaks %s", name)
		}
	}
}

// TestSigning: the certificates that a CA issues and renews for a machine.
func TestSigning(t *testing.T) {
	ca := newCA(t, "here")
	dir := t.TempDir()
	files := Files{Cert: filepath.Join(dir, "n.pem"), Key: filepath.Join(dir, "n.key"), CA: filepath.Join(dir, "ca.pem")}
	der, err := files.NewRequest("n1", []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := OpenKey(filepath.Join(ca.dir, "ca.key"), filepath.Join(ca.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := signer.Sign(Request{Identity: Identity{Role: Server, Name: "n1"}, Hosts: asked.Hosts,
		Valid: 9 * time.Hour}, asked.Key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(ca.dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Keep(cert, raw); err != nil {
		t.Fatal(err)
	}
	s := open(t, files, nil)
	if s.Leaf().NotAfter.After(ca.Cert.NotAfter) {
		t.Errorf("it outlives its CA: until %v, the CA until %v", s.Leaf().NotAfter, ca.Cert.NotAfter)
	}
	if serverErr, clientErr := meet(t, s.Server(),
		open(t, ca.files(t, Admin, "ann"), nil).Client(Server)); serverErr != nil || clientErr != nil {
		t.Errorf("the machine that joined cannot serve: %v, %v", serverErr, clientErr)
	}
	first := s.Leaf() // s follows later changes
	again, err := signer.Renew(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Keep(again, raw); err != nil {
		t.Fatal(err)
	}
	next := open(t, files, nil).Leaf()
	if a, b := s.Identity(), open(t, files, nil).Identity(); a.String() != b.String() || a.Cluster != b.Cluster ||
		next.SerialNumber.Cmp(first.SerialNumber) == 0 || !next.PublicKey.(*ecdsa.PublicKey).Equal(first.PublicKey) {
		t.Errorf("renewed %v as %v", &a, &b)
	}
	if _, err := newCA(t, "here").Renew(s.Leaf()); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("another CA renews it: %v", err)
	}
	if _, err := OpenKey(filepath.Join(newCA(t, "x").dir, "ca.key"),
		filepath.Join(ca.dir, "ca.pem")); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("the key of another CA: %v", err)
	}
	foreign, err := ca.Sign(Request{Identity: Identity{Role: Server, Name: "n1"}, Valid: time.Minute}, &ca.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.Keep(foreign, raw); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Errorf("a certificate of another key is kept: %v", err)
	}
}
