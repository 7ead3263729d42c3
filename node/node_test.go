package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/client/jobs"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// anyMapVersion marks calls that were not split by a map.
const anyMapVersion = ^uint64(0)

// testCluster is complete servers in this process, on loopback ports that the kernel chose.
type testCluster struct {
	t     testing.TB
	dir   string
	nodes []*testNode
	lab   *lab // nil: the servers have no certificates

	mu    sync.Mutex
	conns map[*testNode]*grpc.ClientConn // of admin, to running servers
}

type testNode struct {
	cfg     Config
	ports   [2]*localcluster.Port // gRPC, peers
	addr    string
	opsAddr string
	cancel  context.CancelFunc
	done    chan error
	ready   chan Info
}

func startCluster(t testing.TB, servers, shards int) *testCluster {
	t.Helper()
	return startClusterWith(t, servers, shards, func(*Config) {})
}

// startClusterWith starts servers whose configuration change has changed.
func startClusterWith(t testing.TB, servers, shards int, change func(*Config)) *testCluster {
	t.Helper()
	c := &testCluster{t: t, dir: t.TempDir(), conns: make(map[*testNode]*grpc.ClientConn)}
	var join []string
	for range servers {
		n := &testNode{}
		n.reserve(t)
		c.nodes = append(c.nodes, n)
		join = append(join, n.addr)
	}
	for i, n := range c.nodes {
		n.cfg = Config{
			DataDir: filepath.Join(c.dir, fmt.Sprintf("n%d", i+1)), Name: fmt.Sprintf("n%d", i+1),
			WithScheduler: true, Join: join, Servers: servers, Shards: shards, Profile: "fast",
			DiskStallLimit: time.Minute, Insecure: true, Logger: slog.New(slog.DiscardHandler), NoRebalance: true,
		}
		change(&n.cfg)
		n.start(t)
	}
	t.Cleanup(c.stop)
	for _, n := range c.nodes {
		n.awaitReady(t)
	}
	return c
}

// reserve takes two ports that the kernel chooses, until the test ends.
func (n *testNode) reserve(t testing.TB) {
	for i := range n.ports {
		p, err := localcluster.ReservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Release() })
		n.ports[i] = p
	}
	n.addr = n.ports[0].Addr
}

// start runs the server on its ports.
func (n *testNode) start(t testing.TB) {
	t.Helper()
	var pair [2]net.Listener
	for i, p := range n.ports {
		l, err := p.Listen()
		if err != nil {
			t.Fatal(err)
		}
		pair[i] = l
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel, n.done, n.ready = cancel, make(chan error, 1), make(chan Info, 1)
	cfg, done, ready := n.cfg, n.done, n.ready
	cfg.Listener, cfg.PeerListener = pair[0], pair[1]
	ops, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg.OpsListener, n.opsAddr = ops, ops.Addr().String()
	cfg.Ready = func(i Info) { ready <- i }
	go func() { done <- Run(ctx, cfg) }()
}

func (n *testNode) awaitReady(t testing.TB) {
	t.Helper()
	select {
	case <-n.ready:
	case err := <-n.done:
		n.cancel()
		n.cancel = nil // the server has ended: stopNode would wait forever
		t.Fatalf("node %s ended before it was ready: %v", n.cfg.Name, err)
	case <-time.After(2 * time.Minute):
		t.Fatalf("node %s is not ready after 2 minutes", n.cfg.Name)
	}
}

// stopNode stops a server and waits until it has ended.
func (c *testCluster) stopNode(i int) {
	n := c.nodes[i]
	if n.cancel == nil {
		return
	}
	c.mu.Lock()
	delete(c.conns, n) // the connection may not notice at once that it is broken
	c.mu.Unlock()
	n.cancel()
	n.cancel = nil
	if err := <-n.done; err != nil {
		c.t.Errorf("node %s stopped with %v", n.cfg.Name, err)
	}
}

// restart starts a stopped server on its old addresses and data.
func (c *testCluster) restart(i int) {
	c.t.Helper()
	n := c.nodes[i]
	n.start(c.t)
	n.awaitReady(c.t)
}

// move starts the stopped servers on other ports.
func (c *testCluster) move() {
	c.t.Helper()
	join := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		n.reserve(c.t)
		join[i] = n.addr
	}
	for _, n := range c.nodes {
		n.cfg.Join = join
		n.start(c.t)
	}
	for _, n := range c.nodes {
		n.awaitReady(c.t)
	}
}

func (c *testCluster) stop() {
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Go(func() { c.stopNode(i) })
	}
	wg.Wait()
}

// dial returns a client without a certificate.
func (c *testCluster) dial() *client.Client {
	c.t.Helper()
	return c.dialWith(client.Options{})
}

