package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// AskLimit is how long [Cluster] waits for one server to say what it knows.
const AskLimit = 2 * time.Second

// Cluster finds the leaders of a cluster from the addresses of some of its servers. It
// needs no cluster map: it works before a cluster is formed, and without a leader of the scheduler.
// Not safe for concurrent use.
type Cluster struct {
	Pool      *Pool
	Endpoints []string      // as given, then those that servers named
	AskLimit  time.Duration // zero: AskLimit
}

// SilentError reports that no server answered.
type SilentError struct {
	failed failures
	// Refused: each server refused at once. Another try soon after ends the same way.
	Refused bool
}

func (e *SilentError) Error() string      { return "no server answers: " + e.failed.String() }
func (e *SilentError) Code() rowraft.Code { return rowraft.CodeNoLeader }

// failures are servers that did not answer, each with its error.
type failures []struct{ addr, why string }

// String names each error once, with its servers.
func (f failures) String() string {
	var out []string
	for i, x := range f {
		same := func(o struct{ addr, why string }) bool { return o.why == x.why }
		if slices.ContainsFunc(f[:i], same) {
			continue
		}
		var addrs []string
		for _, o := range f[i:] {
			if same(o) {
				addrs = append(addrs, o.addr)
			}
		}
		out = append(out, fmt.Sprintf("%s (%s)", strings.Join(addrs, ", "), x.why))
	}
	return strings.Join(out, "; ")
}

// noAnswer lists the servers that did not answer in a round.
type noAnswer struct {
	failed failures
	slow   bool // one of them may only be suspended or overloaded
}

func (n *noAnswer) String() string { return cmp.Or(n.failed.String(), "none") }

// each calls ask for the endpoints in turn, each for AskLimit at most, until ask reports
// that it is done. It returns a SilentError if no server answered. ask may add endpoints.
func (c *Cluster) each(ctx context.Context,
	ask func(context.Context, rowraftv1.ClusterClient) (done bool, err error)) (silent noAnswer, err error) {
	limit := c.AskLimit
	if limit == 0 {
		limit = AskLimit
	}
	for i := 0; i < len(c.Endpoints); i++ { // ask may add some
		addr := c.Endpoints[i]
		conn, err := c.Pool.Get(addr)
		if err != nil {
			return silent, err
		}
		begin := time.Now()
		attempt, cancel := context.WithTimeout(ctx, limit)
		done, err := ask(attempt, rowraftv1.NewClusterClient(conn))
		cancel()
		if done {
			return silent, nil
		}
		if err != nil {
			silent.failed = append(silent.failed, struct{ addr, why string }{addr, err.Error()})
			silent.slow = silent.slow || rowraft.CodeOf(err) == rowraft.CodeDeadline || time.Since(begin) >= rpc.ConnectTimeout
			if err := c.Pool.Forget(addr); err != nil {
				return silent, err
			}
		}
	}
	if len(silent.failed) == len(c.Endpoints) {
		return silent, &SilentError{failed: silent.failed, Refused: !silent.slow}
	}
	return silent, nil
}

// Leader asks the servers in turn which one leads the scheduler, and returns its
// address. It asks each server once.
func (c *Cluster) Leader(ctx context.Context) (addr string, err error) {
	silent, err := c.each(ctx, func(ctx context.Context, stub rowraftv1.ClusterClient) (bool, error) {
		reply, err := stub.Hello(ctx, &rowraftv1.HelloRequest{})
		addr = reply.GetSchedulerLeader()
		members := reply.GetSchedulers()
		for _, f := range reply.GetFounders() {
			members = append(members, f.GetAddr())
		}
		for _, m := range members {
			if !slices.Contains(c.Endpoints, m) {
				c.Endpoints = append(c.Endpoints, m)
			}
		}
		return addr != "", err
	})
	if err == nil && addr == "" {
		err = rowraft.Errorf(rowraft.CodeNoLeader, "the scheduler has no leader; no answer from: %v", &silent)
	}
	return addr, err
}

// AwaitLeader is Leader, repeated until ctx ends while an answer may come.
func (c *Cluster) AwaitLeader(ctx context.Context) (addr string, err error) {
	err = retry(ctx, Control, func() error {
		addr, err = c.Leader(ctx)
		return err
	})
	return addr, err
}

