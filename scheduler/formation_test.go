package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"github.com/google/go-cmp/cmp"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/rpc/rpctest"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

var quiet = slog.New(slog.DiscardHandler)

// towns is a network of servers that form a cluster, without sockets: a crash
// opens the data directory again.
type towns struct {
	t       tb
	root    string
	servers map[string]*town // by address
}

type town struct {
	addr  string
	dir   string
	join  []string
	id    *identity.Dir // nil while it is down
	sched *Scheduler
	heard []answer // of its last round
}

func newTowns(t tb, root string, n int) *towns {
	w := &towns{t: t, root: root, servers: make(map[string]*town)}
	var join []string
	for i := range n {
		join = append(join, fmt.Sprintf("s%d:1", i))
	}
	for i, addr := range join {
		// Each server has the list in another order.
		w.servers[addr] = &town{addr: addr, dir: filepath.Join(root, fmt.Sprintf("s%d", i)),
			join: append(append([]string{}, join[i:]...), join[:i]...)}
		w.start(w.servers[addr])
	}
	return w
}

func (w *towns) start(s *town) {
	w.t.Helper()
	var err error
	if s.id, err = identity.Open(vfs.OS, s.dir); err != nil {
		w.t.Fatal(err)
	}
	s.sched, err = New(Options{Identity: s.id, Self: clustermap.Node{Addr: s.addr, PeerAddr: "p" + s.addr,
		Scheduler: true}, Join: s.join, Logger: quiet})
	if err != nil {
		w.t.Fatal(err)
	}
	s.sched.hello = w.hello
}

func (w *towns) stop(s *town) {
	w.t.Helper()
	if s.id == nil {
		return
	}
	if err := s.id.Close(); err != nil {
		w.t.Fatal(err)
	}
	s.id, s.sched, s.heard = nil, nil, nil
}

func (w *towns) hello(ctx context.Context, addr string, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
	s := w.servers[addr]
	if s == nil || s.id == nil {
		return nil, rowraft.Errorf(rowraft.CodeUnknown, "%s: connection refused", addr)
	}
	return s.sched.Hello(ctx, req)
}

func (w *towns) close() {
	for _, s := range w.servers {
		w.stop(s)
	}
}

// members counts the servers per cluster, and gives the founders of each.
func (w *towns) members() (map[rowraft.ClusterID]int, map[rowraft.ClusterID]int) {
	joined, founders := make(map[rowraft.ClusterID]int), make(map[rowraft.ClusterID]int)
	for _, s := range w.servers {
		if s.id == nil {
			continue
		}
		id := s.id.Identity()
		if id.Cluster != "" && id.Founder() {
			joined[id.Cluster]++
			founders[id.Cluster] = len(id.Founders)
		}
	}
	return joined, founders
}

// TestFormationSurvivesCrashesAnywhere lets servers ask, act on what they have
// heard (which may be old by then), die and come back in any order. Whatever
// happened before, they then form one cluster with the same founders.
//
// The one step that changes anything is the write of the identity file, whose
// own crash points are tested in internal/identity.
func TestFormationSurvivesCrashesAnywhere(t *testing.T) {
	root := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		w := newTowns(t, filepath.Join(root, fmt.Sprint(run)), 3)
		defer w.close()
		pick := func(t *rapid.T) *town { return w.servers[fmt.Sprintf("s%d:1", rapid.IntRange(0, 2).Draw(t, "server"))] }
		t.Repeat(w.actions(pick))
		for _, s := range w.servers {
			if s.id == nil {
				w.start(s)
			}
		}
		for range 2 { // the founder writes, then the others hear of it
			for _, s := range w.servers {
				if s.id.Identity().Cluster == "" {
					if _, _, err := s.sched.formStep(s.sched.helloAll(context.Background())); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		want := w.servers["s0:1"].id.Identity()
		if want.Cluster == "" || len(want.Founders) != 3 {
			t.Fatalf("no cluster was formed: %+v", want)
		}
		for _, s := range w.servers {
			got := s.id.Identity()
			if diff := cmp.Diff(want.Founders, got.Founders); diff != "" || got.Cluster != want.Cluster || !got.Founder() {
				t.Fatalf("%s is in %s, s0 in %s; founders:\n%s", s.addr, got.Cluster, want.Cluster, diff)
			}
			if diff := cmp.Diff(MetaMembers(want), MetaMembers(got)); diff != "" {
				t.Fatalf("%s would bootstrap another list:\n%s", s.addr, diff)
			}
		}
	})
}

func (w *towns) actions(pick func(*rapid.T) *town) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"ask": func(t *rapid.T) {
			if s := pick(t); s.id != nil {
				s.heard = s.sched.helloAll(context.Background())
			}
		},
		"act": func(t *rapid.T) {
			if s := pick(t); s.id != nil && s.heard != nil && s.id.Identity().Cluster == "" {
				_, _, _ = s.sched.formStep(s.heard)
			}
		},
		"stop": func(t *rapid.T) { w.stop(pick(t)) },
		"start": func(t *rapid.T) {
			if s := pick(t); s.id == nil {
				w.start(s)
			}
		},
	}
}

