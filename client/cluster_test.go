package client

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// recovered makes s a server of another cluster, as the runbook for a lost majority leaves it: another id
// and a map that begins at version 1 again. Of its two tables, the second has the id that the first one
// had.
func (s *fakeServer) recovered(t *testing.T) *clustermap.Map {
	t.Helper()
	old := s.m
	first, second := old.Tables[0], old.Tables[0]
	first.Name, second.Name, second.ID = "other", "t", first.ID+1
	m, err := clustermap.New(clustermap.Map{
		Cluster: "recovered", Version: 1, SlotsVersion: 1, Epoch: 2, Tables: []rowraft.Schema{first, second},
		Nodes: old.Nodes, Shards: old.Shards,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A client outlives its cluster: the servers at its endpoints form a new one. A push in flight ends with an
// unknown outcome, and the client never sends it to the new cluster. Handles, positions and jobs end. New
// calls work.
func TestAClientFindsTheClusterThatReplacesItsOwn(t *testing.T) {
	ctx := patience(t)
	var next *clustermap.Map
	var replaced, pushed atomic.Bool
	arrived := make(chan struct{}, 1)
	check := func(ctx context.Context) error { // the check that a server makes
		is := map[bool]string{false: "c", true: "recovered"}[replaced.Load()]
		md, _ := metadata.FromIncomingContext(ctx)
		if got := md.Get("rowraft-cluster"); len(got) != 1 || got[0] != is {
			return rowraft.Errorf(rowraft.CodeIdentity, "the call is for cluster %v, this is %s", got, is)
		}
		return nil
	}
	s := fakeServer{
		open: func(ctx context.Context, _ *rowraftv1.OpenSessionRequest) error { return check(ctx) },
		push: func(ctx context.Context, req *rowraftv1.WriteRequest) error {
			if err := check(ctx); err != nil || replaced.Load() || req.Seq == 1 {
				pushed.Store(err == nil && replaced.Load())
				return err
			}
			arrived <- struct{}{}
			<-ctx.Done() // the old cluster is lost
			return ctx.Err()
		},
		pull: func(ctx context.Context, req *rowraftv1.PullRequest) (*rowraftv1.PullReply, error) {
			if err := check(ctx); err != nil {
				return nil, err
			}
			if replaced.Load() && !pushed.Load() && req.MinIndex > 0 {
				t.Errorf("a read of the new cluster asks for index %d of the old one", req.MinIndex)
			}
			return zeros(req)
		},
	}
	s.serve(t, 1)
	s.m.Version = 40
	s.news = func() *clustermap.Map {
		if replaced.Load() {
			return next
		}
		return s.m
	}
	next = s.recovered(t)
	c, table := s.dial(t, func(o *Options) { o.AttemptTimeout = time.Second })
	push := func(ctx context.Context, t *Table) error {
		_, err := t.Push(ctx, []rowraft.Key{1}, []float32{1, 1})
		return err
	}
	if err := push(ctx, table); err != nil {
		t.Fatal(err)
	}
	before := c.Position()
	j, err := c.Job(JobOptions{ID: testJob, Generation: 1, Incarnation: 1})
	if err != nil {
		t.Fatal(err)
	}
	short, leave := context.WithCancel(ctx)
	go func() { <-arrived; leave() }()
	if err := push(short, table); rowraft.CodeOf(err) != rowraft.CodeDeadline {
		t.Fatalf("a push that is under way: %v, want CodeDeadline", err)
	}

	replaced.Store(true)
	if err := c.Flush(ctx); rowraft.CodeOf(err) != rowraft.CodeUnknown &&
		rowraft.CodeOf(err) != rowraft.CodeSessionExpired || !strings.Contains(err.Error(), "recovered") {
		t.Errorf("Flush after the cluster was replaced: %v (%v), want that the outcome is unknown, and why", err,
			rowraft.CodeOf(err))
	}
	if got := c.Map().Cluster; got != "recovered" {
		t.Fatalf("the client is of cluster %s", got)
	}
	out := make([]float32, 2)
	if err := push(ctx, table); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("a push with the old handle: %v, want CodePrecondition", err)
	}
	if err := table.Pull(ctx, []rowraft.Key{1}, out); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("a pull with the old handle: %v, want CodePrecondition", err)
	}
	if err := table.Scan(ctx, nil); rowraft.CodeOf(err) != rowraft.CodePrecondition {
		t.Errorf("a scan with the old handle: %v, want CodePrecondition", err)
	}
	if _, err := j.WaitClock(ctx, 1); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a job of the old cluster: %v, want CodeSessionExpired", err)
	}
	now, err := c.Table(ctx, "t")
	if err != nil || now.Schema().ID != next.Tables[1].ID {
		t.Fatalf("the table in the new cluster: %v", err)
	}
	read := Segment{Table: now, Keys: []rowraft.Key{1}, Values: out}
	if _, err := c.PullWith(ctx, Read{AtLeast: before}, read); rowraft.CodeOf(err) != rowraft.CodeSessionExpired {
		t.Errorf("a read at a position of the old cluster: %v, want CodeSessionExpired", err)
	}
	if err := errors.Join(c.Pull(ctx, read), push(ctx, now), c.Pull(ctx, read), c.Flush(ctx)); err != nil {
		t.Errorf("calls of the new cluster: %v", err)
	}
	if p := c.Position(); p.Cluster != "recovered" || before.Cluster != "c" {
		t.Errorf("positions of clusters %s and %s", before.Cluster, p.Cluster)
	}
}

