package replica

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

const (
	// maxHold is the longest time for which one checkpoint may hold pushes.
	maxHold = 5 * time.Second
	// shardFileReportEvery is the interval of progress reports while a file is written.
	shardFileReportEvery = 200 * time.Millisecond
	// snapshotPatience is how long a checkpoint waits for the file of an earlier one.
	snapshotPatience = time.Minute
)

type shardFileStream = grpc.BidiStreamingServer[rowraftv1.WriteShardFileRequest, rowraftv1.WriteShardFileReply]

// WriteShardFile writes a shard's file of a checkpoint. When the call ends, for any reason, no push is held,
// the snapshot is freed, and no incomplete file is left.
func (s *replicaService) WriteShardFile(stream shardFileStream) error {
	p, err := s.prepare(stream)
	if err != nil {
		return err
	}
	defer p.expected.Cancel()
	snap, err := p.cut(stream)
	if err != nil {
		return fmt.Errorf("shard %d: %w", p.r.shard, err)
	}
	defer snap.Release()
	if err := p.r.rounds.checkMark(stream.Context(), snap.Index()); err != nil {
		return err
	}
	if err := p.write(stream, snap); err != nil {
		return fmt.Errorf("shard %d: %w", p.r.shard, err)
	}
	return nil
}

// shardFile is one shard's share of a checkpoint.
type shardFile struct {
	r        *replica
	id       wire.MarkID
	depot    depot.Depot
	name     string              // of the checkpoint
	epoch    rowraft.TableEpoch  // epoch that the scheduler was told
	base     checkpoint.Counters // counters of the checkpoint that this one is a delta to; nil: the file has all rows
	expected *shard.ExpectedMark
}

func (s *replicaService) prepare(stream shardFileStream) (*shardFile, error) {
	req, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	step := req.GetPrepare()
	if step == nil || len(step.GetMark()) != wire.MarkSize {
		return nil, rowraft.Errorf(
			rowraft.CodeInvalidArgument,
			"the file of a shard begins with prepare and a mark of %d bytes",
			wire.MarkSize,
		)
	}
	if err := depot.CheckName(step.GetName()); err != nil {
		return nil, err
	}
	p := &shardFile{id: wire.MarkID(step.GetMark()), name: step.GetName()}
	if p.depot, err = depot.Open(step.GetDestination()); err != nil {
		return nil, err
	}
	if p.r, err = s.h.replicaFor(step.GetShard(), anyMapVersion, 0); err != nil {
		return nil, err
	}
	if err := p.r.mustServe(); err != nil {
		return nil, err
	}
	if err := p.readBase(stream.Context(), step); err != nil {
		return nil, err
	}
	if err := p.expect(stream.Context()); err != nil {
		return nil, err
	}
	p.epoch = p.r.machine.Epoch()
	err = stream.Send(&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Prepared{
		Prepared: &rowraftv1.WriteShardFilePrepared{TableEpoch: uint64(p.epoch)},
	}})
	if err != nil {
		p.expected.Cancel()
	}
	return p, err
}

// readBase reads the counters of the shard's slots in the checkpoint that this one is a delta to.
func (p *shardFile) readBase(ctx context.Context, step *rowraftv1.WriteShardFilePrepare) error {
	if step.GetBase() == "" {
		return nil
	}
	if err := depot.CheckName(step.GetBase()); err != nil {
		return err
	}
	files := depot.At(p.depot, step.GetBase())
	m, err := checkpoint.ReadManifest(ctx, files)
	if err == nil && m.ID != step.GetBaseId() {
		err = rowraft.Errorf(rowraft.CodeNotFound, "its id is %s, and not %s", m.ID, step.GetBaseId())
	}
	if err == nil {
		p.base, err = checkpoint.ReadCounters(ctx, files, m, p.r.machine.SlotCount(), p.r.machine.Slots())
	}
	if err != nil {
		return fmt.Errorf("base %s: %w", step.GetBase(), err)
	}
	return nil
}