// TestFormationNeverMakesTwoWorkingClusters adds the loss of one disk: then a
// server may be refused, but never do two clusters have a majority.
func TestFormationNeverMakesTwoWorkingClusters(t *testing.T) {
	root := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		w := newTowns(t, filepath.Join(root, fmt.Sprint(run)), 3)
		defer w.close()
		pick := func(t *rapid.T) *town { return w.servers[fmt.Sprintf("s%d:1", rapid.IntRange(0, 2).Draw(t, "server"))] }
		actions := w.actions(pick)
		wiped := false
		actions["wipe"] = func(t *rapid.T) {
			if wiped {
				t.Skip("one disk only")
			}
			wiped = true
			s := pick(t)
			w.stop(s)
			if err := os.RemoveAll(s.dir); err != nil {
				t.Fatal(err)
			}
			w.start(s)
		}
		working := make(map[rowraft.ClusterID]bool)
		actions[""] = func(t *rapid.T) {
			joined, founders := w.members()
			for c, n := range joined {
				if n > founders[c]/2 {
					working[c] = true
				}
			}
			if len(working) > 1 {
				t.Fatalf("two clusters had a majority of their founders: %v", working)
			}
		}
		t.Repeat(actions)
	})
}

// station is a server on loopback that answers Hello.
type station struct {
	sched *Scheduler
	grpc  *grpc.Server
	done  chan error
}

