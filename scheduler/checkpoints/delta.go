package checkpoints

import (
	"context"
	"fmt"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
)

// deltaBase is the checkpoint on which a delta is based. nil means a full checkpoint.
type deltaBase struct {
	name, id string
	epoch    rowraft.TableEpoch
	claim    *depot.Claim
}

func (b *deltaBase) getName() string {
	if b == nil {
		return ""
	}
	return b.name
}

func (b *deltaBase) getID() string {
	if b == nil {
		return ""
	}
	return b.id
}

func (b *deltaBase) parent() *checkpoint.Parent {
	if b == nil {
		return nil
	}
	return &checkpoint.Parent{Name: b.name, ID: b.id}
}

// chooseBase selects the base of a delta and claims it, so that it is not deleted.
func (op *creation) chooseBase(ctx context.Context) error {
	if !op.req.GetDelta() && op.req.GetBase() == "" {
		return nil
	}
	cluster := op.c.view.Map()
	if cluster == nil {
		return rowraft.Errorf(rowraft.CodeStarting, "the cluster has no shards yet")
	}
	found, err := depot.Scan(ctx, op.depot)
	if err != nil {
		return err
	}
	base, why := pickBase(found, op.req.GetBase(), cluster)
	if why != nil && op.req.GetBase() != "" {
		return why
	}
	if why != nil {
		op.note = fmt.Sprintf("full, not a delta: %v", why)
		return nil
	}
	op.base = &deltaBase{
		name: base.Name, id: base.Manifest.ID, epoch: base.Manifest.Epoch,
		claim: depot.NewClaim(op.depot, base.Name, base.Manifest.ID, op.name, op.id),
	}
	if err := op.base.claim.Keep(ctx); err != nil {
		return fmt.Errorf("%w%s", err, leftOver(op.base.claim.Drop(ctx)))
	}
	return nil
}

func leftOver(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf("; and what says that it is kept could not be removed: %v", err)
}

// pickBase returns the checkpoint of that name, or the newest one, that can be the base of a delta of the cluster.
// Otherwise it returns why there is none.
func pickBase(found []depot.Found, name string, cluster *clustermap.Map) (*depot.Found, error) {
	why := rowraft.Errorf(rowraft.CodeNotFound, "there is no checkpoint of this cluster to base it on")
	if name != "" {
		why = rowraft.Errorf(rowraft.CodeNotFound, "base %s: there is no such checkpoint", name)
	}
	for i := len(found) - 1; i >= 0; i-- { // newest first
		f := &found[i]
		if name != "" && f.Name != name {
			continue
		}
		unfit := fits(f, cluster)
		if unfit == nil {
			return f, nil
		}
		if name != "" || f.Manifest != nil && f.Manifest.Cluster == cluster.Cluster {
			why = fmt.Errorf("base %s: %w", f.Name, unfit)
		}
		if name == "" && f.Usable() && !f.Deleting && f.Manifest.Cluster == cluster.Cluster {
			break // a delta to an older one would soon be larger than a full checkpoint
		}
	}
	return nil, why
}

// fits returns an error if f cannot be the base of a delta of the cluster.
func fits(f *depot.Found, cluster *clustermap.Map) error {
	bad := func(format string, args ...any) error {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, format, args...)
	}
	switch m := f.Manifest; {
	case f.Err != nil:
		return f.Err
	case m == nil:
		return rowraft.Errorf(rowraft.CodeNotFound, "it is not complete")
	case f.Deleting:
		return rowraft.Errorf(rowraft.CodeNotFound, "it is being deleted")
	case m.Cluster != cluster.Cluster:
		return bad("it is of cluster %s, this is %s", m.Cluster, cluster.Cluster)
	case m.Epoch != cluster.Epoch:
		return bad("a restore has replaced the tables since: its table epoch is %d, the cluster's is %d",
			m.Epoch, cluster.Epoch)
	case f.Deltas >= checkpoint.MaxDeltas:
		return bad("it stands on %d deltas, and more there may not be in a row", f.Deltas)
	}
	return nil
}

// stands checks, after the manifest was written, that its files and its base still exist.
func (op *creation) stands(ctx context.Context, m *checkpoint.Manifest) error {
	found, err := op.depot.List(ctx, op.name)
	if err != nil {
		return err
	}
	if f, ok := missing(op.name, m, found); ok {
		return rowraft.Errorf(rowraft.CodeNotFound, "file %s was deleted while the checkpoint was made", f)
	}
	if op.base == nil {
		return nil
	}
	return op.base.claim.Check(ctx)
}
