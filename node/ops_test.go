package node

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/testutil"
)

// get requests a page from a server's ops port.
func (n *testNode) get(t testing.TB, path string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Minute}
	resp, err := c.Get("http://" + n.opsAddr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, serverLabel.ReplaceAllString(string(body), "")
}

// serverLabel matches the label server, which all metrics have (TestAServerWithoutANameGetsOne).
var serverLabel = regexp.MustCompile(`\{server="[^"]*"\}|,server="[^"]*"|server="[^"]*",`)

// TestOpsPort: the metrics of a server have their names, and the server is ready after its replicas know a
// leader.
func TestOpsPort(t *testing.T) {
	c := startClusterWith(t, 3, 2, func(cfg *Config) {
		cfg.Pages = map[string]func(io.Writer) error{"log": func(w io.Writer) error {
			_, err := io.WriteString(w, "the log of "+cfg.Name)
			return err
		}}
	})
	ctx := testutil.Context(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("clicks"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := []rowraft.Key{1, 2, 3, 4, 5, 6, 7, 8}
	if _, err := table.Push(ctx, keys, make([]float32, 4*len(keys))); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		testutil.Eventually(t, "the server is ready", func() bool {
			code, _ := n.get(t, "/readyz")
			return code == http.StatusOK
		})
		if code, body := n.get(t, "/livez"); code != http.StatusOK || body != "ok\n" {
			t.Errorf("/livez: %d %q", code, body)
		}
	}
	leaders := 0
	testutil.Eventually(t, "every shard has one leader, and the rows are told", func() bool {
		leaders = 0
		for _, n := range c.nodes {
			_, text := n.get(t, "/metrics")
			leaders += strings.Count(text, "rowraft_shard_leader{shard=\"0\"} 1\n") +
				strings.Count(text, "rowraft_shard_leader{shard=\"1\"} 1\n")
			for _, want := range []string{
				"rowraft_ready 1\n", "rowraft_replica_fenced{shard=\"0\"} 0\n", "rowraft_raft_has_leader{shard=\"1\"} 1\n",
				"rowraft_table_rows{shard=\"1\",table=\"clicks\"} ", "go_goroutines ", "process_open_fds ",
			} {
				if !strings.Contains(text, want) {
					t.Logf("no %q in\n%s", want, text)
					return false
				}
			}
		}
		return leaders == 2
	})
	if code, _ := c.nodes[0].get(t, "/debug/pprof/goroutine?debug=1"); code != http.StatusOK {
		t.Errorf("/debug/pprof/goroutine: %d", code)
	}
	if code, text := c.nodes[1].get(t, "/debug/log"); code != http.StatusOK || text != "the log of n2" {
		t.Errorf("/debug/log: %d %q", code, text)
	}
	if code, _ := c.nodes[0].get(t, "/"); code != http.StatusNotFound {
		t.Errorf("/: %d, want 404", code)
	}
}

// TestOpsPortIsForAll: one address cannot take all connections of the ops port.
func TestOpsPortIsForAll(t *testing.T) {
	n := startCluster(t, 1, 1).nodes[0]
	for range opsConns {
		conn, err := net.Dial("tcp", n.opsAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	probe := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: other.DialContext},
		Timeout: 2 * time.Minute}
	resp, err := probe.Get("http://" + n.opsAddr + "/livez")
	if err != nil {
		t.Fatalf("a probe next to %d connections of another address: %v", opsConns, err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/livez: %d", resp.StatusCode)
	}
}

// TestStrangersLeaveRoomOnTheOpsPort: two addresses fill the port with connections that send nothing. A
// scraper with a certificate still gets in, and so does a probe without one.
func TestStrangersLeaveRoomOnTheOpsPort(t *testing.T) {
	c := startSecureCluster(t, 1, nil)
	n := c.nodes[0]
	flood := func() {
		for i := range 2 * opsConns {
			from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+i%2))}}
			conn, err := from.Dial("tcp", n.opsAddr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
		}
	}
	flood()
	reader, err := c.lab.files(certs.Reader, "scraper", "*").Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	known := reader.Client(certs.Server)
	unknown := known.Clone()
	unknown.Certificates, unknown.GetClientCertificate = nil, nil
	for _, tc := range []struct {
		name, page string
		tls        *tls.Config
	}{{"a scraper", "/metrics", known}, {"a probe", "/livez", unknown}} {
		tc.tls.ServerName = "127.0.0.1"
		scrape := http.Client{Transport: &http.Transport{TLSClientConfig: tc.tls}, Timeout: 2 * time.Minute}
		for range 3 { // the scraper's connection stays open during the flood
			resp, err := scrape.Get("https://" + n.opsAddr + tc.page)
			if err != nil {
				t.Fatalf("%s next to the connections of two others: %v", tc.name, err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %d", tc.page, resp.StatusCode)
			}
			flood()
		}
	}
}

// TestNotReadyWithoutAMajority: a server whose shards have no leader reports that, and names the shards.
func TestNotReadyWithoutAMajority(t *testing.T) {
	c := startCluster(t, 3, 1)
	c.stopNode(1)
	c.stopNode(2)
	testutil.Eventually(t, "the server says that it is not ready", func() bool {
		code, body := c.nodes[0].get(t, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "shard 0 has no leader")
	})
	if code, _ := c.nodes[0].get(t, "/livez"); code != http.StatusOK {
		t.Errorf("/livez: %d: a server without a majority need not be restarted", code)
	}
}

// wantAlert checks that the alert's metric and the readiness report the fence.
func (c *proofCluster) wantAlert(name string) {
	c.t.Helper()
	n := c.nodes[c.byNode[name]]
	if _, text := n.get(c.t, "/metrics"); !strings.Contains(text, "rowraft_replica_fenced{shard=\"0\"} 1\n") {
		c.t.Errorf("no rowraft_replica_fenced 1 of %s in\n%s", name, text)
	}
	if code, body := n.get(c.t, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "fenced") {
		c.t.Errorf("/readyz of a server with a fenced replica: %d %q", code, body)
	}
}
