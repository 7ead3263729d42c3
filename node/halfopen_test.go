package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestHalfOpenConnectionsEnd: the server closes connections that send nothing, or half of a message, on
// every port, with and without TLS. Clients work meanwhile.
func TestHalfOpenConnectionsEnd(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			t.Parallel()
			var c *testCluster
			var admin rpc.TLSFiles
			if secure {
				c = startSecureCluster(t, 1, nil)
				admin = c.lab.files(certs.Admin, "ann")
			} else {
				c = startCluster(t, 1, 1)
			}
			n, ctx := c.nodes[0], testutil.Context(t)
			cl := c.dialWith(client.Options{TLS: admin})
			table, err := cl.CreateTable(ctx, counterSchema("user"), false)
			if err != nil {
				t.Fatal(err)
			}

			begin := func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }
			ports := map[string]string{"grpc": n.addr, "peer": n.ports[1].Addr, "ops": n.opsAddr}
			says := map[string]string{
				"nothing":                "",
				"half an HTTP/2 preface": "PRI * HTTP/2.0\r\n",
				"half a TLS hello":       "\x16\x03\x01\x02\x00\x01\x00\x01",
				"half a preamble":        "RWPR\x01\x00",
			}
			var wg sync.WaitGroup
			knock := func(what string, dial func() (net.Conn, error), say string) {
				for range 8 {
					wg.Go(func() {
						conn, err := dial()
						if err != nil {
							t.Errorf("%s: %v", what, err)
							return
						}
						defer conn.Close()
						conn.SetDeadline(time.Now().Add(3 * time.Minute))
						_, err = conn.Write([]byte(say))
						for err == nil { // the server may send something first
							_, err = conn.Read(make([]byte, 512))
						}
						if errors.Is(err, os.ErrDeadlineExceeded) {
							t.Errorf("%s: still open after 3 minutes", what)
						}
					})
				}
			}
			for port, addr := range ports {
				for name, say := range says {
					knock(port+", "+name, func() (net.Conn, error) { return begin(addr) }, say)
				}
			}
			if secure { // also with a certificate
				source, err := admin.Open(nil)
				if err != nil {
					t.Fatal(err)
				}
				knock("grpc, a handshake and half a preface", func() (net.Conn, error) {
					conf := source.Client(certs.Server)
					conf.NextProtos = []string{"h2"}
					return tls.Dial("tcp", n.addr, conf)
				}, "PRI * HTTP")
			}
			for range 20 {
				if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
					t.Fatal(err)
				}
			}
			wg.Wait()
		})
	}
}