// One address of a running cluster comes to belong to another cluster. The client stays with the cluster of
// most of its endpoints.
func TestAClientStaysWithMostOfItsEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name  string
		given []string
		says  map[string]rowraft.ClusterID // by address, in the order of the names
		want  rowraft.ClusterID
	}{
		{"one of three", []string{"a", "b", "c"}, map[string]rowraft.ClusterID{"a": "new"}, "old"},
		{"two of three", []string{"a", "b", "c"}, map[string]rowraft.ClusterID{"a": "new", "b": "new"}, "new"},
		{"two of three, one named twice", []string{"a", "a", "b", "c"}, map[string]rowraft.ClusterID{"a": "new", "b": "new"},
			"new"},
		{"one of two", []string{"a", "b"}, map[string]rowraft.ClusterID{"a": "new"}, "old"},
		{"two of three, of two clusters", []string{"a", "b", "c"}, map[string]rowraft.ClusterID{"a": "new", "b": "newer"},
			"old"},
		{"servers that were not given", []string{"a"}, map[string]rowraft.ClusterID{"x": "new", "y": "new"}, "old"},
		{"the only one", []string{"a"}, map[string]rowraft.ClusterID{"a": "new"}, "new"},
	} {
		c := newClient(Options{Endpoints: tc.given, Logger: slog.New(slog.DiscardHandler)}, nil)
		c.cluster.Store(&clustermap.Map{Cluster: "old", Version: 40, Shards: make([]clustermap.Shard, 1)})
		for addr, id := range tc.says {
			err := c.cluster.take(addr, &clustermap.Map{Cluster: id, Version: 1}) // without shards yet
			if rowraft.CodeOf(err) != rowraft.CodeIdentity {
				t.Errorf("%s: %s says %s: %v, want CodeIdentity", tc.name, addr, id, err)
			}
		}
		for addr, id := range tc.says {
			if err := c.cluster.take(addr, &clustermap.Map{Cluster: id, Version: 2,
				Shards: make([]clustermap.Shard, 1)}); (err == nil) != (c.Map().Cluster == id) {
				t.Errorf("%s: %s says %s: %v, and the client is of %s", tc.name, addr, id, err, c.Map().Cluster)
			}
		}
		if got := c.Map().Cluster; got != tc.want {
			t.Errorf("%s: the client is of cluster %s, want %s", tc.name, got, tc.want)
		}
	}
}
