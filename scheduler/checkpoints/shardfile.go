package checkpoints

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// findPatience bounds the search for the leader of a shard.
const findPatience = 15 * time.Second

// shardFileWriter is the stream to the leader of one shard that writes the shard's file of a checkpoint. One goroutine
// uses it at a time, except close, which any goroutine may call.
type shardFileWriter struct {
	op      *creation
	cluster *clustermap.Map
	shard   clustermap.Shard
	slots   []rowraft.Slot

	mu     sync.Mutex
	cancel context.CancelFunc // of the stream
	closed bool

	stream  grpc.BidiStreamingClient[rowraftv1.WriteShardFileRequest, rowraftv1.WriteShardFileReply]
	epoch   rowraft.TableEpoch
	index   rowraft.Index
	held    time.Duration
	total   uint64
	written atomic.Uint64
	done    *rowraftv1.WriteShardFileDone
}

// close ends the stream: the shard releases held pushes and deletes what it wrote.
func (p *shardFileWriter) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.cancel != nil {
		p.cancel()
	}
}

// prepare finds the shard's leader and opens the stream.
func (p *shardFileWriter) prepare(ctx context.Context, mark uuid.UUID) error {
	return p.op.c.lead.OnLeader(ctx, p.shard, findPatience, func(conn *grpc.ClientConn) error {
		ctx, cancel := context.WithCancel(ctx)
		p.mu.Lock()
		if p.cancel != nil {
			p.cancel() // ends the last attempt
		}
		p.cancel = cancel
		// close ran between the attempts. Without this the new stream would stay open.
		if p.closed {
			cancel()
		}
		p.mu.Unlock()
		var err error
		if p.stream, err = rowraftv1.NewReplicasClient(conn).WriteShardFile(ctx); err != nil {
			return rpc.FromStatus(err)
		}
		reply, err := p.step(
			&rowraftv1.WriteShardFileRequest{
				Step: &rowraftv1.WriteShardFileRequest_Prepare{Prepare: &rowraftv1.WriteShardFilePrepare{
					Shard: uint32(p.shard.ID), Mark: mark[:], Destination: p.op.depot.String(), Name: p.op.name,
					Base: p.op.base.getName(), BaseId: p.op.base.getID(),
				}},
			},
		)
		if err != nil {
			return err
		}
		p.epoch = rowraft.TableEpoch(reply.GetPrepared().GetTableEpoch())
		return nil
	})
}

// step sends one request and returns the reply.
func (p *shardFileWriter) step(req *rowraftv1.WriteShardFileRequest) (*rowraftv1.WriteShardFileReply, error) {
	if err := p.stream.Send(req); err != nil && !errors.Is(err, io.EOF) { // EOF: the reply has the reason
		return nil, rpc.FromStatus(err)
	}
	return p.recv()
}

func (p *shardFileWriter) recv() (*rowraftv1.WriteShardFileReply, error) {
	reply, err := p.stream.Recv()
	if errors.Is(err, io.EOF) {
		return nil, rowraft.Errorf(rowraft.CodeInternal, "the server ended the call before it was done")
	}
	return reply, rpc.FromStatus(err)
}

func (p *shardFileWriter) hold() error {
	_, err := p.step(
		&rowraftv1.WriteShardFileRequest{
			Step: &rowraftv1.WriteShardFileRequest_Hold{Hold: &rowraftv1.WriteShardFileHold{LeaseNs: uint64(
				holdLease)}},
		},
	)
	return err
}

func (p *shardFileWriter) mark() error {
	reply, err := p.step(
		&rowraftv1.WriteShardFileRequest{Step: &rowraftv1.WriteShardFileRequest_Mark{Mark: &rowraftv1.WriteShardFileMark{}}})
	if err != nil {
		return err
	}
	m := reply.GetMarked()
	p.index, p.held, p.total = rowraft.Index(m.GetAppliedIndex()), time.Duration(m.GetHeldNs()), m.GetBytesTotal()
	return nil
}

// collect receives until the file is written.
func (p *shardFileWriter) collect() error {
	for {
		reply, err := p.recv()
		if err != nil {
			return err
		}
		switch step := reply.GetStep().(type) {
		case *rowraftv1.WriteShardFileReply_Progress:
			p.written.Store(step.Progress.GetBytes())
		case *rowraftv1.WriteShardFileReply_Done:
			p.done = step.Done
			p.written.Store(step.Done.GetStream().GetBytes())
			return nil
		}
	}
}

// file describes the shard for the manifest.
func (p *shardFileWriter) shardFile() (out checkpoint.ShardFile, err error) {
	bad := func() (checkpoint.ShardFile, error) {
		return out, rowraft.Errorf(rowraft.CodeInternal, "shard %d: its server reported an impossible file", p.shard.ID)
	}
	if len(p.done.GetDigest()) != len(out.Digest) {
		return bad()
	}
	out = checkpoint.ShardFile{Shard: p.shard.ID, Applied: p.index, Slots: p.slots, Rows: p.done.GetRows(),
		Digest: checkpoint.Digest(p.done.GetDigest()), Written: p.done.GetWritten()}
	for _, f := range []struct {
		from *rowraftv1.CheckpointFile
		to   *checkpoint.File
	}{{p.done.GetStream(), &out.Stream}, {p.done.GetSums(), &out.Sums}} {
		if len(f.from.GetSha256()) != len(f.to.SHA256) {
			return bad()
		}
		*f.to = checkpoint.File{Name: f.from.GetName(), Bytes: int64(f.from.GetBytes()), SHA256: [32]byte(f.from.GetSha256())}
	}
	return out, nil
}
