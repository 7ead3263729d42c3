package jobs

import (
	"context"
	"errors"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// SplitPlan is how the scheduler divides the training data. The zero value leaves that to the trainers.
type SplitPlan struct {
	Examples, SplitExamples int64
	Epochs                  int64 // 0: no end
	// ByRank assigns the splits to the ranks in turn, so that the assignment does not depend on the order of
	// requests. Only the splits of a worker that does not train go to any worker that asks.
	ByRank bool
	// InLog means that the workers' pushes carry the positions of [Split.Reached]: the shards then know how
	// far a lost worker had read.
	InLog bool
}

func (p *SplitPlan) toProto() *rowraftv1.JobData {
	return &rowraftv1.JobData{Examples: uint64(p.Examples), SplitExamples: uint64(p.SplitExamples),
		Epochs: uint64(p.Epochs), ByRank: p.ByRank, InLog: p.InLog}
}

// number returns the number of a split, counted over all epochs.
func (p *SplitPlan) number(epoch, split int64) uint64 {
	return uint64(epoch*((p.Examples+p.SplitExamples-1)/p.SplitExamples) + split)
}

// resumeAt makes a plan continue where the checkpoint's reading ended.
func resumeAt(d *rowraftv1.JobData, from *checkpoint.Splits) {
	d.Epoch, d.Split, d.AgainKnown, d.AgainMost = from.Epoch, from.Split, from.AgainKnown, from.AgainMost
	switch {
	case d.Epochs == 0:
	case d.Split > 0: // an epoch that was begun is read to its end, even if it is beyond the last one
		d.Epochs = max(d.Epochs, d.Epoch+1)
	default:
		d.Epochs = max(d.Epochs, d.Epoch)
	}
	for _, p := range from.Open {
		d.Open = append(d.Open, &rowraftv1.JobSplit{Epoch: p.Epoch, Split: p.Split, Offset: p.Offset})
	}
}

// Split is a range of the training data that a member reads.
type Split struct {
	Epoch, Number int64
	From, To      int64 // numbers of the first example and of the one after the last
	Offset        int64 // examples of the split that are already trained
	Reading       int64 // how many times a worker was given the split, from 1
}

// Reached returns the two positions that a push carries: the examples of p up to acknowledged are all
// acknowledged, and the push applies those up to applied. plan is the plan that p belongs to.
func (p *Split) Reached(plan *SplitPlan, acknowledged, applied int64) [2]rowraft.Position {
	a, b := rowraft.PositionIDs(plan.number(p.Epoch, p.Number), uint64(p.Reading))
	return [2]rowraft.Position{{ID: a, Offset: uint64(acknowledged)}, {ID: b, Offset: uint64(applied)}}
}

// ErrNoSplits means that every split of the data is read.
var ErrNoSplits = errors.New("no split of the data is left")

// ErrSplitsHeld means that other members hold all splits that are left. The scheduler may still free some of
// them.
var ErrSplitsHeld = errors.New("others have the splits of the data that are left")

// NextSplit requests a split to read. take numbers the requests of this member from 1; a request with the
// same number gets the same split again. ahead is the number of splits that the member holds and has not
// begun: near the end of the data the scheduler keeps the last splits for members that hold none. If no
// scheduler answers, NextSplit tries until ctx ends.
//
// Errors: ErrNoSplits; ErrSplitsHeld; CodeSessionExpired if this worker is no longer a member.
func (m *Member) NextSplit(ctx context.Context, take int64, ahead int) (p Split, err error) {
	err = jobsCall(ctx, m.control, "next split of the data", func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.NextSplit(ctx, &rowraftv1.NextSplitRequest{Identity: m.identity, Take: uint64(take),
			Ahead: uint32(ahead)})
		p = Split{int64(r.GetEpoch()), int64(r.GetSplit()), int64(r.GetFrom()), int64(r.GetTo()), int64(r.GetOffset()),
			int64(r.GetReading())}
		if r.GetDone() || r.GetWait() {
			p.Number = -1
			if r.GetWait() {
				p.Number = -2
			}
		}
		return err
	})
	switch {
	case err != nil:
		return Split{}, err
	case p.Number == -1:
		return Split{}, ErrNoSplits
	case p.Number == -2:
		return Split{}, ErrSplitsHeld
	}
	return p, nil
}

// EndSplit reports that every example of p is trained and acknowledged.
func (m *Member) EndSplit(ctx context.Context, p Split) error {
	return jobsCall(ctx, m.control, "end a split of the data", func(ctx context.Context, stub rowraftv1.JobsClient) error {
		_, err := stub.EndSplit(ctx, &rowraftv1.EndSplitRequest{Identity: m.identity, Epoch: uint64(p.Epoch),
			Split: uint64(p.Number)})
		return err
	})
}

// SplitReached is how far a member is in a split.
type SplitReached struct {
	Epoch, Number int64
	Acknowledged  int64 // examples up to the first one that is not acknowledged
	Read          int64
}

func reachedToProto(splits []SplitReached) (out []*rowraftv1.SplitReached) {
	for _, p := range splits {
		out = append(out, &rowraftv1.SplitReached{Epoch: uint64(p.Epoch), Split: uint64(p.Number),
			Acknowledged: uint64(p.Acknowledged), Read: uint64(p.Read)})
	}
	return out
}

// RepeatedExamples returns how many examples of the job's data were given to a worker after another worker
// had read them: a lower and an upper bound.
func RepeatedExamples(ctx context.Context, c *client.Client, job string) (least, most int64, err error) {
	err = jobsCall(ctx, c.Control(), "describe job "+job, func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: job})
		least, most = int64(r.GetJob().GetData().GetAgainKnown()), int64(r.GetJob().GetData().GetAgainMost())
		return err
	})
	return least, most, err
}

// Training returns the names of the workers that train in a job, by rank.
func Training(ctx context.Context, c *client.Client, job string) (workers []string, err error) {
	err = jobsCall(ctx, c.Control(), "describe job "+job, func(ctx context.Context, stub rowraftv1.JobsClient) error {
		r, err := stub.DescribeJob(ctx, &rowraftv1.DescribeJobRequest{Job: job})
		workers = nil
		for _, m := range r.GetJob().GetMembers() {
			if m.GetMember().GetState() == rowraftv1.MemberState_MEMBER_STATE_TRAINING {
				workers = append(workers, m.GetMember().GetWorker())
			}
		}
		return err
	})
	if rowraft.CodeOf(err) == rowraft.CodeNotFound {
		return nil, nil
	}
	return workers, err
}
