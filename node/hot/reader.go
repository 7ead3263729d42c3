package hot

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// Options are what a Reader needs of its server.
type Options struct {
	Node      rowraft.NodeID // this server
	Cluster   func() rowraft.ClusterID
	Map       func() *clustermap.Map
	Conn      func(rowraft.NodeID) (*grpc.ClientConn, error)
	Held      func(rowraft.ShardID) bool // this server has a replica of the shard
	Admission *admit.Admission
	Bytes     int64 // memory for copies; 0: none are kept
}

// Reader answers bounded reads of shards without a replica on this server: from copies of rows, and with the rows of a
// replica on another server, which become copies. Goroutines: one for each shard with reads; Close waits for them.
type Reader struct {
	opts Options
	rows *Copies

	next atomic.Uint32 // which replica is asked first
	bad  sync.Map      // NodeID → time.Time until which the server is asked last

	fetched atomic.Uint64       // rows from replicas
	sent    atomic.Uint64       // rows that leaders chose
	ages    histogram.Durations // of the oldest row of each reply that has copies

	ctx    context.Context // ends with the reader
	cancel context.CancelFunc
	asking sync.WaitGroup // goroutines of follow

	mu     sync.Mutex
	wanted map[rowraft.ShardID]demand // shards of which a goroutine asks for hot rows
	closed bool
}

