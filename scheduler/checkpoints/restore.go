package checkpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/wire"
)

const (
	// restorePatience bounds the wait for a shard without a leader.
	restorePatience = time.Minute
	restoreReaders  = 2                        // shard files read concurrently
	restoreChunk    = rowraft.TargetEntryBytes // bytes of rows in one entry
	dropPatience    = 10 * time.Second
	maxShardCalls   = 16 // shards called concurrently
	// indexMemory is the memory that the index uses for a row: entries of 8 bytes, of which two fifths are in use just
	// after the index has grown.
	indexMemory = 20
	// candidateMemory is the memory of a key that waits for a row (a candidate): a table of candidates doubles when it
	// is four fifths full.
	candidateMemory = checkpoint.CandidateBytes * 5 / 2
)

// RestoreCheckpoint stages a checkpoint in all shards, logs the decision in the scheduler's group, and then lets the
// shards switch to the staged tables. Before the decision a failure drops the stages; after it every leader finishes
// the restore.
func (c *Service) RestoreCheckpoint(req *rowraftv1.RestoreCheckpointRequest,
	stream grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]) error {
	ctx := stream.Context()
	term, err := c.awaitLead(ctx)
	if err != nil {
		return err
	}
	op := &restoration{c: c, term: term, req: req, stream: stream, id: uuid.New()}
	// Read the manifests before ops.enter: a destination that does not answer must delay no other operation.
	if err := op.open(ctx); err != nil {
		return fmt.Errorf("restore %s: %w", req.GetName(), err)
	}
	// Before ops.enter, which the end of that restore may hold, and after it, because an earlier term's call of this
	// member may have held it.
	if earlier, err := op.decidedEarlier(); earlier || err != nil {
		return op.awaitEarlier(ctx, err)
	}
	running := &task{what: "a restore from " + req.GetDestination()}
	if err := c.ops.enter(ctx, busyPatience, running, restores); err != nil {
		return err
	}
	defer c.ops.leave(running)
	if earlier, err := op.decidedEarlier(); earlier || err != nil {
		c.ops.leave(running)
		return op.awaitEarlier(ctx, err)
	}
	if err := op.plan(ctx); err != nil {
		return fmt.Errorf("restore %s: %w", req.GetName(), err)
	}
	if req.GetPlan() {
		return op.sendPlan(ctx)
	}
	if err := op.run(ctx); err != nil {
		c.logger.Warn("a restore failed", "checkpoint", req.GetName(), "destination", op.depot.String(), "err", err)
		return fmt.Errorf("restore %s: %w", req.GetName(), err)
	}
	return nil
}

// restoration is the state of one RestoreCheckpoint.
type restoration struct {
	c      *Service
	term   rowraft.Term
	req    *rowraftv1.RestoreCheckpointRequest
	stream grpc.ServerStreamingServer[rowraftv1.RestoreCheckpointReply]
	id     uuid.UUID

	depot    depot.Depot
	chain    checkpoint.Chain
	manifest *checkpoint.Manifest // the manifest of the newest checkpoint of the chain
	cluster  *clustermap.Map
	tables   []rowraft.Schema                    // tables to restore, ascending by id in this cluster
	targets  map[rowraft.TableID]rowraft.TableID // ids in the checkpoint → ids in this cluster, of the tables to restore

	rowMemory map[rowraft.TableID]uint64 // bytes of memory for one row, by table id in the checkpoint
	feeds     []*feed                    // by shard
	// log time of the checkpoint's shards, by shard file; nil if no table tracks updates
	ticks  []uint32
	read   atomic.Int64 // bytes read so far
	counts struct {
		sync.Mutex
		staged map[rowraft.TableID]uint64
	}
}

// feed sends the rows of one shard to the shard's leader, in numbered chunks. If a chunk is sent again, to another
// leader, the shard recognizes its number.
type feed struct {
	op    *restoration
	shard clustermap.Shard

	mu     sync.Mutex // several shard files are read concurrently
	chunk  []byte
	seq    uint64 // of the last chunk sent
	failed error

	// wantRows and wantDigest come from the sums of the checkpoint. For a slot of the checkpoint whose slots in this
	// cluster are in several shards, they come from the rows that were sent, which were compared with the sums. Then mu
	// guards them.
	wantRows   uint64
	wantDigest checkpoint.Digest
	wantBytes  uint64 // memory of these rows and of the keys that wait for a row
}