// Map returns the newest cluster map that any server knows, with the leader hints of that
// server. It asks each server once.
func (c *Cluster) Map(ctx context.Context) (newest *rowraftv1.GetMapReply, err error) {
	silent, err := c.each(ctx, func(ctx context.Context, stub rowraftv1.ClusterClient) (bool, error) {
		reply, err := stub.GetMap(ctx, &rowraftv1.GetMapRequest{})
		if err == nil && reply.GetMap().GetVersion() >= newest.GetMap().GetVersion() {
			newest = reply
		}
		return false, err
	})
	if err == nil && len(newest.GetMap().GetShards()) == 0 {
		err = rowraft.Errorf(rowraft.CodeNoLeader, "no server knows of any shard; no answer from: %v", &silent)
	}
	return newest, err
}

// AwaitMap is Map, repeated until ctx ends while an answer may come.
func (c *Cluster) AwaitMap(ctx context.Context) (m *rowraftv1.GetMapReply, err error) {
	err = retry(ctx, Control, func() error {
		m, err = c.Map(ctx)
		return err
	})
	return m, err
}

// Call makes a call to the scheduler's leader, and repeats it by the actions of
// layer, Control or Once, until ctx ends.
func (c *Cluster) Call(ctx context.Context, layer Layer, call func(context.Context, *grpc.ClientConn) error) error {
	return retry(ctx, layer, func() error {
		leader, err := c.Leader(ctx)
		if err != nil {
			return err
		}
		conn, err := c.Pool.Get(leader)
		if err != nil {
			return err
		}
		return call(ctx, conn)
	})
}

// OnShard makes a call to the leader of a shard, and repeats it until ctx ends while an
// answer may come. Each try may take as long as limit. It returns the map that it used.
//
// Errors: CodeInvalidArgument if there is no such shard.
func (c *Cluster) OnShard(ctx context.Context, shard uint32, limit time.Duration,
	call func(context.Context, *grpc.ClientConn) error) (m *rowraftv1.GetMapReply, err error) {
	w := Walk{Layer: Control, Places: func() []string { return replicas(m, shard) },
		AddrOf: func(id rowraft.NodeID) string { return addrIn(m, string(id)) }}
	for {
		if m, err = c.Map(ctx); err == nil {
			if n := len(m.GetMap().GetShards()); int(shard) >= n {
				return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "shard %d does not exist: the cluster has %d, from 0 on",
					shard, n)
			}
			err = c.try(ctx, w.Addr(), limit, call)
		}
		if err == nil || Refused(err) {
			return m, err
		}
		if !w.Again(ctx, err) {
			return m, gaveUp(ctx, Control, err)
		}
	}
}

func (c *Cluster) try(ctx context.Context, addr string, limit time.Duration,
	call func(context.Context, *grpc.ClientConn) error) error {
	if addr == "" {
		return rowraft.Errorf(rowraft.CodeNoLeader, "the map names no server for this shard")
	}
	conn, err := c.Pool.Get(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx, conn)
}

// replicas lists the servers of a shard, the one that m hints at as the leader first.
func replicas(m *rowraftv1.GetMapReply, shard uint32) (addrs []string) {
	add := func(node string) {
		if addr := addrIn(m, node); addr != "" && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	for _, h := range m.GetLeaders() {
		if h.GetShard() == shard {
			add(h.GetNode())
		}
	}
	for _, r := range m.GetMap().GetShards()[shard].GetReplicas() {
		add(r.GetNode())
	}
	return addrs
}

func addrIn(m *rowraftv1.GetMapReply, node string) string {
	for _, n := range m.GetMap().GetNodes() {
		if n.GetId() == node {
			return n.GetAddr()
		}
	}
	return ""
}

// retry repeats try by the actions of layer until ctx ends. It does not repeat a try after
// which every server refused at once.
func retry(ctx context.Context, layer Layer, try func() error) error {
	for b := new(Backoff); ; {
		err := try()
		if err == nil || Refused(err) || On(layer, err) == Return {
			return err
		}
		if b.Wait(ctx, RetryAfter(err)) != nil {
			return gaveUp(ctx, layer, err)
		}
	}
}

// Refused reports that each server refused the call at once: another try soon after ends the
// same way.
func Refused(err error) bool {
	s, ok := errors.AsType[*SilentError](err)
	return ok && s.Refused
}

// gaveUp adds the reason if a call ended because its context did.
func gaveUp(ctx context.Context, layer Layer, last error) error {
	if ctx.Err() == nil || On(layer, last) == Return {
		return last
	}
	return fmt.Errorf("%w (gave up: %w)", last, ctx.Err())
}

// RetryAfter returns the time that an overloaded server asks the caller to wait; 0 if err
// names none.
func RetryAfter(err error) time.Duration {
	if o, ok := errors.AsType[*rowraft.OverloadedError](err); ok {
		return o.RetryAfter
	}
	return 0
}
