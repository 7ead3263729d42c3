package checkpoints

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// What becomes of a call whose leader changes: an operation ends with the term in which it began. Its caller gets
// LeadershipLost and asks the next leader, which finds out here whether the earlier attempt took effect.

const (
	leadPatience = 10 * time.Second
	leadPoll     = 50 * time.Millisecond
	maxAttempts  = 64 // of one operation
)

// awaitLead returns the term in which this member leads, after it has applied what earlier leaders logged. It waits for
// an election. If another member leads, the error redirects the caller.
func (c *Service) awaitLead(ctx context.Context) (rowraft.Term, error) {
	for late := time.Now().Add(leadPatience); ; {
		term, err := c.lead.Leading()
		if err == nil {
			err = c.lead.InSync(ctx)
		}
		code := rowraft.CodeOf(err)
		if err == nil || code != rowraft.CodeNoLeader && code != rowraft.CodeStarting || time.Now().After(late) {
			return term, err
		}
		select {
		case <-time.After(leadPoll):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// decidedEarlier reports whether an earlier attempt of the call was decided. It returns an error if another restore was
// decided since the plan. The leader is in sync, so no earlier attempt can be decided after this, except one of this
// member, which ops excludes.
func (op *restoration) decidedEarlier() (bool, error) {
	was, now := op.req.GetAfter(), op.c.machine.Decided()
	if was == 0 || was == now {
		return false, nil
	}
	if err := op.choose(uint16(was)); err != nil {
		return false, err
	}
	epoch := was >> 16
	if !op.alone() {
		epoch++
	}
	// A later restore or drop of one of the tables takes it out of the source.
	sources, _ := op.c.machine.Sources()
	mine := epoch == now>>16 && slices.ContainsFunc(sources, func(from *rowraftv1.MetaRestored) bool {
		return from.GetId() == op.manifest.ID && !slices.ContainsFunc(op.tables, func(t rowraft.Schema) bool {
			return !slices.Contains(from.GetTables(), uint64(t.ID))
		})
	})
	if !mine {
		return false, rowraft.Errorf(rowraft.CodePrecondition,
			"restore %s: another restore was decided since the tables were listed, or one of its tables was dropped; "+
				"begin again", op.req.GetName())
	}
	return true, nil
}

// awaitEarlier waits until the scheduler has finished the restore of an earlier attempt, and sends the final reply. It
// returns err if that is not nil.
func (op *restoration) awaitEarlier(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	for op.c.machine.PendingRestore() != nil {
		if err := op.stillLeads(); err != nil {
			return err
		}
		select {
		case <-time.After(leadPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := op.useMap(); err != nil {
		return err
	}
	// The earlier attempt read all of it, and each shard compared the rows before the decision.
	op.read.Store(op.chain.Bytes())
	op.counts.staged = make(map[rowraft.TableID]uint64)
	for _, t := range op.manifest.Tables {
		op.counts.staged[t.Schema.ID] = t.Rows
	}
	shards := make([]*rowraftv1.RestoredShard, len(op.feeds))
	if err := op.each(func(f *feed) error {
		reply, err := f.step(ctx,
			&rowraftv1.RestoreShardRequest{Step: &rowraftv1.RestoreShardRequest_Look{Look: &rowraftv1.RestoreShardLook{}}})
		shards[f.shard.ID] = &rowraftv1.RestoredShard{Shard: uint32(f.shard.ID), Rows: reply.GetLiveRows(),
			Digest: reply.GetDigest()}
		return err
	}); err != nil {
		return fmt.Errorf("restore %s: it is done: %w", op.req.GetName(), op.blame(err))
	}
	return op.done(op.cluster.Epoch, shards)
}

// attemptID returns the id of a checkpoint that an attempt of the call makes.
func (op *creation) attemptID(attempt uint32) uuid.UUID {
	return uuid.NewSHA1(uuid.UUID(op.req.GetOperation()), []byte{byte(attempt)})
}

// chooseID draws the id of the checkpoint. Each attempt of a call has an id of its own, so that a late attempt deletes
// no file of a later one, and a later one knows those of the earlier ones.
func (op *creation) chooseID() error {
	switch n := len(op.req.GetOperation()); {
	case n == 0:
		op.id = uuid.New()
	case n != 16 || op.req.GetName() == "" || op.req.GetAttempt() >= maxAttempts:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"an operation of %d bytes, attempt %d, checkpoint name %q: want 16 bytes, an attempt below %d, and a name", n,
			op.req.GetAttempt(), op.req.GetName(), maxAttempts)
	default:
		op.id = op.attemptID(op.req.GetAttempt())
		for i := range op.req.GetAttempt() {
			op.earlier = append(op.earlier, op.attemptID(i))
		}
	}
	return nil
}

// wroteEarlier reports whether a file belongs to an earlier attempt; it does not know the manifest.
func (op *creation) wroteEarlier(e depot.Entry) bool {
	return slices.ContainsFunc(op.earlier, func(id uuid.UUID) bool { return wroteBy(id, op.name, e) })
}

// madeEarlier returns the checkpoint that an earlier attempt made, nil if there is none. there are the files of this
// name.
func (op *creation) madeEarlier(ctx context.Context, there []depot.Entry) (*checkpoint.Manifest, error) {
	if len(op.earlier) == 0 || !slices.ContainsFunc(there,
		func(e depot.Entry) bool { return strings.HasSuffix(e.Name, "/"+checkpoint.ManifestFile) }) {
		return nil, nil
	}
	chain, err := depot.Chain(ctx, op.depot, op.name)
	m := chain.Manifest()
	if err != nil || !slices.ContainsFunc(op.earlier, func(id uuid.UUID) bool { return m.ID == id.String() }) {
		return nil, err
	}
	if f, ok := missing(op.name, m, there); ok {
		return nil, rowraft.Errorf(rowraft.CodeNotFound, "file %s was deleted while the checkpoint was made", f)
	}
	return m, nil
}

// doneEarlier returns the final reply for a checkpoint that an earlier attempt made.
func (op *creation) doneEarlier(m *checkpoint.Manifest) (*rowraftv1.CreateCheckpointReply, error) {
	raw, err := m.Encode()
	if err != nil {
		return nil, err
	}
	return &rowraftv1.CreateCheckpointReply{Name: op.name, Phase: "done", Bytes: uint64(m.Bytes()),
		BytesTotal: uint64(m.Bytes()), Manifest: raw}, nil
}

// putManifest writes the manifest if there is none. It returns the checkpoint that exists then: m, or that of an
// earlier attempt that was late. The files of earlier attempts are deleted only after m exists: until then one of them
// may still become the checkpoint.
func (op *creation) putManifest(ctx context.Context, m *checkpoint.Manifest,
	raw []byte) (*checkpoint.Manifest, error) {
	failed := op.depot.PutNew(ctx, op.name+"/"+checkpoint.ManifestFile, raw)
	if len(op.earlier) == 0 || failed != nil && rowraft.CodeOf(failed) != rowraft.CodeAlreadyExists {
		return m, failed
	}
	there, err := op.depot.List(ctx, op.name)
	if err != nil {
		return nil, err
	}
	if failed != nil {
		made, err := op.madeEarlier(ctx, there)
		if err == nil && made == nil {
			err = failed
		}
		return made, err
	}
	var left []string
	for _, e := range there {
		if op.wroteEarlier(e) {
			left = append(left, e.Name)
		}
	}
	if err := op.depot.Remove(ctx, left...); err != nil {
		op.c.logger.Info("files of an earlier attempt stay next to a checkpoint", "checkpoint", op.name, "err", err)
	}
	return m, nil
}

// stillLeads returns an error if the term has ended in which the checkpoint was requested.
func (op *creation) stillLeads() error {
	if term, err := op.c.lead.Leading(); err != nil || term != op.term {
		return rowraft.Errorf(rowraft.CodeLeadershipLost, "the scheduler's leader changed while the checkpoint was made")
	}
	return nil
}

// blame returns err, or a change of the leader as its cause.
func (op *creation) blame(err error) error {
	if lost := op.stillLeads(); lost != nil && rowraft.CodeOf(err) != rowraft.CodeLeadershipLost {
		return fmt.Errorf("%w: %v", lost, err)
	}
	return err
}
