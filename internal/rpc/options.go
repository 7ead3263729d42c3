package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"

	"github.com/rowraft/rowraft"
)

// Message limits in bytes: what a server takes and a client takes. A push part
// is at most rowraft.MaxEntryBytes; a pull's reply is bounded by its keys.
const (
	MaxRequestBytes = rowraft.MaxEntryBytes + 64<<10
	MaxReplyBytes   = 64 << 20

	windowBytes = 8 << 20
	bufferBytes = 256 << 10
)

// TLSFiles are paths of PEM files. All empty means plaintext, which only
// loopback addresses may use.
type TLSFiles struct{ Cert, Key, CA string }

func (f TLSFiles) IsZero() bool { return f == TLSFiles{} }

// Server returns the TLS 1.3 configuration of a listener that demands a
// certificate of the same CA, or nil for plaintext.
func (f TLSFiles) Server() (*tls.Config, error) { return f.config() }

// Client returns the TLS 1.3 configuration of a dialler, or nil for plaintext.
func (f TLSFiles) Client() (*tls.Config, error) { return f.config() }

func (f TLSFiles) config() (*tls.Config, error) {
	if f.IsZero() {
		return nil, nil
	}
	if f.Cert == "" || f.Key == "" || f.CA == "" {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "TLS needs all of --cert, --key and --cacert")
	}
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "CA certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "CA certificate %s holds no PEM certificate", f.CA)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{cert},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// CheckInsecure refuses plaintext on anything but a loopback address.
func CheckInsecure(addr net.Addr) error {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fmt.Errorf("address %s: %w", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "--insecure serves loopback addresses only, %s is not one: give --cert, --key and --cacert", addr)
	}
	return nil
}

// ServerOptions are the options of every gRPC server of the project; conf nil
// means plaintext.
func ServerOptions(conf *tls.Config) []grpc.ServerOption {
	creds := insecure.NewCredentials()
	if conf != nil {
		creds = credentials.NewTLS(conf)
	}
	return []grpc.ServerOption{
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(Codec),
		experimental.BufferPool(Pool),
		grpc.MaxConcurrentStreams(256),
		grpc.ConnectionTimeout(5 * time.Second),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxRecvMsgSize(MaxRequestBytes),
		grpc.MaxSendMsgSize(MaxReplyBytes),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.ReadBufferSize(bufferBytes),
		grpc.WriteBufferSize(bufferBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(unaryStatus),
		grpc.ChainStreamInterceptor(streamStatus),
	}
}

// DialFunc opens a connection to an address below TLS; nil means TCP.
type DialFunc = func(ctx context.Context, addr string) (net.Conn, error)

// Dial returns a lazy connection to addr; conf nil means plaintext, dial nil TCP.
// Errors of unary calls carry a rowraft.Code. gRPC's automatic retries are off:
// only the client knows what may be resent.
func Dial(addr string, conf *tls.Config, dial DialFunc) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if conf != nil {
		creds = credentials.NewTLS(conf)
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec), grpc.MaxCallRecvMsgSize(MaxReplyBytes), grpc.MaxCallSendMsgSize(MaxRequestBytes)),
		experimental.WithBufferPool(Pool),
		grpc.WithMaxHeaderListSize(16 << 10),
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithConnectParams(connectParams),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithUnaryInterceptor(clientStatus),
	}
	if dial != nil {
		opts = append(opts, grpc.WithContextDialer(dial))
	}
	return grpc.NewClient("passthrough:///"+addr, opts...)
}

// connectParams keep a failed connection from being retried too late: a killed
// server is back within a second.
var connectParams = grpc.ConnectParams{
	Backoff:           backoffConfig,
	MinConnectTimeout: time.Second,
}
