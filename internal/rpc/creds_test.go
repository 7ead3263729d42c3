package rpc

import (
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestWritesOverTLSAreBatched: both ends of a connection, and also on a port with an entrance.
func TestWritesOverTLSAreBatched(t *testing.T) {
	ca, err := certs.NewCA(filepath.Join(t.TempDir(), "ca"), "lab", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	files, err := ca.Issue(filepath.Join(t.TempDir(), "n1"), certs.Request{Hosts: []string{"127.0.0.1"},
		Identity: certs.Identity{Role: certs.Server, Name: "n1"}, Valid: 50 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	source, err := files.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	creds := transportOf(source)
	for what, server := range map[string]credentials.TransportCredentials{
		"server":                  creds,
		"server with an entrance": &portCreds{transport{creds, source}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			raw, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			below := &testutil.WriteCounter{Conn: raw}
			raw, err = l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			belowServer := &testutil.WriteCounter{Conn: raw}
			accepted := make(chan net.Conn, 1)
			go func() {
				c, _, err := server.ServerHandshake(belowServer)
				if err != nil {
					t.Error(err)
				}
				accepted <- c
			}()
			client, _, err := creds.ClientHandshake(testutil.Context(t), "127.0.0.1", below)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			c := <-accepted
			if c == nil {
				return
			}
			defer c.Close()
			testutil.WantBatches(t, "client of a "+what, client, c, below)
			testutil.WantBatches(t, what, c, client, belowServer)
		})
	}
}