// open reads the manifests of the checkpoint.
func (op *restoration) open(ctx context.Context) (err error) {
	if err := depot.CheckName(op.req.GetName()); err != nil {
		return err
	}
	if op.depot, err = depot.Open(op.req.GetDestination()); err != nil {
		return err
	}
	if op.chain, err = depot.Chain(ctx, op.depot, op.req.GetName()); err != nil {
		return err
	}
	op.manifest = op.chain.Manifest()
	return nil
}

// useMap sets the shards of the restore.
func (op *restoration) useMap() error {
	if op.cluster = op.c.view.Map(); op.cluster == nil || len(op.cluster.Shards) == 0 {
		return rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	for _, sh := range op.cluster.Shards {
		op.feeds = append(op.feeds, &feed{op: op, shard: sh})
	}
	return nil
}

// plan reads the sums, and computes what each shard must hold after the restore.
func (op *restoration) plan(ctx context.Context) error {
	if err := op.useMap(); err != nil {
		return err
	}
	if op.c.machine.PendingRestore() != nil {
		return rowraft.Errorf(rowraft.CodeOverloaded, "the restore before is being finished")
	}
	if err := op.choose(op.c.machine.LastRestore()); err != nil {
		return err
	}
	for i := range op.manifest.Shards {
		sums, err := checkpoint.ReadSums(ctx, op.chain[0].Files, &op.manifest.Shards[i], nil)
		if err != nil {
			return err
		}
		for _, s := range sums {
			if !op.wants(s.Table) {
				continue
			}
			shards := op.shardsOf(s.Slot)
			for _, id := range shards {
				op.feeds[id].wantBytes += uint64(s.Rows) * op.rowMemory[s.Table] / uint64(len(shards))
			}
			if len(shards) == 1 {
				f := op.feeds[shards[0]]
				f.wantRows += uint64(s.Rows)
				f.wantDigest = f.wantDigest.Add(s.Digest)
			}
		}
	}
	if err := op.countCandidates(); err != nil {
		return err
	}
	op.counts.staged = make(map[rowraft.TableID]uint64)
	if err := op.findTicks(ctx); err != nil {
		return err
	}
	return nil
}

// countCandidates adds the memory of keys that wait for a row. The manifest has only their total, so countCandidates
// counts those of all tables and assumes the same number in each slot.
func (op *restoration) countCandidates() error {
	if !slices.ContainsFunc(op.tables, func(s rowraft.Schema) bool { return s.Admission.Kind != rowraft.AdmitAll }) {
		return nil
	}
	n, err := op.chain.Candidates()
	if err != nil {
		return err
	}
	for _, f := range op.feeds {
		f.wantBytes += n * candidateMemory * uint64(len(op.cluster.SlotsOf(f.shard.ID))) / uint64(op.cluster.SlotCount())
	}
	return nil
}

// shardsOf returns the shards of this cluster that get the rows of a slot of the checkpoint.
func (op *restoration) shardsOf(slot rowraft.Slot) (shards []rowraft.ShardID) {
	from, to := op.manifest.Slots, op.cluster.SlotCount()
	first, n := slot*rowraft.Slot(to/min(from, to)), to/min(from, to)
	if to < from {
		first = slot / rowraft.Slot(from/to)
	}
	for s := first; s < first+rowraft.Slot(n); s++ {
		if id := op.cluster.ShardOf(s); !slices.Contains(shards, id) {
			shards = append(shards, id)
		}
	}
	return shards
}

func (op *restoration) run(ctx context.Context) (err error) {
	if err := op.checkEmpty(ctx); err != nil {
		return err
	}
	if err := op.checkMemory(ctx); err != nil {
		return err
	}
	decided := false
	if !op.req.GetDryRun() {
		defer func() {
			if err != nil && !decided {
				err = errors.Join(err, op.c.dropStages(op.cluster, op.id[:]))
			}
			if err != nil { // after the drop: it then knows the leader
				err = op.blame(err)
			}
		}()
		// Logged before the first shard stages anything: Reconcile drops the stages of every restore that it finds neither
		// begun nor decided.
		begin := &rowraftv1.MetaCommand_BeginRestore{BeginRestore: &rowraftv1.MetaBeginRestore{Id: op.id[:]}}
		if err := op.c.lead.Propose(ctx, &rowraftv1.MetaCommand{Command: begin}); err != nil {
			return err
		}
		if err := op.each(func(f *feed) error { return f.begin(ctx) }); err != nil {
			return err
		}
	}
	if err := op.stage(ctx); err != nil {
		return err
	}
	if op.req.GetDryRun() {
		return op.done(op.cluster.Epoch, nil)
	}
	decision, err := op.check(ctx)
	if err != nil {
		return err
	}
	if err := op.stream.Send(&rowraftv1.RestoreCheckpointReply{Phase: "close"}); err != nil {
		return err
	}
	// As late as possible: what a client creates after this is lost by the decision.
	if err := errors.Join(op.stillLeads(), op.stillEmpty(ctx)); err != nil {
		return err
	}
	if err := op.c.lead.Propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_Restore{Restore: decision}}); err != nil {
		return err
	}
	decided = true
	op.c.logger.Info("a restore is decided", "checkpoint", op.req.GetName(), "destination", op.depot.String(), "epoch",
		decision.GetTableEpoch())
	// From here on reconcile would finish the restore too.
	shards, err := op.c.finishRestore(ctx, decision)
	if err != nil {
		return fmt.Errorf("the restore is decided and the scheduler continues with it: %w", err)
	}
	return op.done(rowraft.TableEpoch(decision.GetTableEpoch()), shards)
}

