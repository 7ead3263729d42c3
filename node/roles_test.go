package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// stranger is a client that the server must refuse, with its TLS configuration.
type stranger struct {
	name string
	tls  *tls.Config // nil: plaintext
}

// strangers are correct except for one thing. They accept any server, so that the server must refuse them.
func strangers(t *testing.T, l *lab) []stranger {
	t.Helper()
	load := func(f rpc.TLSFiles) *tls.Config {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{pair}}
	}
	admin := func(change func(*certs.Request)) *tls.Config {
		r := certs.Request{Identity: certs.Identity{Role: certs.Admin, Name: "ann"}, Hosts: []string{"127.0.0.1"},
			Valid: 50 * time.Minute}
		change(&r)
		return load(l.request(r))
	}
	out := []stranger{
		{"plaintext", nil},
		{"no certificate", &tls.Config{}},
		{"no certificate, by the protocol of machines that join, next to gRPC's",
			&tls.Config{NextProtos: []string{certs.JoinProtocol}}},
		{"a certificate of another CA", load(newLab(t).files(certs.Admin, "ann"))},
		{"an expired certificate", admin(func(r *certs.Request) { r.NotBefore = time.Now().Add(-2 * time.Hour) })},
		{"a certificate of another cluster", admin(func(r *certs.Request) { r.Cluster = "there" })},
		{"a certificate that is not valid yet", admin(func(r *certs.Request) {
			r.NotBefore = time.Now().Add(20 * time.Minute)
			r.Valid = 20 * time.Minute
		})},
	}
	pool := x509.NewCertPool()
	raw, err := os.ReadFile(l.files(certs.Admin, "ann").CA)
	if err != nil || !pool.AppendCertsFromPEM(raw) {
		t.Fatalf("the CA: %v", err)
	}
	for _, s := range out {
		if s.tls != nil {
			s.tls.RootCAs, s.tls.MinVersion = pool, tls.VersionTLS13
		}
	}
	return out
}

// call is a call that servers implement.
type call struct {
	name    string
	streams bool
}

func everyCall() (out []call) {
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		if p := f.Package(); p != "rowraft.v1" && p != "grpc.health.v1" && !strings.HasPrefix(string(p), "grpc.reflection.") {
			return true
		}
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				out = append(out, call{"/" + string(s.FullName()) + "/" + string(m.Name()), m.IsStreamingClient() ||
					m.IsStreamingServer()})
			}
		}
		return true
	})
	return out
}

// knock makes a call with an empty request and returns the error.
func knock(ctx context.Context, conn *grpc.ClientConn, method string, streams bool, opts ...grpc.CallOption) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if !streams {
		return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{}, opts...)
	}
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method, opts...)
	if err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(&emptypb.Empty{})
}

// caKey returns the file of the CA's key.
func (l *lab) caKey() string {
	return strings.TrimSuffix(l.files(certs.Admin, "ann").CA, ".pem") + ".key"
}

