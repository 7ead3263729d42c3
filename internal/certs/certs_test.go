package certs

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

func newCA(t testing.TB, cluster string) *CA {
	t.Helper()
	ca, err := NewCA(filepath.Join(t.TempDir(), "ca"), cluster, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func (ca *CA) files(t testing.TB, role Role, name string) Files {
	t.Helper()
	return ca.issue(t, filepath.Join(t.TempDir(), name), role, name)
}

func (ca *CA) issue(t testing.TB, base string, role Role, name string) Files {
	t.Helper()
	r := Request{Identity: Identity{Role: role, Name: name}, Hosts: []string{"127.0.0.1"}, Valid: 50 * time.Minute}
	if r.limited() {
		r.Tables = []string{"*"}
	}
	files, err := ca.Issue(base, r)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func open(t testing.TB, f Files, log *slog.Logger) *Source {
	t.Helper()
	s, err := f.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// meet connects two sides and returns the error of each handshake. The server's result decides: a client of
// TLS 1.3 finishes its handshake before the server has verified it.
func meet(t testing.TB, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		if err = c.(*tls.Conn).Handshake(); err == nil {
			_, err = c.Write([]byte("in"))
		}
		done <- err
	}()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", l.Addr().String(), client)
	if err == nil {
		c.SetDeadline(time.Now().Add(time.Minute))
		_, err = io.ReadFull(c, make([]byte, 2))
		c.Close()
	}
	return <-done, err
}

func TestWhoMeetsWhom(t *testing.T) {
	ca := newCA(t, "here")
	elsewhere, err := ca.Issue(filepath.Join(t.TempDir(), "x"),
		Request{Identity: Identity{Cluster: "there", Role: Server, Name: "n1"}, Hosts: []string{"127.0.0.1"},
			Valid: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	node, admin, stranger := ca.files(t, Server, "n1"), ca.files(t, Admin, "ann"), newCA(t, "here").files(t, Server, "n1")
	trainer, averagers := ca.files(t, Trainer, "tom"), []Role{Trainer, Admin}
	for _, tc := range []struct {
		name           string
		server, client Files
		accept, expect []Role
		in             bool
	}{
		{"an admin calls a node", node, admin, nil, []Role{Server}, true},
		{"a node calls a node's peer port", node, node, []Role{Server}, []Role{Server}, true},
		{"an admin calls a node's peer port", node, admin, []Role{Server}, []Role{Server}, false},
		{"an admin's certificate serves in place of a node's", admin, admin, nil, []Role{Server}, false},
		{"a node of another cluster calls", node, elsewhere, nil, nil, false},
		{"a node of another cluster serves", elsewhere, node, nil, nil, false},
		{"another CA calls", node, stranger, nil, nil, false},
		{"another CA serves", stranger, node, nil, nil, false},
		{"a trainer averages with another of its name", trainer, ca.files(t, Trainer, "tom"), averagers, averagers, true},
		{"a trainer averages with an admin", trainer, admin, averagers, averagers, true},
		{"a trainer joins in another's average", trainer, ca.files(t, Trainer, "bob"), averagers, nil, false},
		{"a trainer takes another for the hub of its average", ca.files(t, Trainer, "bob"), trainer, nil, averagers, false},
		{"a trainer reads another's metrics", trainer, ca.files(t, Trainer, "bob"), nil, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Each side trusts the CA in its file. A client of another CA that trusts ours is refused
			// because of its own certificate.
			client := open(t, Files{tc.client.Cert, tc.client.Key, tc.client.CA}, nil)
			serverErr, clientErr := meet(t, open(t, tc.server, nil).Server(tc.accept...), client.Client(tc.expect...))
			if in := serverErr == nil && clientErr == nil; in != tc.in {
				t.Errorf("let in: %v, want %v; server: %v; client: %v", in, tc.in, serverErr, clientErr)
			}
		})
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	ca := newCA(t, "here")
	s := open(t, ca.files(t, Server, "n1"), nil)
	client := s.Client()
	client.MinVersion, client.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if serverErr, _ := meet(t, s.Server(), client); serverErr == nil {
		t.Error("a client of TLS 1.2 was let in")
	}
}

// touch makes a change of the files visible, for any resolution of their times.
func touch(t testing.TB, f Files, at time.Time) {
	t.Helper()
	for _, path := range []string{f.Cert, f.Key, f.CA} {
		if err := os.Chtimes(path, at, at); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

func TestCertificatesReload(t *testing.T) {
	ca := newCA(t, "here")
	dir := t.TempDir()
	base := filepath.Join(dir, "n1")
	files := ca.issue(t, base, Server, "n1")
	at := time.Now().Add(-time.Hour)
	touch(t, files, at)
	var log bytes.Buffer
	s := open(t, files, slog.New(slog.NewTextHandler(&log, nil)))
	server := s.Server()
	serial := func() string {
		conf, err := server.GetConfigForClient(nil)
		if err != nil {
			t.Fatal(err)
		}
		a, b := conf.Certificates[0].Leaf.SerialNumber, s.Client().Certificates[0].Leaf.SerialNumber
		if a.Cmp(b) != 0 {
			t.Errorf("as a server it shows %v, as a client %v", a, b)
		}
		return a.String()
	}
	first := serial()
	replace := func(with func()) string {
		os.Remove(files.Cert)
		os.Remove(files.Key)
		with()
		at = at.Add(time.Second)
		touch(t, files, at)
		return serial()
	}

	for name, bad := range map[string]func(){
		"no files":   func() {},
		"a key only": func() { ca.issue(t, base, Server, "n1"); os.Remove(files.Cert) },
		"garbage": func() {
			os.WriteFile(files.Cert, []byte("x"), 0o600)
			os.WriteFile(files.Key, []byte("y"),
				0o600)
		},
		"another role":      func() { ca.issue(t, base, Admin, "n1") },
		"another's key":     func() { ca.issue(t, base, Server, "n1"); os.Remove(files.Key); key(t, ca, files.Key) },
		"an expired one":    func() { old(t, ca, base) },
		"another cluster's": func() { other(t, ca, base) },
	} {
		log.Reset()
		if now := replace(bad); now != first {
			t.Errorf("%s: the old certificate was given up", name)
		}
		if n := strings.Count(log.String(), "the new certificate is not used"); n == 0 || n > 2 {
			t.Errorf("%s: told %d times: %s", name, n, log.String())
		}
	}

	log.Reset()
	second := replace(func() { ca.issue(t, base, Server, "n2") })
	if second == first || !strings.Contains(log.String(), "certificate reloaded") {
		t.Errorf("a new certificate is not taken: %s", log.String())
	}
	if id := s.Identity(); id.Name != "n2" {
		t.Errorf("it is still %v", id)
	}

	// With a new CA, certificates of the old one are refused.
	next, err := NewCA(filepath.Join(dir, "next"), "here", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	late := ca.files(t, Admin, "ann")
	raw, err := os.ReadFile(filepath.Join(dir, "next", "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.CA, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	replace(func() { next.issue(t, base, Server, "n1") })
	if serverErr, _ := meet(t, server, open(t, late, nil).Client()); serverErr == nil {
		t.Error("a certificate of the CA that was replaced is let in")
	}
	if serverErr, clientErr := meet(t, server, open(t, next.files(t, Admin, "ann"), nil).Client()); serverErr != nil ||
		clientErr != nil {
		t.Errorf("a certificate of the new CA: %v, %v", serverErr, clientErr)
	}
}

func key(t testing.TB, ca *CA, path string) {
	raw, err := os.ReadFile(ca.files(t, Server, "z").Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func old(t testing.TB, ca *CA, base string) {
	if _, err := ca.Issue(base, Request{Identity: Identity{Role: Server, Name: "n1"}, Valid: time.Hour,
		NotBefore: time.Now().Add(-2 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
}

func other(t testing.TB, ca *CA, base string) {
	if _, err := ca.Issue(base, Request{Identity: Identity{Cluster: "there", Role: Server, Name: "n1"},
		Valid: time.Minute}); err != nil {
		t.Fatal(err)
	}
}

func TestMay(t *testing.T) {
	for _, tc := range []struct {
		role   Role
		tables []string
		table  string
		want   bool
	}{
		{Admin, nil, "user", true},
		{Operator, nil, "user", true}, // the role has no calls for rows
		{Trainer, []string{"user"}, "user", true},
		{Trainer, []string{"user"}, "users", false},
		{Trainer, []string{"user"}, "use", false},
		{Reader, []string{"a", "item_*"}, "item_7", true},
		{Reader, []string{"item_*"}, "item", false},
		{Reader, []string{"*"}, "anything", true},
		{Reader, nil, "user", false},
	} {
		id := Identity{Role: tc.role, Tables: tc.tables}
		if got := id.May(tc.table); got != tc.want {
			t.Errorf("%s with %v: table %s: %v", tc.role, tc.tables, tc.table, got)
		}
	}
}

// TestTagGoldenBytes: sha256 of "rowraft client\0here\0alice", by sha256sum.
func TestTagGoldenBytes(t *testing.T) {
	a := Identity{Cluster: "here", Role: Trainer, Name: "alice", Tables: []string{"x"}}
	if got := a.Tag(); got != [8]byte{0x02, 0x4b, 0x00, 0xc1, 0x5a, 0xb8, 0x27, 0x7f} {
		t.Errorf("tag % x", got)
	}
}

func FuzzParseIdentity(f *testing.F) {
	for _, s := range []string{
		"rowraft://here/admin/ann", "rowraft://here/trainer/alice?table=user&table=item_%2A", "rowraft://here/ca",
		"spiffe://here/admin/ann",
		"rowraft://here/admin/ann?table=x", "rowraft://here/reader/ann?table=%2A&later=1", "rowraft://a@here/admin/ann",
		"rowraft://here:1/admin/ann#f",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		id, err := ParseIdentity(u)
		if err != nil {
			if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("%q: %v has no code", s, err)
			}
			return
		}
		again, err := ParseIdentity(id.uri())
		if err != nil || again.Cluster != id.Cluster || again.Role != id.Role || again.Name != id.Name ||
			!slices.Equal(again.Tables, id.Tables) {
			t.Errorf("%q is %+v, written again it is %+v, %v", s, id, again, err)
		}
		if err := id.Check(); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	})
}

func TestNothingIsOverwritten(t *testing.T) {
	ca := newCA(t, "here")
	base := filepath.Join(t.TempDir(), "n1")
	files := ca.issue(t, base, Server, "n1")
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	_, err := ca.Issue(base, Request{Identity: Identity{Role: Server, Name: "n1"}, Valid: time.Minute})
	if rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("over a certificate that is there: %v", err)
	}
	if _, err := os.Stat(files.Key); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a key without certificate is left behind: %v", err)
	}
}
