package rpc

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
)

// Message limits in bytes, for servers and clients. A push part has at most rowraft.MaxEntryBytes; the keys
// of a pull limit its reply.
const (
	MaxRequestBytes = rowraft.MaxEntryBytes + 64<<10
	MaxReplyBytes   = 64 << 20

	// maxConnAge is how long a connection accepts new calls. connAgeGrace is how long its present calls may
	// still run: the longest is the stream of a shard into a checkpoint.
	maxConnAge   = time.Hour
	connAgeGrace = 2 * time.Hour

	windowBytes = 8 << 20
	bufferBytes = 256 << 10
)

// TLSFiles are the paths of PEM files. All empty means plaintext, which only loopback addresses may use.
type TLSFiles = certs.Files

// CheckInsecure refuses plaintext on any address except loopback.
func CheckInsecure(addr net.Addr) error {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return fmt.Errorf("address %s: %w", addr, err)
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"--insecure serves only loopback addresses, and %s is not one: give --cert, --key and --cacert", addr)
	}
	return nil
}

// readBuffer returns the size of gRPC's read buffer of a connection. TLS has a buffer of its own, so gRPC's would be
// one more copy, and 256 KiB for each connection.
func readBuffer(source *certs.Source) int {
	if source != nil {
		return 0
	}
	return bufferBytes
}

// ServerOptions returns the options of every gRPC server of the project; a nil source means plaintext.
func ServerOptions(source *certs.Source) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(transportOf(source)),
		grpc.ForceServerCodecV2(Codec),
		experimental.BufferPool(Pool),
		grpc.MaxConcurrentStreams(256),
		grpc.ConnectionTimeout(5 * time.Second),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.MaxRecvMsgSize(MaxRequestBytes),
		grpc.MaxSendMsgSize(MaxReplyBytes),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.ReadBufferSize(readBuffer(source)),
		grpc.WriteBufferSize(bufferBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second,
			MaxConnectionAge: maxConnAge, MaxConnectionAgeGrace: connAgeGrace}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(unaryStatus, unaryRoles, unaryTexts),
		grpc.ChainStreamInterceptor(streamStatus, streamRoles, streamTexts),
	}
}

// DialFunc opens the connection below TLS to an address; nil means TCP.
type DialFunc = func(ctx context.Context, addr string) (net.Conn, error)

// Dial returns a lazy connection to addr; a nil source means plaintext, a nil dial TCP. Errors of unary
// calls carry a rowraft.Code. gRPC's automatic retries are off: only the client knows which calls may be
// sent again.
func Dial(addr string, source *certs.Source, dial DialFunc) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(transportOf(source)),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(Codec), grpc.MaxCallRecvMsgSize(MaxReplyBytes),
			grpc.MaxCallSendMsgSize(MaxRequestBytes)),
		experimental.WithBufferPool(Pool),
		grpc.WithMaxHeaderListSize(16 << 10),
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithReadBufferSize(readBuffer(source)),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithConnectParams(connectParams),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithChainUnaryInterceptor(clientStatus, unaryReplyTexts),
		grpc.WithStreamInterceptor(streamReplyTexts),
	}
	if dial != nil {
		opts = append(opts, grpc.WithContextDialer(dial))
	}
	return grpc.NewClient("passthrough:///"+addr, opts...)
}

// ConnectTimeout is how long a connection attempt waits for a server that does not respond.
const ConnectTimeout = time.Second

// connectParams limit the back-off after a failed connection: a killed server is back within a second.
var connectParams = grpc.ConnectParams{
	Backoff:           backoffConfig,
	MinConnectTimeout: ConnectTimeout,
}
