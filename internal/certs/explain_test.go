package certs

import (
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
)

// TestWhoseCertificateIsWrong: the error of a client names the side with the wrong certificate, its owner
// and what to do, even if only the server has detected it.
func TestWhoseCertificateIsWrong(t *testing.T) {
	ca := newCA(t, "here")
	at := func(id Identity, from time.Duration) Files {
		f, err := ca.Issue(filepath.Join(t.TempDir(), id.Name),
			Request{Identity: id, Hosts: []string{"127.0.0.1"}, Valid: 20 * time.Minute, NotBefore: time.Now().Add(from)})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	node, admin := Identity{Role: Server, Name: "n1"}, Identity{Role: Admin, Name: "ann"}
	there := Identity{Cluster: "there", Role: Server, Name: "n1"}
	stranger := newCA(t, "other")
	believing := stranger.files(t, Admin, "ann") // trusts our server
	believing.CA = ca.files(t, Server, "n1").CA
	for _, tc := range []struct {
		name           string
		server, client Files
		own            bool // checkTime detects it before any call
		says           []string
	}{
		{"both are well", at(node, 0), at(admin, 0), false, nil},
		{"the server's has expired",
			at(node, -time.Hour), at(admin, 0), false,
			[]string{"the server's certificate, of server n1 in cluster here, expired at", "certificates-expire"}},
		{"the server's is not valid yet",
			at(node, 20*time.Minute), at(admin, 0), false,
			[]string{"the server's certificate, of server n1", "is not valid before", "clock"}},
		{"the server's is of another CA",
			stranger.files(t, Server, "n9"), at(admin, 0), false,
			[]string{"the server's certificate, of server n9 in cluster other, is not signed by a CA in", "cluster here"}},
		{"the server's is of another cluster",
			at(there, 0), at(admin, 0), false, []string{"the certificate of server n1 belongs to cluster there, want here"}},
		{"this side's has expired", at(node, 0), at(admin, -time.Hour), true,
			[]string{"this side's certificate", "of admin ann in cluster here, expired at", "rowraft cert join"}},
		{"a node's has expired", at(node, 0), at(node, -time.Hour), true,
			[]string{"this side's certificate", "expired at", "rowraft cert server"}},
		{"this side's is not valid yet",
			at(node, 0), at(admin, 20*time.Minute), true, []string{"this side's certificate", "is not valid before", "clock"}},
		{"this side's is of another CA",
			at(node, 0), believing, false, []string{"the server refuses this side's certificate", "admin ann in cluster other"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client := open(t, tc.client, nil)
			if err := client.checkTime(); (err != nil) != tc.own || tc.own &&
				rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("before any call: %v, want an error: %v", err, tc.own)
			}
			config := client.Client(Server)
			if tc.client == believing {
				config.VerifyConnection = nil // it would refuse the server first
			}
			_, err := meet(t, open(t, tc.server, nil).Server(), config)
			if len(tc.says) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("they talk to each other")
			}
			got := client.Explain(err).Error()
			for _, says := range tc.says {
				if !strings.Contains(got, says) {
					t.Errorf("it says %q, want %q in it", got, says)
				}
			}
		})
	}
}

// A server says which CAs it and a refused caller have, at most once in a while.
func TestAServerSaysWhyItRefuses(t *testing.T) {
	ca, stranger := newCA(t, "here"), newCA(t, "other")
	both := stranger.files(t, Admin, "ann") // trusts our server
	both.CA = ca.files(t, Server, "n1").CA
	for name, tc := range map[string]struct {
		client Files
		says   string
	}{
		"the caller's certificate is of another CA": {both, "it has no certificate of a CA that this server trusts"},
		"the caller does not trust this server":     {stranger.files(t, Admin, "bob"), "its ca.pem lacks CA"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			server := open(t, ca.files(t, Server, "n1"), slog.New(slog.NewTextHandler(&out, nil)))
			config := open(t, tc.client, nil).Client(Server)
			if tc.client == both {
				config.VerifyConnection = nil // it would refuse the server first
			}
			err, _ := meet(t, server.Server(), config)
			for range 3 {
				server.LogRefused(&net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 7}, err)
			}
			if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, tc.says) ||
				!strings.Contains(got, "10.0.0.9:7") || !strings.Contains(got, "key ") {
				t.Errorf("after %v it logs %q, want one line with %q", err, got, tc.says)
			}
		})
	}
}
