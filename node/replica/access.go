package replica

import (
	"context"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// mayChange is mayTouch for segments that may be logged. Apply checks no identity, and a table
// that is unknown now may exist when the entry is applied. So mayChange refuses a table that is
// unknown in the newest state.
func (r *replica) mayChange(ctx context.Context, segments []byte) error {
	unknown, err := r.mayTouch(ctx, segments)
	if err != nil || unknown == 0 {
		return err
	}
	if err := r.mustServe(); err != nil {
		return err
	}
	if _, err := r.confirm(ctx); err != nil {
		return err
	}
	if unknown, err = r.mayTouch(ctx, segments); err == nil && unknown != 0 {
		err = rowraft.Errorf(rowraft.CodeTableNotFound, "shard %d has no table %#x: create it first", r.shard,
			uint64(unknown))
	}
	return err
}

// mayTouch refuses segments of tables that the caller's certificate does not allow. If the caller is limited to some
// tables, it returns one that this replica does not know, or 0: the read itself refuses such a table. A caller of
// mayTouch that waits before it reads calls mayTouch again, because the table may have been created meanwhile.
func (r *replica) mayTouch(ctx context.Context, segments []byte) (unknown rowraft.TableID, err error) {
	caller := rpc.CallerOf(ctx)
	if !caller.Limited() {
		return 0, nil
	}
	for len(segments) > 0 {
		seg, _, rest, err := wire.ParseSegment(segments)
		if err != nil {
			return 0, err
		}
		known, err := mayTouchTable(r.machine, caller, seg.Table)
		if err != nil {
			return 0, err
		}
		if !known {
			unknown = seg.Table
		}
		segments = rest
	}
	return unknown, nil
}

// mayTouchTable refuses a table that the caller's certificate does not allow. known is false for
// a table that this replica does not know; the read itself reports that.
func mayTouchTable(m *shard.Machine, caller *rpc.Caller, id rowraft.TableID) (known bool, err error) {
	if !caller.Limited() {
		return true, nil
	}
	t, known := m.Table(id)
	if !known {
		return false, nil
	}
	return true, caller.CheckTable(t.Name)
}