// dialAs returns a client with a new certificate of the cluster's CA.
func (c *testCluster) dialAs(role certs.Role, name string, tables ...string) *client.Client {
	c.t.Helper()
	return c.dialWith(client.Options{TLS: c.lab.files(role, name, tables...)})
}

// dialWith returns a client of all servers, or of opts.Endpoints if there are some. It closes when the test ends.
func (c *testCluster) dialWith(opts client.Options) *client.Client {
	c.t.Helper()
	if opts.Endpoints == nil {
		opts.Endpoints = c.endpoints()
	}
	cl, err := client.Dial(testutil.Context(c.t), opts)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	return cl
}

func (c *testCluster) endpoints() (addrs []string) {
	for _, n := range c.nodes {
		addrs = append(addrs, n.addr)
	}
	return addrs
}

func counterSchema(name string) rowraft.Schema {
	return rowraft.Schema{
		Name: name, Kind: rowraft.Sparse, Dim: 4,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
}

func TestPushIsVisibleToPull(t *testing.T) {
	c := startCluster(t, 3, 4)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 1000)
	grads := make([]float32, len(keys)*4)
	for i := range keys {
		keys[i] = rowraft.Key(uint64(i%500) * 0x9E3779B97F4A7C15) // unsorted, every key twice
		for d := range 4 {
			grads[i*4+d] = -float32(d + 1)
		}
	}
	for push := 1; push <= 3; push++ {
		if _, err := table.Push(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, len(grads))
		if err := table.Pull(ctx, keys, got); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if want := float32(2 * push * (i%4 + 1)); v != want {
				t.Fatalf("after push %d: key %d dimension %d is %v, want %v", push, keys[i/4], i%4, v, want)
			}
		}
	}
}

// TestPushesSurviveTheLeader stops one server after the other while a client pushes, and counts the applied
// pushes: with SGD, learning rate 1 and gradient −1, a row counts its pushes.
func TestPushesSurviveTheLeader(t *testing.T) {
	c := startCluster(t, 3, 2)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("audit"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := []rowraft.Key{1, 2, 3, 4, 5, 6, 7, 8}
	grads := make([]float32, len(keys)*4)
	for i := range grads {
		grads[i] = -1
	}
	pushes := 0
	push := func() {
		t.Helper()
		if _, err := table.Push(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
		pushes++
	}
	for i := range c.nodes {
		for range 20 {
			push()
		}
		c.stopNode(i)
		for range 20 {
			push()
		}
		c.restart(i)
	}
	got := make([]float32, len(grads))
	if err := table.Pull(ctx, keys, got); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != float32(pushes) {
			t.Fatalf("value %d is %v after %d acknowledged pushes", i, v, pushes)
		}
	}
}

func TestAcknowledgedPushesSurviveARestartOfAll(t *testing.T) {
	c := startCluster(t, 3, 2)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys, grads := []rowraft.Key{7, 8, 9}, make([]float32, 12)
	for i := range grads {
		grads[i] = -1
	}
	for range 10 {
		if _, err := table.Push(ctx, keys, grads); err != nil {
			t.Fatal(err)
		}
	}
	c.stop()
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Go(func() { c.restart(i) })
	}
	wg.Wait()
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 12)
	if err := table.Pull(ctx, keys, got); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != 11 {
			t.Fatalf("value %d is %v, want 11", i, v)
		}
	}
}

// TestAllServersMoveAtOnce restarts all servers at other addresses. No map has those, so the servers must
// find each other by --join.
func TestAllServersMoveAtOnce(t *testing.T) {
	c := startCluster(t, 3, 1)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
		t.Fatal(err)
	}
	c.stop()
	c.move()
	cl = c.dial()
	if table, err = cl.Table(ctx, "user"); err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 4)
	if err := table.Pull(ctx, []rowraft.Key{7}, got); err != nil || got[0] != 1 {
		t.Fatalf("after the move the row is %v (%v), want 1", got, err)
	}
	if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
		t.Fatal(err)
	}
}

