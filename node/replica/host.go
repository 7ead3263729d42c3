package replica

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/histogram"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/hot"
	"github.com/rowraft/rowraft/node/traffic"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
)

// anyMapVersion marks calls that name a shard but were not split by a map.
const anyMapVersion = ^uint64(0)

// Options configures a Host.
type Options struct {
	Node    rowraft.NodeID // this server
	FS      vfs.FS
	DataDir string // the host records fences in it

	ProofEvery          time.Duration // see node.Config
	SweepEvery          time.Duration
	ScrubBytesPerSecond int
	CopiesBytes         int64 // memory for copies of rows of shards without a replica here; 0: none are kept

	Admission *admit.Admission
	Conns     *route.Pool     // connections to the other servers
	Stopping  context.Context // ends when the services stop

	Cluster func() rowraft.ClusterID // this server's cluster; "" before it belongs to one
	// the newest map that this server knows, maybe newer than that of Follow; or nil
	Map  func() *clustermap.Map
	Meta func() *raftstore.Group // this server's member of the scheduler, or nil
	// refuses a version that some server of the cluster does not understand
	MayLog func(rowraft.ShardID, rowraft.FormatVersion) error

	NodeStatus func() *rowraftv1.NodeStatusReply // describes the server, for the call of this name

	Logger *slog.Logger
}

// Store runs the Raft groups of the replicas; it is a *raftstore.Store.
type Store interface {
	StartGroup(raftstore.GroupConfig) (*raftstore.Group, error)
	RemoveReplica(group string, r rowraft.ReplicaID) error
	Removed(group string, r rowraft.ReplicaID) bool
}

// Host runs the replicas that the cluster map gives one server, and serves the calls for their shards.
//
// Open comes first, then Follow, Run and Close; the services answer from the beginning, and refuse until
// Follow has started replicas. Goroutines: one watch per replica, and those of Run.
type Host struct {
	opts   Options
	log    *slog.Logger
	store  Store // set by Open
	fences fences

	traffic *traffic.Counts
	queued  histogram.Durations  // time of parts of pushes in the queues before the logs
	stages  raftstore.StageTimes // stages of the entries that this server proposed
	heat    sync.Map             // ShardID → *hot.Sketch of the accesses here
	copies  *hot.Reader          // of rows of other shards
	batches *rpc.Workers         // for the batches of calls

	// cluster is the map of the last Follow.
	cluster atomic.Pointer[clustermap.Map]

	watchers sync.WaitGroup // one per running replica

	mu       sync.RWMutex
	replicas map[rowraft.ShardID]*replica
}

// New returns a host without replicas.
func New(opts Options) *Host {
	h := &Host{
		opts: opts, log: opts.Logger, replicas: make(map[rowraft.ShardID]*replica),
		fences: fences{fs: opts.FS, log: opts.Logger, dir: filepath.Join(opts.DataDir, "fenced"),
			of: make(map[rowraft.ShardID]fencedReplica)},
	}
	h.traffic, h.batches = traffic.New(h.tableName), rpc.NewWorkers()
	h.copies = hot.NewReader(hot.Options{Node: opts.Node, Cluster: opts.Cluster, Map: opts.Map, Conn: h.conn,
		Held: func(id rowraft.ShardID) bool { return h.replica(id) != nil }, Admission: opts.Admission,
		Bytes: opts.CopiesBytes})
	return h
}

// tableName returns the name of a table of the map or, because the map may be older than the shards, of a running
// replica.
func (h *Host) tableName(id rowraft.TableID) (string, bool) {
	if m := h.Map(); m != nil {
		for i := range m.Tables {
			if m.Tables[i].ID == id {
				return m.Tables[i].Name, true
			}
		}
	}
	for _, r := range h.runningReplicas() {
		if t, ok := r.machine.Table(id); ok {
			return t.Name, true
		}
	}
	return "", false
}