// again returns a second handle of l, so that the server which gets it can be
// stopped and another one started on the same port.
func again(t *testing.T, l net.Listener) net.Listener {
	t.Helper()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	handle, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

func startStation(t *testing.T, dir string, l net.Listener, opts Options) *station {
	t.Helper()
	id, err := identity.Open(vfs.OS, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { id.Close() })
	opts.Identity, opts.Logger = id, quiet
	opts.Self.Addr, opts.Self.PeerAddr = l.Addr().String(), "peer"
	s := &station{grpc: grpc.NewServer(rpc.ServerOptions(nil)...), done: make(chan error, 1)}
	if s.sched, err = New(opts); err != nil {
		t.Fatal(err)
	}
	s.sched.helloTimeout = time.Minute
	rowraftv1.RegisterClusterServer(s.grpc, s.sched)
	go func() { s.done <- s.grpc.Serve(l) }()
	t.Cleanup(func() { s.stop(t) })
	return s
}

// patient has s wait for an answer of each address, where a try to connect may be over
// before a busy machine has answered it.
func (s *station) patient() *station {
	s.sched.hello = func(ctx context.Context, addr string, req *rowraftv1.HelloRequest) (*rowraftv1.HelloReply, error) {
		conn, err := s.sched.conns.Get(addr)
		if err != nil {
			return nil, err
		}
		return rowraftv1.NewClusterClient(conn).Hello(ctx, req, grpc.WaitForReady(true))
	}
	return s
}

func (s *station) stop(t *testing.T) {
	t.Helper()
	s.grpc.Stop()
	if s.done != nil {
		<-s.done
		s.done = nil
		if err := s.sched.Close(); err != nil {
			t.Error(err)
		}
	}
	s.sched.opts.Identity.Close()
}

// noServer is an address without a server. A free port of this machine may belong to another process by now.
const noServer = "127.0.0.1:1"

func founder(join ...string) Options {
	return Options{Self: clustermap.Node{Scheduler: true}, Join: join}
}

func TestThreeServersFormOverTheNetwork(t *testing.T) {
	var ls [3]net.Listener
	var join []string
	for i := range ls {
		ls[i] = rpctest.Listen(t)
		join = append(join, ls[i].Addr().String())
	}
	ctx := testutil.Context(t)
	type outcome struct {
		id  identity.Identity
		err error
	}
	out := make(chan outcome, 3)
	for i := range ls {
		s := startStation(t, t.TempDir(), ls[i], founder(join...))
		go func() {
			id, err := s.sched.Form(ctx)
			out <- outcome{id, err}
		}()
	}
	first := <-out
	for range 2 {
		o := <-out
		if o.err != nil || first.err != nil || o.id.Cluster != first.id.Cluster || len(o.id.Founders) != 3 {
			t.Fatalf("formed %+v (%v) and %+v (%v)", first.id, first.err, o.id, o.err)
		}
	}
	// A server without a scheduler joins through the same list, and a founder
	// starts again without any other server.
	guest := startStation(t, t.TempDir(), rpctest.Listen(t), Options{Join: join}).patient()
	id, err := guest.sched.Form(ctx)
	if err != nil || id.Cluster != first.id.Cluster || id.Founder() || len(id.Founders) != 3 {
		t.Errorf("a server without a scheduler got %+v (%v)", id, err)
	}
	peers, err := guest.sched.Peers(ctx)
	if err != nil || len(peers) != 3 {
		t.Errorf("Peers: %v (%v)", peers, err)
	}
}

func TestFounderRestartsAlone(t *testing.T) {
	dir, l := t.TempDir(), rpctest.Listen(t)
	s := startStation(t, dir, again(t, l), founder())
	born, err := s.sched.Form(testutil.Context(t))
	if err != nil || !born.Founder() {
		t.Fatalf("a cluster of one: %+v (%v)", born, err)
	}
	s.stop(t)
	s = startStation(t, dir, again(t, l), founder(l.Addr().String(), noServer))
	now, err := s.sched.Form(testutil.Context(t))
	if err != nil || now.Cluster != born.Cluster || now.Node != born.Node {
		t.Errorf("restarted as %+v (%v), want %+v", now, err, born)
	}
}

func TestClustersAreNotMixed(t *testing.T) {
	one := startStation(t, t.TempDir(), rpctest.Listen(t), founder())
	two := startStation(t, t.TempDir(), rpctest.Listen(t), founder())
	ctx := testutil.Context(t)
	idOne, err := one.sched.Form(ctx)
	if err != nil {
		t.Fatal(err)
	}
	idTwo, err := two.sched.Form(ctx)
	if err != nil {
		t.Fatal(err)
	}
	addr := func(s *station) string { return s.sched.opts.Self.Addr }

	t.Run("a data directory of another cluster is refused", func(t *testing.T) {
		dir := t.TempDir()
		l := rpctest.Listen(t)
		s := startStation(t, dir, again(t, l), founder())
		id, err := s.sched.Form(ctx)
		if err != nil {
			t.Fatal(err)
		}
		s.stop(t)
		s = startStation(t, dir, again(t, l), founder(l.Addr().String(), addr(one))).patient()
		_, err = s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeIdentity, string(id.Cluster), string(idOne.Cluster), dir)
	})
	t.Run("addresses of two clusters are refused", func(t *testing.T) {
		s := startStation(t, t.TempDir(), rpctest.Listen(t), Options{Join: []string{addr(one), addr(two)}}).patient()
		_, err := s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeIdentity, string(idOne.Cluster), string(idTwo.Cluster))
	})
	t.Run("a scheduler that did not found the cluster waits for its leader, and founds nothing", func(t *testing.T) {
		l := rpctest.Listen(t)
		s := startStation(t, t.TempDir(), l, founder(l.Addr().String(), addr(one))).patient()
		done, waiting, err := s.sched.formStep(s.sched.helloAll(ctx))
		if done || err != nil || !strings.Contains(waiting, "a leader of the scheduler of cluster "+string(idOne.Cluster)) ||
			s.sched.opts.Identity.Identity().Cluster != "" {
			t.Fatalf("without a leader: done %v, waits for %q (%v)", done, waiting, err)
		}
		one.sched.Attach(&fakeLog{m: one.sched.machine, self: idOne.Node, leader: idOne.Node, term: 1})
		id, err := s.sched.Form(ctx)
		if err != nil || id.Cluster != idOne.Cluster || id.Founder() || len(id.Founders) != 1 {
			t.Errorf("%+v (%v), want a server of cluster %s that is no founder", id, err, idOne.Cluster)
		}
	})
	t.Run("a guest that comes back with a scheduler founds nothing", func(t *testing.T) {
		dir, l := t.TempDir(), rpctest.Listen(t)
		s := startStation(t, dir, again(t, l), Options{Join: []string{addr(one)}})
		if _, err := s.sched.Form(ctx); err != nil {
			t.Fatal(err)
		}
		s.stop(t)
		s = startStation(t, dir, again(t, l), founder(addr(one)))
		if id, err := s.sched.Form(ctx); err != nil || id.Cluster != idOne.Cluster || id.Founder() {
			t.Errorf("%+v (%v), want a server of cluster %s that is no founder", id, err, idOne.Cluster)
		}
	})
	t.Run("register and heartbeat of another cluster are refused", func(t *testing.T) {
		_, err := one.sched.RegisterNode(ctx, &rowraftv1.RegisterNodeRequest{ClusterId: string(idTwo.Cluster),
			Node: &rowraftv1.Node{Id: "n"}})
		testutil.WantCode(t, err, rowraft.CodeIdentity, string(idOne.Cluster), string(idTwo.Cluster))
		_, err = one.sched.Heartbeat(ctx, &rowraftv1.HeartbeatRequest{ClusterId: string(idTwo.Cluster), NodeId: "n"})
		testutil.WantCode(t, err, rowraft.CodeIdentity)
	})
}

