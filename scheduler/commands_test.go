package scheduler

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// editState changes the state of the metadata group without a command, by way of a snapshot (docs/formats/metadata.md).
func editState(t *testing.T, s *Scheduler, change func(*rowraftv1.MetaState)) {
	t.Helper()
	snapshot, err := s.machine.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := snapshot.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	var p rowraftv1.MetaState
	if err := proto.Unmarshal(b.Bytes()[16:], &p); err != nil {
		t.Fatal(err)
	}
	change(&p)
	payload, err := proto.Marshal(&p)
	if err != nil {
		t.Fatal(err)
	}
	head := b.Bytes()[:12:12]
	binary.LittleEndian.PutUint32(head[8:], uint32(len(payload)))
	sum := crc32.Checksum(append(bytes.Clone(head), payload...), crc32.MakeTable(crc32.Castagnoli))
	frame := append(binary.LittleEndian.AppendUint32(head, sum), payload...)
	if err := s.machine.Restore(bytes.NewReader(frame)); err != nil {
		t.Fatal(err)
	}
}

const (
	lost       = rowraftv1.MemberState_MEMBER_STATE_LOST
	ended      = rowraftv1.MemberState_MEMBER_STATE_ENDED
	jobStopped = rowraftv1.JobState_JOB_STATE_STOPPED
)

func count[T any](list []T, is func(T) bool) (n int) {
	for _, x := range list {
		if is(x) {
			n++
		}
	}
	return n
}

// tb is what the tests and the fuzz targets have in common.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

func sgd(name string, dim int) rowraft.Schema {
	return rowraft.Schema{
		Name: name, Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
}

func cmdIncarnation() *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_IssueIncarnation{IssueIncarnation: &rowraftv1.MetaIssueIncarnation{}}}
}

// cmdEnter is a worker that enters job "ctr" of two workers; its process is instance.
func cmdEnter(worker string, instance byte, change func(*rowraftv1.EnterRequest)) *rowraftv1.MetaCommand {
	q := &rowraftv1.EnterRequest{
		Job: "ctr", Worker: worker, Instance: id16(instance), Workers: 2, LeaseNs: uint64(10 * time.Second),
		Settings: []*rowraftv1.JobSetting{{Name: "batch", Value: "512"}, {Name: "mode", Value: "async"}},
		Data:     &rowraftv1.JobData{},
	}
	if change != nil {
		change(q)
	}
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Request: q, Run: id16(100 + instance)}}}
}

func cmdLeaveJob(id *rowraftv1.JobIdentity, how rowraftv1.MemberState, parts ...*rowraftv1.PartReached) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_LeaveJob{LeaveJob: &rowraftv1.MetaLeaveJob{Identity: id, State: how, Reason: "because", Parts: parts}}}
}

func cmdDrop(name string, id uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DropTable{DropTable: &rowraftv1.MetaDropTable{Name: name, Id: id}}}
}

func cmdTake(id *rowraftv1.JobIdentity, take uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_TakePart{TakePart: &rowraftv1.MetaTakePart{Identity: id, Take: take}}}
}

func cmdAttend(id *rowraftv1.JobIdentity, checkpoint string, epoch uint64, tables ...uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{
		Identity: id, Checkpoint: checkpoint, TableEpoch: epoch, Tables: tables,
	}}}
}

// leftAt is cmdLeaveJob at a time.
func leftAt(id *rowraftv1.JobIdentity, how rowraftv1.MemberState, at time.Duration) *rowraftv1.MetaCommand {
	c := cmdLeaveJob(id, how)
	c.GetLeaveJob().AtNs = uint64(at)
	return c
}

func begin(id byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{BeginRestore: &rowraftv1.MetaBeginRestore{Id: bytes.Repeat([]byte{id}, 16)}}}
}

func decide(r *rowraftv1.MetaRestore) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Restore{Restore: r}}
}

func restoreOf(id byte, epoch uint64, shards int, tables ...rowraft.Schema) *rowraftv1.MetaRestore {
	r := &rowraftv1.MetaRestore{Id: bytes.Repeat([]byte{id}, 16), TableEpoch: epoch}
	for i := range shards {
		r.Shards = append(r.Shards, &rowraftv1.MetaRestoreShard{Shard: uint32(i), Digest: make([]byte, 16)})
	}
	for _, t := range tables {
		r.Tables = append(r.Tables, rpc.SchemaToProto(&t))
	}
	return r
}

func restoredTable(id rowraft.TableID, name string) rowraft.Schema {
	return rowraft.Schema{
		ID: id, Name: name, Kind: rowraft.Sparse, Dim: 2,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
}

func divided(examples, part, epochs uint64) func(*rowraftv1.EnterRequest) {
	return func(q *rowraftv1.EnterRequest) {
		q.Data = &rowraftv1.JobData{Examples: examples, PartExamples: part, Epochs: epochs}
	}
}

func id16(n byte) []byte { return bytes.Repeat([]byte{n}, 16) }

// invent adds a version to those that this binary understands, until the test ends.
func invent(t *testing.T) rowraft.FormatVersion {
	next, forget := wire.InventVersion()
	t.Cleanup(forget)
	return next
}

// on lists the nodes of replicas.
func on(rs []clustermap.Replica) string {
	out := ""
	for _, r := range rs {
		out += string(r.Node)
	}
	return out
}

// preparedParts is a shard that is prepared for a cut, and waits for it.
type preparedParts struct {
	rowraftv1.UnimplementedReplicasServer
	prepared, ended chan struct{}
}

func (f *preparedParts) WritePart(stream grpc.BidiStreamingServer[rowraftv1.WritePartRequest, rowraftv1.WritePartReply]) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if err := stream.Send(&rowraftv1.WritePartReply{Step: &rowraftv1.WritePartReply_Prepared{Prepared: &rowraftv1.WritePartPrepared{TableEpoch: 1}}}); err != nil {
		return err
	}
	f.prepared <- struct{}{}
	_, err := stream.Recv()
	f.ended <- struct{}{}
	return err
}
