package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TLSFiles are paths of PEM files: this side's certificate and key, and the CA of
// the cluster. All empty means plaintext.
type TLSFiles = rpc.TLSFiles

// Options of a Client. Only Endpoints is required.
type Options struct {
	Endpoints []string // host:port of any servers; the rest is discovered
	TLS       TLSFiles // zero: plaintext, loopback only

	// Dial opens connections to servers, below TLS; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// ClientID names this client across restarts; zero: a random one. Of two
	// clients with one id the later fences the earlier: in each shard from its first
	// push there on, not before. With certificates its first 8 bytes become those of
	// this side's identity, whose sessions nobody else can use.
	ClientID rowraft.ClientID

	// DType is the type of numbers on the wire; zero: Float32. BFloat16 halves
	// the bytes and rounds gradients and weights to nearest even.
	DType rowraft.DType

	// ConnsPerNode is the number of connections to each server; zero: 2.
	ConnsPerNode int

	// MaxInFlight bounds the unacknowledged parts per shard; zero: 64, at most 512.
	MaxInFlight int

	// AttemptTimeout bounds one try of a call before another replica is tried;
	// zero: 2 s. A try is given up sooner when another replica says, after 500 ms
	// without an answer, that the shard has a new leader.
	AttemptTimeout time.Duration

	// FailWhenOverloaded: when more calls are refused by servers that have too much to do
	// than the client may send again, a fifth of what it sends and ten a second, a Pull
	// and a new Push end with CodeOverloaded. Otherwise they wait until ctx ends. Parts
	// that were sent keep their number and wait in either case.
	FailWhenOverloaded bool

	Logger *slog.Logger // zero: discards
}

// Client is a session with a cluster. Safe for concurrent use.
//
// Goroutines: one watches the cluster map, and each unacknowledged part has one
// that resends it; all end in Close.
type Client struct {
	opts  Options
	tls   *certs.Source
	log   *slog.Logger
	conns *route.Pool

	ctx    context.Context // ends in Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // grows under life only
	life   struct {
		sync.Mutex
		closed bool
	}

	cluster atomic.Pointer[clustermap.Map]
	refresh chan struct{} // asks the watcher for a new map; capacity 1

	leaders [clustermap.MaxShards]atomic.Pointer[leaderHint]
	relays  [clustermap.MaxShards]atomic.Pointer[relay]
	probing [clustermap.MaxShards]atomic.Bool   // one goroutine looks for a relay
	asking  [clustermap.MaxShards]atomic.Bool   // one goroutine asks replicas who leads
	acked   [clustermap.MaxShards]atomic.Uint64 // highest index of an acknowledged part

	spread spread       // of bounded reads
	budget route.Budget // of what is sent again

	session   session
	endpoints endpoints

	// deferred is the first error of a batch whose Push had returned before. The next Push
	// or Flush returns it.
	deferred struct {
		sync.Mutex
		err error
	}

	tables struct {
		sync.RWMutex
		byID map[rowraft.TableID]*Table
	}
}

type leaderHint struct {
	node rowraft.NodeID
	term rowraft.Term
	// guessed: node has answered as the leader does, in this term or another. An answer may be old, so
	// whoever is said to lead in the term takes its place.
	guessed bool
}

// Dial connects to a cluster and fetches its map, waiting until ctx ends for one
// that has shards.
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
	conf, err := opts.TLS.OpenToCall(opts.Logger)
	if err != nil {
		return nil, err
	}
	opts.ClientID = own(conf, opts.ClientID)
	c := &Client{
		opts:    opts,
		tls:     conf,
		log:     opts.Logger,
		conns:   route.NewPool(conf, opts.Dial, opts.ConnsPerNode),
		refresh: make(chan struct{}, 1),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.tables.byID = make(map[rowraft.TableID]*Table)
	c.session.init()
	if err := c.firstMap(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %v: %w", opts.Endpoints, err)
	}
	return c, c.spawn(c.watchMap)
}

