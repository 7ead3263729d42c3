package replica

import (
	"context"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/node/admit"
	"github.com/rowraft/rowraft/node/traffic"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

// tableService is the gRPC service Table: pushes, pulls and sessions, from the replicas of
// this server.
type tableService struct {
	rowraftv1.UnimplementedTableServer
	h *Host
}

// Write checks the caller and the tables of one batch (a push, assign, delete or clocked push) and applies it under its
// number.
func (s *tableService) Write(ctx context.Context, req *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
	segments := req.Payload
	if wire.Op(req.Op) == wire.OpClocked {
		if _, rest, err := wire.ParseClock(segments); err == nil {
			segments = rest
		}
	}
	call := s.h.traffic.Begin(traffic.OfWrite(wire.Op(req.Op)), segments) // before write releases the payload
	reply, err := s.write(ctx, req)
	call.End(err)
	return reply, err
}

func (s *tableService) write(ctx context.Context, req *rowraftv1.WriteRequest) (*rowraftv1.WriteReply, error) {
	if req.Op < rowraftv1.WriteOp_WRITE_OP_PUSH || req.Op > rowraftv1.WriteOp_WRITE_OP_CLOCKED {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument,
			"a write of operation %d: want 1 (push), 2 (assign), 3 (delete) or 4 (clocked push)", req.Op)
	}
	var (
		p        = wire.Part{Op: wire.Op(req.Op), Payload: req.Payload}
		clock    wire.Clock
		segments = req.Payload
		err      error
	)
	if p.Op == wire.OpClocked { // before push, which owns the payload and may return it to the pool
		if clock, segments, err = wire.ParseClock(req.Payload); err != nil {
			return nil, err
		}
	}
	r, err := s.h.replicaFor(req.Shard, req.MapVersion, req.TableEpoch)
	if err != nil {
		return nil, err
	}
	if p.Client, err = clientID(ctx, req.ClientId); err != nil {
		return nil, err
	}
	p.Incarnation, p.Seq, p.Floor = rowraft.Incarnation(req.Incarnation), rowraft.Seq(req.Seq), rowraft.Seq(req.Floor)
	if err := r.mayChange(ctx, segments); err != nil {
		return nil, err
	}
	index, dup, err := r.write(ctx, p)
	if err != nil {
		return nil, err
	}
	reply := &rowraftv1.WriteReply{TableEpoch: uint64(r.machine.Epoch()), AppliedIndex: uint64(index), Duplicate: dup}
	if p.Op == wire.OpClocked {
		reply.SlowestClock, _ = r.machine.Jobs.SlowestClock(clock.Job) // 0: the job has ended since
	}
	return reply, nil
}

// PullMany answers each batch as Pull does.
func (s *tableService) PullMany(
	stream grpc.BidiStreamingServer[rowraftv1.PullManyRequest, rowraftv1.PullManyReply]) error {
	p := rpc.Pulls{Workers: s.h.batches, Stopping: s.h.opts.Stopping, Check: s.h.CheckCluster, Ready: s.pullsAtOnce,
		Pull: func(ctx context.Context, q *rowraftv1.PullRequest) (rpc.Counted, error) {
			return admit.CountReply(ctx, func(ctx context.Context) (*rowraftv1.PullReply, error) { return s.Pull(ctx, q) })
		}}
	return p.Serve(stream)
}

// WriteMany applies each batch as Write does.
func (s *tableService) WriteMany(req *rowraftv1.WriteManyRequest,
	stream grpc.ServerStreamingServer[rowraftv1.WriteReply]) error {
	return rpc.WriteMany(s.h.batches, req, stream, s.Write)
}

// clientID parses a client id, which must be one that the caller's certificate allows.
func clientID(ctx context.Context, b []byte) (id rowraft.ClientID, err error) {
	if len(b) != len(id) {
		return id, rowraft.Errorf(rowraft.CodeInvalidArgument, "client id of %d bytes, want %d", len(b), len(id))
	}
	id = rowraft.ClientID(b)
	return id, rpc.CallerOf(ctx).CheckClient(id)
}

