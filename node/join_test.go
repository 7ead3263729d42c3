package node

import (
	"context"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// joins is a cluster that machines can join.
type joins struct {
	*testCluster
	admin rowraftv1.CertificatesClient // of the leader
}

// newJoins starts servers that all have the key of the CA.
func newJoins(t *testing.T, servers int) *joins {
	t.Helper()
	j := &joins{testCluster: startSecureCluster(t, servers, withCAKey)}
	j.findLeader(t)
	return j
}

// findLeader has admin call the server that leads the scheduler.
func (j *joins) findLeader(t *testing.T) {
	t.Helper()
	j.admin = rowraftv1.NewCertificatesClient(j.connectAs(j.leader(t), certs.Admin, "ann"))
}

// call makes a call to the current leader.
func (j *joins) call(t *testing.T, fn func(rowraftv1.CertificatesClient) error) {
	t.Helper()
	for err := fn(j.admin); err != nil; err = fn(j.admin) {
		if !rowraft.CodeOf(err).Retryable() {
			t.Fatal(err)
		}
		j.findLeader(t)
	}
}

// leader returns the address of the server that leads the scheduler.
func (j *joins) leader(t *testing.T) (leader string) {
	t.Helper()
	ctx := testutil.Context(t)
	stub := rowraftv1.NewClusterClient(j.connectAs(j.nodes[0].addr, certs.Admin, "ann"))
	for leader == "" {
		hello, err := stub.Hello(ctx, &rowraftv1.HelloRequest{})
		if err != nil {
			t.Fatal(err)
		}
		leader = hello.GetSchedulerLeader()
	}
	return leader
}

// token creates a token on the current leader.
func (j *joins) token(t *testing.T, ask *rowraftv1.JoinToken) (token *certs.Token) {
	t.Helper()
	j.call(t, func(admin rowraftv1.CertificatesClient) error {
		reply, err := admin.CreateToken(testutil.Context(t), &rowraftv1.CreateTokenRequest{Token: ask})
		if err == nil {
			token, err = certs.ParseToken(reply.GetSecret())
		}
		return err
	})
	return token
}

func newFiles(t *testing.T) rpc.TLSFiles {
	dir := t.TempDir()
	return rpc.TLSFiles{Cert: filepath.Join(dir, "server.pem"), Key: filepath.Join(dir, "server.key"),
		CA: filepath.Join(dir, "ca.pem")}
}

var loopback = []string{"127.0.0.1"}

// TestAMachineJoinsByAToken: a machine with a token gets a certificate of the token's role, from every
// server, as often as the token allows. A machine with a wrong token gets no detail of what is wrong.
func TestAMachineJoinsByAToken(t *testing.T) {
	j := newJoins(t, 3)
	ctx := testutil.Context(t)
	token := j.token(t, &rowraftv1.JoinToken{Role: "server", Uses: 3})
	var machines []rpc.TLSFiles
	for i, n := range j.nodes { // one of them leads
		files := newFiles(t)
		if err := rpc.Join(ctx, []string{n.addr}, token, files, "new"+string('a'+rune(i)), loopback); err != nil {
			t.Fatalf("through %s: %v", n.addr, err)
		}
		machines = append(machines, files)
	}
	for _, path := range []string{machines[0].Cert, machines[0].Key, machines[0].CA} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v; want 0600", path, info.Mode(), err)
		}
	}
	source, err := machines[0].Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	if id := source.Identity(); id.String() != "server newa" || id.Cluster != "lab" {
		t.Errorf("who joined is %s of cluster %s", id.String(), id.Cluster)
	}
	if _, err := rowraftv1.NewClusterClient(connectWith(t, j.nodes[1].addr, machines[0])).Hello(ctx,
		&rowraftv1.HelloRequest{}); err != nil {
		t.Errorf("who joined is not let in: %v", err)
	}

	// The same machine joins again, as after a lost answer: that counts as one use.
	os.Remove(machines[0].Cert)
	if err := rpc.Join(ctx, []string{j.nodes[0].addr}, token, machines[0], "newa", loopback); err != nil {
		t.Errorf("a machine that asks again: %v", err)
	}

	// All other servers give the same error.
	named := j.token(t, &rowraftv1.JoinToken{Role: "trainer", Name: "tom", Tables: []string{"user"}, Uses: 9})
	gone := j.token(t, &rowraftv1.JoinToken{Role: "server"})
	deleted := false
	j.call(t, func(admin rowraftv1.CertificatesClient) error {
		_, err := admin.DeleteToken(ctx, &rowraftv1.DeleteTokenRequest{Id: gone.ID})
		if deleted && rowraft.CodeOf(err) == rowraft.CodeNotFound { // the first try succeeded
			return nil
		}
		deleted = true
		return err
	})
	wrong, unknown := *named, *named
	wrong.Secret[3] ^= 1
	unknown.ID = "0123456789abcdef"
	said := map[string]bool{}
	for name, x := range map[string]struct {
		token *certs.Token
		as    string
	}{"used up": {token, "newd"}, "a wrong secret": {&wrong, "tom"}, "an unknown id": {&unknown, "tom"},
		"deleted": {gone, "newd"}, "another name": {named, "bob"}} {
		files := newFiles(t)
		err := rpc.Join(ctx, []string{j.nodes[0].addr}, x.token, files, x.as, loopback)
		if rowraft.CodeOf(err) != rowraft.CodeDenied {
			t.Errorf("%s: %v, want it denied", name, err)
			continue
		}
		said[err.Error()] = true
		if _, err := os.Stat(files.Cert); err == nil {
			t.Errorf("%s: there is a certificate", name)
		}
	}
	if len(said) != 1 {
		t.Errorf("what is wrong with a token is told: %v", said)
	}

	tom := newFiles(t)
	if err := rpc.Join(ctx, []string{j.nodes[0].addr}, named, tom, "", nil); err != nil {
		t.Fatal(err)
	}
	if source, err := tom.Open(nil); err != nil {
		t.Error(err)
	} else if id := source.Identity(); id.String() != "trainer tom" || id.May("item") || !id.May("user") {
		t.Errorf("the trainer's token gave %s, %v", id.String(), id.Tables)
	}

	// The client does not send a token of another cluster to this one.
	foreign := *named
	foreign.CA[0] ^= 1
	if err := rpc.Join(ctx, []string{j.nodes[0].addr}, &foreign, newFiles(t), "tom",
		nil); rowraft.CodeOf(err) != rowraft.CodeDenied || !strings.Contains(err.Error(), "nothing was sent to it") {
		t.Errorf("with another CA's fingerprint: %v", err)
	}
}

