package jobs

import (
	"context"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// endedPoll and endedPolls bound how long ReportEnded waits until the scheduler has lost the connection of a process
// that has ended.
const (
	endedPoll  = 100 * time.Millisecond
	endedPolls = 20
	// justDone is how long after the end of a job the restart of a worker that died before may come.
	justDone = time.Minute
)

// ReportEnded tells the registry that training workers of a job have failed whose processes have ended, so that the
// job continues without them before their leases expire. ended reports whether the process of a worker has ended. A
// worker that is connected to the scheduler stays in the job: another host may have the name of this one.
//
// If the job was done a moment ago without an ended worker, ReportEnded returns the name of that worker. A process that
// enters under this name gets ErrDone; under another name it would train the data once more.
func ReportEnded(ctx context.Context, c *client.Client, job string,
	ended func(worker string) bool) (doneWithout string, err error) {
	for range endedPolls {
		connected, without, err := reportEnded(ctx, c.Control(), job, ended)
		if err != nil || !connected {
			return without, err
		}
		select {
		case <-time.After(endedPoll):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return "", nil
}

// reportEnded reports the ended workers that are not connected, and returns whether others are, and the one that the
// job was done without.
func reportEnded(ctx context.Context, c control, job string,
	ended func(worker string) bool) (connected bool, doneWithout string, err error) {
	var gone []*rowraftv1.LeaveRequest
	err = jobsCall(ctx, c, "describe job "+job, func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: job})
		gone, connected, doneWithout = nil, false, ""
		done := r.GetJob().GetState() == rowraftv1.JobState_JOB_STATE_DONE &&
			time.Since(time.Unix(0, int64(r.GetJob().GetIdleSinceNs()))) < justDone
		for _, info := range r.GetJob().GetMembers() {
			m := info.GetMember()
			if !ended(m.GetWorker()) {
				continue
			}
			switch m.GetState() {
			case rowraftv1.MemberState_MEMBER_STATE_LOST, rowraftv1.MemberState_MEMBER_STATE_FAILED:
				if done {
					doneWithout = m.GetWorker()
				}
			case rowraftv1.MemberState_MEMBER_STATE_TRAINING:
				if info.GetConnected() {
					connected = true
					continue
				}
				gone = append(gone, &rowraftv1.LeaveRequest{
					Identity: &rowraftv1.JobIdentity{Job: job, Run: r.GetJob().GetRun(), Rank: m.GetRank(),
						Incarnation: m.GetIncarnation()},
					State: rowraftv1.MemberState_MEMBER_STATE_FAILED, Reason: "its process has ended",
					Splits: info.GetBeat().GetSplits(), Steps: info.GetBeat().GetStep(),
				})
			}
		}
		return err
	})
	if rowraft.CodeOf(err) == rowraft.CodeNotFound {
		return false, "", nil
	}
	for _, q := range gone {
		if err == nil {
			err = jobsCall(ctx, c, "leave job "+job, func(ctx context.Context, stub rowraftv1.JobsClient) error {
				_, err := stub.Leave(ctx, q)
				return err
			})
		}
	}
	return connected, doneWithout, err
}
