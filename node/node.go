package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/route"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/replica"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/scheduler"
)

// stopGrace is how long calls in progress may continue when the server stops.
const stopGrace = 2 * time.Second

// Node is one running server.
type Node struct {
	cfg     Config
	log     *slog.Logger
	self    clustermap.Node
	started time.Time

	certs    *certs.Source // nil: plaintext
	identity *identity.Dir
	sched    *scheduler.Scheduler
	store    *raftstore.Store
	opened   atomic.Pointer[raftstore.Store] // set when store is open, for callers that may come before
	grpc     *grpc.Server
	entrance *grpc.Server // serves machines with a join token; nil: this server enrolls none
	health   *health.Server
	control  *control
	host     *replica.Host
	conns    *route.Pool // to the other servers

	admission *admit.Admission

	fatal    chan error      // why the process must end; capacity 1
	stopping context.Context // ends when the services stop
	stop     context.CancelFunc

	ready atomic.Bool // the server serves its replicas

	metaLost atomic.Pointer[error] // why meta was found to be rolled back; nil: it was not

	leaving atomic.Bool                     // the server was told to stop
	meta    atomic.Pointer[raftstore.Group] // nil if this server has no member of the scheduler
	talk    atomic.Pointer[control]         // nil before the server talks to the scheduler

	begun sync.Once
	began func() // stops the timer of Config.StartTimeout

	chosen atomic.Value // string: the profile that was chosen for that map
	// string: names the server that understands the lowest format version; empty if all are equal
	oldest      atomic.Value
	keptVersion rowraft.MapVersion // the version of the stored map; only the goroutine of followMap uses it

	// heard has the Raft addresses that other servers reported (NodeID → host:port). The server uses it
	// while no map has them: all servers may have new addresses at once.
	heard sync.Map
}

// Run serves until ctx ends, or until the server must not continue. The first is a clean stop: Run returns
// nil.
//
// Errors: CodeInvalidArgument for a bad configuration; CodeIdentity for a data directory of another
// cluster, node or process; the error of the log or the disk.
func Run(ctx context.Context, cfg Config) (err error) {
	defer func() {
		if cfg.Listener != nil {
			cfg.Listener.Close()
		}
		if cfg.PeerListener != nil {
			cfg.PeerListener.Close()
		}
		if cfg.OpsListener != nil {
			cfg.OpsListener.Close()
		}
	}()
	if err := cfg.setDefaults(); err != nil {
		return err
	}
	source, err := openCerts(&cfg)
	if err != nil {
		return err
	}
	ca, err := openCA(&cfg)
	if err != nil {
		return err
	}
	n := &Node{cfg: cfg, certs: source, log: cfg.Logger, started: time.Now(), admission: admit.New(cfg.Limits),
		fatal: make(chan error, 1)}
	n.stopping, n.stop = context.WithCancel(context.Background())
	defer n.stop()
	if n.identity, err = identity.Open(cfg.FS, cfg.DataDir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.identity.Close()) }()
	if err := n.openScheduler(source, ca); err != nil {
		return err
	}
	n.conns = route.NewPool(source, n.cfg.Dial, 1)
	defer func() { err = errors.Join(err, n.conns.Close()) }()
	n.host = n.newHost()
	defer func() { err = errors.Join(err, n.sched.Close()) }()

	// The services answer from here on: servers find each other through Hello.
	served := n.serve(source)
	stopOps := n.serveOps(source)
	defer func() { err = errors.Join(err, stopOps()) }()
	defer func() { err = errors.Join(err, n.stopServing()) }()
	told := ctx // ends when the server is told to stop
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(told))
	defer cancel(nil)
	left := make(chan struct{})
	stopLeaving := context.AfterFunc(told, func() {
		defer close(left)
		n.leave()
		cancel(context.Cause(told))
	})
	defer func() {
		if !stopLeaving() {
			<-left
		}
	}()
	go n.watchFatal(ctx, served, cancel)
	defer n.limitStart(cancel)()
	return stopCause(ctx, n.run(ctx, source))
}