// own makes an id one that servers take from the owner of a certificate
// (docs/formats/certificate.md).
func own(source *certs.Source, id rowraft.ClientID) rowraft.ClientID {
	if source != nil {
		me := source.Identity()
		tag := me.Tag()
		copy(id[:], tag[:])
	}
	return id
}

// errClosed is what calls get once Close has begun.
var errClosed = rowraft.Errorf(rowraft.CodeClosing, "the client is closed")

// Close stops resending, ends the calls under way with CodeClosing, closes the client's
// sessions, for which it waits a second at most, and then the connections. Parts without an
// answer stay unknown: call Flush first.
func (c *Client) Close() error {
	c.life.Lock()
	first := !c.life.closed
	c.life.closed = true
	c.life.Unlock()
	c.cancel()
	c.wg.Wait()
	if first {
		c.closeSessions()
	}
	return c.conns.Close()
}

// spawn runs f on a goroutine that Close waits for, or reports that Close has begun.
func (c *Client) spawn(f func()) error {
	c.life.Lock()
	defer c.life.Unlock()
	if c.life.closed {
		return errClosed
	}
	c.wg.Go(f)
	return nil
}

// ended is the error of a call that stops trying: errClosed if that is why, else
// its last answer.
func (c *Client) ended(last error) error {
	if c.ctx.Err() == nil {
		return last
	}
	if last == nil {
		return errClosed
	}
	return fmt.Errorf("%w; the last answer was: %v", errClosed, last)
}

// pause waits for b's next delay, or for atLeast if that is longer. It returns the
// error of ctx, or errClosed, if that ends it.
func (c *Client) pause(ctx context.Context, b *route.Backoff, atLeast time.Duration) error {
	t := time.NewTimer(b.Delay(atLeast))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return errClosed
	}
}

// Map returns the newest cluster map this client has seen.
func (c *Client) Map() *clustermap.Map { return c.cluster.Load() }

// firstMap asks the endpoints in turn until one has a map with shards.
func (c *Client) firstMap(ctx context.Context) error {
	w := route.Walk{Layer: route.Control, Places: func() []string { return c.opts.Endpoints }, AddrOf: c.addrOf}
	for {
		err := c.fetchMap(ctx, w.Addr(), 0)
		if err == nil {
			if m := c.cluster.Load(); m != nil && len(m.Shards) > 0 {
				return nil
			}
			err = rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet: it waits for more servers")
		}
		if !w.Again(ctx, err) {
			return err
		}
	}
}

// fetchMap is askMap without the hints.
func (c *Client) fetchMap(ctx context.Context, addr string, wait time.Duration) error {
	_, err := c.askMap(ctx, addr, wait)
	return err
}

// askMap asks addr for a newer map, waiting up to wait for one. It takes the map and the
// leader hints of the reply, and returns the hints.
func (c *Client) askMap(ctx context.Context, addr string, wait time.Duration) ([]*rowraftv1.LeaderHint, error) {
	conn, err := c.conns.Get(addr)
	if err != nil {
		return nil, err
	}
	var known uint64
	var home rowraft.ClusterID
	if m := c.cluster.Load(); m != nil {
		known, home = uint64(m.Version), m.Cluster
	}
	ctx, cancel := context.WithTimeout(ctx, wait+c.opts.AttemptTimeout)
	defer cancel()
	reply, err := rowraftv1.NewClusterClient(conn).GetMap(ctx, &rowraftv1.GetMapRequest{KnownVersion: known, WaitNs: uint64(wait), ClusterId: string(home)})
	if err != nil {
		return nil, fmt.Errorf("cluster map from %s: %w", addr, err)
	}
	if reply.Map != nil {
		m, err := rpc.MapFromProto(reply.Map)
		if err != nil {
			return nil, err
		}
		if err := c.takeMap(addr, m); err != nil {
			return nil, err
		}
		home = m.Cluster
	}
	c.inCluster(home, func() {
		for _, l := range reply.Leaders {
			c.learnLeader(rowraft.ShardID(l.Shard), rowraft.NodeID(l.Node), rowraft.Term(l.Term))
		}
	})
	c.heard(addr)
	return reply.Leaders, nil
}