// TestTokensAreForAdmins: which callers may create which tokens.
func TestTokensAreForAdmins(t *testing.T) {
	j := newJoins(t, 1)
	ctx := testutil.Context(t)
	operator := rowraftv1.NewCertificatesClient(j.connectAs(j.nodes[0].addr, certs.Operator, "oli"))
	if _, err := operator.CreateToken(ctx,
		&rowraftv1.CreateTokenRequest{Token: &rowraftv1.JoinToken{Role: "server"}}); rowraft.CodeOf(
		err) != rowraft.CodeDenied {
		t.Errorf("an operator makes a token: %v", err)
	}
	for name, ask := range map[string]*rowraftv1.JoinToken{
		"an admin's":                {Role: "admin", Name: "eve"},
		"no role's":                 {Role: "king", Name: "eve"},
		"a trainer's of any name":   {Role: "trainer", Tables: []string{"*"}},
		"a trainer's of no table":   {Role: "trainer", Name: "tom"},
		"for a thousand machines":   {Role: "server", Uses: 1000},
		"for certificates of a day": {Role: "server", ValidNs: uint64(time.Hour)},
	} {
		if _, err := j.admin.CreateToken(ctx, &rowraftv1.CreateTokenRequest{Token: ask}); rowraft.CodeOf(
			err) != rowraft.CodeInvalidArgument {
			t.Errorf("a token %s: %v", name, err)
		}
	}
	token := j.token(t, &rowraftv1.JoinToken{Role: "reader", Name: "rob", Tables: []string{"a_*"}, Uses: 2})
	if err := rpc.Join(ctx, []string{j.nodes[0].addr}, token, newFiles(t), "rob", nil); err != nil {
		t.Fatal(err)
	}
	list, err := j.admin.ListTokens(ctx, &rowraftv1.ListTokensRequest{})
	if err != nil || len(list.GetTokens()) != 1 {
		t.Fatalf("tokens: %v, %v", list, err)
	}
	got := list.GetTokens()[0]
	if got.GetId() != token.ID || got.GetCreatedBy() != "admin ann" || len(got.GetUsed()) != 1 ||
		got.GetUsed()[0].GetName() != "rob" || strings.Contains(got.String(), string(token.Secret[:])) {
		t.Errorf("the token is listed as %v", got)
	}
}

