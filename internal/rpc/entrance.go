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

// Stranger is the role of who has no certificate, and comes through the entrance.
const Stranger certs.Role = "stranger"

// Limits of the entrance, which anybody on the network can reach.
const (
	entranceBytes        = 16 << 10 // of a message
	entranceConns        = 32
	entranceConnsPerHost = 4
	entranceAge          = 10 * time.Second // of a connection
	entranceEnd          = 30 * time.Second // of one that has not ended by then, whatever it does
)

// Entrance takes the connections of machines without a certificate out of a port: those
// whose TLS hello names certs.JoinProtocol, and nothing else. They meet a gRPC server of
// their own, with small limits, that has the one service that they may call; the one with
// all other services never sees them. It is the net.Listener of that server.
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

// Credentials replace those of ServerOptions on the port's server.
func (e *Entrance) Credentials(source *certs.Source) grpc.ServerOption {
	return grpc.Creds(&doorkeeper{transport{transportOf(source), source}, e})
}

// Listener bounds what comes in.
func (e *Entrance) Listener() net.Listener {
	return LimitListener(e, entranceConns, entranceConnsPerHost, true)
}

// Options are those of the server behind the entrance.
func (e *Entrance) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(strangers{}),
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

// doorkeeper shakes hands on the port and sends those to the entrance who ask for it.
type doorkeeper struct {
	transport
	entrance *Entrance
}

func (d *doorkeeper) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conf := d.source.Server()
	others := conf.GetConfigForClient
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Equal(hello.SupportedProtos, []string{certs.JoinProtocol}) {
			return d.source.Entrance(), nil
		}
		return others(hello)
	}
	secure, info, err := credentials.NewTLS(conf).ServerHandshake(conn)
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

// guest is a connection that is closed in the end. Its deadlines do not do that: the port's
// server takes back the one of a connection that it has handed on, and with it the one that
// the server behind the entrance has set by then.
type guest struct {
	net.Conn
	end *time.Timer
}

func newGuest(c net.Conn, end time.Duration) *guest {
	return &guest{c, time.AfterFunc(end, func() { c.Close() })}
}

func (g *guest) Close() error {
	g.end.Stop()
	return g.Conn.Close()
}

func (d *doorkeeper) Clone() credentials.TransportCredentials {
	return &doorkeeper{transport{transportOf(d.source), d.source}, d.entrance}
}

// strangers are the credentials behind the entrance: TLS is there already, and nobody has
// said who he is.
type strangers struct{}

func (strangers) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, rowraft.Errorf(rowraft.CodeInternal, "nobody dials as a stranger's server")
}

func (strangers) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	info := &authInfo{caller: Caller{Identity: certs.Identity{Role: Stranger, Name: "without a certificate"}, expires: time.Now().Add(time.Hour)}}
	info.CommonAuthInfo.SecurityLevel = credentials.PrivacyAndIntegrity
	return conn, info, nil
}

func (strangers) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (strangers) Clone() credentials.TransportCredentials { return strangers{} }
func (strangers) OverrideServerName(string) error         { return nil }

// DialEntrance returns a lazy connection of a machine that joins: it goes on only with a
// node of the cluster whose token it has. Why it does not goes to refused, which has room.
func DialEntrance(addr string, token *certs.Token, dial DialFunc, refused chan<- error) (*grpc.ClientConn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "address %q: %w", addr, err)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(joiner{token, host, refused}),
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

// joiner is TLS without a certificate of one's own.
type joiner struct {
	token   *certs.Token
	host    string
	refused chan<- error
}

func (j joiner) ClientHandshake(ctx context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
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

func (joiner) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, rowraft.Errorf(rowraft.CodeInternal, "a machine that joins serves nobody")
}
func (joiner) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (j joiner) Clone() credentials.TransportCredentials { return j }
func (joiner) OverrideServerName(string) error           { return nil }