// takeMap makes m, from addr, the client's map if it is newer. Versions of two clusters
// cannot be compared.
func (c *Client) takeMap(addr string, m *clustermap.Map) error {
	for {
		old := c.cluster.Load()
		switch {
		case old != nil && old.Cluster != m.Cluster:
			if c.heardOther(addr, m) {
				return nil
			}
			return rowraft.Errorf(rowraft.CodeIdentity, "server %s belongs to cluster %s, this client talks to %s", addr, m.Cluster, old.Cluster)
		case old != nil && old.Version >= m.Version:
			return nil
		case c.cluster.CompareAndSwap(old, m):
			return nil
		}
	}
}

// watchMap keeps the map fresh by long polls, and at once when asked.
func (c *Client) watchMap() {
	const poll = 10 * time.Second
	var b route.Backoff
	for i := 0; c.ctx.Err() == nil; i++ {
		addrs := c.addrs()
		ctx, cancel := context.WithCancel(c.ctx)
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			select {
			case <-c.refresh:
				cancel() // end the long poll; the next one asks another server
			case <-ctx.Done():
			}
		}()
		err := c.fetchMap(ctx, addrs[i%len(addrs)], poll)
		cancel()
		<-asked
		if err != nil && c.ctx.Err() == nil {
			c.log.Debug("cluster map", "err", err)
			_ = c.pause(c.ctx, &b, 0)
			continue
		}
		b = route.Backoff{}
	}
}

// addrs lists where the map may be asked for: the servers, then the endpoints.
func (c *Client) addrs() []string {
	var out []string
	if m := c.cluster.Load(); m != nil {
		for _, n := range m.Nodes {
			out = append(out, n.Addr)
		}
	}
	return append(out, c.opts.Endpoints...)
}

func (c *Client) askForMap() {
	select {
	case c.refresh <- struct{}{}:
	default:
	}
}

// learnLeader keeps the hint of the highest term.
func (c *Client) learnLeader(shard rowraft.ShardID, node rowraft.NodeID, term rowraft.Term) {
	if int(shard) >= len(c.leaders) || node == "" {
		return
	}
	p := &c.leaders[shard]
	for {
		old := p.Load()
		if old != nil && (old.term > term || old.term == term && !old.guessed) {
			return
		}
		if p.CompareAndSwap(old, &leaderHint{node: node, term: term}) {
			return
		}
	}
}

// schedulerCall makes a call to the leader of the metadata group. It returns when a server
// has answered for good, or ctx ends.
func (c *Client) schedulerCall(ctx context.Context, what string, call func(context.Context, rowraftv1.ClusterClient) error) error {
	return c.schedulerConn(ctx, what, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, rowraftv1.NewClusterClient(conn))
	})
}

// schedulerConn is schedulerCall for any service of the metadata leader.
func (c *Client) schedulerConn(ctx context.Context, what string, call func(context.Context, grpc.ClientConnInterface) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	for w := c.schedulerWalk(); ; {
		conn, err := c.conns.Get(w.Addr())
		if err == nil {
			attempt, cancel := context.WithTimeout(ctx, 5*c.opts.AttemptTimeout)
			err = call(attempt, conn)
			cancel()
		}
		if err == nil {
			return nil
		}
		if !w.Again(ctx, err) {
			return fmt.Errorf("%s: %w", what, c.ended(err))
		}
	}
}

// schedulerWalk asks the members of the metadata group, or all servers while the map
// names none.
func (c *Client) schedulerWalk() *route.Walk {
	return &route.Walk{Layer: route.Control, AddrOf: c.addrOf, Places: func() (addrs []string) {
		if m := c.cluster.Load(); m != nil {
			for _, n := range m.Nodes {
				if n.Scheduler {
					addrs = append(addrs, n.Addr)
				}
			}
		}
		if len(addrs) == 0 {
			addrs = c.addrs()
		}
		return addrs
	}}
}

// addrOf returns the address of a server; "" if the map does not have the server.
func (c *Client) addrOf(id rowraft.NodeID) string {
	if m := c.cluster.Load(); m != nil {
		if n, ok := m.Node(id); ok {
			return n.Addr
		}
	}
	return ""
}