// NewReader returns a reader without copies.
func NewReader(o Options) *Reader {
	c := &Reader{opts: o, rows: NewCopies(o.Bytes), wanted: make(map[rowraft.ShardID]demand)}
	c.rows.exists = func(id rowraft.TableID) bool { m := o.Map(); return m == nil || tableOf(m, id) != nil }
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Follow drops the copies of tables that a map does not have, and of epochs before it. If slots have moved, it drops
// all.
func (c *Reader) Follow(m *clustermap.Map, moved bool) {
	if moved {
		c.rows.Drop()
	}
	c.rows.Begin(m.Epoch)
	c.rows.Keep(func(id rowraft.TableID) bool { return tableOf(m, id) != nil })
}

const (
	// fetchTimeout limits one call to a replica, which answers or refuses within 300 ms.
	fetchTimeout = 600 * time.Millisecond
	// avoidFor is how long a server that did not answer is asked last.
	avoidFor = 2 * time.Second
	// fetchTries limits how often a read begins again because its copies became too old, or a restore has come.
	fetchTries = 4
	// maxMaxAge is a year, the longest bound that counts.
	maxMaxAge = 365 * 24 * time.Hour
)

// ask is one segment of a read.
type ask struct {
	seg    wire.Segment
	keys   []rowraft.Key
	values []float32
	missed []int32 // indices of the keys that have no copy
}

// Pull answers a bounded read. The caller releases its payload.
func (c *Reader) Pull(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	m := c.opts.Map()
	asks, size, err := c.parse(ctx, m, req)
	if err != nil {
		return nil, err
	}
	id := rowraft.ShardID(req.Shard)
	t, err := c.opts.Admission.Admit(ctx, id, admit.Pull, len(req.Payload)+workBytes(asks, size))
	if err != nil {
		return nil, err
	}
	var reply *rowraftv1.PullReply
	if asks == nil {
		reply, err = c.passOn(ctx, m, req)
	} else {
		reply, err = c.answer(ctx, m, req, asks, size)
	}
	if err != nil {
		t.Release()
		return nil, err
	}
	reply.WithoutReplica = true
	t.Shrink(len(reply.Payload))
	admit.KeepUntilTaken(ctx, t)
	return reply, nil
}

// workBytes returns how many bytes a read with a reply of size bytes may hold at a time: the reply, and the float32
// rows of a replica's. A read that copies may answer also has the rows twice as numbers, and its keys twice.
func workBytes(asks []ask, size int) int {
	if asks == nil {
		return 2 * size
	}
	n := size
	for i := range asks {
		n += asks[i].seg.N * (3*4*asks[i].seg.Dim + 2*8)
	}
	return n
}

// parse checks a read against the tables of the map, which are those that the copies may be of. It returns no asks for
// a read that only a replica can answer.
func (c *Reader) parse(ctx context.Context, m *clustermap.Map, req *rowraftv1.PullRequest) (asks []ask, size int,
	err error) {
	if req.MaxAgeNs == 0 {
		return nil, 0, rowraft.Errorf(rowraft.CodeInvalidArgument, "a bounded read without max_age_ns: want 1 ns or more")
	}
	caller, copied, keys := rpc.CallerOf(ctx), req.MaxLag == 0 && !req.Presence, 0
	for rest := req.Payload; len(rest) > 0; {
		seg, body, next, err := wire.ParseSegment(rest)
		if err != nil {
			return nil, 0, err
		}
		rest = next
		schema := tableOf(m, seg.Table)
		if schema == nil {
			return nil, 0, rowraft.Errorf(rowraft.CodeTableNotFound, "shard %d has no table %#x: create it first", req.Shard,
				uint64(seg.Table))
		}
		if caller.Limited() {
			if err := caller.CheckTable(schema.Name); err != nil {
				return nil, 0, err
			}
		}
		copied = copied && seg.Flags&^(wire.FlagVersions|wire.FlagKnown) == wire.FlagNoValues && seg.Dim == schema.Dim
		seg.Flags = wire.FlagNoValues // copies have no versions: the reply has all rows, and states none
		give := seg
		give.Flags = wire.FlagNoKeys
		keys, size = keys+seg.N, size+give.Size()
		if keys > rowraft.MaxKeysPerPart || size > shard.MaxPullBytes {
			copied = false // a replica refuses it
			size = 0
		}
		if copied {
			asks = append(asks, ask{seg: seg, keys: wire.Keys(make([]rowraft.Key, seg.N), body.Keys)})
		}
	}
	if !copied || keys == 0 {
		return nil, size, nil
	}
	return asks, size, nil
}

// tableOf returns a table of the map; nil: it has none with this id.
func tableOf(m *clustermap.Map, id rowraft.TableID) *rowraft.Schema {
	for i := range m.Tables {
		if m.Tables[i].ID == id {
			return &m.Tables[i]
		}
	}
	return nil
}

// passOn asks a replica for the whole read, and keeps nothing.
func (c *Reader) passOn(ctx context.Context, m *clustermap.Map,
	req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
	keys := countKeys(req.Payload)
	q := copyRequest(req)
	q.Payload = append([]byte(nil), req.Payload...)
	got, err := c.fetch(ctx, m, q)
	if err != nil {
		return nil, err
	}
	if age := c.rows.Now() - got.asOf; age > req.MaxAgeNs {
		rpc.Pool.Release(got.reply.Payload)
		return nil, tooOld(req, age)
	}
	c.fetched.Add(uint64(keys))
	got.reply.AgeNs, got.reply.Fetched = c.rows.Now()-got.asOf, uint32(keys)
	return got.reply, nil
}

func countKeys(payload []byte) (n int) {
	for len(payload) > 0 {
		seg, _, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return n
		}
		n, payload = n+seg.N, rest
	}
	return n
}

// copyRequest returns a read with the bounds of req, and no keys. It shares nothing with req.
func copyRequest(req *rowraftv1.PullRequest) *rowraftv1.PullRequest {
	return &rowraftv1.PullRequest{MapVersion: req.MapVersion, Shard: req.Shard, Mode: req.Mode, TableEpoch: req.TableEpoch,
		MinIndex: req.MinIndex, Presence: req.Presence, MaxAgeNs: req.MaxAgeNs, MaxLag: req.MaxLag,
		KnownEpoch: req.KnownEpoch}
}

func tooOld(req *rowraftv1.PullRequest, age uint64) error {
	return &rowraft.TooStaleError{Shard: rowraft.ShardID(req.Shard), Wanted: rowraft.Index(req.MinIndex),
		Age: time.Duration(age), MaxAge: time.Duration(min(req.MaxAgeNs, uint64(maxMaxAge)))}
}

