package rpc

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/quota"
)

// authInfo is what a server knows of a connection.
type authInfo struct {
	credentials.TLSInfo
	caller Caller
	client any // see ClientOf
}

// transport is TLS whose certificates are those of the files at each handshake. The
// clients that a server lets in are of its cluster; the server that a client talks to
// is a node of it.
type transport struct {
	credentials.TransportCredentials // for what has no handshake
	source                           *certs.Source
}

// transportOf returns the credentials of a side; nil is plaintext.
func transportOf(s *certs.Source) credentials.TransportCredentials {
	if s == nil {
		return insecure.NewCredentials()
	}
	return &transport{credentials.NewTLS(s.Client(certs.Node)), s}
}

func (t *transport) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := credentials.NewTLS(t.source.Client(certs.Node)).ClientHandshake(ctx, authority, conn)
	if err != nil {
		return nil, nil, t.source.Explain(err)
	}
	return &explained{Conn: secure, source: t.source}, info, nil
}

// explained is a client's connection. A server looks at the client's certificate when the
// client's handshake is over (TLS 1.3), so what it says of it comes with the first read.
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
	secure, info, err := credentials.NewTLS(t.source.Server()).ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	return identify(conn, secure, info)
}

// identify reads the identity of the other side of a handshake, and tells the port of conn, the
// connection below TLS, that it is known.
func identify(conn, secure net.Conn, info credentials.AuthInfo) (net.Conn, credentials.AuthInfo, error) {
	tlsInfo := info.(credentials.TLSInfo)
	leaf := tlsInfo.State.PeerCertificates[0]
	id, err := certs.Of(leaf)
	if err != nil { // the handshake has read it
		secure.Close()
		return nil, nil, err
	}
	quota.Authenticate(conn)
	return certs.EndWithCertificate(secure, leaf), &authInfo{tlsInfo, Caller{id, leaf.NotAfter}, id.Tag()}, nil
}

func (t *transport) Clone() credentials.TransportCredentials { return transportOf(t.source) }