// watchFatal cancels ctx when the server must not continue.
func (n *Node) watchFatal(ctx context.Context, served <-chan error, cancel context.CancelCauseFunc) {
	select {
	case err := <-n.fatal:
		n.log.Error("the server must stop", "err", err)
		cancel(err)
	case err := <-served:
		cancel(fmt.Errorf("gRPC services: %w", err))
	case <-ctx.Done():
	}
}

// stopCause returns nil if the server was told to stop; else the reason why it had to stop.
func stopCause(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// fail reports that the process must end. Only the first report counts.
func (n *Node) fail(err error) {
	if n.cfg.Fatal != nil {
		n.cfg.Fatal(err)
	}
	select {
	case n.fatal <- err:
	default:
	}
}

func (n *Node) openScheduler(source *certs.Source, ca *certs.CA) (err error) {
	id := n.identity.Identity()
	n.self = clustermap.Node{
		ID: id.Node, Name: cmp.Or(n.cfg.Name, id.Name), Addr: n.cfg.Advertise, PeerAddr: n.cfg.PeerAdvertise,
		Scheduler: n.cfg.WithScheduler, NoShards: n.cfg.SchedulerOnly, Labels: n.cfg.Labels,
	}
	n.log = slog.New(&nameHandler{next: n.log.Handler(), self: n.name, ids: n.knownMap})
	n.sched, err = scheduler.New(scheduler.Options{
		Identity: n.identity, Self: n.self, Version: n.cfg.Version, Announce: n.cfg.announce, Join: n.cfg.Join,
		Servers: n.cfg.Servers, Shards: n.cfg.Shards, Slots: rowraft.SlotCount(n.cfg.Slots),
		Exact: n.cfg.Exact, Workers: n.cfg.Workers, ReplaceAfter: n.cfg.ReplaceAfter, NoRebalance: n.cfg.NoRebalance,
		CheckpointDestinations: n.cfg.CheckpointDestinations,
		TLS:                    source, CA: ca, Dial: n.cfg.Dial, Hints: n.leaderHints, Logger: n.log,
	})
	return err
}

// name returns the name of this server, or its id before the scheduler has given it a name.
func (n *Node) name() string {
	return cmp.Or(n.self.Name, n.identity.Identity().Name, string(n.self.ID))
}

// knownMap returns the newest map, nil before this server knows one.
func (n *Node) knownMap() *clustermap.Map {
	if n.sched == nil {
		return nil
	}
	return n.sched.View().Map()
}

func (n *Node) newHost() *replica.Host {
	return replica.New(replica.Options{
		Node: n.self.ID, FS: n.cfg.FS, DataDir: n.cfg.DataDir,
		ProofEvery: n.cfg.ProofEvery, SweepEvery: n.cfg.SweepEvery, ScrubBytesPerSecond: n.cfg.ScrubBytesPerSecond,
		CopiesBytes: max(n.cfg.CopiesBytes, 0), Admission: n.admission, Conns: n.conns, Stopping: n.stopping,
		Cluster: func() rowraft.ClusterID { return n.identity.Identity().Cluster },
		Map:     func() *clustermap.Map { return n.sched.View().Map() },
		Meta:    n.meta.Load, MayLog: n.mayLog, NodeStatus: n.status,
		Logger: n.log,
	})
}

// run joins the cluster and follows its map until ctx ends.
func (n *Node) run(ctx context.Context, source *certs.Source) (err error) {
	if err := checkLogDir(n.cfg.FS, n.cfg.DataDir, n.identity.Identity().Cluster); err != nil {
		return err
	}
	id, err := n.sched.Form(ctx)
	if err != nil {
		return err
	}
	n.log.Info("belongs to cluster", "cluster", string(id.Cluster))
	if err := n.openStore(id, source); err != nil {
		return err
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		wg.Wait()
		err = errors.Join(err, n.host.Close(), n.store.Close())
	}()
	kept, err := n.recallMap(id.Cluster)
	if err != nil {
		return err
	}
	if kept != nil { // before the scheduler's group starts: it would have to restart for other timers
		if err := n.fitProfile(kept); err != nil {
			return err
		}
	}
	grace := time.Duration(0)
	// A server that once had a replica of the scheduler's group keeps it: the replica may have voted.
	if id.Founder() || n.self.Scheduler || slices.Contains(n.store.GroupIDs(), scheduler.GroupID) {
		if err := n.startMeta(id); err != nil {
			return err
		}
		wg.Go(func() { n.sched.Run(ctx) })
	}
	if id.Founder() {
		grace = keptMapGrace
	}
	if kept != nil {
		wg.Go(func() { n.followKept(ctx, kept, grace) })
	}
	n.control = newControl(n, source)
	n.talk.Store(n.control)
	wg.Go(func() { n.control.followMap(ctx) })
	wg.Go(func() { n.control.register(ctx) })
	wg.Go(func() { n.host.Run(ctx) })
	wg.Go(func() { n.admission.GuardMemory(ctx, n.cfg.memoryUse, n.cfg.SetHeapLimit, n.log) })
	wg.Go(func() { n.control.hear(ctx) })
	if source != nil && n.cfg.RenewCert {
		wg.Go(func() { n.control.renewCert(ctx) })
	}
	return n.followMap(ctx)
}

func (n *Node) openStore(id identity.Identity, source *certs.Source) (err error) {
	profile, err := profileOf(n.cfg.Profile)
	if err != nil {
		return err
	}
	l, dial := peerTLS(n.cfg.PeerListener, source)
	n.store, err = raftstore.Open(raftstore.Options{
		FS:  n.cfg.FS,
		Dir: filepath.Join(n.cfg.DataDir, "raft"), Cluster: id.Cluster, Node: id.Node,
		Listener: l, DialTLS: dial, Dial: n.cfg.Dial, Resolve: n.peerAddr(id),
		Backend: n.cfg.LogBackend, Profile: profile, DiskStallLimit: n.cfg.DiskStallLimit,
		DiskReserveBytes:   n.cfg.DiskReserveBytes,
		SegmentSizeBytes:   n.cfg.LogSegmentBytes,
		SnapshotEveryBytes: n.cfg.SnapshotEveryBytes, SnapshotMaxBytes: n.cfg.SnapshotMaxBytes,
		TrailingLogBytes:           n.cfg.TrailingLogBytes,
		SnapshotSendBytesPerSecond: n.cfg.SnapshotSendBytesPerSecond,
		Fatal:                      n.fail, Logger: n.log,
	})
	if err == nil {
		n.opened.Store(n.store)
		n.host.Open(n.cfg.wrapStore(n.store))
	}
	return err
}

// peerAddr returns a lookup of the address of a node's Raft groups. It uses what the node reported since
// this server started, then the map and, before there is a map, the founders.
func (n *Node) peerAddr(id identity.Identity) func(rowraft.NodeID) (string, error) {
	return func(node rowraft.NodeID) (string, error) {
		if addr, ok := n.heard.Load(node); ok {
			return addr.(string), nil
		}
		if m := n.sched.View().Map(); m != nil {
			if found, ok := m.Node(node); ok {
				return found.PeerAddr, nil
			}
		}
		if f, ok := id.FindFounder(node); ok {
			return f.PeerAddr, nil
		}
		return "", rowraft.Errorf(rowraft.CodeNotFound, "server %s is not in the cluster map", node)
	}
}

// startMeta starts this server's replica of the scheduler's group. If this server is not a founder, the
// replica is empty until the group's leader gives it a seat.
func (n *Node) startMeta(id identity.Identity) error {
	cfg := raftstore.GroupConfig{ID: scheduler.GroupID, Replica: id.MetaReplica, Machine: n.sched.Machine(),
		UsesReserve:  true,
		OnRolledBack: func(err error) { n.metaLost.Store(&err) }} // raftstore logs the error
	if id.Founder() {
		cfg.Bootstrap = scheduler.MetaMembers(id)
	}
	g, err := n.store.StartGroup(cfg)
	if rowraft.CodeOf(err) == rowraft.CodeFenced { // its disk was rolled back: this server continues without it
		n.metaLost.Store(&err)
		n.log.Error(raftstore.RolledBack+" (critical): this member of the scheduler does not start", "why", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("scheduler: %w", err)
	}
	n.meta.Store(g)
	n.sched.Attach(metaLog{g})
	return nil
}

// metaLog is the scheduler's log: it adapts its Raft group to package scheduler.
type metaLog struct{ *raftstore.Group }

func (l metaLog) Propose(ctx context.Context, entry []byte) (any, error) {
	result, _, err := l.Group.Propose(entry).Wait(ctx)
	return result, replica.ShardError(0, err)
}

func (l metaLog) Barrier(ctx context.Context) error {
	return replica.ShardError(0, l.Read(ctx, func() error { return nil }))
}

// followMap runs the replicas that the map gives this node.
func (n *Node) followMap(ctx context.Context) error {
	for known := rowraft.MapVersion(0); ; {
		m := n.sched.View().Wait(ctx, known)
		if m == nil {
			return ctx.Err()
		}
		known = m.Version
		if n.cfg.Slots > 0 && len(m.Shards) > 0 && m.SlotCount() != rowraft.SlotCount(n.cfg.Slots) {
			return rowraft.Errorf(rowraft.CodePrecondition,
				"the cluster has %d slots, chosen when it formed, and this server was started for %d: start it without --slots, "+
					"or with --slots %d",
				m.SlotCount(), n.cfg.Slots, m.SlotCount())
		}
		if err := n.fitProfile(m); err != nil {
			return err
		}
		if err := n.host.Follow(m); err != nil {
			return err
		}
		if m.Cluster != "" {
			n.keepMap(m)
		}
		if len(m.Shards) > 0 {
			n.begun.Do(n.began)
		}
		if len(m.Shards) > 0 || n.self.NoShards && m.Cluster != "" {
			n.becomeReady(m)
		}
	}
}

// limitStart ends the server if the cluster does not start in time.
func (n *Node) limitStart(cancel context.CancelCauseFunc) (stop func()) {
	limit := n.cfg.StartTimeout
	if limit <= 0 {
		n.began = func() {}
		return n.began
	}
	timer := time.AfterFunc(limit, func() {
		cancel(rowraft.Errorf(rowraft.CodeDeadline, "the cluster has not started within %v: %s", limit, n.sched.WaitingFor()))
	})
	n.began = func() { timer.Stop() }
	return n.began
}

func (n *Node) becomeReady(m *clustermap.Map) {
	if n.ready.Swap(true) {
		return
	}
	if n.self.NoShards {
		n.log.Info("the scheduler serves", "cluster", string(m.Cluster), "shards", len(m.Shards), "servers", len(m.Servers()))
	} else {
		n.health.SetServingStatus(rowraftv1.Table_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
		n.log.Info("Cluster is successfully initialized.", "shards", len(m.Shards), "servers", len(m.Servers()))
	}
	if n.cfg.Ready != nil {
		n.cfg.Ready(Info{Cluster: m.Cluster, Node: n.self.ID, Name: n.name(), Addr: n.self.Addr,
			PeerAddr: n.self.PeerAddr})
	}
}

// serve starts the gRPC services. The channel receives their error if they end early.
func (n *Node) serve(source *certs.Source) <-chan error {
	opts := append(rpc.ServerOptions(source), grpc.ChainUnaryInterceptor(n.nameErrors, n.checkCluster, n.endLongPolls,
		admit.CountReplies, n.host.Forward), grpc.ChainStreamInterceptor(n.nameStreamErrors,
		n.checkStreamCluster, n.endAttendance))
	n.grpc = grpc.NewServer(append(opts, n.openEntrance(source)...)...)
	n.health = health.NewServer()
	n.health.SetServingStatus(rowraftv1.Table_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_NOT_SERVING)
	n.host.Register(n.grpc)
	rowraftv1.RegisterSweepsServer(n.grpc, n.sched.Sweeps())
	rowraftv1.RegisterClusterServer(n.grpc, n.sched)
	rowraftv1.RegisterCheckpointsServer(n.grpc, n.sched.Checkpoints())
	rowraftv1.RegisterJobsServer(n.grpc, n.sched.Jobs())
	rowraftv1.RegisterCertificatesServer(n.grpc, n.sched.Certificates())
	rowraftv1.RegisterEntranceServer(n.grpc, n.sched.Certificates())
	healthpb.RegisterHealthServer(n.grpc, n.health)
	reflection.Register(n.grpc)
	served := make(chan error, 1)
	l := n.admission.Listener(rpc.LimitListener(n.cfg.Listener, rpc.MaxConns, rpc.MaxConnsPerHost, source != nil))
	go func() { served <- n.grpc.Serve(l) }()
	if source == nil {
		n.log.Warn("INSECURE: plaintext, so every process of this machine may do everything; " +
			"this server serves loopback addresses only")
		if len(n.cfg.CheckpointDestinations) > 0 {
			n.log.Warn("--checkpoint-destination has no effect with --insecure: without certificates every caller may write " +
				"checkpoints anywhere")
		}
	}
	n.log.Info("Server listening on "+n.self.Addr, "peer", n.self.PeerAddr, "insecure", n.cfg.Insecure)
	return served
}

// checkCluster refuses a call for another cluster.
func (n *Node) checkCluster(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if err := n.host.CheckCluster(ctx); err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func (n *Node) checkStreamCluster(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	h grpc.StreamHandler) error {
	if err := n.host.CheckCluster(stream.Context()); err != nil {
		return err
	}
	return h(srv, stream)
}

// endLongPolls makes a call that only waits for news return when the server stops.
func (n *Node) endLongPolls(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	h grpc.UnaryHandler) (any, error) {
	if info.FullMethod == rowraftv1.Cluster_GetMap_FullMethodName {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(n.stopping, cancel)()
	}
	return h(ctx, req)
}

// endAttendance ends the streams of trainers when the server stops. The trainers connect to the next
// leader.
func (n *Node) endAttendance(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	h grpc.StreamHandler) error {
	if info.FullMethod != rowraftv1.Checkpoints_Attend_FullMethodName {
		return h(srv, stream)
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer context.AfterFunc(n.stopping, func() { cancel(rowraft.Errorf(rowraft.CodeClosing, "the server is stopping")) })()
	return h(srv, &streamWithContext{stream, ctx})
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *streamWithContext) Context() context.Context { return s.ctx }

// stopServing waits for stopGrace until calls end, and then ends them.
func (n *Node) stopServing() error {
	n.stop()
	n.health.Shutdown()
	if n.entrance != nil {
		n.entrance.Stop()
	}
	timer := time.AfterFunc(stopGrace, n.grpc.Stop)
	defer timer.Stop()
	n.grpc.GracefulStop()
	return nil
}

// leaderHints returns the shard leaders that this server's replicas know.
func (n *Node) leaderHints() []scheduler.LeaderHint {
	var out []scheduler.LeaderHint
	for id, g := range n.host.Groups() {
		if node, term, _ := g.Leader(); node != "" {
			out = append(out, scheduler.LeaderHint{Shard: id, Node: node, Term: term})
		}
	}
	return out
}
