package checkpoints

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/metatest/metacmd"
)

// TestAFailedCheckpointLeavesAnotherOfItsName: the caller lost its leader, and asked
// the next one for the same name.
func TestAFailedCheckpointLeavesAnotherOfItsName(t *testing.T) {
	req := &rowraftv1.CreateCheckpointRequest{Destination: t.TempDir(), Name: "a"}
	d, err := depot.Open(req.GetDestination())
	if err != nil {
		t.Fatal(err)
	}
	first, second := &creation{req: req, depot: d, id: uuid.UUID{1}}, &creation{req: req, depot: d, id: uuid.UUID{2}}
	for _, op := range []*creation{first, second} {
		if _, err := op.open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	files := func(op *creation, content string) *checkpoint.Manifest {
		m := &checkpoint.Manifest{ID: op.id.String(), Cluster: "c", Binary: "b", Epoch: 1, Map: 1,
			HashVers: clustermap.HashVersion, Slots: rowraft.DefaultSlots}
		for _, kind := range []string{"rows", "sums"} {
			f := checkpoint.File{Name: fmt.Sprintf("shard-0000-%x01020304.%s", op.tag(), kind), Bytes: int64(len(content)),
				SHA256: sha256.Sum256([]byte(content))}
			m.Blobs = append(m.Blobs, checkpoint.Blob{Name: kind, File: f})
			if err := op.depot.Put(t.Context(), "a/"+f.Name, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	_ = files(first, "first")
	m := files(second, "second")
	if err := second.checkFiles(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := second.depot.PutNew(t.Context(), "a/"+checkpoint.ManifestFile,
		[]byte("the manifest of the second")); err != nil {
		t.Fatal(err)
	}
	if found, err := first.depot.List(t.Context(), "a"); err != nil || len(found) != 5 {
		t.Errorf("%v, %v: the second has removed files of the first", found, err)
	}
	if err := first.depot.PutNew(t.Context(), "a/"+checkpoint.ManifestFile,
		[]byte("late")); rowraft.CodeOf(err) != rowraft.CodeAlreadyExists {
		t.Errorf("the late manifest of the first: %v, want AlreadyExists", err)
	}
	if err := first.cleanUp(); err != nil {
		t.Fatal(err)
	}
	left, err := second.depot.List(t.Context(), "a")
	if err != nil || len(left) != 3 {
		t.Errorf("%v, %v: want the three files of the second", left, err)
	}
	for _, e := range left {
		if !second.wrote(e) && !strings.HasSuffix(e.Name, "/"+checkpoint.ManifestFile) {
			t.Errorf("%s is left of the first", e.Name)
		}
	}
	if _, _, err := depot.Delete(t.Context(), second.depot, "a", false); err != nil {
		t.Error(err)
	}
}

// preparedParts is a shard that is prepared for a cut, and waits for it.
type preparedParts struct {
	rowraftv1.UnimplementedReplicasServer
	prepared, ended chan struct{}
}

func (f *preparedParts) WriteShardFile(stream grpc.BidiStreamingServer[rowraftv1.WriteShardFileRequest,
	rowraftv1.WriteShardFileReply]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(
		&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Prepared{
			Prepared: &rowraftv1.WriteShardFilePrepared{TableEpoch: 1}}}); err != nil {
		return err
	}
	f.prepared <- struct{}{}
	_, err := stream.Recv()
	f.ended <- struct{}{}
	return err
}

// heldPart is the call to a shard that writes until the call is cancelled.
type heldPart struct {
	grpc.BidiStreamingClient[rowraftv1.WriteShardFileRequest, rowraftv1.WriteShardFileReply]
	ctx context.Context
	err error // not nil: it fails at once
}

func (h heldPart) Recv() (*rowraftv1.WriteShardFileReply, error) {
	if h.err != nil {
		return nil, h.err
	}
	<-h.ctx.Done()
	return nil, status.FromContextError(h.ctx.Err()).Err()
}

// What ends the writing of a checkpoint is told, and not what came of that for the other shards.
func TestACheckpointTellsWhatEndedIt(t *testing.T) {
	op := &creation{name: "a", report: func(*rowraftv1.CreateCheckpointReply) error { return nil }}
	for range 100 {
		var files []*shardFileWriter
		for i := range rowraft.ShardID(64) {
			ctx, cancel := context.WithCancel(t.Context())
			h := heldPart{ctx: ctx}
			if i == 40 {
				h.err = status.Error(codes.ResourceExhausted, "its disk is full")
			}
			files = append(files, &shardFileWriter{op: op, shard: clustermap.Shard{ID: i}, stream: h, cancel: cancel})
		}
		if err := op.collect(t.Context(), files); !strings.Contains(fmt.Sprint(err),
			"shard 40: ResourceExhausted: its disk is full") {
			t.Fatalf("%v, want that the disk of shard 40 is full", err)
		}
	}
}

// A cut that fails lets the shards go, though the call that wants the checkpoint goes on:
// a shard that expects one takes file in no other.
func TestACutThatFailsLetsTheShardsGo(t *testing.T) {
	files := &preparedParts{prepared: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	s, _, trainers := newSolo(t, 1, func(srv *grpc.Server) { rowraftv1.RegisterReplicasServer(srv, files) })
	trainers.pause = fmt.Errorf("a trainer has no state to give")
	op := &creation{c: s, id: uuid.New(), req: &rowraftv1.CreateCheckpointRequest{Name: "a", Job: "a"},
		left: make(map[string]error), running: &task{}}
	var err error
	if op.depot, err = depot.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if _, err := op.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := op.cut(t.Context(), true); err == nil || !strings.Contains(err.Error(), "no state to give") {
		t.Fatalf("a cut without the state of the trainer: %v", err)
	}
	<-files.prepared
	select {
	case <-files.ended:
	case <-time.After(time.Minute):
		t.Error("the shard still waits for the cut")
	}
}

// TestACheckpointWantsTablesWhole: one that a drop has divided is no checkpoint.
func TestACheckpointWantsTablesWhole(t *testing.T) {
	a, b := metacmd.SGD("a", 1), metacmd.SGD("b", 1)
	a.ID, b.ID = 1, 2
	file := func(id rowraft.ShardID, tables ...rowraft.Schema) *shardFileWriter {
		p := &shardFileWriter{cluster: &clustermap.Map{Tables: []rowraft.Schema{a, b}}, shard: clustermap.Shard{ID: id},
			done: &rowraftv1.WriteShardFileDone{}}
		for _, s := range tables {
			p.done.Tables = append(p.done.Tables, &rowraftv1.ShardFileTable{Table: rpc.SchemaToProto(&s)})
		}
		return p
	}
	for name, files := range map[string][]*shardFileWriter{
		"all have both": {file(0, a, b), file(1, a, b)}, "all have one": {file(0, b), file(1, b)},
		"no shard has any": {file(0), file(1)},
	} {
		if err := checkWhole(files, []rowraft.Schema{a, b}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := checkWhole([]*shardFileWriter{file(0, a, b), file(1, a), file(2, a, b)}, []rowraft.Schema{a, b})
	testutil.WantCode(t, err, rowraft.CodePrecondition, "table b was dropped", "shard 1")

	// Of a table that the map did not have when the cut began: it was made since, and
	// no client can have pushed to it, or its drop has not reached every shard yet.
	c := metacmd.SGD("c", 1)
	c.ID = 3
	some := []*shardFileWriter{file(0, a, b, c), file(1, a, b)}
	if err := checkWhole(some, []rowraft.Schema{a, b, c}); err != nil {
		t.Errorf("a table is being made: %v", err)
	}
	testutil.WantCode(t, checkWhole(some, []rowraft.Schema{a, b}), rowraft.CodePrecondition, "table c was dropped",
		"shard 1")
	if err := checkWhole([]*shardFileWriter{file(0, a, b, c), file(1, a, b, c)}, []rowraft.Schema{a, b}); err != nil {
		t.Errorf("a dropped table that no shard has lost yet: %v", err)
	}
}
