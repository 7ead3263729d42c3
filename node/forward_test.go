package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// dropConn loses written data while cut is set, so that no answer arrives either.
type dropConn struct {
	net.Conn
	cut *atomic.Bool
}

func (c *dropConn) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// forwardLab is a cluster of three servers with certificates and two tables, "mine" of trainer tom and
// "hers".
type forwardLab struct {
	*testCluster
	ctx    context.Context
	m      *client.Client // of an admin
	tables map[string]rowraft.Schema
}

func newForwardLab(t *testing.T) *forwardLab {
	f := &forwardLab{testCluster: startSecureCluster(t, 3, nil), ctx: testutil.Context(t),
		tables: make(map[string]rowraft.Schema)}
	f.m = f.dialAs(certs.Admin, "ann")
	for _, name := range []string{"mine", "hers"} {
		table, err := f.m.CreateTable(f.ctx, counterSchema(name), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := table.Push(f.ctx, []rowraft.Key{1}, []float32{1, 1, 1, 1}); err != nil {
			t.Fatal(err)
		}
		f.tables[name] = table.Schema()
	}
	return f
}

// leads returns the address of the shard's leader, its term, and the address of a follower.
func (f *forwardLab) leads() (leader string, term uint64, follower string) {
	f.t.Helper()
	for f.ctx.Err() == nil {
		for _, n := range f.nodes {
			st, err := rowraftv1.NewReplicasClient(f.connectAs(n.addr, certs.Operator, "op")).NodeStatus(f.ctx,
				&rowraftv1.NodeStatusRequest{})
			if err == nil && len(st.Replicas) == 1 && st.Replicas[0].Role == "leader" {
				leader, term = n.addr, st.Replicas[0].Term
			} else {
				follower = n.addr
			}
		}
		if leader != "" {
			return leader, term, follower
		}
	}
	f.t.Fatal("no leader")
	return "", 0, ""
}

// TestAFollowerForwards: only the network between a client and the leader is cut. All operations on rows
// continue, and the leader stays the leader.
func TestAFollowerForwards(t *testing.T) {
	f := newForwardLab(t)
	for key := rowraft.Key(10); !f.forwards(key); key += 10 {
		t.Log("the lead moved, as it may on a busy machine: once more")
	}
}

// forwards reports whether the leader stayed the leader.
func (f *forwardLab) forwards(key rowraft.Key) bool {
	t := f.t
	t.Helper()
	leader, term, follower := f.leads()
	var cut atomic.Bool
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if addr == leader && cut.Load() {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil && addr == leader {
			c = &dropConn{c, &cut}
		}
		return c, err
	}
	files := f.lab.files(certs.Trainer, "tom", "mine")
	tom := f.dialWith(client.Options{TLS: files, Dial: dial})
	table, err := tom.Table(f.ctx, "mine")
	if err != nil {
		t.Fatal(err)
	}
	row := []float32{0, 0, 0, 0}
	if _, err := table.Push(f.ctx, []rowraft.Key{key}, []float32{-1, -1, -1, -1}); err != nil {
		t.Fatal(err)
	}
	cut.Store(true)
	begin := time.Now()
	if _, err := table.Push(f.ctx, []rowraft.Key{key}, []float32{-1, -1, -1, -1}); err != nil {
		t.Errorf("push: %v", err)
	}
	t.Logf("the first push after the cut took %v", time.Since(begin))
	if err := table.Pull(f.ctx, []rowraft.Key{key}, row); err != nil || !slices.Equal(row, []float32{2, 2, 2, 2}) {
		t.Errorf("pull: %v, %v, want the sum of two pushes", row, err)
	}
	if _, err := table.Assign(f.ctx, []rowraft.Key{key + 1}, []float32{3, 3, 3, 3}); err != nil {
		t.Errorf("assign: %v", err)
	}
	if _, err := table.Delete(f.ctx, []rowraft.Key{key}); err != nil {
		t.Errorf("delete: %v", err)
	}
	read := client.Segment{Table: table, Keys: []rowraft.Key{key + 1}, Values: row, Present: make([]bool, 1)}
	if err := tom.PullLinearizable(f.ctx, read); err != nil || !read.Present[0] || row[0] != 3 {
		t.Errorf("linearizable pull: %v, %v, %v", row, read.Present, err)
	}
	fresh := f.dialWith(client.Options{Endpoints: []string{follower}, TLS: files, Dial: dial})
	if mine, err := fresh.Table(f.ctx, "mine"); err != nil {
		t.Error(err)
	} else if _, err := mine.Push(f.ctx, []rowraft.Key{key + 2}, []float32{1, 1, 1, 1}); err != nil {
		t.Errorf("the first push of a client that was never connected to the leader: %v", err)
	}
	stub := f.stub(follower, certs.Trainer, "tom", "mine")
	id := tomsID()
	if _, err := stub.OpenSession(rpc.AskForward(f.ctx),
		&rowraftv1.OpenSessionRequest{ClientId: id[:], Incarnation: 1 << 40}); err != nil {
		t.Errorf("open a session: %v", err)
	}
	hers, err := tom.Table(f.ctx, "hers")
	if err != nil {
		t.Fatal(err)
	}
	if err := hers.Pull(f.ctx, []rowraft.Key{1}, row); rowraft.CodeOf(err) != rowraft.CodeDenied {
		t.Errorf("a forwarded pull of another's table: %v, want CodeDenied", err)
	}
	now, at, _ := f.leads()
	return now == leader && at == term || f.ctx.Err() != nil
}

// tomsID returns a client id of trainer tom.
func tomsID() (id rowraft.ClientID) {
	tom := certs.Identity{Cluster: "lab", Role: certs.Trainer, Name: "tom"}
	tag := tom.Tag()
	copy(id[:], tag[:])
	return id
}

func (f *forwardLab) stub(addr string, role certs.Role, name string, tables ...string) rowraftv1.TableClient {
	f.t.Helper()
	return rowraftv1.NewTableClient(f.connectAs(addr, role, name, tables...))
}

// TestWhoMayCallOnBehalf: only servers may use the header of forwarded calls. The header carries everything
// that the caller's certificate does, and is valid for one hop.
func TestWhoMayCallOnBehalf(t *testing.T) {
	f := newForwardLab(t)
	for {
		leader, term, follower := f.leads()
		wrong := f.onBehalf(leader, follower)
		if now, at, _ := f.leads(); now != leader || at != term {
			continue // the leader's change may be the reason
		}
		for _, w := range wrong {
			t.Error(w)
		}
		return
	}
}

// onBehalf returns what is wrong.
func (f *forwardLab) onBehalf(leader, follower string) (wrong []string) {
	errorf := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	pull := func(table string) *rowraftv1.PullRequest {
		s := wire.Segment{Table: f.tables[table].ID, N: 1, Dim: 4, DType: rowraft.Float32, Flags: wire.FlagNoValues}
		b := make([]byte, s.Size())
		s.Put(b).Keys[0] = 1
		return &rowraftv1.PullRequest{MapVersion: uint64(f.m.Map().SlotsVersion), Payload: b}
	}
	behalf := func(ends time.Time, identity string) string { return fmt.Sprintf("%d %s", ends.UnixNano(), identity) }
	const tom, all = "rowraft://lab/trainer/tom?table=mine", "rowraft://lab/admin/ann"
	later := time.Now().Add(time.Hour)
	node, trainer := f.stub(leader, certs.Server, "n9"), f.stub(leader, certs.Trainer, "tom", "mine")
	onFollower := f.stub(follower, certs.Server, "n9")
	for _, tc := range []struct {
		name  string
		stub  rowraftv1.TableClient
		said  []string
		ask   bool
		table string
		want  rowraft.Code // 0: success
	}{
		{"a server, for a trainer", node, []string{behalf(later, tom)}, false, "mine", 0},
		{"a server, for an admin", node, []string{behalf(later, all)}, false, "hers", 0},
		{"a table that is not the trainer's", node, []string{behalf(later, tom)}, false, "hers", rowraft.CodeDenied},
		{"a certificate that has ended", node, []string{behalf(time.Now().Add(-time.Second), tom)}, false, "mine",
			rowraft.CodeDenied},
		{"a trainer names an admin", trainer, []string{behalf(later, all)}, false, "hers", rowraft.CodeDenied},
		{"a trainer names itself", trainer, []string{behalf(later, tom)}, false, "mine", rowraft.CodeDenied},
		{"a trainer names no caller", trainer, []string{"-"}, false, "mine", rowraft.CodeDenied},
		{"a server for itself", node, nil, false, "mine", rowraft.CodeDenied},
		{"a server names no caller", node, []string{"-"}, false, "mine", rowraft.CodeDenied},
		{"a server names a server", node, []string{behalf(later, "rowraft://lab/server/n1")}, false, "mine",
			rowraft.CodeDenied},
		{"a server names an operator", node, []string{behalf(later, "rowraft://lab/operator/op")}, false, "mine",
			rowraft.CodeDenied},
		{"a caller of another cluster", node, []string{behalf(later, "rowraft://there/admin/ann")}, false, "mine",
			rowraft.CodeDenied},
		{"two callers", node, []string{behalf(later, tom), behalf(later, all)}, false, "mine", rowraft.CodeInvalidArgument},
		{"no identity", node, []string{"ann"}, false, "mine", rowraft.CodeInvalidArgument},
		{"a second hop", onFollower, []string{behalf(later, tom)}, true, "mine", rowraft.CodeNotLeader},
		{"a server asks a follower for itself", onFollower, nil, true, "mine", rowraft.CodeDenied},
	} {
		ctx := f.ctx
		for _, said := range tc.said {
			ctx = metadata.AppendToOutgoingContext(ctx, "rowraft-on-behalf", said)
		}
		if tc.ask {
			ctx = rpc.AskForward(ctx)
		}
		if _, err := tc.stub.Pull(ctx, pull(tc.table)); tc.want == 0 && err != nil || tc.want != 0 &&
			rowraft.CodeOf(err) != tc.want {
			errorf("%s: %v (%v), want %v", tc.name, err, rowraft.CodeOf(err), tc.want)
		}
	}
	reader := metadata.AppendToOutgoingContext(f.ctx, "rowraft-on-behalf",
		behalf(later, "rowraft://lab/reader/rob?table=mine"))
	if _, err := node.Write(reader, &rowraftv1.WriteRequest{Op: rowraftv1.WriteOp_WRITE_OP_PUSH}); rowraft.CodeOf(
		err) != rowraft.CodeDenied {
		errorf("a push for a reader: %v, want CodeDenied", err)
	}
	// A session of another identity stays closed, whichever caller the server represents.
	id := tomsID()
	ann := metadata.AppendToOutgoingContext(f.ctx, "rowraft-on-behalf", behalf(later, all))
	if _, err := node.OpenSession(ann, &rowraftv1.OpenSessionRequest{ClientId: id[:],
		Incarnation: 1 << 41}); rowraft.CodeOf(err) != rowraft.CodeDenied {
		errorf("a session under the id of another: %v, want CodeDenied", err)
	}
	scan, err := node.Scan(metadata.AppendToOutgoingContext(f.ctx, "rowraft-on-behalf", behalf(later, all)),
		&rowraftv1.ScanRequest{})
	if err == nil {
		_, err = scan.Recv()
	}
	if rowraft.CodeOf(rpc.FromStatus(err)) != rowraft.CodeInvalidArgument {
		errorf("a scan on behalf of another: %v, want CodeInvalidArgument: servers do not forward it", err)
	}
	return wrong
}
