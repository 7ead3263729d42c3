package scheduler

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// fakeParts is the side of all shards in restores. Their rows are only counted.
type fakeParts struct {
	rowraftv1.UnimplementedReplicasServer
	mu     sync.Mutex
	live   uint64
	staged map[uint32]bool
	closed int
	free   uint64 // bytes of memory
	begun  func() // called when a shard begins
	ended  func() // called when a shard has closed its stage
}

func (p *fakeParts) RestoreShard(_ context.Context,
	req *rowraftv1.RestoreShardRequest) (*rowraftv1.RestoreShardReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch req.GetStep().(type) {
	case *rowraftv1.RestoreShardRequest_Begin:
		p.staged[req.GetShard()] = true
		if p.begun != nil {
			p.begun()
		}
	case *rowraftv1.RestoreShardRequest_Drop:
		delete(p.staged, req.GetShard())
	case *rowraftv1.RestoreShardRequest_Close:
		p.closed++
		if p.ended != nil {
			p.ended()
		}
	}
	epoch := uint64(1)
	if p.closed > 0 {
		epoch = 2
	}
	tables := []*rowraftv1.ShardTable{{Id: 9, Rows: p.live}}
	if p.closed > 0 {
		tables = []*rowraftv1.ShardTable{{Id: 7}}
	}
	return &rowraftv1.RestoreShardReply{Tables: tables, TableEpoch: epoch, LiveRows: p.live,
		Staged: p.staged[req.GetShard()], NextSeq: 1, Digest: make([]byte, 16), Node: "a", FreeMemory: p.free}, nil
}

func (p *fakeParts) EnsureTable(context.Context, *rowraftv1.EnsureTableRequest) (*rowraftv1.EnsureTableReply, error) {
	return &rowraftv1.EnsureTableReply{}, nil
}

func (p *fakeParts) DropShardTable(context.Context,
	*rowraftv1.DropShardTableRequest) (*rowraftv1.DropShardTableReply, error) {
	return &rowraftv1.DropShardTableReply{}, nil
}

// restoringCluster is a scheduler that leads a cluster of one shard, and the shard.
func restoringCluster(t *testing.T) (*Scheduler, *fakeParts) {
	t.Helper()
	p := &fakeParts{staged: map[uint32]bool{}}
	s, _ := leaderOfShards(t, 1, serveServices(t, func(g *grpc.Server) {
		rowraftv1.RegisterReplicasServer(g, p)
	}))
	return s, p
}

// emptyCheckpoint makes one of a single table whose stream has no rows, and whose sums
// say that it has some.
func emptyCheckpoint(t *testing.T, dest, name string, rows uint32) {
	t.Helper()
	writeCheckpoint(t, dest, name, metacmd.Table(7, "fresh"), rows, func(*checkpoint.Writer) error { return nil })
}