func TestTrainersGetRanksAndZombiesAreFenced(t *testing.T) {
	c := startCluster(t, 1, 1)
	ctx := testutil.Context(t)
	first, other := c.dial(), c.dial()
	for i, join := range []struct {
		c       *client.Client
		worker  string
		workers int
		rank    int
		code    rowraft.Code
	}{
		{first, "a", 2, 0, 0},
		{other, "b", 2, 1, 0},
		{first, "a", 2, 0, 0}, // a restarted worker keeps its rank
		{other, "c", 2, 0, rowraft.CodeInvalidArgument},
		{other, "b", 3, 0, rowraft.CodeInvalidArgument},
	} {
		m, err := jobs.Enter(ctx, join.c, jobs.Entry{Job: "job", Worker: join.worker, Workers: join.workers})
		if join.code != 0 {
			if rowraft.CodeOf(err) != join.code {
				t.Errorf("join %d: %v, want %v", i, err, join.code)
			}
			continue
		}
		if err != nil || m.Rank() != join.rank {
			t.Errorf("join %d: %+v (%v), want rank %d", i, m, err, join.rank)
		}
	}

	// Two clients use one id: the later incarnation fences the earlier one.
	id := rowraft.ClientID{42}
	open := func() *client.Table {
		cl, err := client.Dial(ctx, client.Options{Endpoints: []string{c.nodes[0].addr}, ClientID: id})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cl.Close() })
		table, err := cl.CreateTable(ctx, counterSchema("user"), true)
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	push := func(table *client.Table) error {
		_, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, 0, 0, 0})
		return err
	}
	zombie, heir := open(), open()
	for _, table := range []*client.Table{zombie, heir} {
		if err := push(table); err != nil {
			t.Fatal(err)
		}
	}
	if err := push(zombie); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a fenced client pushes: %v, want CodeSessionExpired", err)
	}
	got := make([]float32, 4)
	if err := heir.Pull(ctx, []rowraft.Key{7}, got); err != nil || got[0] != 2 {
		t.Errorf("the row counts %v pushes (%v), want 2", got[0], err)
	}
}

// TestServersWithoutSchedulerTakeShards has five servers; two of them run no member of the scheduler.
// All of them get replicas.
func TestServersWithoutSchedulerTakeShards(t *testing.T) {
	founders := 0
	c := startClusterWith(t, 5, 5, func(cfg *Config) {
		cfg.Join = cfg.Join[:3]
		cfg.WithScheduler = founders < 3
		founders++
	})
	cl, ctx := c.dial(), testutil.Context(t)
	replicas := make(map[rowraft.NodeID]int)
	for _, s := range cl.Map().Shards {
		for _, r := range s.Replicas {
			replicas[r.Node]++
		}
	}
	for _, n := range cl.Map().Nodes {
		if replicas[n.ID] != 3 { // 5 shards × 3 replicas on 5 servers
			t.Errorf("server %s has %d replicas, want 3", n.Name, replicas[n.ID])
		}
	}
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 100)
	for i := range keys {
		keys[i] = rowraft.Key(i)
	}
	grads, got := make([]float32, 400), make([]float32, 400)
	for i := range grads {
		grads[i] = -1
	}
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
	c.stopNode(4) // a server without a scheduler
	if err := table.Pull(ctx, keys, got); err != nil || got[0] != 1 || got[399] != 1 {
		t.Fatalf("rows %v … %v (%v), want 1", got[0], got[399], err)
	}
	c.restart(4)
	if _, err := table.Push(ctx, keys, grads); err != nil {
		t.Fatal(err)
	}
}

func TestDataDirectoryIsOpenOnce(t *testing.T) {
	c := startCluster(t, 1, 1)
	cfg := c.nodes[0].cfg
	for i, l := range []*net.Listener{&cfg.Listener, &cfg.PeerListener} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(i, err)
		}
	}
	err := Run(testutil.Context(t), cfg)
	if rowraft.CodeOf(err) != rowraft.CodeIdentity {
		t.Fatalf("second server on the same data directory: %v, want CodeIdentity", err)
	}
}

func TestInsecureIsLoopbackOnly(t *testing.T) {
	cfg := Config{DataDir: t.TempDir(), Insecure: true}
	for _, l := range []*net.Listener{&cfg.Listener, &cfg.PeerListener} {
		var err error
		if *l, err = net.Listen("tcp", "0.0.0.0:0"); err != nil {
			t.Fatal(err)
		}
	}
	if err := Run(testutil.Context(t), cfg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
		t.Fatalf("plaintext on every address: %v, want CodeInvalidArgument", err)
	}
}

// connect opens a connection to a running server and closes it when the test ends. On a busy machine, the
// first try to connect may time out; a call does not wait for the next one.
func connect(t testing.TB, addr string, source *certs.Source) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.Dial(addr, source, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	awaitConn(t, conn)
	return conn
}

// connectWith is connect with the certificate in files.
func connectWith(t testing.TB, addr string, files rpc.TLSFiles) *grpc.ClientConn {
	t.Helper()
	source, err := files.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	return connect(t, addr, source)
}

// connectAs is connect with a new certificate of the cluster's CA.
func (c *testCluster) connectAs(addr string, role certs.Role, name string, tables ...string) *grpc.ClientConn {
	c.t.Helper()
	return connectWith(c.t, addr, c.lab.files(role, name, tables...))
}

// awaitConn waits until conn is open.
func awaitConn(t testing.TB, conn *grpc.ClientConn) {
	t.Helper()
	ctx := testutil.Context(t)
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		conn.Connect()
		if !conn.WaitForStateChange(ctx, s) {
			t.Fatalf("no connection to %s", conn.Target())
		}
	}
}

// bareDial opens a connection without any code of this project.
func bareDial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}
