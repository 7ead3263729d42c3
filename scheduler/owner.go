package scheduler

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/certs"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// ownerSetting is the setting of a run that names whose it is. The server writes it, from
// the certificate; since workers must agree on all settings, who has another name does
// not become a member. In plaintext there is none.
const ownerSetting = "owner"

// own writes who calls into the settings that a worker enters with.
func own(caller *rpc.Caller, q *rowraftv1.EnterRequest) {
	q.Settings = slices.DeleteFunc(q.Settings, func(x *rowraftv1.JobSetting) bool { return x.GetName() == ownerSetting })
	if caller != nil {
		q.Settings = append(q.Settings, &rowraftv1.JobSetting{Name: ownerSetting, Value: caller.Name})
	}
}

func ownerOf(r *rowraftv1.MetaRun) string {
	for _, x := range r.GetSettings() {
		if x.GetName() == ownerSetting {
			return x.GetValue()
		}
	}
	return ""
}

// owns reports whether who calls may act in a run: its owner, and who runs the cluster.
func owns(caller *rpc.Caller, r *rowraftv1.MetaRun) bool {
	if caller == nil || caller.Role == certs.Admin || caller.Role == certs.Operator {
		return true
	}
	owner := ownerOf(r)
	return owner == "" || owner == caller.Name
}

// checkOwner refuses what somebody does in another's job.
func (j *Jobs) checkOwner(ctx context.Context, job string) error {
	caller := rpc.CallerOf(ctx)
	if caller == nil {
		return nil
	}
	if _, err := j.s.leadingInSync(ctx); err != nil { // an old state may know an old owner
		return err
	}
	r := j.s.machine.runOf(job)
	if r == nil || owns(caller, r) {
		return nil // what there is not, whoever looks for it says
	}
	return &rowraft.DeniedError{What: "job " + job + ", which is of " + ownerOf(r) + ",", Need: "admin or operator, or its owner's name", Have: caller.String()}
}

// infoFor is what is known of a run, without what lets one act in it for who may not.
func (j *Jobs) infoFor(ctx context.Context, r *rowraftv1.MetaRun) *rowraftv1.JobInfo {
	info := j.s.jobInfo(r)
	if info == nil || owns(rpc.CallerOf(ctx), r) {
		return info
	}
	info = proto.CloneOf(info)
	info.Run = nil
	for _, m := range info.GetMembers() {
		m.Member.Incarnation, m.Member.Instance = 0, nil
	}
	return info
}