// TestOnlyJoinIsOpen: machines without a certificate can make one call only.
func TestOnlyJoinIsOpen(t *testing.T) {
	j := newJoins(t, 1)
	ctx := testutil.Context(t)
	token, err := certs.NewToken(mustCert(t, j.lab.files(certs.Admin, "ann").CA))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.DialEntrance(j.nodes[0].addr, token, nil, make(chan error, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	awaitConn(t, conn)
	open := 0
	for _, m := range everyCall() {
		// Each call is a stream on a connection that accepts one, so no two calls run at a time. The server
		// ends the connection after 10 s, and the calls may take longer.
		err := knock(ctx, conn, m.name, m.streams, grpc.WaitForReady(true))
		if m.name == rowraftv1.Entrance_Join_FullMethodName {
			open++
			if rowraft.CodeOf(rpc.FromStatus(err)) != rowraft.CodeInvalidArgument { // the request was empty
				t.Errorf("Join: %v", err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "unknown service") {
			t.Errorf("%s without a certificate: %v", m.name, err)
		}
	}
	if open != 1 {
		t.Errorf("%d calls are open", open)
	}
	if err := conn.Invoke(ctx, rowraftv1.Entrance_Join_FullMethodName,
		&rowraftv1.JoinRequest{Request: make([]byte, 20<<10)}, &rowraftv1.JoinReply{}, grpc.WaitForReady(true)); err == nil ||
		!strings.Contains(err.Error(), "received message larger than max") {
		t.Errorf("a request of 20 KiB: %v", err)
	}
	var last error
	for ctx.Err() == nil { // 20 at once, and then one in 3 s
		last = rpc.FromStatus(conn.Invoke(ctx, rowraftv1.Entrance_Join_FullMethodName, &rowraftv1.JoinRequest{},
			&rowraftv1.JoinReply{}))
		if rowraft.CodeOf(last) == rowraft.CodeOverloaded {
			break
		}
	}
	if rowraft.CodeOf(last) != rowraft.CodeOverloaded {
		t.Errorf("many tries of one address: %v", last)
	}
	// Servers without the key do not accept machines without a certificate.
	other := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Insecure, cfg.TLS = false, j.lab.files(certs.Server, "n1")
	})
	if err := rpc.Join(ctx, []string{other.nodes[0].addr}, token, newFiles(t), "x",
		loopback); rowraft.CodeOf(err) != rowraft.CodePrecondition || !strings.Contains(err.Error(), "--ca-key") {
		t.Errorf("through a server without --ca-key: %v", err)
	}
	admin := rowraftv1.NewCertificatesClient(j.connectAs(other.nodes[0].addr, certs.Admin, "ann"))
	if _, err := admin.CreateToken(ctx,
		&rowraftv1.CreateTokenRequest{Token: &rowraftv1.JoinToken{Role: "server"}}); rowraft.CodeOf(
		err) != rowraft.CodePrecondition || !strings.Contains(err.Error(), "--ca-key") {
		t.Errorf("a token of a cluster without --ca-key: %v", err)
	}
}

// TestAServerRenewsItsCertificate: with a third of its time left, the server gets the same certificate with
// a later end, and uses it at once.
func TestAServerRenewsItsCertificate(t *testing.T) {
	l := newLab(t)
	files := l.request(certs.Request{Identity: certs.Identity{Role: certs.Server, Name: "n1"}, Hosts: loopback,
		NotBefore: time.Now().Add(-2 * time.Hour), Valid: 2*time.Hour + 10*time.Minute})
	before := mustCert(t, files.Cert)
	c := startClusterWith(t, 1, 1, func(cfg *Config) {
		cfg.Insecure, cfg.TLS, cfg.CAKey, cfg.RenewCert = false, files, l.caKey(), true
	})
	ctx := testutil.Context(t)
	for {
		now := mustCert(t, files.Cert)
		if now.SerialNumber.Cmp(before.SerialNumber) != 0 {
			// The CA of this lab is valid for an hour, and no certificate outlives it.
			if id, err := certs.Of(now); err != nil || id.String() != "server n1" || !now.NotAfter.After(before.NotAfter) ||
				now.VerifyHostname("127.0.0.1") != nil {
				t.Errorf("renewed: %v (%v) until %v, it was until %v", id, err, now.NotAfter, before.NotAfter)
			}
			break
		}
		pause(ctx, t, 20*time.Millisecond)
	}
	c.lab = l
	if _, err := rowraftv1.NewClusterClient(c.connectAs(c.nodes[0].addr, certs.Admin, "ann")).Hello(ctx,
		&rowraftv1.HelloRequest{}); err != nil {
		t.Error(err)
	}
}

func mustCert(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	cert, err := certs.ReadCertificate(path)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// pause waits before the next look.
func pause(ctx context.Context, t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		t.Fatal("nothing has happened in a minute")
	}
}