// Open sets the store of the replicas' Raft groups.
func (h *Host) Open(store Store) { h.store = store }

// Register adds the services Table and Replicas to a gRPC server.
func (h *Host) Register(s grpc.ServiceRegistrar) {
	s.RegisterService(rpc.BeforeBodies(&rowraftv1.Table_ServiceDesc, h.refusals()), &tableService{h: h})
	rowraftv1.RegisterReplicasServer(s, &replicaService{h: h})
}

// Map returns the map that the replicas follow; nil before the first one.
func (h *Host) Map() *clustermap.Map { return h.cluster.Load() }

// CheckCluster refuses a call for another cluster.
func (h *Host) CheckCluster(ctx context.Context) error {
	if m := h.Map(); m != nil {
		return rpc.CheckCluster(ctx, m.Cluster)
	}
	return nil
}

// Run reads rows for damage and removes expired rows, until ctx ends.
func (h *Host) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { h.scrub(ctx) })
	wg.Go(func() { h.sweep(ctx) })
	wg.Wait()
}

// Groups returns the Raft groups of the running replicas.
func (h *Host) Groups() map[rowraft.ShardID]*raftstore.Group {
	h.mu.RLock()
	defer h.mu.RUnlock()
	groups := make(map[rowraft.ShardID]*raftstore.Group, len(h.replicas))
	for id, r := range h.replicas {
		groups[id] = r.group
	}
	return groups
}

func (h *Host) replica(s rowraft.ShardID) *replica {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.replicas[s]
}

// replicaFor returns the replica that a call is for, after a check of the versions that the call names.
func (h *Host) replicaFor(shard uint32, mapVersion, epoch uint64) (*replica, error) {
	id := rowraft.ShardID(shard)
	m := h.cluster.Load()
	// A server that restarts replays the metadata log: for a moment it follows a map from before the shards
	// were created.
	if m == nil || len(m.Shards) == 0 {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the server has no cluster map with shards yet")
	}
	if int(shard) >= len(m.Shards) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d does not exist: the cluster has %d", shard,
			len(m.Shards))
	}
	if have := rowraft.MapVersion(mapVersion); have < m.SlotsVersion {
		return nil, &rowraft.WrongShardError{Shard: id, Have: have, Want: m.SlotsVersion}
	}
	r := h.replica(id)
	if r == nil {
		if f, ok := h.fences.get(id); ok {
			return nil, f.err()
		}
		return nil, &rowraft.NotLeaderError{Shard: id}
	}
	if epoch > uint64(r.machine.Epoch()) {
		return nil, rowraft.Errorf(rowraft.CodeStarting,
			"shard %d: the tables are of epoch %d, a restore to epoch %d is being finished", shard, r.machine.Epoch(), epoch)
	}
	if epoch != 0 && rowraft.TableEpoch(epoch) != r.machine.Epoch() {
		return nil, &rowraft.RestoredError{Shard: id, Have: rowraft.TableEpoch(epoch), Want: r.machine.Epoch()}
	}
	return r, nil
}

// Close stops the replicas. Queued pushes get their results first.
func (h *Host) Close() error {
	h.copies.Close()
	h.mu.Lock()
	replicas := h.replicas
	h.replicas = make(map[rowraft.ShardID]*replica)
	h.mu.Unlock()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)
	for _, r := range replicas {
		wg.Go(func() {
			err := r.close()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	h.batches.Close()
	h.watchers.Wait()
	return errors.Join(errs...)
}

// conn returns a connection to another server.
func (h *Host) conn(node rowraft.NodeID) (*grpc.ClientConn, error) {
	m := h.opts.Map()
	if m == nil {
		return nil, rowraft.Errorf(rowraft.CodeStarting, "the server has no cluster map yet")
	}
	to, ok := m.Node(node)
	if !ok {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "server %s is not in the cluster map", node)
	}
	return h.opts.Conns.Get(to.Addr)
}