// stillLeads returns an error if the term has ended in which the restore was requested. The check only saves work: the
// log excludes a late decision (state.decideRestore).
func (op *restoration) stillLeads() error {
	if term, err := op.c.lead.Leading(); err != nil || term != op.term {
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "the scheduler's leader changed during the restore")
	}
	return nil
}

// blame returns err, or a change of the leader as its cause. A new leader drops the stages of a restore that it does
// not know, and finishes one that is decided. The shards then refuse later chunks, or report too few rows, and the
// group refuses commands.
func (op *restoration) blame(err error) error {
	if lost := op.stillLeads(); lost != nil && rowraft.CodeOf(err) != rowraft.CodeLeadershipLost {
		return fmt.Errorf("%w: %v", lost, err)
	}
	return err
}

// each calls f for all shards, for maxShardCalls concurrently.
func (op *restoration) each(f func(*feed) error) error {
	var g errgroup.Group
	g.SetLimit(maxShardCalls)
	for _, feed := range op.feeds {
		g.Go(func() error { return f(feed) })
	}
	return g.Wait()
}

// step sends one step to the current leader of the shard until a leader accepts it.
func (f *feed) step(ctx context.Context,
	req *rowraftv1.RestoreShardRequest) (reply *rowraftv1.RestoreShardReply, err error) {
	req.Restore = f.op.id[:]
	return f.op.c.restoreStep(ctx, f.shard, req)
}