// expect waits until no other file is being written.
func (p *shardFile) expect(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if p.expected, err = p.r.machine.ExpectMark(p.id); rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// cut holds the pushes, logs the mark and returns the snapshot at its index.
func (p *shardFile) cut(stream shardFileStream) (*shard.Snapshot, error) {
	ctx := stream.Context()
	req, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if req.GetHold() == nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "hold comes after prepare")
	}
	_, term, _ := p.r.group.Leader()
	h, err := p.r.pushes.begin(ctx, min(time.Duration(min(req.GetHold().GetLeaseNs(), uint64(maxHold))), maxHold))
	if err != nil {
		return nil, err
	}
	defer h.release()
	if err := stream.Send(
		&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Held{
			Held: &rowraftv1.WriteShardFileHeld{}}}); err != nil {
		return nil, err
	}
	if req, err = stream.Recv(); err != nil {
		return nil, err
	}
	if req.GetMark() == nil {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "mark comes after hold")
	}
	index, err := p.mark(ctx, h, term)
	if err != nil {
		return nil, err
	}
	snap, err := p.expected.Snapshot()
	if err != nil {
		return nil, err
	}
	if snap.Epoch() != p.epoch {
		snap.Release()
		return nil, rowraft.Errorf(rowraft.CodeStarting,
			"a restore to table epoch %d was finished during the cut, which began in %d", snap.Epoch(), p.epoch)
	}
	held := h.release()
	p.r.log.Info("checkpoint: the shard is cut", "checkpoint", p.name, "index", uint64(index), "held", held.String())
	err = stream.Send(
		&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Marked{Marked: &rowraftv1.WriteShardFileMarked{
			AppliedIndex: uint64(index), HeldNs: uint64(held), BytesTotal: uint64(snap.Bytes()),
		}}},
	)
	if err != nil {
		snap.Release()
		return nil, err
	}
	return snap, nil
}

// mark logs the mark after every admitted push and before any other push.
func (p *shardFile) mark(ctx context.Context, h *hold, term rowraft.Term) (rowraft.Index, error) {
	if err := p.r.mustLead(); err != nil {
		return 0, err
	}
	if _, now, _ := p.r.group.Leader(); now != term {
		return 0, rowraft.Errorf(rowraft.CodeLeadershipLost, "the shard elected a leader during the cut")
	}
	var logged *raftstore.Future
	if !h.through(func() { logged = p.r.group.Propose(wire.MarkEntry(p.r.header(), p.id)) }) {
		return 0, rowraft.Errorf(rowraft.CodeDeadline, "the cut took so long that pushes went on without it")
	}
	return p.r.logged(ctx, logged)
}

// counter counts and hashes the bytes that pass through it.
type counter struct {
	w   io.Writer
	n   atomic.Int64
	sum hash.Hash
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n.Add(int64(n))
	c.sum.Write(b[:n])
	return n, err
}

// write stores the snapshot and reports its progress.
func (p *shardFile) write(stream shardFileStream, snap *shard.Snapshot) error {
	ctx := stream.Context()
	// The file name is unique: another checkpoint of this name, or another try of the cut, must write other
	// files, because this write may still run.
	file := fmt.Sprintf("shard-%04d-%x", p.r.shard, p.id[:8])
	c := &counter{sum: sha256.New()}
	done := make(chan error, 1)
	go func() {
		done <- p.depot.Write(ctx, p.name+"/"+file+".rows", func(w io.Writer) error {
			c.w = w
			if p.base != nil {
				_, err := snap.WriteDelta(c, p.base)
				return err
			}
			_, err := snap.WriteRows(c)
			return err
		})
	}()
	if err := report(c, done, func(n int64) error {
		return stream.Send(
			&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Progress{
				Progress: &rowraftv1.WriteShardFileProgress{Bytes: uint64(n)}}})
	}); err != nil {
		return err
	}
	slots, err1 := snap.Sums()
	digest, err2 := snap.Digest()
	tables, err3 := snap.Tables()
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	snap.Release() // the writes below may take long, too
	sums := checkpoint.EncodeSums(p.r.shard, snap.Index(), slots)
	if err := p.depot.Put(ctx, p.name+"/"+file+".sums", sums); err != nil {
		return err
	}
	sumsHash := sha256.Sum256(sums)
	out := &rowraftv1.WriteShardFileDone{
		Digest: digest[:],
		Stream: &rowraftv1.CheckpointFile{Name: file + ".rows", Bytes: uint64(c.n.Load()), Sha256: c.sum.Sum(nil)},
		Sums:   &rowraftv1.CheckpointFile{Name: file + ".sums", Bytes: uint64(len(sums)), Sha256: sumsHash[:]},
	}
	for _, t := range tables {
		out.Rows, out.Written = out.Rows+t.Rows, out.Written+t.Written
		out.Tables = append(out.Tables, &rowraftv1.ShardFileTable{Table: rpc.SchemaToProto(&t.Schema), Rows: t.Rows,
			Digest: t.Digest[:], Written: t.Written})
	}
	return stream.Send(&rowraftv1.WriteShardFileReply{Step: &rowraftv1.WriteShardFileReply_Done{Done: out}})
}

// report sends the progress of the writer until the writer ends, and returns its error. If a send fails, it
// still waits for the writer.
func report(c *counter, done <-chan error, send func(int64) error) error {
	tick := time.NewTicker(shardFileReportEvery)
	defer tick.Stop()
	var broken error
	for {
		select {
		case err := <-done:
			return errors.Join(err, broken)
		case <-tick.C:
			if broken == nil {
				broken = send(c.n.Load())
			}
		}
	}
}
