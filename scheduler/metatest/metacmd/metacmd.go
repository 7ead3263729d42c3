// Package metacmd builds commands of the scheduler's group for tests. It does not use package meta, so that the tests
// of that package can use it.
package metacmd

import (
	"bytes"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// ID returns an id of 16 bytes, all of them n.
func ID(n byte) []byte { return bytes.Repeat([]byte{n}, 16) }

// SGD returns the schema of a table with the optimizer SGD.
func SGD(name string, dim int) rowraft.Schema {
	return rowraft.Schema{
		Name: name, Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
}

// Table returns the schema of a table of dim 2 that has an id.
func Table(id rowraft.TableID, name string) rowraft.Schema {
	s := SGD(name, 2)
	s.ID = id
	return s
}

// IssueIncarnation issues an incarnation.
func IssueIncarnation() *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_IssueIncarnation{
		IssueIncarnation: &rowraftv1.MetaIssueIncarnation{}}}
}

// DropTable drops a table.
func DropTable(name string, id uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_DropTable{
		DropTable: &rowraftv1.MetaDropTable{Name: name, Id: id}}}
}

// BeginRestore begins the restore id.
func BeginRestore(id byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{
		BeginRestore: &rowraftv1.MetaBeginRestore{Id: ID(id)}}}
}

// DecideRestore decides a restore.
func DecideRestore(r *rowraftv1.MetaRestore) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Restore{Restore: r}}
}

// EndRestore ends the restore id.
func EndRestore(id byte, closed bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{
		EndRestore: &rowraftv1.MetaEndRestore{Id: ID(id), Closed: closed}}}
}

// Restore returns the restore id of tables to all shards.
func Restore(id byte, epoch uint64, shards int, tables ...rowraft.Schema) *rowraftv1.MetaRestore {
	r := &rowraftv1.MetaRestore{Id: ID(id), TableEpoch: epoch}
	for i := range shards {
		r.Shards = append(r.Shards, &rowraftv1.MetaRestoreShard{Shard: uint32(i), Digest: make([]byte, 16)})
	}
	for _, t := range tables {
		r.Tables = append(r.Tables, rpc.SchemaToProto(&t))
	}
	return r
}

// EnterJob enters a worker, whose process is instance, into job "ctr" of two workers. change may be nil.
func EnterJob(worker string, instance byte, change func(*rowraftv1.EnterRequest)) *rowraftv1.MetaCommand {
	q := &rowraftv1.EnterRequest{
		Job: "ctr", Worker: worker, Instance: ID(instance), Workers: 2, LeaseNs: uint64(10 * time.Second),
		Settings: []*rowraftv1.JobSetting{{Name: "batch", Value: "512"}, {Name: "mode", Value: "async"}},
		Data:     &rowraftv1.JobData{},
	}
	if change != nil {
		change(q)
	}
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EnterJob{
		EnterJob: &rowraftv1.MetaEnterJob{Request: q, Run: ID(100 + instance)}}}
}

// WithData is a change of EnterJob: the scheduler divides the job's examples into splits.
func WithData(examples, part, epochs uint64) func(*rowraftv1.EnterRequest) {
	return func(q *rowraftv1.EnterRequest) {
		q.Data = &rowraftv1.JobData{Examples: examples, SplitExamples: part, Epochs: epochs}
	}
}

// LeaveJob ends a membership. The worker says so itself, unless it is lost.
func LeaveJob(id *rowraftv1.JobIdentity, state rowraftv1.MemberState,
	splits ...*rowraftv1.SplitReached) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_LeaveJob{
		LeaveJob: &rowraftv1.MetaLeaveJob{Identity: id, State: state, Reason: "because", Splits: splits,
			Exact: state != rowraftv1.MemberState_MEMBER_STATE_LOST}}}
}

// LeaveJobAt is LeaveJob at a time.
func LeaveJobAt(id *rowraftv1.JobIdentity, state rowraftv1.MemberState, at time.Duration) *rowraftv1.MetaCommand {
	c := LeaveJob(id, state)
	c.AtNs = uint64(at)
	return c
}

// TakeSplit takes a part of the job's data.
func TakeSplit(id *rowraftv1.JobIdentity, take uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_TakeSplit{
		TakeSplit: &rowraftv1.MetaTakeSplit{Identity: id, Take: take}}}
}

// Attend announces a trainer that takes part in checkpoints.
func Attend(id *rowraftv1.JobIdentity, checkpoint string, epoch uint64, tables ...uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Attend{Attend: &rowraftv1.MetaAttend{
		Identity: id, Checkpoint: checkpoint, TableEpoch: epoch, Tables: tables,
	}}}
}

// Nightly returns a policy of a checkpoint every ten minutes.
func Nightly(destination string, keep uint32) *rowraftv1.CheckpointPolicy {
	return &rowraftv1.CheckpointPolicy{Name: "nightly", Destination: destination, EveryNs: uint64(10 * time.Minute),
		Keep: keep}
}

// SetPolicy sets a checkpoint policy.
func SetPolicy(p *rowraftv1.CheckpointPolicy, at uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{AtNs: at, Command: &rowraftv1.MetaCommand_SetPolicy{
		SetPolicy: &rowraftv1.MetaSetPolicy{Policy: p}}}
}

// BeginPolicyRun begins a run of a checkpoint policy.
func BeginPolicyRun(name, checkpoint string, at uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{AtNs: at, Command: &rowraftv1.MetaCommand_BeginPolicyRun{
		BeginPolicyRun: &rowraftv1.MetaBeginPolicyRun{Name: name, Checkpoint: checkpoint}}}
}

// EndPolicyRun ends a run of a checkpoint policy.
func EndPolicyRun(name, checkpoint, failure string, delta bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndPolicyRun{
		EndPolicyRun: &rowraftv1.MetaEndPolicyRun{Name: name, Checkpoint: checkpoint, Error: failure, Delta: delta}}}
}