func (s *tableService) OpenSession(ctx context.Context,
	req *rowraftv1.OpenSessionRequest) (*rowraftv1.OpenSessionReply, error) {
	call := s.h.traffic.BeginTable(traffic.OpenSession, 0)
	reply, err := s.openSession(ctx, req)
	call.End(err)
	return reply, err
}

func (s *tableService) openSession(ctx context.Context,
	req *rowraftv1.OpenSessionRequest) (*rowraftv1.OpenSessionReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	client, err := clientID(ctx, req.ClientId)
	if err != nil {
		return nil, err
	}
	if req.Incarnation == 0 {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "incarnation 0: the scheduler issues them from 1")
	}
	if req.Ticket == 0 {
		index := uint64(r.machine.AppliedIndex())
		return &rowraftv1.OpenSessionReply{AppliedIndex: index, TableEpoch: uint64(r.machine.Epoch()), Ticket: max(index, 1)},
			nil
	}
	index, err := r.openSession(ctx, wire.Opening{Client: client, Incarnation: rowraft.Incarnation(req.Incarnation),
		Ticket: rowraft.Index(req.Ticket)})
	if err != nil {
		return nil, err
	}
	return &rowraftv1.OpenSessionReply{AppliedIndex: uint64(index), TableEpoch: uint64(r.machine.Epoch())}, nil
}

func (s *tableService) CloseSession(ctx context.Context,
	req *rowraftv1.CloseSessionRequest) (*rowraftv1.CloseSessionReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	client, err := clientID(ctx, req.ClientId)
	if err != nil {
		return nil, err
	}
	return &rowraftv1.CloseSessionReply{}, r.closeSession(ctx, client, rowraft.Incarnation(req.Incarnation))
}

// replicaService is the gRPC service Replicas: calls of the scheduler, of other servers and of
// operators for the replicas of this server.
type replicaService struct {
	rowraftv1.UnimplementedReplicasServer
	h *Host
}

func (s *replicaService) EnsureTable(ctx context.Context,
	req *rowraftv1.EnsureTableRequest) (*rowraftv1.EnsureTableReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, req.TableEpoch)
	if err != nil {
		return nil, err
	}
	schema := rpc.SchemaFromProto(req.Table)
	index, err := r.ensureTable(ctx, &schema, rowraft.TableEpoch(req.TableEpoch))
	if err != nil {
		return nil, err
	}
	return &rowraftv1.EnsureTableReply{AppliedIndex: uint64(index)}, nil
}

func (s *replicaService) DropShardTable(ctx context.Context,
	req *rowraftv1.DropShardTableRequest) (*rowraftv1.DropShardTableReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	index, err := r.dropTable(ctx, rowraft.TableID(req.Table), rowraft.TableEpoch(req.TableEpoch))
	if err != nil {
		return nil, err
	}
	return &rowraftv1.DropShardTableReply{AppliedIndex: uint64(index)}, nil
}

func (s *replicaService) NodeStatus(context.Context, *rowraftv1.NodeStatusRequest) (*rowraftv1.NodeStatusReply, error) {
	return s.h.opts.NodeStatus(), nil
}

func (s *replicaService) Digest(ctx context.Context, req *rowraftv1.DigestRequest) (*rowraftv1.DigestReply, error) {
	r, err := s.h.replicaFor(req.Shard, anyMapVersion, 0)
	if err != nil {
		return nil, err
	}
	if err := r.awaitApplied(ctx, rowraft.Index(req.MinIndex)); err != nil {
		return nil, err
	}
	d, err := r.machine.Digest()
	if err != nil {
		return nil, err
	}
	return &rowraftv1.DigestReply{AppliedIndex: uint64(d.Index), Digest: d.Sum[:], Rows: d.Rows}, nil
}