// answer fills the reply from copies, and asks a replica for the other rows. It begins again if the copies that it has
// used are of another epoch than those rows, or have become too old meanwhile. All rows of a reply are of one epoch.
func (c *Reader) answer(ctx context.Context, m *clustermap.Map, req *rowraftv1.PullRequest, asks []ask,
	size int) (*rowraftv1.PullReply, error) {
	id, maxAge := rowraft.ShardID(req.Shard), time.Duration(min(req.MaxAgeNs, uint64(maxMaxAge)))
	c.want(id, maxAge)
	var fetched uint32
	for i := range asks {
		asks[i].values = make([]float32, len(asks[i].keys)*asks[i].seg.Dim)
	}
	for range fetchTries {
		rows := c.rows.Rows()
		epoch := rows.Epoch
		// Copies that are about to be too old count as such: the reply must be made in time.
		since := c.rows.Since(id, rowraft.Index(req.MinIndex), maxAge-maxAge/8)
		if req.TableEpoch != 0 && rowraft.TableEpoch(req.TableEpoch) != epoch {
			since = math.MaxUint64 // a replica decides
		}
		oldest, hits, misses := uint64(math.MaxUint64), 0, 0
		for i := range asks {
			a := &asks[i]
			was := uint64(0)
			a.missed, was = rows.Get(a.seg.Table, a.keys, since, a.values)
			oldest = min(oldest, was)
			hits, misses = hits+len(a.keys)-len(a.missed), misses+len(a.missed)
		}
		applied := rowraft.Index(math.MaxUint64)
		if hits > 0 {
			applied = max(c.rows.IndexAt(id, oldest), rowraft.Index(req.MinIndex))
		}
		if misses > 0 {
			q := copyRequest(req)
			q.Payload = missing(asks)
			if hits > 0 {
				q.TableEpoch = uint64(epoch)
			}
			got, err := c.fetch(ctx, m, q)
			if restored, ok := errors.AsType[*rowraft.RestoredError](err); ok && hits > 0 && req.TableEpoch == 0 {
				c.rows.Begin(restored.Want)
				continue
			}
			if err != nil {
				return nil, err
			}
			if hits > 0 && rowraft.TableEpoch(got.reply.TableEpoch) != epoch { // a restore after the replica's check
				rpc.Pool.Release(got.reply.Payload)
				continue
			}
			err = c.take(got, asks)
			rpc.Pool.Release(got.reply.Payload)
			if err != nil {
				return nil, err
			}
			fetched += uint32(misses)
			c.fetched.Add(uint64(misses))
			epoch = rowraft.TableEpoch(got.reply.TableEpoch)
			oldest, applied = min(oldest, got.asOf), min(applied, rowraft.Index(got.reply.AppliedIndex))
		}
		age := c.rows.Now() - oldest
		if age > uint64(maxAge) {
			if ctx.Err() != nil {
				return nil, tooOld(req, age)
			}
			continue
		}
		if hits > 0 {
			c.ages.Observe(time.Duration(age))
		}
		reply := &rowraftv1.PullReply{TableEpoch: uint64(epoch), AppliedIndex: uint64(applied), AgeNs: max(age, 1),
			Payload: rpc.Pool.Bytes(size)[:size], Fetched: fetched}
		out := reply.Payload
		for i := range asks {
			give := asks[i].seg
			give.Flags = wire.FlagNoKeys
			n := give.Size()
			wire.PutFloats(give.Put(out[:n:n]).Values, give.DType, asks[i].values)
			out = out[n:]
		}
		return reply, nil
	}
	return nil, tooOld(req, 0)
}

// missing returns segments with the keys that have no copy, as float32.
func missing(asks []ask) []byte {
	size := 0
	segs := make([]wire.Segment, len(asks))
	for i := range asks {
		segs[i] = asks[i].seg
		segs[i].N, segs[i].DType = len(asks[i].missed), rowraft.Float32
		if segs[i].N > 0 {
			size += segs[i].Size()
		}
	}
	payload := make([]byte, size)
	out := payload
	for i, a := range asks {
		if segs[i].N == 0 {
			continue
		}
		n := segs[i].Size()
		body := segs[i].Put(out[:n:n])
		for j, at := range a.missed {
			binary.LittleEndian.PutUint64(body.Keys[8*j:], uint64(a.keys[at]))
		}
		out = out[n:]
	}
	return payload
}

