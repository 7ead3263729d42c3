package checkpoints

import (
	"bytes"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

func sgd(name string, dim int) rowraft.Schema {
	return rowraft.Schema{
		Name: name, Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
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
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EnterJob{EnterJob: &rowraftv1.MetaEnterJob{Request: q,
		Run: id16(100 + instance)}}}
}

func cmdSetPolicy(p *rowraftv1.CheckpointPolicy, at uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_SetPolicy{SetPolicy: &rowraftv1.MetaSetPolicy{Policy: p,
		AtNs: at}}}
}

func cmdBeginRun(name, made string, at uint64) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginPolicyRun{
		BeginPolicyRun: &rowraftv1.MetaBeginPolicyRun{Name: name, Checkpoint: made, AtNs: at}}}
}

func cmdEndRun(name, made, failure string, delta bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndPolicyRun{
		EndPolicyRun: &rowraftv1.MetaEndPolicyRun{Name: name, Checkpoint: made, Error: failure, Delta: delta}}}
}

func nightly(to string, keep uint32) *rowraftv1.CheckpointPolicy {
	return &rowraftv1.CheckpointPolicy{Name: "nightly", Destination: to, EveryNs: uint64(10 * time.Minute), Keep: keep}
}

func madeNames(p *meta.Policy) (names []string) {
	for _, m := range p.GetRecord().GetMade() {
		names = append(names, m.GetName())
	}
	return names
}

func begin(id byte) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_BeginRestore{
		BeginRestore: &rowraftv1.MetaBeginRestore{Id: bytes.Repeat([]byte{id}, 16)}}}
}

func decide(r *rowraftv1.MetaRestore) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Restore{Restore: r}}
}

func end(id byte, closed bool) *rowraftv1.MetaCommand {
	return &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_EndRestore{
		EndRestore: &rowraftv1.MetaEndRestore{Id: bytes.Repeat([]byte{id}, 16), Closed: closed}}}
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

func id16(n byte) []byte { return bytes.Repeat([]byte{n}, 16) }