// TestNobodyGetsIn is the matrix: every call of every registered service × every kind of certificate that
// the server must refuse for it, and all ports × every stranger.
func TestNobodyGetsIn(t *testing.T) {
	c, ctx := startSecureCluster(t, 1, withCAKey), testutil.Context(t)
	n, l := c.nodes[0], c.lab
	calls := everyCall()
	if len(calls) < 50 {
		t.Fatalf("the server has only %d calls", len(calls))
	}
	cells := 0
	for _, s := range strangers(t, l) {
		creds := insecure.NewCredentials()
		if s.tls != nil {
			creds = credentials.NewTLS(s.tls)
		}
		conn, err := grpc.NewClient("passthrough:///"+n.addr, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range calls {
			cells++
			if err := knock(ctx, conn, m.name, m.streams); status.Code(err) != codes.Unavailable {
				t.Errorf("%s with %s: %v, want no connection", m.name, s.name, err)
			}
		}
		conn.Close()
		for port, addr := range map[string]string{"peer": n.ports[1].Addr, "ops": n.opsAddr} {
			if port == "ops" && s.tls != nil && len(s.tls.Certificates) == 0 {
				probesOnly(t, addr, s)
				continue
			}
			if err := knockTLS(addr, s.tls); err == nil {
				t.Errorf("the %s port let %s in", port, s.name)
			}
		}
	}
	for _, role := range certs.Roles {
		var tables []string
		if role == certs.Trainer || role == certs.Reader {
			tables = []string{"*"}
		}
		files := l.files(role, "some-"+string(role), tables...)
		source, err := files.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		conn := connect(t, n.addr, source)
		for _, m := range calls {
			may := rpc.RolesOf(m.name)
			if slices.Contains(may, role) {
				continue // other tests check the effect of an empty request
			}
			cells++
			err := rpc.FromStatus(knock(ctx, conn, m.name, m.streams))
			denied, ok := errors.AsType[*rowraft.DeniedError](err)
			if !ok || denied.Need != certs.Join(may) || denied.Have != string(role)+" some-"+string(role) ||
				!strings.HasSuffix(m.name, denied.What) {
				t.Errorf("%s as %s: %v (%+v), want it denied to all but %v", m.name, role, err, denied, may)
			}
		}
		conn.Close()
		if err := knockTLS(n.ports[1].Addr, source.Client(certs.Server)); (err == nil) != (role == certs.Server) {
			t.Errorf("the peer port and %s: %v", role, err)
		}
		profile, _ := opsGet(t, n.opsAddr, source, "/debug/pprof/cmdline")
		if allowed := role == certs.Admin || role == certs.Operator; (profile != http.StatusForbidden) != allowed {
			t.Errorf("the profiler and %s: status %d", role, profile)
		}
		status, metrics := opsGet(t, n.opsAddr, source, "/metrics")
		if status != http.StatusOK || !strings.Contains(metrics, "\nrowraft_certificate_expiry_timestamp_seconds{") {
			t.Errorf("the metrics and %s: status %d: %s", role, status, metrics)
		}
	}
	t.Logf("%d calls, %d cells", len(calls), cells)
}

// probesOnly: without a certificate the ops port reports whether the server lives and is ready, and nothing
// else.
func probesOnly(t *testing.T, addr string, s stranger) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.tls.Clone()},
		Timeout: 2 * time.Minute}
	for path, want := range map[string]int{
		"/livez": http.StatusOK, "/readyz": http.StatusOK, "/metrics": http.StatusForbidden,
		"/debug/pprof/": http.StatusForbidden, "/": http.StatusForbidden,
		"/livez/../metrics": http.StatusForbidden, "//livez": http.StatusForbidden, "/livez?x=/metrics": http.StatusOK,
	} {
		resp, err := c.Get("https://" + addr + path)
		if err != nil {
			t.Errorf("%s with %s: %v", path, s.name, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if path == "/readyz" && resp.StatusCode == http.StatusServiceUnavailable {
			want = resp.StatusCode // it may not be ready yet
		}
		if err != nil || resp.StatusCode != want || want != http.StatusForbidden && len(body) > 0 {
			t.Errorf("%s with %s: status %d, %q, %v; want status %d and not a word", path, s.name, resp.StatusCode, body, err,
				want)
		}
	}
}

// knockTLS connects and waits for the first byte or for the end: the server refuses after the client has
// completed the handshake.
func knockTLS(addr string, conf *tls.Config) error {
	dialer := &tls.Dialer{Config: conf}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if conf == nil {
		resp, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		return errors.New(resp.Status)
	}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	// Neither port can parse this, and each answers with bytes if it accepted the client.
	if _, err := fmt.Fprintf(conn, "RWPR%s\r\n\r\n\r\n\r\n", strings.Repeat("\x00", 64)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

func opsGet(t *testing.T, addr string, source *certs.Source, path string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: source.Client(certs.Server)},
		Timeout: 2 * time.Minute}
	resp, err := c.Get("https://" + addr + path)
	if err != nil {
		t.Errorf("%s: %v", path, err)
		return 0, ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return resp.StatusCode, string(body)
}

// TestTablesOfACertificate: a trainer and a reader can access only the tables that their certificates name,
// by any call.
func TestTablesOfACertificate(t *testing.T) {
	c, ctx := startSecureCluster(t, 1, nil), testutil.Context(t)
	admin := c.dialAs(certs.Admin, "ann")
	for _, name := range []string{"mine", "hers"} {
		if _, err := admin.CreateTable(ctx, counterSchema(name), false); err != nil {
			t.Fatal(err)
		}
	}
	trainer, reader := c.dialAs(certs.Trainer, "tom", "mine", "my_*"), c.dialAs(certs.Reader, "rob", "mine")
	keys, row := []rowraft.Key{7}, []float32{-1, -1, -1, -1}
	for _, tc := range []struct {
		who   string
		cl    *client.Client
		table string
		reads bool
		push  bool
	}{
		{"admin", admin, "hers", true, true},
		{"trainer", trainer, "mine", true, true},
		{"trainer", trainer, "hers", false, false},
		{"reader", reader, "mine", true, false},
		{"reader", reader, "hers", false, false},
	} {
		table, err := tc.cl.Table(ctx, tc.table)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, allowed bool, err error) {
			t.Helper()
			if _, denied := errors.AsType[*rowraft.DeniedError](err); allowed && err != nil || !allowed && !denied {
				t.Errorf("%s %s %s: %v, want it allowed: %v", tc.who, what, tc.table, err, allowed)
			}
		}
		_, err = table.Push(ctx, keys, row)
		check("pushes to", tc.push, err)
		check("pulls", tc.reads, table.Pull(ctx, keys, make([]float32, 4)))
		_, err = table.Delete(ctx, []rowraft.Key{9})
		check("deletes from", tc.push, err)
		check("scans", tc.reads, table.Scan(ctx, func([]rowraft.Key, []float32) error { return nil }))
	}
	if _, err := trainer.CreateTable(ctx, counterSchema("my_new"), false); err != nil {
		t.Errorf("a trainer creates a table of its own: %v", err)
	}
	if _, err := trainer.CreateTable(ctx, counterSchema("other"), false); rowraft.CodeOf(err) != rowraft.CodeDenied {
		t.Errorf("a trainer creates another's table: %v", err)
	}
}

// TestSessionsBelongToAnIdentity: a client that knows another identity's client id cannot push under it,
// nor fence it. A client with the same identity can.
func TestSessionsBelongToAnIdentity(t *testing.T) {
	c, ctx := startSecureCluster(t, 1, nil), testutil.Context(t)
	l := c.lab
	alice, again, bob := l.files(certs.Trainer, "alice", "*"), l.files(certs.Trainer, "alice", "*"),
		l.files(certs.Trainer, "bob", "*")
	id := rowraft.ClientID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	dial := func(f rpc.TLSFiles) *client.Client { return c.dialWith(client.Options{TLS: f, ClientID: id}) }
	first := dial(alice)
	table, err := first.CreateTable(ctx, counterSchema("t"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys, row := []rowraft.Key{7}, []float32{-1, -1, -1, -1}
	push := func(cl *client.Client) error {
		table, err := cl.Table(ctx, "t")
		if err != nil {
			return err
		}
		_, err = table.Push(ctx, keys, row)
		return err
	}
	if err := push(first); err != nil {
		t.Fatal(err)
	}
	if err := push(dial(bob)); err != nil { // the same id in the options, but a session of bob's own
		t.Errorf("bob cannot push in a session of his own: %v", err)
	}
	if err := push(first); err != nil {
		t.Errorf("bob has fenced alice: %v", err)
	}
	hers := certs.Identity{Cluster: "lab", Name: "alice"}
	tag := hers.Tag()
	hostile(t, ctx, c.nodes[0].addr, bob, rowraft.ClientID(append(tag[:], id[8:]...)), first.Map())
	if err := push(first); err != nil {
		t.Errorf("bob has fenced alice by hand: %v", err)
	}
	if err := push(dial(again)); err != nil {
		t.Fatal(err)
	}
	if err := push(first); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("alice's new certificate does not fence her old process: %v", err)
	}
	got := make([]float32, 4)
	if err := table.Pull(ctx, keys, got); err != nil || got[0] != 5 {
		t.Errorf("pushed 5 times, the row says %v, %v", got, err)
	}
}

// hostile makes calls that this project's client would not make: bob's connection with alice's client id.
func hostile(t *testing.T, ctx context.Context, addr string, bob rpc.TLSFiles, id rowraft.ClientID, m *clustermap.Map) {
	t.Helper()
	source, err := bob.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, addr, source)
	stub := rowraftv1.NewTableClient(conn)
	_, open := stub.OpenSession(ctx, &rowraftv1.OpenSessionRequest{ClientId: id[:], Incarnation: 1 << 40, Ticket: 1})
	_, push := stub.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH,
		MapVersion: uint64(m.SlotsVersion), ClientId: id[:], Incarnation: 2, Seq: 1 << 20})
	_, assign := stub.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_ASSIGN,
		MapVersion: uint64(m.SlotsVersion), ClientId: id[:], Incarnation: 2, Seq: 1 << 20})
	_, del := stub.Write(ctx, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_DELETE,
		MapVersion: uint64(m.SlotsVersion), ClientId: id[:], Incarnation: 2, Seq: 1 << 20})
	for what, err := range map[string]error{"opens": open, "pushes in": push, "assigns in": assign, "deletes in": del} {
		if rowraft.CodeOf(err) != rowraft.CodeDenied {
			t.Errorf("bob %s alice's session: %v", what, err)
		}
	}
}