func TestListsThatCannotFormAClusterAreRefused(t *testing.T) {
	ctx := testutil.Context(t)
	t.Run("different lists", func(t *testing.T) {
		a, b := rpctest.Listen(t), rpctest.Listen(t)
		startStation(t, t.TempDir(), a, founder(a.Addr().String()))
		s := startStation(t, t.TempDir(), b, founder(a.Addr().String(), b.Addr().String()))
		_, err := s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeInvalidArgument, a.Addr().String(), b.Addr().String(), "same servers")
	})
	t.Run("a server that is not in its own list", func(t *testing.T) {
		a, b := rpctest.Listen(t), rpctest.Listen(t)
		startStation(t, t.TempDir(), a, founder(a.Addr().String()))
		s := startStation(t, t.TempDir(), b, founder(a.Addr().String()))
		_, err := s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "leads to this server", b.Addr().String())
	})
	t.Run("one server twice", func(t *testing.T) {
		a := rpctest.Listen(t)
		_, port, err := net.SplitHostPort(a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s := startStation(t, t.TempDir(), a, founder(a.Addr().String(), "localhost:"+port))
		_, err = s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "are the same server")
	})
	t.Run("a server without a scheduler among the founders", func(t *testing.T) {
		a, b := rpctest.Listen(t), rpctest.Listen(t)
		join := []string{a.Addr().String(), b.Addr().String()}
		startStation(t, t.TempDir(), a, Options{Join: join})
		s := startStation(t, t.TempDir(), b, founder(join...))
		_, err := s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeInvalidArgument, a.Addr().String(), "no scheduler")
	})
	t.Run("a server without a scheduler and without a list", func(t *testing.T) {
		s := startStation(t, t.TempDir(), rpctest.Listen(t), Options{})
		_, err := s.sched.Form(ctx)
		testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "--join")
	})
	t.Run("waiting ends with the context and says for whom", func(t *testing.T) {
		a := rpctest.Listen(t)
		s := startStation(t, t.TempDir(), a, founder(a.Addr().String(), noServer))
		for patience := 300 * time.Millisecond; ; patience *= 3 {
			short, cancel := context.WithTimeout(ctx, patience)
			_, err := s.sched.Form(short)
			cancel()
			if err != nil && !strings.Contains(err.Error(), noServer) && ctx.Err() == nil && patience < time.Minute {
				continue // a busy machine: it had asked no server yet
			}
			testutil.WantCode(t, err, rowraft.CodeDeadline, noServer)
			break
		}
	})
}
