package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/client/pullstream"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/elapsed"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
)

// TLSFiles are paths of PEM files: the client's certificate and key, and the CA of the cluster. All empty
// means plaintext.
type TLSFiles = rpc.TLSFiles

// Options of a Client. Only Endpoints is required.
type Options struct {
	Endpoints []string // host:port of any servers; the client discovers the rest
	TLS       TLSFiles // zero: plaintext, loopback only

	// Dial opens connections to servers, below TLS. nil means TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// ClientID identifies this client across restarts; zero means a random id. If two clients use one id,
	// the later one fences the earlier one, in each shard from its first push there. With certificates, the
	// first 8 bytes of the id become those of the client's identity, and the servers refuse such an id from
	// any other identity.
	ClientID rowraft.ClientID

	// DType is the type of numbers on the wire; zero means Float32. BFloat16 halves the bytes and rounds
	// gradients and weights to nearest even.
	DType rowraft.DType

	// ConnsPerNode is the number of connections to each server; zero means 2.
	ConnsPerNode int

	// CacheBytes is the memory for copies of the rows of each table from which pulls with Segment.Reuse take
	// rows; zero: no copies. At least cache.MinBytes.
	CacheBytes int64

	// WholeRows pulls a row again although its copy may be unchanged: pulls with Segment.Reuse ask for no versions. For
	// comparisons: by itself the client asks for versions while they save bytes.
	WholeRows bool

	// MaxInFlight is the maximum number of unacknowledged batches per shard; zero means 64. The limit is
	// 512.
	MaxInFlight int

	// AttemptTimeout is the time after which one try of a call ends and the client tries another replica;
	// zero means 2 s. A try ends earlier if the server has not answered for 500 ms and another replica
	// names a new leader.
	AttemptTimeout time.Duration

	// FailWhenOverloaded makes a Pull and a new Push fail with CodeOverloaded when the retry budget is
	// spent. The budget limits how often the client resends calls that overloaded servers refused: a fifth
	// of what it sends, and ten a second. If false, calls wait until ctx ends. Batches that were already
	// sent keep their number and wait in either case.
	FailWhenOverloaded bool

	Logger *slog.Logger // nil: discards
}

// Client is a session with a cluster. Safe for concurrent use.
//
// Goroutines: one watches the cluster map. Each unacknowledged batch has one that resends it. Short ones
// look for the leader, or for a follower that forwards, while a server is silent. All end in Close.
//
// Each part uses only those before it: lifetime, cluster, router and Control, sessions.
type Client struct {
	*lifetime
	opts     Options
	conns    *route.Pool
	pulls    *pullstream.Pool
	cluster  *cluster
	router   *router
	control  *Control
	sessions *sessions

	acked    ackedIndices
	spread   route.Spread // of bounded reads
	deferred deferred
	tables   tableHandles
	clock    *elapsed.Clock // of the ages of copies
}

// Dial connects to a cluster and fetches its map. It waits for a map that has shards until ctx ends.
func Dial(ctx context.Context, opts Options) (*Client, error) {
	if len(opts.Endpoints) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "no endpoints: name at least one server as host:port")
	}
	if opts.DType == 0 {
		opts.DType = rowraft.Float32
	}
	if opts.DType.Size() == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "wire dtype %s: want float32 or bfloat16", opts.DType)
	}
	if opts.ConnsPerNode <= 0 {
		opts.ConnsPerNode = 2
	}
	if opts.MaxInFlight <= 0 {
		opts.MaxInFlight = 64
	}
	opts.MaxInFlight = min(opts.MaxInFlight, 512)
	if opts.AttemptTimeout <= 0 {
		opts.AttemptTimeout = 2 * time.Second
	}
	if opts.ClientID == (rowraft.ClientID{}) {
		_, _ = rand.Read(opts.ClientID[:]) // never fails (crypto/rand)
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := cache.CheckBytes(opts.CacheBytes); opts.CacheBytes != 0 && err != nil {
		return nil, err
	}
	conf, err := opts.TLS.OpenToCall(opts.Logger)
	if err != nil {
		return nil, err
	}
	c := newClient(opts, conf)
	if err := c.cluster.first(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %v: %w", opts.Endpoints, err)
	}
	return c, c.spawn(c.cluster.watch)
}

// newClient returns a client that has not made a call.
func newClient(opts Options, conf *certs.Source) *Client {
	life, conns := newLifetime(), route.NewPool(conf, opts.Dial, opts.ConnsPerNode)
	c := &Client{lifetime: life, opts: opts, conns: conns, pulls: pullstream.New(life.ctx, conns),
		clock: elapsed.NewClock(elapsed.BootTime)}
	c.cluster = &cluster{
		lifetime: life, log: opts.Logger, conns: conns, given: opts.Endpoints, attempt: opts.AttemptTimeout,
		refresh: make(chan struct{}, 1), dropState: c.dropCluster,
	}
	c.router = &router{lifetime: life, log: opts.Logger, conns: conns, cluster: c.cluster, attempt: opts.AttemptTimeout}
	c.cluster.learn = c.router.learnLeader
	c.control = &Control{lifetime: life, conns: conns, cluster: c.cluster}
	c.sessions = newSessions(c, conf)
	c.control.sessions = c.sessions
	return c
}

// dropCluster drops what the client has of its cluster, because it moves to another one. REQUIRES: cluster.mu is
// held for writing.
func (c *Client) dropCluster() {
	c.router.dropCluster()
	c.sessions.dropCluster()
	c.acked.dropCluster()
	c.tables.dropCluster()
}

// Close stops resending and ends the calls in progress with CodeClosing. It then closes the client's
// sessions, within one second, and after that the connections. The outcome of unacknowledged batches stays
// unknown: call Flush first.
func (c *Client) Close() error {
	if first := c.end(); first {
		c.sessions.closeAll()
	}
	return c.conns.Close()
}

// Map returns the newest cluster map this client has seen.
func (c *Client) Map() *clustermap.Map { return c.cluster.Load() }
