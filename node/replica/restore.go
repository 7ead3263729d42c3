package replica

import (
	"context"
	"os"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// RestoreShard logs one step of a restore in one shard, as its leader.
func (s *replicaService) RestoreShard(ctx context.Context,
	req *rowraftv1.RestoreShardRequest) (*rowraftv1.RestoreShardReply, error) {
	if len(req.GetRestore()) != len(wire.RestoreID{}) {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "restore id of %d bytes, want %d", len(req.GetRestore()),
			len(wire.RestoreID{}))
	}
	id := wire.RestoreID(req.GetRestore())
	r, err := s.h.replicaFor(req.GetShard(), anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	if err := r.mustLead(); err != nil {
		return nil, err
	}
	if req.GetClose() != nil { // restoreEntry must see the newest state to know whether it is closed
		if _, err := r.confirm(ctx); err != nil {
			return nil, err
		}
	}
	entry, err := restoreEntry(r.machine, r.header(), id, req)
	if err != nil {
		return nil, err
	}
	if entry != nil {
		if _, err := r.propose(ctx, entry); err != nil {
			return nil, err
		}
	} else if _, err := r.confirm(ctx); err != nil { // a query must not get the answer of a former leader
		return nil, err
	}
	if req.GetRows() != nil {
		return &rowraftv1.RestoreShardReply{TableEpoch: uint64(r.machine.Epoch()), Staged: true}, nil
	}
	reply := restoreReply(r.machine, id)
	reply.Node, reply.FreeMemory = string(s.h.opts.Node), admit.FreeMemory(os.DirFS("/"))
	return reply, nil
}

// restoreEntry returns the entry of a step; nil if the step is only a query, or is already done.
func restoreEntry(m *shard.Machine, h wire.EntryHeader, id wire.RestoreID,
	req *rowraftv1.RestoreShardRequest) ([]byte, error) {
	switch step := req.GetStep().(type) {
	case *rowraftv1.RestoreShardRequest_Begin:
		b := wire.RestoreBegin{ID: id, Epoch: rowraft.TableEpoch(step.Begin.GetTableEpoch()), Base: step.Begin.GetBaseTick()}
		for _, t := range step.Begin.GetTables() {
			b.Tables = append(b.Tables, rpc.SchemaFromProto(t))
		}
		return checkedRestore(wire.RestoreBeginEntry(h, &b))
	case *rowraftv1.RestoreShardRequest_Rows:
		return checkedRestore(wire.RestoreRowsEntry(h, id, step.Rows.GetSeq(), step.Rows.GetBlocks()))
	case *rowraftv1.RestoreShardRequest_Close:
		c := wire.RestoreClose{ID: id, Epoch: rowraft.TableEpoch(step.Close.GetTableEpoch()), Chunks: step.Close.GetChunks(),
			Rows: step.Close.GetRows()}
		if len(step.Close.GetDigest()) != len(c.Digest) {
			return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "digest of %d bytes, want %d", len(step.Close.GetDigest()),
				len(c.Digest))
		}
		c.Digest = [16]byte(step.Close.GetDigest())
		if staged, ok := m.StageID(); m.Epoch() == c.Epoch && !(ok && staged == id) {
			return nil, nil
		}
		return checkedRestore(wire.RestoreCloseEntry(h, &c))
	case *rowraftv1.RestoreShardRequest_Drop:
		return wire.RestoreDropEntry(h, id), nil
	case *rowraftv1.RestoreShardRequest_Look:
		return nil, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "a step of a restore that this server does not know")
}

// checkedRestore refuses an entry that apply could not process.
func checkedRestore(entry []byte) ([]byte, error) {
	h, body, err := wire.ParseEntryHeader(entry)
	if err != nil {
		return nil, err
	}
	switch h.Kind {
	case wire.EntryRestoreBegin:
		_, err = wire.ParseRestoreBegin(body)
	case wire.EntryRestoreRows:
		var blocks []byte
		if _, _, blocks, err = wire.ParseRestoreRows(body); err == nil {
			err = checkBlocks(blocks)
		}
	}
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "%w", err)
	}
	return entry, nil
}

func checkBlocks(blocks []byte) (err error) {
	var b wire.RestoreBlock
	for len(blocks) > 0 && err == nil {
		blocks, err = wire.ParseRestoreBlock(blocks, &b)
	}
	return err
}

func restoreReply(m *shard.Machine, id wire.RestoreID) *rowraftv1.RestoreShardReply {
	reply := &rowraftv1.RestoreShardReply{TableEpoch: uint64(m.Epoch())}
	if d, err := m.Digest(); err == nil {
		reply.LiveRows = d.Rows
		reply.Digest = d.Sum[:]
	}
	for _, t := range m.Stats() {
		reply.Tables = append(reply.Tables, &rowraftv1.ShardTable{Id: uint64(t.ID), Rows: t.Rows})
	}
	switch s, ok := m.Stage(); {
	case ok && s.ID != id:
		reply.Other = s.ID[:]
	case ok:
		reply.Staged, reply.NextSeq, reply.Rows, reply.Digest = true, s.Next, s.Rows, s.Digest[:]
	}
	return reply
}
