package scheduler

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/meta"
)

// owns reports whether the caller may act in a run: as its owner, or as one who runs the cluster.
func owns(caller *rpc.Caller, r *rowraftv1.MetaRun) bool {
	if caller == nil || caller.Role == certs.Admin || caller.Role == certs.Operator {
		return true
	}
	owner := meta.OwnerOf(r)
	return owner == "" || owner == caller.Name
}

// checkOwner refuses a call for a job of another owner.
func (j *Jobs) checkOwner(ctx context.Context, job string) error {
	caller := rpc.CallerOf(ctx)
	if caller == nil {
		return nil
	}
	if _, err := j.s.leadingInSync(ctx); err != nil { // an old state may have an old owner
		return err
	}
	r := j.s.machine.RunOf(job)
	if r == nil || owns(caller, r) {
		return nil // the caller of checkOwner reports an absent job
	}
	return &rowraft.DeniedError{What: "job " + job + ", which is of " + meta.OwnerOf(r) + ",", Need: "admin or operator, or its owner's name", Have: caller.String()}
}

// infoFor describes a run. For a caller that does not own the run it omits the ids with which one can act in the run.
func (j *Jobs) infoFor(ctx context.Context, r *rowraftv1.MetaRun) *rowraftv1.JobInfo {
	info := j.s.jobInfo(r)
	if info == nil || owns(rpc.CallerOf(ctx), r) {
		return info
	}
	info = proto.CloneOf(info)
	info.Run = nil
	for _, m := range info.GetMembers() {
		m.Member.Incarnation, m.Member.Attending, m.Member.Instance = 0, 0, nil
	}
	return info
}
