package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
)

// Stranger is the role of a client without a certificate, which uses the entrance.
const Stranger certs.Role = "stranger"

// Limits of the entrance, which every machine on the network can reach.
const (
	entranceBytes        = 16 << 10 // size of a message
	entranceConns        = 32
	entranceConnsPerHost = 4
	entranceAge          = 10 * time.Second // age of a connection
	entranceEnd          = 30 * time.Second // age at which a connection is closed unconditionally
)

// Entrance takes the connections of machines without a certificate out of a port: those whose TLS hello
// names only certs.JoinProtocol. A separate gRPC server with small limits serves them. It has only the one
// service that they may call, and the server with all other services never gets these connections. Entrance
// is the net.Listener of that server.
type Entrance struct {
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	close func()
}

// NewEntrance returns the entrance of the port at addr.
func NewEntrance(addr net.Addr) *Entrance {
	e := &Entrance{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	e.close = sync.OnceFunc(func() { close(e.done) })
	return e
}

// Credentials returns the option that replaces the credentials of ServerOptions on the port's server.
func (e *Entrance) Credentials(source *certs.Source) grpc.ServerOption {
	return grpc.Creds(&portCreds{transport{transportOf(source), source}, e})
}

// Listener returns the listener of the entrance with limits on its connections.
func (e *Entrance) Listener() net.Listener {
	return LimitListener(e, entranceConns, entranceConnsPerHost, true)
}

// Options returns the options of the server for the entrance.
func (e *Entrance) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(entranceCreds{}),
		grpc.MaxConcurrentStreams(1),
		grpc.ConnectionTimeout(5 * time.Second),
		grpc.MaxHeaderListSize(4 << 10),
		grpc.MaxRecvMsgSize(entranceBytes),
		grpc.MaxSendMsgSize(4 * entranceBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: entranceAge, MaxConnectionAgeGrace: entranceAge}),
		grpc.ChainUnaryInterceptor(unaryStatus, unaryRoles),
		grpc.ChainStreamInterceptor(streamStatus, streamRoles),
	}
}

// Accept, Close and Addr implement net.Listener.
func (e *Entrance) Accept() (net.Conn, error) {
	select {
	case c := <-e.conns:
		return c, nil
	case <-e.done:
		return nil, net.ErrClosed
	}
}

func (e *Entrance) Close() error {
	e.close()
	return nil
}

func (e *Entrance) Addr() net.Addr { return e.addr }

// portCreds makes the handshakes of the port and passes connections that name JoinProtocol to the entrance.
type portCreds struct {
	transport
	entrance *Entrance
}

func (d *portCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conf := d.source.Server()
	others := conf.GetConfigForClient
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Equal(hello.SupportedProtos, []string{certs.JoinProtocol}) {
			return d.source.Entrance(), nil
		}
		return others(hello)
	}
	secure, info, err := d.accept(conn, conf)
	if err != nil {
		return nil, nil, err
	}
	if info.(credentials.TLSInfo).State.NegotiatedProtocol != certs.JoinProtocol {
		return identify(conn, secure, info)
	}
	guest := newGuest(secure, entranceEnd)
	select {
	case d.entrance.conns <- guest:
	case <-d.entrance.done:
		guest.Close()
	}
	return nil, nil, credentials.ErrConnDispatched
}

// closingConn is a connection that is closed after entranceEnd. Deadlines cannot do that: the port's server
// resets the deadline of a connection that it has passed on, including the deadline that the server of the
// entrance has set since.
type closingConn struct {
	net.Conn
	end *time.Timer
}

func newGuest(c net.Conn, end time.Duration) *closingConn {
	return &closingConn{c, time.AfterFunc(end, func() { c.Close() })}
}

func (g *closingConn) Close() error {
	g.end.Stop()
	return g.Conn.Close()
}

func (d *portCreds) Clone() credentials.TransportCredentials {
	return &portCreds{transport{transportOf(d.source), d.source}, d.entrance}
}

// entranceCreds are the credentials of the server for the entrance: the TLS handshake is done, and the client
// has no identity.
type entranceCreds struct{}

func (entranceCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, rowraft.Errorf(rowraft.CodeInternal, "the credentials of the entrance are only for servers")
}

func (entranceCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := &authInfo{caller: Caller{Identity: certs.Identity{Role: Stranger, Name: "without a certificate"},
		expires: time.Now().Add(time.Hour)}}
	info.CommonAuthInfo.SecurityLevel = credentials.PrivacyAndIntegrity
	return conn, info, nil
}

func (entranceCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (entranceCreds) Clone() credentials.TransportCredentials { return entranceCreds{} }
func (entranceCreds) OverrideServerName(string) error         { return nil }

// DialEntrance returns a lazy connection of a joining machine. It accepts only a node of the token's
// cluster. If it does not, it sends the reason to refused, which must have room.
func DialEntrance(addr string, token *certs.Token, dial DialFunc, refused chan<- error) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "address %q: %w", addr, err)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(joinCreds{token, host, refused}),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4 * entranceBytes)),
		grpc.WithConnectParams(connectParams),
		grpc.WithUnaryInterceptor(clientStatus),
	}
	if dial != nil {
		opts = append(opts, grpc.WithContextDialer(dial))
	}
	return grpc.NewClient("passthrough:///"+addr, opts...)
}

// joinCreds is TLS of a client without a certificate.
type joinCreds struct {
	token   *certs.Token
	host    string
	refused chan<- error
}

func (j joinCreds) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo,
	error) {
	secure := tls.Client(conn, j.token.Client(j.host))
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		if rowraft.CodeOf(err) == rowraft.CodeDenied {
			select {
			case j.refused <- err:
			default:
			}
		}
		return nil, nil, err
	}
	info := credentials.TLSInfo{State: secure.ConnectionState()}
	info.CommonAuthInfo.SecurityLevel = credentials.PrivacyAndIntegrity
	return secure, info, nil
}

func (joinCreds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, rowraft.Errorf(rowraft.CodeInternal, "the credentials of a joining machine are only for clients")
}
func (joinCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (j joinCreds) Clone() credentials.TransportCredentials { return j }
func (joinCreds) OverrideServerName(string) error           { return nil }