// writeCheckpoint makes one of a single table, whose sums say that it has rows, and
// whose stream is what fill writes.
func writeCheckpoint(t *testing.T, dest, name string, schema rowraft.Schema, rows uint32,
	fill func(*checkpoint.Writer) error) {
	t.Helper()
	m := &checkpoint.Manifest{ID: "id-" + name, Cluster: "c", Epoch: 1, HashVers: 1, Slots: rowraft.DefaultSlots,
		Created: time.Unix(1, 0), Tables: []checkpoint.TableSum{{Schema: schema, Rows: uint64(rows)}}}
	part := checkpoint.ShardFile{Applied: 7, Rows: uint64(rows)}
	var sums []checkpoint.SlotSum
	if rows > 0 {
		sums = append(sums, checkpoint.SlotSum{Table: schema.ID, Slot: 1, Rows: rows, Counter: uint64(rows)})
	}
	for s := range rowraft.DefaultSlots {
		part.Slots = append(part.Slots, rowraft.Slot(s))
	}
	var stream bytes.Buffer
	w, err := checkpoint.NewWriter(&stream, checkpoint.Header{Applied: 7, Epoch: 1}, []rowraft.Schema{schema}, nil,
		checkpoint.Ended{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fill(w), w.Finish(checkpoint.Digest{})); err != nil {
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
	part.Stream, part.Sums = put("shard-0000.rows", stream.Bytes()),
		put("shard-0000.sums", checkpoint.EncodeSums(0, 7, sums))
	m.Shards = []checkpoint.ShardFile{part}
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

// TestARestoreLooksAgainBeforeItReplaces: staging may take minutes, in which a client
// pushes or creates a table. Without --replace the restore keeps it.
func TestARestoreLooksAgainBeforeItReplaces(t *testing.T) {
	dest := t.TempDir()
	emptyCheckpoint(t, dest, "a", 0)
	for _, tc := range []struct {
		name    string
		replace bool
		before  uint64 // rows
		during  func(s *Scheduler, p *fakeParts)
		agreed  []uint64
		code    rowraft.Code
	}{
		{name: "an empty cluster"},
		{name: "rows before", before: 5, code: rowraft.CodeAlreadyExists},
		{name: "rows before, to be replaced", before: 5, replace: true},
		{name: "rows that came meanwhile", during: func(_ *Scheduler, p *fakeParts) { p.live = 5 },
			code: rowraft.CodeAlreadyExists},
		{name: "rows that came meanwhile, to be replaced", during: func(_ *Scheduler, p *fakeParts) { p.live = 5 },
			replace: true},
		{name: "a table that came meanwhile", during: makeTable, code: rowraft.CodeAlreadyExists},
		{name: "a table that came meanwhile, to be replaced", during: makeTable, replace: true},
		{name: "rows of a table that was not in the list", before: 5, replace: true, agreed: []uint64{8},
			code: rowraft.CodePrecondition},
		{name: "rows of one that was", before: 5, replace: true, agreed: []uint64{9}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, p := restoringCluster(t)
			if strings.HasPrefix(tc.name, "rows") {
				makeTable(s, p)
			}
			p.live = tc.before
			if tc.during != nil {
				p.begun = func() { tc.during(s, p) }
			}
			stream := &restoreStream{ctx: testutil.Context(t)}
			err := s.Checkpoints().RestoreCheckpoint(&rowraftv1.RestoreCheckpointRequest{Destination: dest, Name: "a",
				Replace: tc.replace, Agreed: tc.agreed}, stream)
			p.mu.Lock()
			defer p.mu.Unlock()
			if tc.code == 0 {
				if err != nil || p.closed == 0 || stream.last.GetPhase() != "done" {
					t.Errorf("%v; closed %d times, ended with %v", err, p.closed, stream.last)
				}
				return
			}
			if rowraft.CodeOf(err) != tc.code || p.closed > 0 || len(p.staged) > 0 || s.machine.PendingRestore() != nil {
				t.Errorf("%v, want %v; closed %d times, %d stages left", err, tc.code, p.closed, len(p.staged))
			}
		})
	}
}

// TestARestoreThatDoesNotFitIsRefused: before anything is staged.
func TestARestoreThatDoesNotFitIsRefused(t *testing.T) {
	dest := t.TempDir()
	emptyCheckpoint(t, dest, "rows", 1000) // of 24 + 2 · 4 bytes, 20 of the index
	streaming := metacmd.Table(7, "streaming")
	streaming.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	writeCheckpoint(t, dest, "candidates", streaming, 0, func(w *checkpoint.Writer) error {
		return appendCandidates(w, streaming, 16)
	})
	for _, tc := range []struct {
		name string
		free uint64
		code rowraft.Code
	}{
		{"rows", 51_999, rowraft.CodePrecondition},
		{"rows", 52_000, rowraft.CodeCorrupt},
		{"rows", 0, rowraft.CodeCorrupt},
		// 16 · 4096 of at most 40 bytes, counted by the size of a file with more in it.
		{"candidates", 16 * rowraft.DefaultSlots * 40, rowraft.CodePrecondition},
		{"candidates", 16*rowraft.DefaultSlots*40 + 4096, rowraft.CodeCorrupt},
	} {
		s, p := restoringCluster(t)
		p.free = tc.free
		begun := false
		p.begun = func() { begun = true }
		err := s.Checkpoints().RestoreCheckpoint(&rowraftv1.RestoreCheckpointRequest{Destination: dest, Name: tc.name},
			&restoreStream{ctx: testutil.Context(t)})
		if rowraft.CodeOf(err) != tc.code || begun == (tc.code == rowraft.CodePrecondition) {
			t.Errorf("%s, %d bytes free: %v, want %v; staging began: %v", tc.name, tc.free, err, tc.code, begun)
		}
	}
}

// appendCandidates writes n keys to each slot of a table.
func appendCandidates(w *checkpoint.Writer, schema rowraft.Schema, n int) error {
	size, err := checkpoint.RecordBytes(&schema)
	if err != nil {
		return err
	}
	for slot := range rowraft.DefaultSlots {
		err := w.BeginSlot(checkpoint.Slot{Table: schema.ID, Slot: rowraft.Slot(slot), Counter: 1, RecordBytes: size})
		var b []byte
		for key := range n {
			b = binary.LittleEndian.AppendUint64(b, uint64(key))
			b = binary.LittleEndian.AppendUint64(b, 1)
		}
		if err = errors.Join(err, w.Candidates(b)); err != nil {
			return err
		}
	}
	return nil
}

// makeTable makes a table as the log does, which no shard is asked about.
func makeTable(s *Scheduler, _ *fakeParts) {
	schema := metacmd.Table(9, "other")
	cmd := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{
		CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&schema)}}}
	if _, err := s.propose(context.Background(), cmd); err != nil {
		panic(err)
	}
}
