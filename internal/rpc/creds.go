package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/quota"
)

// authInfo is what a server knows about a connection.
type authInfo struct {
	credentials.TLSInfo
	caller Caller
	client any // see ClientOf
}

// transport is TLS with the certificates that the files contain at each handshake. A server accepts clients
// of its own cluster; a client accepts nodes of its cluster.
type transport struct {
	credentials.TransportCredentials // for methods other than handshakes
	source                           *certs.Source
}

// transportOf returns the credentials of one side; nil means plaintext.
func transportOf(s *certs.Source) credentials.TransportCredentials {
	if s == nil {
		return insecure.NewCredentials()
	}
	return &transport{credentials.NewTLS(s.Client(certs.Server)), s}
}

func (t *transport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	creds := credentials.NewTLS(t.source.Client(certs.Server))
	secure, info, err := creds.ClientHandshake(ctx, authority, certs.NewRecordBuffer(conn))
	if err != nil {
		return nil, nil, t.source.Explain(err)
	}
	return &explained{Conn: certs.BatchRecords(secure), source: t.source}, info, nil
}

// Untrusted returns why a call failed if the certificate of one side is not of a CA that the other trusts; "" for
// another error.
func Untrusted(err error) string {
	if err == nil || !certs.IsUntrusted(err.Error()) {
		return ""
	}
	text := err.Error()
	for _, before := range []string{"handshake failed: ", "server preface: "} { // added by gRPC
		if i := strings.LastIndex(text, before); i >= 0 {
			text = text[i+len(before):]
		}
	}
	return strings.ReplaceAll(strings.TrimSuffix(text, `"`), `\"`, `"`)
}

// explained is a client's connection. In TLS 1.3 the server checks the client's certificate after the
// client's handshake, so the client gets the error of that check at its first read.
type explained struct {
	net.Conn
	source *certs.Source
}

func (c *explained) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		err = c.source.Explain(err)
	}
	return n, err
}

func (t *transport) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := t.accept(conn, t.source.Server())
	if err != nil {
		return nil, nil, err
	}
	return identify(conn, secure, info)
}

// accept makes a server's TLS handshake on conn, and logs why it refuses a client.
func (t *transport) accept(conn net.Conn, conf *tls.Config) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := credentials.NewTLS(conf).ServerHandshake(certs.NewRecordBuffer(conn))
	if err != nil {
		t.source.LogRefused(conn.RemoteAddr(), err)
	}
	return secure, info, err
}

// identify reads the identity of the peer of a handshake, and marks conn, the connection below TLS, as
// authenticated.
func identify(conn, secure net.Conn, info credentials.AuthInfo) (net.Conn, credentials.AuthInfo, error) {
	tlsInfo := info.(credentials.TLSInfo)
	leaf := tlsInfo.State.PeerCertificates[0]
	id, err := certs.Of(leaf)
	if err != nil { // the handshake has read it
		secure.Close()
		return nil, nil, err
	}
	quota.Authenticate(conn)
	secure = certs.EndWithCertificate(certs.BatchRecords(secure), leaf)
	return secure, &authInfo{tlsInfo, Caller{id, leaf.NotAfter}, id.Tag()}, nil
}

func (t *transport) Clone() credentials.TransportCredentials { return transportOf(t.source) }
