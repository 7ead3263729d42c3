package scheduler

import (
	"bytes"
	"context"
	"crypto/sha256"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// fakeParts is the side of all shards in restores. Their rows are only counted.
type fakeParts struct {
	rowraftv1.UnimplementedPartsServer
	mu     sync.Mutex
	live   uint64
	staged map[uint32]bool
	closed int
	free   uint64 // bytes of memory
	begun  func() // called when a shard begins
}

func (p *fakeParts) RestorePart(_ context.Context, req *rowraftv1.RestorePartRequest) (*rowraftv1.RestorePartReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch req.GetStep().(type) {
	case *rowraftv1.RestorePartRequest_Begin:
		p.staged[req.GetShard()] = true
		if p.begun != nil {
			p.begun()
		}
	case *rowraftv1.RestorePartRequest_Drop:
		delete(p.staged, req.GetShard())
	case *rowraftv1.RestorePartRequest_Close:
		p.closed++
	}
	epoch := uint64(1)
	if p.closed > 0 {
		epoch = 2
	}
	return &rowraftv1.RestorePartReply{TableEpoch: epoch, LiveRows: p.live, Staged: p.staged[req.GetShard()], NextSeq: 1, Digest: make([]byte, 16), Node: "a", FreeMemory: p.free}, nil
}

// restoringCluster is a scheduler that leads a cluster of one shard, and the shard.
func restoringCluster(t *testing.T) (*Scheduler, *fakeParts) {
	t.Helper()
	s, _ := newLeader(t, 1, 1)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &fakeParts{staged: map[uint32]bool{}}
	srv := grpc.NewServer(rpc.ServerOptions(nil)...)
	rowraftv1.RegisterPartsServer(srv, p)
	a := &shardServer{tables: make(map[string]int)}
	rowraftv1.RegisterAdminServer(srv, a)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	reconcile(t, s)
	register(t, s, "a", lis.Addr().String())
	reconcile(t, s)
	return s, p
}

// emptyCheckpoint makes one of a single table whose stream has no rows, and whose sums
// say that it has some.
func emptyCheckpoint(t *testing.T, dest, name string, rows uint32) {
	t.Helper()
	schema := restoredTable(7, "fresh")
	m := &checkpoint.Manifest{ID: "id-" + name, Cluster: "c", Epoch: 1, HashVers: 1, Created: time.Unix(1, 0), Tables: []checkpoint.TableSum{{Schema: schema, Rows: uint64(rows)}}}
	part := checkpoint.Part{Applied: 7, Rows: uint64(rows)}
	var sums []checkpoint.SlotSum
	if rows > 0 {
		sums = append(sums, checkpoint.SlotSum{Table: schema.ID, Slot: 1, Rows: rows, Counter: uint64(rows)})
	}
	for s := range rowraft.NumSlots {
		part.Slots = append(part.Slots, rowraft.Slot(s))
	}
	var stream bytes.Buffer
	w, err := checkpoint.NewWriter(&stream, checkpoint.Header{Applied: 7, Epoch: 1}, []rowraft.Schema{schema}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(checkpoint.Digest{}); err != nil {
		t.Fatal(err)
	}
	d, err := depot.Open(dest)
	if err != nil {
		t.Fatal(err)
	}
	put := func(file string, b []byte) checkpoint.File {
		if err := d.Put(t.Context(), name+"/"+file, b); err != nil {
			t.Fatal(err)
		}
		return checkpoint.File{Name: file, Bytes: int64(len(b)), SHA256: sha256.Sum256(b)}
	}
	part.Stream, part.Sums = put("shard-0000.rows", stream.Bytes()), put("shard-0000.sums", checkpoint.EncodeSums(0, 7, sums))
	m.Parts = []checkpoint.Part{part}
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	put(checkpoint.ManifestFile, raw)
}

// restoreStream is the call of a caller that reads everything.
type restoreStream struct {
	grpc.ServerStream
	ctx  context.Context
	mu   sync.Mutex
	last *rowraftv1.RestoreCheckpointReply
}

func (s *restoreStream) Context() context.Context { return s.ctx }

func (s *restoreStream) Send(r *rowraftv1.RestoreCheckpointReply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = r
	return nil
}

// TestARestoreLooksAgainBeforeItReplaces: staging may take minutes, in which somebody
// pushes or makes a table; without --replace that is not dropped.
func TestARestoreLooksAgainBeforeItReplaces(t *testing.T) {
	dest := t.TempDir()
	emptyCheckpoint(t, dest, "a", 0)
	for _, tc := range []struct {
		name    string
		replace bool
		before  uint64 // rows
		during  func(s *Scheduler, p *fakeParts)
		code    rowraft.Code
	}{
		{name: "an empty cluster"},
		{name: "rows before", before: 5, code: rowraft.CodeAlreadyExists},
		{name: "rows before, to be replaced", before: 5, replace: true},
		{name: "rows that came meanwhile", during: func(_ *Scheduler, p *fakeParts) { p.live = 5 }, code: rowraft.CodeAlreadyExists},
		{name: "rows that came meanwhile, to be replaced", during: func(_ *Scheduler, p *fakeParts) { p.live = 5 }, replace: true},
		{name: "a table that came meanwhile", during: makeTable, code: rowraft.CodeAlreadyExists},
		{name: "a table that came meanwhile, to be replaced", during: makeTable, replace: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := restoringCluster(t)
			p.live = tc.before
			if tc.during != nil {
				p.begun = func() { tc.during(s, p) }
			}
			stream := &restoreStream{ctx: testContext(t)}
			err := s.Checkpoints().RestoreCheckpoint(&rowraftv1.RestoreCheckpointRequest{Destination: dest, Name: "a", Replace: tc.replace}, stream)
			p.mu.Lock()
			defer p.mu.Unlock()
			if tc.code == 0 {
				if err != nil || p.closed == 0 || stream.last.GetPhase() != "done" {
					t.Errorf("%v; closed %d times, ended with %v", err, p.closed, stream.last)
				}
				return
			}
			if rowraft.CodeOf(err) != tc.code || p.closed > 0 || len(p.staged) > 0 || s.machine.pendingRestore() != nil {
				t.Errorf("%v, want %v; closed %d times, %d stages left", err, tc.code, p.closed, len(p.staged))
			}
		})
	}
}

// TestARestoreThatDoesNotFitIsRefused: before anything is staged.
func TestARestoreThatDoesNotFitIsRefused(t *testing.T) {
	dest := t.TempDir()
	emptyCheckpoint(t, dest, "a", 1000) // of 24 + 2 · 4 bytes
	for free, code := range map[uint64]rowraft.Code{31_999: rowraft.CodePrecondition, 32_000: rowraft.CodeCorrupt, 0: rowraft.CodeCorrupt} {
		s, p := restoringCluster(t)
		p.free = free
		begun := false
		p.begun = func() { begun = true }
		err := s.Checkpoints().RestoreCheckpoint(&rowraftv1.RestoreCheckpointRequest{Destination: dest, Name: "a"}, &restoreStream{ctx: testContext(t)})
		if rowraft.CodeOf(err) != code || begun == (code == rowraft.CodePrecondition) {
			t.Errorf("%d bytes free: %v, want %v; staging began: %v", free, err, code, begun)
		}
	}
}

// makeTable makes a table as the log does, which no shard is asked about.
func makeTable(s *Scheduler, _ *fakeParts) {
	schema := restoredTable(9, "other")
	cmd := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&schema)}}}
	if _, err := s.propose(context.Background(), cmd); err != nil {
		panic(err)
	}
}
