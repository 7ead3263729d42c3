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

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
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
type Client struct {
	opts  Options
	tls   *certs.Source
	log   *slog.Logger
	conns *route.Pool

	ctx    context.Context // canceled by Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // spawn adds to it, under life, so that Close never waits while it grows
	life   struct {
		sync.Mutex
		closed bool
	}

	cluster atomic.Pointer[clustermap.Map]
	refresh chan struct{} // requests a new map from watchMap; capacity 1, so that requests merge

	shards shardStates

	spread spread       // of bounded reads
	budget route.Budget // of retries

	session   session
	endpoints endpoints

	// deferred is the first error of a batch that ended after its Push had returned. The next Push or Flush
	// returns it.
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
	// guessed means that node answered as the leader does, but its term is unknown: an answer does not
	// carry the term. The answer may be old, so learnLeader replaces a guessed hint by any hint of the same
	// term.
	guessed bool
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
	c.session.naming = make(ctxMutex, 1)
	if err := c.firstMap(ctx); err != nil {
		c.Close()
		return nil, fmt.Errorf("connect to %v: %w", opts.Endpoints, err)
	}
	return c, c.spawn(c.watchMap)
}

// own returns id with the first 8 bytes of the identity of source, so that servers accept it from the owner
// of that certificate (docs/formats/certificate.md).
func own(source *certs.Source, id rowraft.ClientID) rowraft.ClientID {
	if source != nil {
		me := source.Identity()
		tag := me.Tag()
		copy(id[:], tag[:])
	}
	return id
}

// errClosed is the error of calls that run while Close runs, or after it.
var errClosed = rowraft.Errorf(rowraft.CodeClosing, "the client is closed")

// Close stops resending and ends the calls in progress with CodeClosing. It then closes the client's
// sessions, within one second, and after that the connections. The outcome of unacknowledged batches stays
// unknown: call Flush first.
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

// ended returns the error of a call that stops trying: errClosed if the client is closed, else its last
// answer.
func (c *Client) ended(last error) error {
	if c.ctx.Err() == nil {
		return last
	}
	if last == nil {
		return errClosed
	}
	return fmt.Errorf("%w; the last answer was: %v", errClosed, last)
}

// pause waits for the next delay of b, or for atLeast if that is longer. It returns the error of ctx, or
// errClosed if the client closes first.
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

// firstMap asks the endpoints in turn until one returns a map with shards.
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

// fetchMap is askMap without the leader hints.
func (c *Client) fetchMap(ctx context.Context, addr string, wait time.Duration) error {
	_, err := c.askMap(ctx, addr, wait)
	return err
}

// askMap asks addr for a map newer than the client's, and lets the server wait for one up to wait. It
// stores the map and the leader hints of the reply, and returns the hints.
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

// takeMap makes m, from addr, the client's map if it is newer. A map of another cluster goes to heardOther
// instead, because versions of two clusters cannot be compared.
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

// watchMap keeps the map fresh by long polls. A request in c.refresh ends the current poll.
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
				cancel() // the next poll asks another server
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

// addrs lists the addresses to fetch the map from: the servers of the map, then the endpoints.
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

// learnLeader stores the hint unless the current one has a higher term, or the same term and is not
// guessed.
func (c *Client) learnLeader(shard rowraft.ShardID, node rowraft.NodeID, term rowraft.Term) {
	if shard >= clustermap.MaxShards || node == "" {
		return
	}
	p := &c.shards.at(shard).leader
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

// addrOf returns the address of a server; "" if the map does not have the server.
func (c *Client) addrOf(id rowraft.NodeID) string {
	if m := c.cluster.Load(); m != nil {
		if n, ok := m.Node(id); ok {
			return n.Addr
		}
	}
	return ""
}