func (c *Service) restoreStep(ctx context.Context, sh clustermap.Shard,
	req *rowraftv1.RestoreShardRequest) (reply *rowraftv1.RestoreShardReply, err error) {
	req.Shard = uint32(sh.ID)
	err = c.lead.OnLeader(ctx, sh, restorePatience, func(conn *grpc.ClientConn) error {
		reply, err = restoreCall(ctx, conn, req)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", sh.ID, err)
	}
	return reply, nil
}

func restoreCall(ctx context.Context, conn *grpc.ClientConn,
	req *rowraftv1.RestoreShardRequest) (*rowraftv1.RestoreShardReply, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return rowraftv1.NewReplicasClient(conn).RestoreShard(ctx, req)
}

func (f *feed) begin(ctx context.Context) error {
	begin := &rowraftv1.RestoreShardBegin{TableEpoch: uint64(f.op.epoch())}
	if len(f.op.ticks) > 0 && !f.op.alone() { // tables that are not restored keep their log time, so it must not jump
		begin.BaseTick = slices.Max(f.op.ticks)
	}
	for _, t := range f.op.tables {
		begin.Tables = append(begin.Tables, rpc.SchemaToProto(&t))
	}
	req := &rowraftv1.RestoreShardRequest{Shard: uint32(f.shard.ID), Restore: f.op.id[:],
		Step: &rowraftv1.RestoreShardRequest_Begin{Begin: begin}}
	var lost error
	err := f.op.c.lead.OnLeader(ctx, f.shard, restorePatience, func(conn *grpc.ClientConn) error {
		if lost = f.op.stillLeads(); lost != nil {
			return nil // no more attempts
		}
		_, err := restoreCall(ctx, conn, req)
		if rowraft.CodeOf(err) != rowraft.CodeOverloaded {
			return err
		}
		if dropped := f.op.c.dropOther(ctx, f.op.cluster, conn, req); dropped != nil {
			return fmt.Errorf("%w; %v", err, dropped)
		}
		return err
	})
	if err = errors.Join(lost, err); err != nil {
		return fmt.Errorf("shard %d: %w", f.shard.ID, err)
	}
	return nil
}

// add appends the records of one slot to the chunk, in blocks that fit, and sends each full chunk. divided means that
// add counts them in wantRows and wantDigest.
func (f *feed) add(ctx context.Context, b *checkpoint.Block, tick uint32, divided bool) error {
	// Held across the call that sends a chunk: chunks of one shard have consecutive numbers, so a second reader could not
	// send in between anyway. It waits here, which also bounds the memory.
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	records, size, digest := b.Records, b.RecordBytes, checkpoint.RecordDigest
	if b.Candidates != nil {
		records, size, digest = b.Candidates, checkpoint.CandidateBytes, checkpoint.CandidateDigest
	}
	if divided {
		f.wantRows += uint64(b.Rows)
		for rec := records; len(rec) > 0; rec = rec[size:] {
			f.wantDigest = f.wantDigest.Add(digest(rec[:size]))
		}
	}
	for {
		n := len(records) / size
		if b.Candidates == nil { // candidates of a slot stay in one block: they are few
			n = min(n, max(1, (restoreChunk-len(f.chunk))/size))
		}
		block := wire.RestoreBlock{
			Table: b.Table, Slot: b.Slot.Slot, Counter: b.Counter, Rows: n, RecordBytes: size, Records: records[:n*size],
			Tick: tick, Candidates: b.Candidates != nil,
		}
		f.chunk = wire.AppendRestoreBlock(f.chunk, &block)
		records = records[n*size:]
		if len(f.chunk) >= restoreChunk {
			if err := f.flushLocked(ctx); err != nil {
				return err
			}
		}
		if len(records) == 0 {
			return nil
		}
	}
}

func (f *feed) flush(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	return f.flushLocked(ctx)
}

// flushLocked sends the chunk. REQUIRES: f.mu is held.
func (f *feed) flushLocked(ctx context.Context) error {
	if len(f.chunk) == 0 {
		return nil
	}
	rows := &rowraftv1.RestoreShardRows{Seq: f.seq + 1, Blocks: f.chunk}
	if _, err := f.step(ctx,
		&rowraftv1.RestoreShardRequest{Step: &rowraftv1.RestoreShardRequest_Rows{Rows: rows}}); err != nil {
		// It is unknown whether the shard has the chunk. A later attempt would send its number with more rows, and a shard
		// that has the chunk would ignore them.
		f.failed = err
		return err
	}
	f.seq++
	f.chunk = nil // a new buffer: a cancelled call may still read the old one
	return nil
}

// stage reads every shard file and sends its rows to the shards that own their slots now. It returns after every byte
// of the checkpoint was checked.
func (op *restoration) stage(ctx context.Context) error {
	defer rpc.Report(op.report)()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(restoreReaders)
	for i := range op.manifest.Shards {
		g.Go(func() error {
			_, err := op.chain.ReadShard(ctx, i, op.count, func(b *checkpoint.Block) error {
				return op.route(ctx, i, b)
			})
			return err
		})
	}
	for _, b := range op.manifest.Blobs {
		g.Go(func() error {
			return checkpoint.CheckFile(ctx, op.chain[0].Files, b.File, op.count)
		})
	}
	if err := g.Wait(); err != nil || op.req.GetDryRun() {
		return err
	}
	return op.each(func(f *feed) error { return f.flush(op.stream.Context()) })
}

func (op *restoration) count(n int) { op.read.Add(int64(n)) }

// findTicks reads the log time of the checkpoint's shards if a table to restore tracks updates.
func (op *restoration) findTicks(ctx context.Context) error {
	if !slices.ContainsFunc(op.tables, func(s rowraft.Schema) bool { return s.Tracked() }) {
		return nil
	}
	for i := range op.manifest.Shards {
		now, err := op.chain.LogTime(ctx, i)
		if err != nil {
			return err
		}
		op.ticks = append(op.ticks, rowraft.TickOf(now))
	}
	return nil
}

// tickOf returns the tick of shard file i for rows of a table; 0 means that the shard does not adjust the ages of the
// rows. So a shard file from the first second of its shard gets tick 1.
func (op *restoration) tickOf(i int, id rowraft.TableID) uint32 {
	at := slices.IndexFunc(op.tables, func(s rowraft.Schema) bool { return s.ID == op.targets[id] })
	if op.ticks == nil || !op.tables[at].Tracked() {
		return 0
	}
	return max(1, op.ticks[i])
}

// route sends rows of shard file i to the shards that own their slots in this cluster.
func (op *restoration) route(ctx context.Context, i int, b *checkpoint.Block) error {
	if !op.wants(b.Table) {
		return nil
	}
	op.counts.Lock()
	op.counts.staged[b.Table] += uint64(b.Rows)
	op.counts.Unlock()
	if op.req.GetDryRun() {
		return nil
	}
	tick := op.tickOf(i, b.Table)
	divided := len(op.shardsOf(b.Slot.Slot)) > 1
	at := slices.IndexFunc(op.manifest.Tables, func(t checkpoint.TableSum) bool { return t.Schema.ID == b.Table })
	return checkpoint.Regroup(b, &op.manifest.Tables[at].Schema, op.manifest.Slots, op.cluster.SlotCount(),
		func(b *checkpoint.Block) error {
			here := *b
			here.Table = op.targets[b.Table]
			return op.feeds[op.cluster.ShardOf(b.Slot.Slot)].add(ctx, &here, tick, divided)
		})
}

func (op *restoration) report() error {
	return op.stream.Send(&rowraftv1.RestoreCheckpointReply{Phase: "read", Bytes: uint64(op.read.Load()),
		BytesTotal: uint64(op.chain.Bytes())})
}

// check compares the rows staged in each shard with the sums of the checkpoint. It returns the decision to log.
func (op *restoration) check(ctx context.Context) (*rowraftv1.MetaRestore, error) {
	d := &rowraftv1.MetaRestore{Id: op.id[:], TableEpoch: uint64(op.epoch()),
		Shards: make([]*rowraftv1.MetaRestoreShard, len(op.feeds))}
	for _, t := range op.tables {
		d.Tables = append(d.Tables, rpc.SchemaToProto(&t))
	}
	d.Source = &rowraftv1.MetaRestored{Id: op.manifest.ID, Destination: op.depot.String(), Name: op.req.GetName()}
	err := op.each(func(f *feed) error {
		reply, err := f.step(ctx,
			&rowraftv1.RestoreShardRequest{Step: &rowraftv1.RestoreShardRequest_Look{Look: &rowraftv1.RestoreShardLook{}}})
		if err != nil {
			return err
		}
		if !reply.GetStaged() || reply.GetNextSeq() != f.seq+1 || reply.GetRows() != f.wantRows ||
			!bytes.Equal(reply.GetDigest(), f.wantDigest[:]) {
			return rowraft.Errorf(rowraft.CodeCorrupt,
				"shard %d has staged %d rows with digest %x in %d chunks, the checkpoint has %d with %x in %d",
				f.shard.ID, reply.GetRows(), reply.GetDigest(), max(reply.GetNextSeq(), 1)-1, f.wantRows, f.wantDigest, f.seq)
		}
		d.Shards[f.shard.ID] = &rowraftv1.MetaRestoreShard{Shard: uint32(f.shard.ID), Chunks: f.seq, Rows: f.wantRows,
			Digest: f.wantDigest[:]}
		return nil
	})
	return d, err
}

// done sends the final reply.
func (op *restoration) done(epoch rowraft.TableEpoch, shards []*rowraftv1.RestoredShard) error {
	r := &rowraftv1.RestoreCheckpointReply{
		Phase: "done", Bytes: uint64(op.read.Load()), BytesTotal: uint64(op.chain.Bytes()), TableEpoch: uint64(epoch),
		Shards: shards,
	}
	for _, t := range op.manifest.Tables {
		row := &rowraftv1.RestoredTable{Name: t.Schema.Name, Id: uint64(t.Schema.ID), Written: t.Rows}
		if op.wants(t.Schema.ID) {
			row.Id, row.Restored = uint64(op.targets[t.Schema.ID]), op.counts.staged[t.Schema.ID]
		} else {
			row.Filtered = t.Rows
		}
		row.Failed = row.Written - row.Restored - row.Filtered
		r.Tables = append(r.Tables, row)
	}
	return op.stream.Send(r)
}