// take copies the rows of a reply to missing(asks) into the values of asks, and keeps copies of them.
func (c *Reader) take(got fetched, asks []ask) error {
	rest := got.reply.Payload
	for i := range asks {
		a := &asks[i]
		if len(a.missed) == 0 {
			continue
		}
		seg, body, next, err := wire.ParseSegment(rest)
		if err != nil || seg.Table != a.seg.Table || seg.N != len(a.missed) || seg.Dim != a.seg.Dim ||
			seg.DType != rowraft.Float32 || seg.Flags != wire.FlagNoKeys {
			return rowraft.Errorf(rowraft.CodeInternal, "a replica answered %d rows of table %#x with %+v: %v", len(a.missed),
				uint64(a.seg.Table), seg, err)
		}
		rest = next
		rows, keys := make([]float32, seg.N*seg.Dim), make([]rowraft.Key, seg.N)
		wire.GetFloats(rows, seg.DType, body.Values)
		for j, at := range a.missed {
			keys[j] = a.keys[at]
			copy(a.values[int(at)*seg.Dim:], rows[j*seg.Dim:(j+1)*seg.Dim])
		}
		c.rows.Put(seg.Table, seg.Dim, keys, got.asOf, rows, rowraft.TableEpoch(got.reply.TableEpoch))
	}
	return nil
}

// fetched is the reply of a replica. Its rows have everything that was acknowledged before asOf.
type fetched struct {
	reply *rowraftv1.PullReply
	asOf  uint64
}

// fetch asks the replicas of a shard in turn. Only the first is asked if it answers.
func (c *Reader) fetch(ctx context.Context, m *clustermap.Map, q *rowraftv1.PullRequest) (got fetched, err error) {
	err = rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for shard %d", q.Shard)
	for _, node := range c.sources(m, rowraft.ShardID(q.Shard)) {
		var next error
		if got, next = c.fetchFrom(ctx, node, q); next == nil {
			c.rows.Saw(rowraft.ShardID(q.Shard), rowraft.Index(got.reply.AppliedIndex))
			c.rows.Begin(rowraft.TableEpoch(got.reply.TableEpoch))
			return got, nil
		}
		if a := route.On(route.Replica, next); a == route.Return || a == route.Refresh || ctx.Err() != nil {
			return got, next
		}
		if rowraft.CodeOf(err) != rowraft.CodeTooStale {
			err = next
		}
		c.bad.Store(node, time.Now().Add(avoidFor))
	}
	return got, err
}

// sources returns the servers with replicas of a shard, in the order in which they are asked.
func (c *Reader) sources(m *clustermap.Map, id rowraft.ShardID) (nodes []rowraft.NodeID) {
	replicas := m.Shards[id].Replicas
	first := int(c.next.Add(1) % 1024)
	var last []rowraft.NodeID
	for i := range replicas {
		node := replicas[(first+i)%len(replicas)].Node
		if until, ok := c.bad.Load(node); ok && time.Now().Before(until.(time.Time)) {
			last = append(last, node)
		} else if node != c.opts.Node {
			nodes = append(nodes, node)
		}
	}
	return append(nodes, last...)
}

func (c *Reader) fetchFrom(ctx context.Context, node rowraft.NodeID,
	q *rowraftv1.PullRequest) (got fetched, err error) {
	conn, err := c.opts.Conn(node)
	if err != nil {
		return got, err
	}
	ctx, cancel := context.WithTimeout(rpc.WithCluster(ctx, c.opts.Cluster()), fetchTimeout)
	defer cancel()
	sent := c.rows.Now() // before the request: a later time would make the rows look newer
	got.reply, err = rowraftv1.NewReplicasClient(conn).CopyRows(ctx, q)
	if err != nil {
		return got, rpc.FromStatus(err)
	}
	got.asOf = sent - min(got.reply.AgeNs, uint64(maxMaxAge))
	return got, nil
}
